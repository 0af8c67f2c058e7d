"""The measuring process: both sides in turn, or one side that waits for its turns.

Started as ``python -m llm_perf_opt.improve.worker FOLDER both|a|b``. A remedy may crash, use up the memory or never
return: then only this process is lost, and the search continues. Measurements are written to files immediately.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.console.logs import console_logging
from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.core.errors import ConfigError, InputError, LlmPerfError
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.core.units import timestamp
from llm_perf_opt.improve.costs import BatchPass, UnitPass
from llm_perf_opt.improve.measuring import (
    ANSWERS,
    CHECK,
    FAILURE,
    LOGITS,
    OUT_OF_MEMORY,
    PASSES,
    READY,
    SIDES,
    STOP,
    TURN,
    GivenUpError,
    Letter,
    Spec,
    load_spec,
    take_turns,
    units_of,
)
from llm_perf_opt.improve.outputs import Answers, check_outputs, earliest, first_difference
from llm_perf_opt.process.environment import prepare_process
from llm_perf_opt.summary.codec import save_json, to_plain
from llm_perf_opt.workloads.base import Sample, WorkloadConfig
from llm_perf_opt.workloads.devices import is_out_of_memory
from llm_perf_opt.workloads.engine.compilations import CompilationLog
from llm_perf_opt.workloads.engine.driver import batches_of, build_engine, run_workload
from llm_perf_opt.workloads.rank_group import apply_process_settings

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import AppConfig
    from llm_perf_opt.workloads.engine.engine import Engine
    from llm_perf_opt.workloads.engine.results import PassResult, WorkloadResult

_WAIT_S = 0.005
_PARENT_CHECK_S = 1.0
# Exceptions of torch, transformers and a user's patch: each counts as a failure of the remedy.
_REMEDY_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ImportError, OSError, MemoryError,
                  AssertionError, NotImplementedError, ArithmeticError)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure according to the folder's specification; a failure is recorded with its reason."""
    folder_text, mode = [*(sys.argv[1:] if argv is None else argv), "", ""][:2]
    folder = Path(folder_text)
    console_logging()
    prepare_process()
    try:
        spec = load_spec(folder)
        if mode == "both":
            run_both_sides(spec, folder)
        else:
            _serve_turns(spec, folder, "a" if mode == "a" else "b")
    except LlmPerfError as error:
        return _failed(folder, mode, type(error).__name__, error.message)
    except _REMEDY_ERRORS as error:
        return _failed(folder, mode, *describe_failure(error))
    return 0


def run_both_sides(spec: Spec, folder: Path, patch: Patch | None = None) -> None:
    """Load both sides, compare their answers, then take turns until there is a verdict or the time is over."""

    started = (timestamp(), time.monotonic())
    a = _load("a", spec, None)
    b = _load("b", spec, patch or _patch(spec), lender=a)
    for side in (a, b):
        answer(side, checks_text=spec.checks_text)
        save_json(folder / ANSWERS.format(side.letter), side.answers)
    save_json(folder / CHECK, check_outputs(a.answers, b.answers, _logit_differences(a, b)))
    for side in (a, b):
        side.logits.clear()
    if set(a.answers.tokens) != set(b.answers.tokens):
        return  # different work: rejected when the answers are read
    units = dict(zip(SIDES, units_of([_ids(a), _ids(b)]), strict=True))
    with (folder / PASSES).open("a", encoding="utf-8") as stream:

        def run(letter: Letter, unit: int, number: int) -> UnitPass:
            done = (a if letter == "a" else b).run_unit(units[letter], unit, number)
            stream.write(json.dumps(to_plain(done)) + "\n")
            stream.flush()
            return done

        take_turns(spec.within(time.monotonic() - started[1]), len(units["a"]), run)
    for side in (a, b):
        _write_side(side, spec, folder, started)


def _serve_turns(spec: Spec, folder: Path, letter: Letter) -> None:
    """Load one side, signal readiness, and run a unit at each turn."""
    import numpy as np

    started = (timestamp(), time.monotonic())
    side = _load(letter, spec, _patch(spec) if letter == "b" else None)
    answer(side, checks_text=spec.checks_text)
    save_json(folder / ANSWERS.format(letter), side.answers)
    kept: dict[str, Any] = {name: np.stack(rows) for name, rows in side.logits.items() if rows}
    np.savez(folder / LOGITS.format(letter), **kept)
    side.logits.clear()
    atomic_write_json(folder / READY.format(letter), {"groups": _ids(side)})
    with (folder / PASSES).open("a", encoding="utf-8") as stream:
        for turn in _turns(folder, letter):
            done = side.run_unit([turn["batches"]], 0, turn["round"])
            done.unit = turn["unit"]
            stream.write(json.dumps(to_plain(done)) + "\n")
            stream.flush()
    _write_side(side, spec, folder, started)


