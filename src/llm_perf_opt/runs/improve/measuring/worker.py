"""The process that measures: both sides in turn, or one side that waits for its turns.

Started as ``python -m llm_perf_opt.runs.improve.measuring.worker FOLDER both|a|b``. A remedy may crash, use up the memory or never
return: then this process does, and the search goes on without it. All that is measured is in files at once.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.analysis.improve.costs import UnitPass
from llm_perf_opt.analysis.improve.outputs import check_outputs
from llm_perf_opt.core.clock import now_text
from llm_perf_opt.core.console.logs import console_logging
from llm_perf_opt.core.errors import ConfigError, LlmPerfError
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.model.codec import save_json, to_plain
from llm_perf_opt.process.runtime_env import prepare_process
from llm_perf_opt.runs.improve.measuring.alternate import GivenUpError, take_turns, units_of
from llm_perf_opt.runs.improve.measuring.processes import OUT_OF_MEMORY
from llm_perf_opt.runs.improve.spec import (
    ANSWERS,
    CHECK,
    FAILURE,
    LOGITS,
    PASSES,
    READY,
    SIDES,
    STOP,
    TURN,
    Letter,
    Spec,
    load_spec,
)
from llm_perf_opt.workloads.process_settings import apply_process_settings
from llm_perf_opt.workloads.shortage import is_out_of_memory

if TYPE_CHECKING:
    from llm_perf_opt.runs.improve.measuring.side import Patch, WarmSide

_WAIT_S = 0.005
_PARENT_CHECK_S = 1.0
# What torch, transformers and a user's patch raise when a remedy does not work here: each is the remedy's failure.
_REMEDY_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ImportError, OSError, MemoryError,
                  AssertionError, NotImplementedError, ArithmeticError)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the folder's specification says; a failure is written down, with the reason."""
    folder_text, mode = [*(sys.argv[1:] if argv is None else argv), "", ""][:2]
    folder = Path(folder_text)
    console_logging()
    prepare_process()
    try:
        spec = load_spec(folder)
        if mode == "both":
            run_both_sides(spec, folder)
        else:
            serve_turns(spec, folder, "a" if mode == "a" else "b")
    except LlmPerfError as error:
        return _failed(folder, mode, type(error).__name__, error.message)
    except _REMEDY_ERRORS as error:
        return _failed(folder, mode, *failure_words(error))
    return 0


def run_both_sides(spec: Spec, folder: Path, patch: Patch | None = None) -> None:
    """Load both sides, compare their answers, then take turns until the question is settled or the time is over."""
    from llm_perf_opt.runs.improve.measuring.side import answer, logit_differences

    started = (now_text(), time.monotonic())
    a = _load("a", spec, None)
    b = _load("b", spec, patch or _patch(spec), lender=a)
    for side in (a, b):
        answer(side, checks_text=spec.checks_text)
        save_json(folder / ANSWERS.format(side.letter), side.answers)
    save_json(folder / CHECK, check_outputs(a.answers, b.answers, logit_differences(a, b)))
    for side in (a, b):
        side.logits.clear()
    if set(a.answers.tokens) != set(b.answers.tokens):
        return  # other work: who reads the answers refuses it
    units = dict(zip(SIDES, units_of([_ids(a), _ids(b)]), strict=True))
    with (folder / PASSES).open("a", encoding="utf-8") as stream:

        def run(letter: Letter, unit: int, number: int) -> UnitPass:
            done = (a if letter == "a" else b).run_unit(units[letter], unit, number)
            stream.write(json.dumps(to_plain(done)) + "\n")
            stream.flush()
            return done

        take_turns(spec, len(units["a"]), run)
    for side in (a, b):
        _write_side(side, spec, folder, started)


def serve_turns(spec: Spec, folder: Path, letter: Letter) -> None:
    """Load one side, say that it is ready, and run a unit whenever it is this side's turn."""
    import numpy as np

    from llm_perf_opt.runs.improve.measuring.side import answer

    started = (now_text(), time.monotonic())
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
    """Leave a side's timings as a run of its own, for the page that compares both."""
    from llm_perf_opt.runs.compare.together import write_side

    if side.result is not None and all(batch.repeats for batch in side.result.batches):
        letter: Letter = "a" if side.letter == "a" else "b"
        command = ["llm-perf-opt", "improve", *spec.overrides(letter)]
        seconds = time.monotonic() - started[1]
        write_side(side.result, folder / letter, command, f"improve-{spec.seed}", (started[0], seconds))


def _turns(folder: Path, letter: Letter) -> Any:
    """Yield what is asked of this side, until it is told to stop or nobody is left to ask."""
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
    """Build a side; from a lender it borrows the weights, unless it may write to them."""
    import torch

    from llm_perf_opt.runs.improve.configurations import can_share_weights, composed
    from llm_perf_opt.runs.improve.measuring.side import warm_side
    from llm_perf_opt.workloads.models.checkpoints.shared_weights import weights_from

    baseline, config = composed(spec.a), composed(spec.overrides(letter))
    apply_process_settings(config.run)
    shared = lender is not None and patch is None and can_share_weights(baseline, config)
    # As many samples as were asked for, and a whole batch of the baseline's.
    most_samples = max(spec.most_samples, baseline.infer.batch_size)
    default_threads = lender.default_threads if lender is not None else torch.get_num_threads()
    with weights_from(lender.engine.model if lender is not None and shared else None):
        side = warm_side(
            letter, config, most_samples=most_samples, default_threads=default_threads, patch=patch
        )
    _refuse_short_batches(side, config.infer.batch_size, baseline.infer.batch_size)
    return side


def _refuse_short_batches(side: WarmSide, size: int, baseline_size: int) -> None:
    """Refuse a larger batch that the samples cannot fill: what is measured would not be what is kept."""
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


def failure_words(error: BaseException) -> tuple[str, str]:
    """Return what kind of failure an error is, and what it says in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kind = type(error).__name__
    if isinstance(error, GivenUpError):
        kind = "given up"
    elif is_out_of_memory(error):
        kind = OUT_OF_MEMORY
    return kind, (lines[0] if lines else "no message")[:300]


if __name__ == "__main__":
    sys.exit(main())
