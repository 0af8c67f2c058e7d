"""Changes planted in real traces: the first sentence must name the cause, with its size."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.cli import main
from llm_perf_opt.compare.compare import compare
from llm_perf_opt.compare.data import Cause, Comparison
from llm_perf_opt.compare.gates import parse_gate
from llm_perf_opt.compare.sentences import signed_seconds
from llm_perf_opt.core import units
from llm_perf_opt.summary.file import load_summary
from tests.unit import planted_traces as plant
from tests.unit.planted_traces import Event

ATTENTION = "flash_fwd"


@pytest.fixture(scope="module")
def prefill(shared_data: Path) -> list[Event]:
    """One step of a language model: busy most of the time."""
    return plant.read_events(shared_data / "h100-torch-traces" / "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz")


@pytest.fixture(scope="module")
def small(shared_data: Path) -> list[Event]:
    """One step of a small model: idle most of the time."""
    return plant.read_events(
        shared_data / "h100-torch-traces" / "gaunernst_bert-small-uncased__1016001.json.gz"
    )


@pytest.fixture(scope="module")
def steps_of_small(small: list[Event]) -> Callable[[int, bool], list[Event]]:
    """Return some steps of the small model, with or without the ranges of the steps."""

    @functools.cache
    def made(times: int, steps: bool) -> list[Event]:
        return plant.without(
            plant.repeated(small, times),
            lambda event: not steps and str(event.get("name")).startswith("ProfilerStep"),
        )

    return made


@pytest.fixture(scope="module")
def ingest(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Sequence[Event]], Side]:
    """Read events as the command line does; the same events once."""

    known: dict[int, tuple[Sequence[Event], Side]] = {}

    def read(events: Sequence[Event]) -> Side:
        if id(events) not in known:
            # The events are kept with the result, so that no other list has their id.
            known[id(events)] = (events, ingested(events))
        return known[id(events)][1]

    def ingested(events: Sequence[Event]) -> Side:
        folder = tmp_path_factory.mktemp("trace")
        trace = plant.write_trace(events, folder / "trace.json")
        assert main(["ingest", "--trace", str(trace), "--out", str(folder / "out")]) == 0
        return Side("side", [], [load_summary(folder / "out")], [None])

    return read


Ingest = Callable[[Sequence[Event]], Side]
StepsOfSmall = Callable[[int, bool], list[Event]]


def first_cause(result: Comparison) -> Cause:
    """Return the largest cause, which the first sentence tells with its size."""
    cause = result.conclusions[0].causes[0]
    assert result.sentence == result.conclusions[0].sentence
    assert cause.text is not None and cause.text in result.sentence
    assert signed_seconds(cause.change_s) in result.sentence
    return cause


def add_up(result: Comparison) -> None:
    for each in result.conclusions:
        assert each.change_s is not None and each.a_s is not None and each.remainder_s is not None
        explained = sum(cause.change_s for cause in each.causes)
        assert explained + each.remainder_s == pytest.approx(each.change_s, abs=1e-9)
        assert abs(each.remainder_s) <= 0.001 * each.a_s


def test_a_slower_kernel_and_its_repair(prefill: list[Event], ingest: Ingest) -> None:
    planted = 0.5e-6 * sum(kernel["dur"] for kernel in plant.kernels_named(prefill, ATTENTION))
    base, slow = ingest(prefill), ingest(plant.slower(prefill, ATTENTION, 1.5))
    result = compare(base, slow)
    cause = first_cause(result)
    assert (result.conclusions[0].verdict, result.conclusions[0].work.basis) == ("slower", "steps")
    assert cause.kind == "time per launch" and cause.b_s / cause.a_s == pytest.approx(1.5, rel=1e-3)
    assert "`flash_fwd bf16 d64`" in result.sentence and "50.0 %" in result.sentence
    assert cause.change_s == pytest.approx(planted, rel=0.05)
    add_up(result)
    back = compare(slow, base)
    cause = first_cause(back)
    assert (back.conclusions[0].verdict, cause.kind) == ("faster", "time per launch")
    assert "`flash_fwd bf16 d64`" in back.sentence and "33.3 %" in back.sentence
    assert cause.change_s == pytest.approx(-planted, rel=0.05)


def test_twice_as_many_launches(prefill: list[Event], ingest: Ingest) -> None:
    planted = 1e-6 * sum(kernel["dur"] for kernel in plant.kernels_named(prefill, ATTENTION))
    result = compare(ingest(prefill), ingest(plant.launched_twice(prefill, ATTENTION)))
    cause = first_cause(result)
    assert cause.kind == "launches" and cause.b_s / cause.a_s == pytest.approx(2.0)
    assert "`flash_fwd bf16 d64`" in result.sentence and "2.00" in result.sentence
    assert cause.change_s == pytest.approx(planted, rel=0.05)
    add_up(result)


def test_all_kernels_slower_is_one_cause(prefill: list[Event], ingest: Ingest) -> None:
    result = compare(ingest(prefill), ingest(plant.slower(prefill, "", 1.08)))
    cause = first_cause(result)
    assert [each.kind for each in result.conclusions[0].causes].count("time per launch") == 1
    assert cause.kind == "time per launch" and cause.b_s / cause.a_s == pytest.approx(1.08, rel=1e-3)
    assert "8.00 %" in result.sentence and "`" not in result.sentence, "no kernel is named"
    add_up(result)


def test_a_pause_of_the_device(prefill: list[Event], ingest: Ingest) -> None:
    result = compare(ingest(prefill), ingest(plant.with_pause(prefill, 8000.0)))
    assert (result.conclusions[0].verdict, first_cause(result).kind) == ("slower", "idle")
    assert first_cause(result).change_s == pytest.approx(8e-3, rel=0.05)
    add_up(result)


def test_a_collective_that_nothing_overlaps(prefill: list[Event], ingest: Ingest) -> None:
    result = compare(ingest(prefill), ingest(plant.with_collective(prefill, 6000.0)))
    assert first_cause(result).kind == "communication"
    assert first_cause(result).change_s == pytest.approx(6e-3, rel=0.05)
    add_up(result)


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize(("before", "after", "message"), [(8, 7, "12.5 %"), (7, 8, "14.3 %")])
def test_another_number_of_steps_is_no_change(
    steps_of_small: StepsOfSmall, ingest: Ingest, before: int, after: int, message: str, steps: bool
) -> None:
    result = compare(ingest(steps_of_small(before, steps)), ingest(steps_of_small(after, steps)))
    (found,) = result.conclusions
    assert (found.verdict, found.work.basis) == ("no change", "steps" if steps else "launches")
    assert found.work.ratio == pytest.approx(after / before) and message in result.sentence
    rows = {row.name: row for row in result.metrics}
    assert rows["kernel_time"].ratio == pytest.approx(1.0, abs=0.001)
    assert rows["launches"].ratio == pytest.approx(1.0, abs=0.001)
    assert all(row.ratio == pytest.approx(1.0, abs=0.001) for row in (*result.families, *result.kernels))
    add_up(result)


def test_fewer_steps_do_not_hide_a_pause_in_each(
    small: list[Event], steps_of_small: StepsOfSmall, ingest: Ingest
) -> None:
    eight, seven = steps_of_small(8, True), plant.repeated(plant.with_pause(small, 1000.0), 7)
    result = compare(ingest(eight), ingest(seven))
    (found,) = result.conclusions
    assert (found.verdict, found.work.basis, found.work.ratio) == ("slower", "steps", pytest.approx(7 / 8))
    assert "12.5 %" in result.sentence
    assert first_cause(result).kind == "idle"
    assert first_cause(result).change_s == pytest.approx(8e-3, rel=0.05)


@pytest.mark.parametrize("limit", ["kernel_time:+3%", "launches:+3%"])
def test_a_capture_that_was_cut_off_is_neither_gain_nor_regression(
    prefill: list[Event], ingest: Ingest, limit: str
) -> None:
    whole, cut = ingest(prefill), ingest(plant.cut_off(prefill, 0.88))
    for a, b in ((whole, cut), (cut, whole)):
        five = [Side("x", [], [side.first] * 5, [None] * 5) for side in (a, b)]
        result = compare(*five, [parse_gate(limit)])
        (found,) = result.conclusions
        assert (found.verdict, found.work.basis, found.work.sure) == ("no change", "launches", False)
        assert found.work.ratio is not None and (found.work.ratio < 1) == (b is cut)
        assert units.percent(abs(found.work.ratio - 1)) in result.sentence
        assert [gate.status for gate in result.gates] == ["not comparable"]
        assert result.gates[0].reason == found.work.text


def test_a_cut_through_uneven_work_claims_nothing(shared_data: Path, ingest: Ingest) -> None:
    """Three steps, of which a third is missing: the kernels that are left are not the mean of all."""
    path = shared_data / "torch-traces-more" / "mi300-resnet-training-rccl.json.gz"
    events = plant.read_events(path)
    result = compare(ingest(events), ingest(plant.cut_off(events, 0.67)))
    (found,) = result.conclusions
    assert found.verdict in ("not shown", "no change")
    assert found.work.ratio is not None and found.work.ratio < 0.95
    assert units.percent(1 - found.work.ratio) in result.sentence


def test_two_ranks_and_different_programs(shared_data: Path, ingest: Ingest) -> None:
    more = shared_data / "torch-traces-more"
    ranks = [ingest(plant.read_events(more / f"two-ranks-rank{number}.json.gz")) for number in (0, 1)]
    result = compare(*ranks)
    add_up(result)
    cause = first_cause(result)
    assert cause.kind == "time per launch" and cause.change_s > 0, "rank 1 computes longer"
    assert "embedding" in cause.name and "embedding" in result.sentence
    vllm = ingest(plant.read_events(more / "mi300-vllm-piecewise-graphs.json.gz"))
    other = compare(ranks[0], vllm)
    (found,) = other.conclusions
    assert (found.verdict, found.work.basis, found.causes) == ("undecided", None, [])
    assert found.work.text in other.sentence


def test_a_capture_of_two_devices_against_itself(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "h100-nsys" / "h100_2gpu_1s.sqlite"
    assert main(["ingest", "--nsys", str(path), "--out", str(tmp_path)]) == 0
    side = Side("x", [], [load_summary(tmp_path)], [None])
    result = compare(side, side)
    assert (result.conclusions[0].verdict, result.conclusions[0].ratio) == ("no change", 1.0)
    assert result.conclusions[0].causes == [] and result.conclusions[0].moved == []
