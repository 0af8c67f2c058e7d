"""Remedies that crash, hang, use up the memory, compile for ever, do other work; a machine that is too noisy."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt import try_remedy
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.improve import propose
from llm_perf_opt.improve.experiment import run_experiment
from llm_perf_opt.improve.measuring import FAILURE, failure_of, not_warm, read_passes
from llm_perf_opt.improve.worker import describe_failure
from llm_perf_opt.process.launch import run_process
from llm_perf_opt.workloads.engine.engine import Engine
from tests.unit.improve.tiny import FEW, spec
from tests.warm import warm_python


def crash(_: Any) -> None:
    os.abort()


def hang(_: Any) -> None:
    time.sleep(600)


def hang_while_measured(model: Any) -> None:
    """Two samples with three tokens each are answered; a later pass never ends."""
    calls = [0]

    def then() -> None:
        calls[0] += 1
        if calls[0] > 8:
            time.sleep(600)

    after_each_call(model, then)


def after_each_call(model: Any, then: Any) -> None:
    plain = model.forward

    def forward(*given: Any, **named: Any) -> Any:
        then()
        return plain(*given, **named)

    model.forward = forward


def test_a_patch_that_raises_is_a_failed_trial() -> None:
    def broken(_: Any) -> None:
        raise ValueError("layer 99")

    trial = try_remedy([], patch=broken, **FEW)
    assert (trial.decision, trial.reason) == ("failed", "ValueError: layer 99")


def test_a_patch_may_raise_what_it_likes() -> None:
    class OddError(Exception):
        pass

    def odd(_: Any) -> None:
        raise OddError("mine")

    trial = try_remedy([], patch=odd, **FEW)
    assert (trial.decision, trial.reason) == ("failed", "OddError: mine")


@pytest.mark.parametrize(
    ("baseline", "proposed"),
    [([], ["run.env.MALLOC_ARENA_MAX='2'"]), (["run.env.MALLOC_ARENA_MAX='2'"], [])],
)
def test_a_function_of_this_process_has_no_settings_of_another(
    baseline: list[str], proposed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process was started without the variable: neither side would be what it says."""
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    trial = try_remedy(
        proposed, patch=lambda model: model, **{**FEW, "baseline": [*FEW["baseline"], *baseline]}
    )
    assert trial.decision == "failed"
    assert "run.env" in trial.reason and "'package.module:function'" in trial.reason


def test_files_that_cannot_be_read_are_a_failed_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: Any) -> None:
        raise InputError("output.json: torn")

    monkeypatch.setattr(propose, "run_both_sides", lambda *_: None)
    monkeypatch.setattr(propose, "read_outcome", unreadable)
    trial = try_remedy([], patch=lambda model: model, **FEW)
    assert (trial.decision, trial.reason) == ("failed", "InputError: output.json: torn")


def test_a_second_trial_in_the_same_folder_has_its_own_passes(tmp_path: Path) -> None:
    trials = [try_remedy([], patch=lambda model: model, out=tmp_path, **FEW) for _ in range(2)]
    assert [trial.measured and trial.measured.blocks for trial in trials] == [8, 8]
    assert len(read_passes(tmp_path)) == 16


def test_a_crash_is_recorded(tmp_path: Path) -> None:
    with warm_python():
        outcome = run_experiment(spec(f"{__name__}:crash"), tmp_path / "x")
    assert outcome.failure is not None
    assert "signal 6" in outcome.failure
    assert outcome.measured is None


def test_memory_that_runs_out_is_reported() -> None:
    trial = try_remedy(
        [], patch=lambda model: after_each_call(model, lambda: torch.empty(1 << 60, dtype=torch.uint8)), **FEW
    )
    assert trial.decision == "failed"
    assert "memory" in trial.reason
    assert "prefill" in trial.reason


