"""The labels of the generated captures are true: found again in the written files by arithmetic of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks.diagnosis_captures import checker
from benchmarks.diagnosis_captures.cases import all_cases
from benchmarks.diagnosis_captures.events import RankEvents
from benchmarks.diagnosis_captures.files import write_case
from benchmarks.diagnosis_captures.labels import CAUSES, Built, Case, build

CASES = {case.name: case for case in all_cases()}
SICK = [case for case in CASES.values() if case.causes and case.unprofiled_ratio is None]
HEALTHY = [case for case in CASES.values() if case.healthy and case.unprofiled_ratio is None]
PROFILED = [case for case in CASES.values() if case.unprofiled_ratio is not None]
STRAGGLERS = [case for case in SICK if case.causes == ("straggler",)]
HOST_SYNC = [case for case in SICK if case.causes == ("host-sync",)]
HOST_IDLE = [case for case in SICK if case.causes == ("host-idle",)]


@cache
def built(name: str) -> Built:
    return build(CASES[name])


@pytest.fixture(scope="module", autouse=True)
def forget_captures() -> Iterator[None]:
    """Keep them for the tests of this file alone."""
    yield
    built.cache_clear()


def read(case: Case, folder: Path) -> list[checker.Read]:
    return checker.read_all(write_case(case, built(case.name), folder))


def by_name(case: Case) -> str:
    return case.name


def test_there_are_enough_of_every_kind() -> None:
    assert len(CASES) == len(all_cases()) >= 60
    assert len(HEALTHY) >= 12
    assert {case.format for case in CASES.values()} == {"kineto", "nsys"}
    assert {1, 2, 4, 8} <= {case.world.captured or case.world.ranks for case in CASES.values()}
    planted = [cause for case in SICK for cause in case.causes]
    assert all(planted.count(cause) >= 3 for cause in CAUSES)


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture with a cause: how it was made, and what its files say."""

    case: Case
    made: Built
    reads: list[checker.Read]


@pytest.fixture(scope="module", params=SICK, ids=by_name)
def sick(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """Each capture with a cause, made once for all tests."""
    case: Case = request.param
    return Capture(case, built(case.name), read(case, tmp_path_factory.mktemp("capture")))


def test_the_planted_loss_is_in_the_file(sick: Capture) -> None:
    for cause, loss in sick.made.losses_s.items():
        found = checker.find_loss_s(cause, sick.reads, sick.case.world.straggler)
        assert found == pytest.approx(loss, rel=0.01)


def test_the_loss_is_large_enough_to_matter_and_the_first_is_clearly_the_first(sick: Capture) -> None:
    losses = list(sick.made.losses_s.values())
    assert all(0.07 < loss / sick.made.span_s < 0.8 for loss in losses)
    assert all(one > 1.25 * two for one, two in pairwise(losses))


def test_what_was_not_planted_is_small(sick: Capture) -> None:
    """Whatever else a report could rightly name stays below the planted losses."""
    span_s, planted = sick.made.span_s, sick.case.causes
    for one in sick.reads:
        others = {"copies": checker.copying(one), **checker.idle_by_owner(one)}
        unplanted = {cause: lost for cause, lost in others.items() if cause not in planted}
        assert all(lost < 0.02 * span_s * 1e9 for lost in unplanted.values()), unplanted
    if "exposed-communication" not in planted:
        straggler = sick.case.world.straggler
        assert checker.find_loss_s("exposed-communication", sick.reads, straggler) < 0.07 * span_s


@pytest.mark.parametrize("case", HEALTHY, ids=by_name)
def test_a_healthy_capture_has_nothing_to_recover(case: Case, tmp_path: Path) -> None:
    for rank, one in zip(built(case.name).ranks, read(case, tmp_path), strict=True):
        span_ns = checker.span_s(one) * 1e9
        assert _idle_without_queue(rank) < 0.03 * span_ns
        assert checker.exposed(one) < 0.03 * span_ns
        assert checker.copying(one) < 0.03 * span_ns


def _idle_without_queue(rank: RankEvents) -> int:
    """Idle time before the launch of what ends it was called, and 20 µs for the launch to arrive."""
    called = {event.correlation: event.start_ns for event in rank.host if event.kind == "call"}
    idle, busy_until = 0, None
    for event in sorted(rank.devices, key=lambda one: one.start_ns):
        if busy_until is not None:
            idle += max(0, min(event.start_ns, called[event.correlation] + 20_000) - busy_until)
        busy_until = max(busy_until or 0, event.end_ns)
    return idle


@pytest.mark.parametrize("case", PROFILED, ids=by_name)
def test_the_wall_clock_without_a_profiler_decides_the_loss(case: Case, tmp_path: Path) -> None:
    (one,) = read(case, tmp_path)
    made = built(case.name)
    assert made.timings is not None
    per_token = checker.busy_ratio(one) * checker.span_s(one) / case.steps
    loss = made.timings["decode_s"] - per_token * made.timings["new_tokens"]
    assert checker.busy_ratio(one) < 0.5  # under the profiler the device seems to idle
    if case.healthy:
        assert loss < 0.03 * made.timings["decode_s"]
    else:
        assert loss == pytest.approx(made.losses_s["launch-bound"], rel=0.01)


@pytest.mark.parametrize("case", STRAGGLERS, ids=by_name)
def test_without_the_late_rank_the_program_is_as_much_shorter(case: Case) -> None:
    even = build(replace(case, world=replace(case.world, slower=1.0)))
    saved = built(case.name).span_s - even.span_s
    assert saved == pytest.approx(built(case.name).losses_s["straggler"], rel=0.12)


@pytest.mark.parametrize("case", [*HOST_SYNC, *HOST_IDLE], ids=by_name)
def test_whether_the_host_could_keep_ahead_separates_waiting_from_python(case: Case, tmp_path: Path) -> None:
    """Where waiting is the cause, the host's own work fits beside the device's; where Python is, it does not."""
    (one,) = read(case, tmp_path)
    waiting = checker.total(
        (start, end) for name, start, end in one.calls if checker.SYNCHRONISING.search(name)
    )
    own = max(end for _, _, end in one.calls) - min(start for _, start, _ in one.calls) - waiting
    busy = checker.total((work.start, work.end) for work in one.device)
    assert (own < busy) == (case.causes == ("host-sync",))


@pytest.mark.parametrize("case", CASES.values(), ids=by_name)
def test_a_capture_could_have_happened(case: Case) -> None:
    """Streams run in order, no kernel starts before its launch, what a thread opens last it closes first."""
    for rank in built(case.name).ranks:
        called = {event.correlation: event.start_ns for event in rank.host if event.kind == "call"}
        ends: dict[int, int] = defaultdict(int)
        for event in sorted(rank.devices, key=lambda one: one.start_ns):
            assert event.start_ns >= ends[event.stream]
            assert event.end_ns > event.start_ns > called[event.correlation]
            ends[event.stream] = event.end_ns
        for thread in {event.thread for event in rank.host}:
            _assert_nested([(one.start_ns, one.end_ns) for one in rank.host if one.thread == thread])


def _assert_nested(spans: list[tuple[int, int]]) -> None:
    open_ends: list[int] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1]
        open_ends.append(end)


@pytest.mark.parametrize("name", ["straggler-training-two-ranks", "malloc-free-nsys"])
def test_the_same_seed_makes_the_same_file(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    first = write_case(case, build(case), tmp_path / "first")
    second = write_case(case, build(case), tmp_path / "second")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