def _ids(side: WarmSide) -> list[list[str]]:
    return [[sample.id for sample in group] for group in side.groups]


def _write_side(side: WarmSide, spec: Spec, folder: Path, started: tuple[str, float]) -> None:
    """Write a side's timings as a separate run, for the page that compares both."""
    from llm_perf_opt.compare.measure import write_side

    if side.result is not None and all(batch.repeats for batch in side.result.batches):
        letter: Letter = "a" if side.letter == "a" else "b"
        command = ["llm-perf-opt", "improve", *spec.overrides(letter)]
        seconds = time.monotonic() - started[1]
        write_side(
            side.result, folder / letter, command, f"improve-{spec.settings.seed}", (started[0], seconds)
        )


def _turns(folder: Path, letter: Letter) -> Any:
    """Yield the requested units until a stop is requested or the parent process is gone."""
    parent, last, looked = os.getppid(), 0, time.monotonic()
    path = folder / TURN.format(letter)
    while not (folder / STOP).exists():
        if path.exists():
            turn = json.loads(path.read_text(encoding="utf-8"))
            if turn["number"] > last:
                last = turn["number"]
                yield turn
                continue
        time.sleep(_WAIT_S)
        if time.monotonic() - looked > _PARENT_CHECK_S:
            looked = time.monotonic()
            if os.getppid() != parent:
                return


def _load(letter: Letter, spec: Spec, patch: Patch | None, lender: WarmSide | None = None) -> WarmSide:
    """Build a side; it shares the weights of ``lender`` unless it may write to them."""
    import torch

    from llm_perf_opt.improve.configurations import can_share_weights, composed
    from llm_perf_opt.workloads.models.weights import weights_from

    baseline, config = composed(spec.a), composed(spec.overrides(letter))
    apply_process_settings(config.run)
    shared = lender is not None and patch is None and can_share_weights(baseline, config)
    # As many samples as requested, and a whole batch of the baseline's.
    most_samples = max(spec.settings.most_samples, baseline.infer.batch_size)
    default_threads = lender.default_threads if lender is not None else torch.get_num_threads()
    with weights_from(lender.engine.model if lender is not None and shared else None):
        side = _warm_side(
            letter, config, most_samples=most_samples, default_threads=default_threads, patch=patch
        )
    _refuse_short_batches(side, config.infer.batch_size, baseline.infer.batch_size)
    return side


def _refuse_short_batches(side: WarmSide, size: int, baseline_size: int) -> None:
    """Reject a batch larger than the number of samples."""
    count = sum(len(group) for group in side.groups)
    if count < size != baseline_size:
        raise ConfigError(
            f"infer.batch_size={size} was not measured: there are {count} samples",
            hint=f"measure more of them: --samples {size}",
            key="infer.batch_size",
        )


def _patch(spec: Spec) -> Patch | None:
    """Import the function that patches B's model."""
    if spec.patch is None:
        return None
    module, _, name = spec.patch.partition(":")
    found: Patch = getattr(importlib.import_module(module), name)
    return found


def _failed(folder: Path, mode: str, kind: str, message: str) -> int:
    atomic_write_json(folder / FAILURE, {"mode": mode, "kind": kind, "message": message})
    return 1