def test_a_process_that_the_system_kills_was_too_large(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    done = run_process(argv, log_dir=tmp_path, name="x", timeout_s=60)
    failure = failure_of(done, tmp_path)
    assert failure is not None and failure.kind == "memory" and "signal 9" in failure.message


def test_kinds_of_failure_come_from_the_worker_and_not_from_its_messages(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "raise SystemExit(1)"]
    done = run_process(argv, log_dir=tmp_path, name="x", timeout_s=60)
    for error, kind in (
        (torch.OutOfMemoryError("no room"), "memory"),
        (ValueError("out of memory is only a phrase here"), "other"),
    ):
        found, message = describe_failure(error)
        written = {"mode": "b", "kind": found, "message": message}
        (tmp_path / FAILURE).write_text(json.dumps(written), encoding="utf-8")
        failure = failure_of(done, tmp_path)
        assert failure is not None and failure.kind == kind and failure.message.startswith("side B: ")


@pytest.mark.slow
def test_what_does_not_end_is_given_up(tmp_path: Path) -> None:
    outcome = run_experiment(spec(f"{__name__}:hang"), tmp_path / "x", warm_up_s=4.0)
    assert outcome.failure is not None
    assert outcome.failure == not_warm(4.0) and outcome.measured is None


@pytest.mark.slow
def test_a_pass_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    wanted = spec(f"{__name__}:hang_while_measured", limit_s=500.0)
    with warm_python():
        outcome = run_experiment(wanted, tmp_path / "x", least_pass_s=2.0)
    assert outcome.failure is not None
    # It was warm, so that the limit is one of passes, and not that of warming up.
    assert (
        re.search(r"\bpass\b.*\b\d+ s$", outcome.failure)
        and not_warm(0).partition("0 s")[0] not in outcome.failure
    )


@pytest.fixture
def compiling() -> Iterator[None]:
    """As many compilations as one likes, and none left behind."""
    with torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=10_000):
        yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("compiling")
def test_what_compiles_for_ever_is_given_up() -> None:
    """Every call of the model meets a number it has not seen, and compiles for it."""
    calls = [0]

    def scaled(values: torch.Tensor, by: int) -> torch.Tensor:
        return values * by

    compiled = torch.compile(scaled, backend="eager", dynamic=False)

    def step() -> None:
        calls[0] += 1
        compiled(torch.ones(1), calls[0])

    trial = try_remedy([], patch=lambda model: after_each_call(model, step), **{**FEW, "most_blocks": 40})
    assert trial.decision == "failed"
    assert re.search(r"side B compiles\b.*\b\d+\b", trial.reason)
    assert trial.measured is not None
    assert trial.measured.blocks < 10


@pytest.mark.usefixtures("compiling")
def test_what_compiles_once_is_measured() -> None:
    compiled = torch.compile(lambda values: values * 2, backend="eager")
    trial = try_remedy([], patch=lambda model: after_each_call(model, lambda: compiled(torch.ones(1))), **FEW)
    assert trial.decision != "failed", trial.reason
    assert trial.output == "equal"


def test_other_work_is_refused_and_an_impossible_setting_reported() -> None:
    refused = try_remedy(["infer.max_new_tokens=2"], **FEW)
    assert refused.decision == "failed"
    assert re.search(r"infer\.max_new_tokens=2\b.*\b3$", refused.reason) and refused.measured is None
    assert "model.cache=static" in try_remedy(["model.compile=true"], **FEW).reason
    with pytest.raises(ConfigError):
        try_remedy([], **FEW)


def test_fewer_samples_are_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no key tells: the patched side cannot read a request that the other one can."""
    plain = Engine.prepare

    def prepare(engine: Engine, samples: Any) -> Any:
        if hasattr(engine.model, "cannot_read") and any(sample.id.endswith("1") for sample in samples):
            raise InputError("not readable")
        return plain(engine, samples)

    monkeypatch.setattr(Engine, "prepare", prepare)
    trial = try_remedy([], patch=lambda model: setattr(model, "cannot_read", True), **FEW)
    assert trial.decision == "failed"
    assert re.search(r"\(\S*1\)$", trial.reason), "the sample that one side cannot read"


def test_a_machine_too_noisy_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sides are the same; what the machine adds to each pass is many times the pass, and varies as much."""
    chance, plain = random.Random(3), Engine.run_sample

    def disturbed(engine: Engine, samples: Any) -> Any:
        batch, done = plain(engine, samples)
        done.timings.prefill_s = (done.timings.prefill_s or 0.0) + chance.lognormvariate(0.0, 1.5)
        return batch, done

    monkeypatch.setattr(Engine, "run_sample", disturbed)
    trial = try_remedy([], patch=lambda model: model, **{**FEW, "most_blocks": 12})
    assert trial.decision == "drop"
    assert trial.measured is not None
    assert (trial.measured.verdict, trial.measured.blocks) == ("not shown", 12)
    assert "12" in trial.reason
