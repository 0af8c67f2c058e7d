"""One configuration, loaded and warm, that runs its units of work in turn and tells what it answered."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from llm_perf_opt.analysis.improve.costs import BatchPass, UnitPass
from llm_perf_opt.analysis.improve.outputs import Answers, earliest, first_difference
from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.workloads.base import Sample, WorkloadConfig
from llm_perf_opt.workloads.engine.compilations import CompilationLog
from llm_perf_opt.workloads.engine.driver import batches_of, build_engine, run_workload

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.config.schema import AppConfig
    from llm_perf_opt.workloads.engine.engine import Engine
    from llm_perf_opt.workloads.engine.results import PassResult, WorkloadResult

Patch = Callable[[Any], Any]
"""Changes a built model in place, or returns another one."""
MOST_LOGIT_BYTES = 64 << 20
"""Logits kept of one side for the output check."""
MOST_PERPLEXITY_TOKENS = 4096


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
        """Return where a pass first answered otherwise than the pass whose answers were compared."""
        found = None
        for sample, ids in zip(group, result.token_ids, strict=True):
            found = earliest(found, first_difference(self.answers.tokens.get(sample.id, ids), ids))
        return found

    @property
    def compiled(self) -> int:
        """Compilations of this side so far; 0 where nothing is compiled."""
        return 0 if self.engine.compilations is None else self.engine.compilations.count


def warm_side(
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
        # Who patches a model may compile a part of it.
        engine.compilations = engine.compilations or CompilationLog()
    groups = batches_of(engine, samples, workload.infer)
    return WarmSide(
        letter, engine, groups, workload.threads or default_threads, default_threads, _energy_meter(workload)
    )


def answer(side: WarmSide, *, checks_text: bool) -> None:
    """Warm up, then run every sample once and keep what it answered; nothing of it counts as measured."""
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
    # What could not be read was left out, with the reason in the log.
    left = ([sample for sample in group if sample.id in side.answers.tokens] for group in side.groups)
    side.groups = [group for group in left if group]
    if checks_text and "vision" not in side.engine.adapter.phases:
        _perplexities(side)


def logit_differences(a: WarmSide, b: WarmSide) -> dict[str, list[float]]:
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
        tpot_s=median(times.token_s) if times.token_s else None,
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
        if used + rows.nbytes <= MOST_LOGIT_BYTES:
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
    from llm_perf_opt.workloads.outputs.scoring import edit_distance_ratio

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
    left = MOST_PERPLEXITY_TOKENS
    for sample in (sample for group in side.groups for sample in group):
        batch = side.engine.prepare([sample])
        ids, positions = batch.inputs["input_ids"], batch.inputs["positions"]
        mask = batch.inputs.get("mask")
        if mask is not None:  # what prompts were filled up with is no text
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
    """Return what reads the device's energy counter; without one, nothing is known."""
    from llm_perf_opt.hardware.sensors.find import MonitoredDevice, find_sensor

    sensor = find_sensor(MonitoredDevice(workload.device))
    if isinstance(sensor, str):
        return lambda: None
    return lambda: sensor.read().energy_j
