"""How an experiment is run: its environment, its folder, its order, what it does when a side hangs. No model is run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from llm_perf_opt.improve import experiment, worker
from llm_perf_opt.improve import experiment as turns
from llm_perf_opt.improve.costs import BatchPass, UnitPass
from llm_perf_opt.improve.experiment import run_experiment, warm_up_limit_s
from llm_perf_opt.improve.measuring import (
    CHECK,
    PASSES,
    READY,
    SPEC,
    STOP,
    GivenUpError,
    HangWatch,
    Letter,
    PassLimit,
    PassReader,
    new_folder,
    read_passes,
    take_turns,
    units_of,
)
from llm_perf_opt.process.launch import ProcessResult, run_process
from llm_perf_opt.summary.codec import to_plain
from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.engine.results import PassResult, PassTimings
from tests.unit.improve.tiny import spec


def one_pass(letter: Letter, unit: int = 0, number: int = 0, seconds: float = 1.0) -> UnitPass:
    return UnitPass(letter, number, unit, [BatchPass(1, seconds, 0.0, 0, 1, None)])


def line(letter: Letter) -> str:
    return json.dumps(to_plain(one_pass(letter))) + "\n"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a process that measures both sides is started with; it ends at once."""
    seen: list[dict[str, Any]] = []

    def run(argv: list[str], **given: Any) -> ProcessResult:
        seen.append(given)
        return ProcessResult(tuple(argv), 0, 0.0, "exit", "", "")

    monkeypatch.setattr(experiment, "run_process", run)
    return seen


def test_what_both_sides_have_in_their_environment_is_set(
    started: list[dict[str, Any]], tmp_path: Path
) -> None:
    wanted, both = spec(), {"OMP_WAIT_POLICY": "ACTIVE"}
    wanted.environment = {"a": dict(both), "b": dict(both)}
    run_experiment(wanted, tmp_path)
    assert started[0]["env"] == both