def describe_failure(error: BaseException) -> tuple[str, str]:
    """Return the kind of failure and a one-line message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kind = type(error).__name__
    if isinstance(error, GivenUpError):
        kind = "given up"
    elif is_out_of_memory(error):
        kind = OUT_OF_MEMORY
    return kind, (lines[0] if lines else "no message")[:300]


# One configuration, loaded and warm, that runs its units of work in turn and records its answers.


Patch = Callable[[Any], Any]
"""Changes a built model in place, or returns another one."""
_MOST_LOGIT_BYTES = 64 << 20
"""Logits kept of one side for the output check."""
_MOST_PERPLEXITY_TOKENS = 4096


@dataclass(slots=True)
class WarmSide:
    """One side of an experiment."""

    letter: str
    engine: Engine
    groups: list[list[Sample]]
    threads: int
    default_threads: int
    """Those of the process before a side set any."""
    energy: Callable[[], float | None]
    answers: Answers = field(default_factory=Answers)
    logits: dict[str, list[Any]] = field(default_factory=dict)
    result: WorkloadResult | None = None
    """The timings of all passes, as a run keeps them."""

    def run_unit(self, units: Sequence[Sequence[int]], unit: int, number: int) -> UnitPass:
        """Run the batches of one unit once."""
        import torch

        torch.set_num_threads(self.threads)
        before = self.compiled
        done = UnitPass(self.letter, number, unit)
        for index in units[unit]:
            started = self.energy()
            _, result = self.engine.run_sample(self.groups[index])
            ended = self.energy()
            if self.result is not None:
                self.result.batches[index].repeats.append(result.timings)
            done.first_other = earliest(done.first_other, self._first_other(self.groups[index], result))
            joules = None if started is None or ended is None else ended - started
            done.batches.append(_batch_pass(self.groups[index], result, joules))
        done.compiled = self.compiled - before
        return done

    def _first_other(self, group: Sequence[Sample], result: PassResult) -> int | None:
        """Return the first position at which a pass differs from the compared pass."""
        found = None
        for sample, ids in zip(group, result.token_ids, strict=True):
            found = earliest(found, first_difference(self.answers.tokens.get(sample.id, ids), ids))
        return found

    @property
    def compiled(self) -> int:
        """Compilations of this side so far; 0 where nothing is compiled."""
        return 0 if self.engine.compilations is None else self.engine.compilations.count


def _warm_side(
    letter: str, config: AppConfig, *, most_samples: int, default_threads: int, patch: Patch | None = None
) -> WarmSide:
    """Build the model of a configuration and choose its samples; without a number of its own it has the process's threads."""
    from llm_perf_opt.workloads.registry import load_dataset
    from llm_perf_opt.workloads.setup import workload_config

    workload = workload_config(config, repeats=1)
    samples = list(itertools.islice(load_dataset(workload.dataset).samples(), most_samples))
    if not samples:
        raise InputError("the data set gave no samples", hint="check dataset.root and dataset.sampling")
    engine = build_engine(workload, LogProgress())
    if patch is not None:
        engine.model = patch(engine.model) or engine.model
        # Patching code may compile a part of the model.
        engine.compilations = engine.compilations or CompilationLog()
    groups = batches_of(engine, samples, workload.infer)
    return WarmSide(
        letter, engine, groups, workload.threads or default_threads, default_threads, _energy_meter(workload)
    )


def answer(side: WarmSide, *, checks_text: bool) -> None:
    """Warm up, then run every sample once and keep the answers; this pass is not measured."""
    import torch

    torch.set_num_threads(side.threads)
    workload, samples = side.engine.workload, [sample for group in side.groups for sample in group]
    with _recorded(side.engine, side.logits):
        side.result = run_workload(workload, samples, engine=side.engine, progress=LogProgress())
    for batch in side.result.batches:
        batch.repeats.clear()
    side.result.measuring = None
    for given in side.result.samples:
        name, reference = given.sample.id, given.sample.reference
        side.answers.tokens[name] = list(given.token_ids)
        side.answers.prompt_tokens[name] = given.prompt_tokens
        if checks_text and reference is not None:
            side.answers.distances[name] = _distance(side.engine, given.token_ids, reference)
    # Unreadable samples were skipped, with the reason in the log.
    left = ([sample for sample in group if sample.id in side.answers.tokens] for group in side.groups)
    side.groups = [group for group in left if group]
    if checks_text and "vision" not in side.engine.adapter.phases:
        _perplexities(side)


def _logit_differences(a: WarmSide, b: WarmSide) -> dict[str, list[float]]:
    """Return the largest difference at every position that both sides kept."""
    return array_differences(a.logits, b.logits)


def array_differences(a: dict[str, list[Any]], b: dict[str, list[Any]]) -> dict[str, list[float]]:
    """Compare kept logits, position by position; other vocabularies cannot be compared."""
    import numpy as np

    found: dict[str, list[float]] = {}
    for name in a.keys() & b.keys():
        both = zip(a[name], b[name], strict=False)
        found[name] = [
            float(np.max(np.abs(one - two))) if one.shape == two.shape else float("nan") for one, two in both
        ]
    return found