def test_what_an_earlier_experiment_left_is_not_measured_again(
    started: list[dict[str, Any]], tmp_path: Path
) -> None:
    spec().save(tmp_path)
    (tmp_path / PASSES).write_text(line("a") + line("b"))
    for name in (STOP, READY.format("a"), READY.format("b"), "logits-a.npz", "turn-b.json"):
        (tmp_path / name).write_text('{"pid": 1}')
    (tmp_path / CHECK).write_text("{}")
    (tmp_path / "a" / "direct_inference").mkdir(parents=True)
    outcome = run_experiment(spec(), tmp_path)
    assert (outcome.measured, outcome.check, outcome.page) == (None, None, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [SPEC]


def test_a_folder_that_held_no_experiment_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    new_folder(tmp_path)
    assert (tmp_path / "a").is_dir()


# --- order ---------------------------------------------------------------------------------------------------


def test_time_that_runs_out_between_two_pairs_ends_after_both() -> None:
    order: list[str] = []

    def run(letter: Letter, unit: int, number: int) -> UnitPass:
        order.append(letter)
        return one_pass(letter, unit, number)

    times = iter([0.0, 0.0, *[1000.0] * 9])
    assert take_turns(spec(), 1, run, lambda: next(times)).count == 2
    assert "".join(order) in ("abba", "baab")


def test_single_batches_are_units_where_both_sides_have_the_same() -> None:
    assert units_of([[["x"], ["y"]], [["x"], ["y"]]]) == [[[0], [1]], [[0], [1]]]
    assert units_of([[["x"], ["y"]], [["x", "y"]]]) == [[[0, 1]], [[0]]]


def test_a_metric_that_no_device_reports_is_dropped() -> None:
    wanted = spec()
    wanted.metric = "energy"
    with pytest.raises(GivenUpError, match="energy"):
        take_turns(wanted, 1, lambda letter, unit, number: one_pass(letter, unit, number))


def test_passes_are_read_once_each_and_only_whole(tmp_path: Path) -> None:
    reader = PassReader(tmp_path)
    assert reader.next() is None
    (tmp_path / PASSES).write_text(line("a") + line("b")[:20])
    first = reader.next()
    assert first is not None and first.side == "a"
    assert reader.next() is None
    (tmp_path / PASSES).write_text(line("a") + line("b"))
    second = reader.next()
    assert second is not None and second.side == "b"
    assert len(read_passes(tmp_path)) == 2


# --- what hangs ----------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=0.0)


@pytest.fixture
def watch(clock: SimpleNamespace, tmp_path: Path) -> HangWatch:
    return HangWatch(tmp_path, warm_up_s=100.0, least_pass_s=10.0, clock=lambda: clock.now)


def test_warming_up_has_its_own_limit(watch: HangWatch, clock: SimpleNamespace) -> None:
    clock.now = 99.0
    watch(99.0)
    clock.now = 101.0
    with pytest.raises(GivenUpError, match=r"warm.*\b100 s"):
        watch(101.0)


def test_a_pass_that_hangs_is_given_up_and_a_slow_one_is_not(
    watch: HangWatch, clock: SimpleNamespace, tmp_path: Path
) -> None:
    clock.now = 50.0
    (tmp_path / CHECK).write_text("{}")
    watch(clock.now)
    clock.now += 45.0  # the first pass: no longer than all of warming up
    watch(clock.now)
    (tmp_path / PASSES).write_text("x\n")
    watch(clock.now)
    clock.now += 20 * 45.0
    watch(clock.now)
    clock.now += 1.0
    with pytest.raises(GivenUpError, match=r"\bpass\b.*\b900 s"):
        watch(clock.now)


def test_short_passes_have_the_least_time() -> None:
    limit = PassLimit(least_s=60.0)
    limit.took(0.1)
    limit.check(60.0)
    with pytest.raises(GivenUpError, match=r"\bpass\b.*\b60 s"):
        limit.check(60.1)


def test_a_slow_model_has_time_for_its_answers() -> None:
    wanted = spec()
    assert warm_up_limit_s(wanted) == experiment.WARM_UP_S
    wanted.answer_s, wanted.settings = 30.0, replace(wanted.settings, most_samples=4)
    assert warm_up_limit_s(wanted) > experiment.WARM_UP_S + 2 * 2 * 4 * 30.0
    wanted.answer_s = 1e6
    assert warm_up_limit_s(wanted) == 3600


def test_an_interruption_while_both_load_ends_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for processes that would load for minutes more."""
    pids: list[int] = []

    def run(*given: Any, **named: Any) -> ProcessResult:
        noted = named.pop("on_start")
        return run_process(*given, **named, on_start=lambda pid: (pids.append(pid), noted(pid))[1])

    def interrupted() -> Iterator[None]:
        while len(pids) < 2:
            yield
        raise KeyboardInterrupt

    requested = interrupted()
    monkeypatch.setattr(turns, "run_process", run)
    monkeypatch.setattr(turns, "raise_if_interrupted", lambda: next(requested))
    monkeypatch.setattr(
        turns, "worker_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(300)"]
    )
    with pytest.raises(KeyboardInterrupt):
        turns.run_in_turns(spec(), tmp_path, warm_up_s=300.0, least_pass_s=60.0)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# --- encoder-decoders ----------------------------------------------------------------------------------------


def test_the_first_token_waits_for_the_encoder() -> None:
    times = PassTimings(0.0, None, 0.5, 1.0, [0.5, 0.5], encode_s=2.0)
    done = worker._batch_pass([Sample("x")], PassResult(times, [[1, 2, 3]], 3), None)
    assert (done.ttft_s, done.tokens, done.sample_ids) == (2.5, 3, ["x"])


def test_the_prompt_of_an_encoder_decoder_is_not_scored() -> None:
    """What its decoder begins with is no prompt, and has no positions beside it."""
    adapter = SimpleNamespace(
        name="x", phases=("encode", "prefill", "decode"), forward=None, new_state=None, narrowed=None
    )
    batch = SimpleNamespace(inputs={"input_ids": torch.zeros(1, 4, dtype=torch.long)})
    engine = SimpleNamespace(adapter=adapter, prepare=lambda _: batch, model=None)
    warm = worker.WarmSide("a", engine, [[Sample("x")]], 1, 1, lambda: None)  # type: ignore[arg-type]
    worker._perplexities(warm)
    assert warm.answers.log_likelihoods == {}
    assert "encoder-decoder" in (warm.answers.reason or "")