def _batch_pass(group: Sequence[Sample], result: PassResult, joules: float | None) -> BatchPass:
    times = result.timings
    steps = len(times.token_s)
    return BatchPass(
        samples=len(group),
        ttft_s=times.first_token_s() or 0.0,
        decode_s=times.decode_s or 0.0,
        steps=steps,
        tokens=sum(len(ids) for ids in result.token_ids),
        tpot_s=times.decode_s / steps if times.decode_s and steps else None,
        energy_j=joules,
        sample_ids=[sample.id for sample in group],
    )


@contextlib.contextmanager
def _recorded(engine: Engine, kept: dict[str, list[Any]]) -> Iterator[None]:
    """Keep the logits of every position of the last pass over each batch, as far as there is room."""
    adapter: Any = engine.adapter
    own = {name: vars(adapter).get(name) for name in ("prefill", "decode_step")}
    prefill, decode = adapter.prefill, adapter.decode_step

    def keep(names: Sequence[str], logits: torch.Tensor) -> torch.Tensor:
        rows = logits.detach().float().cpu().numpy()
        used = sum(row.nbytes for values in kept.values() for row in values)
        if used + rows.nbytes <= _MOST_LOGIT_BYTES:
            for name, row in zip(names, rows, strict=True):
                kept.setdefault(name, []).append(row.copy())
        return logits

    def first(model: Any, batch: Any, *more: Any) -> torch.Tensor:
        for name in batch.sample_ids:
            kept[name] = []
        return keep(batch.sample_ids, prefill(model, batch, *more))

    def next_one(model: Any, batch: Any, *more: Any) -> torch.Tensor:
        return keep(batch.sample_ids, decode(model, batch, *more))

    adapter.prefill, adapter.decode_step = first, next_one
    try:
        yield
    finally:
        for name, before in own.items():
            delattr(adapter, name) if before is None else setattr(adapter, name, before)


def _distance(engine: Engine, ids: Sequence[int], reference: str) -> float:
    from llm_perf_opt.workloads.outputs.records import edit_distance_ratio

    return edit_distance_ratio(engine.adapter.text(ids, skip_special_tokens=True), reference)


def _perplexities(side: WarmSide) -> None:
    """Score the prompts by the model itself, one by one, up to a number of tokens."""
    import torch

    adapter: Any = side.engine.adapter
    if not all(hasattr(adapter, name) for name in ("forward", "new_state", "narrowed")):
        side.answers.reason = f"adapter {adapter.name} cannot score a prompt"
        return
    if "encode" in adapter.phases:
        side.answers.reason = "the prompt of an encoder-decoder is read by its encoder: it has no perplexity"
        return
    left = _MOST_PERPLEXITY_TOKENS
    for sample in (sample for group in side.groups for sample in group):
        batch = side.engine.prepare([sample])
        ids, positions = batch.inputs["input_ids"], batch.inputs["positions"]
        mask = batch.inputs.get("mask")
        if mask is not None:  # padding is not text
            ids, positions = (each[..., -int(mask.sum()) :] for each in (ids, positions))
        if ids.shape[1] < 2 or ids.shape[1] > left:
            continue
        left -= ids.shape[1]
        with torch.no_grad():
            logits = adapter.forward(
                side.engine.model,
                adapter.narrowed(adapter.new_state(side.engine.model)),
                input_ids=ids,
                attention_mask=None,
                position_ids=positions,
            ).logits
        scores = torch.log_softmax(logits[0, :-1].float(), dim=-1)
        chosen = scores.gather(1, ids[0, 1:, None])
        side.answers.log_likelihoods[sample.id] = [float(chosen.sum()), float(chosen.numel())]


def _energy_meter(workload: WorkloadConfig) -> Callable[[], float | None]:
    """Return the reader of the device's energy counter, if there is one."""
    from llm_perf_opt.hardware.sensors.sampler import MonitoredDevice, find_sensor

    sensor = find_sensor(MonitoredDevice(workload.device))
    if isinstance(sensor, str):
        return lambda: None
    return lambda: sensor.read().energy_j


if __name__ == "__main__":
    sys.exit(main())
