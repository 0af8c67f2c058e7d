"""Captures of one run joined: each phase from one capture, tools never mixed, no matter in which order they were read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.captures import CapturedWork, join_captures
from llm_perf_opt.analysis.facts import TIMINGS, Capture, Facts, ProfiledPass, merge_facts
from llm_perf_opt.analysis.summarise import Subject, missing_clock_note, summarise
from llm_perf_opt.analysis.timeline.summary import TimelineFacts
from llm_perf_opt.captures.timeline import KernelTotals
from llm_perf_opt.captures.timings import SampleTotal, WallClock
from llm_perf_opt.hardware.resolve import unknown_hardware
from llm_perf_opt.summary import (
    Budget,
    BudgetPart,
    Finding,
    Kernel,
    MemoryUse,
    Operator,
    RunInfo,
    Section,
    Summary,
    Timings,
    Workload,
)


def kernel(name: str, phase: str | None, seconds: float, launches: int = 2) -> Kernel:
    return Kernel(name, name, "gemm", phase, None, launches, seconds, 1.0)


def capture(
    name: str,
    phase: str | None,
    kernel_s: float,
    *,
    copy_s: float = 0.0,
    attributed: float | None = 1.0,
    disturbance: int = 0,
    axis: bool = True,
) -> Capture:
    facts = TimelineFacts(
        kernels=[kernel(f"{name}-kernel", phase, kernel_s)],
        budget={phase: Budget(10.0, [BudgetPart("compute", 10.0, 1.0)], name)} if axis and phase else {},
        time_attributed_ratio=attributed,
        metrics={"kernel_time_s": kernel_s, "copy_s": copy_s, "copy_launches": 3.0, "copy_bytes": None},
        timeline={"phase": phase},
        warnings=[f"warning of {name}"],
    )
    return Capture(Path(name), KernelTotals(name), facts, disturbance=disturbance)


def joined(captures: Sequence[Capture]) -> CapturedWork:
    return join_captures(Facts(captures=list(captures)))


def summarised(*parts: Facts) -> Summary:
    facts = merge_facts("", parts)
    subject = Subject(run=RunInfo("run", "ok", "2026-01-01T00:00:00+00:00", None, []))
    return summarise(subject, facts, join_captures(facts), unknown_hardware(None, "test"))


def test_kernels_of_two_tools_are_never_mixed() -> None:
    profiled, captured = capture("trace", "prefill", 9.0, disturbance=1), capture("nsys", "decode", 1.0)
    for order in ([profiled, captured], [captured, profiled]):
        found = joined(order)
        assert [one.name for one in found.facts.kernels] == ["nsys-kernel"]
        assert set(found.facts.budget) == {"decode", "all"} or set(found.facts.budget) == {"decode"}
        assert {"warning of trace", "warning of nsys"} <= set(found.notes)


def test_captures_of_one_range_each_add_up() -> None:
    decode = capture("decode", "decode", 6.0, copy_s=2.0)
    prefill = capture("prefill", "prefill", 1.0, copy_s=1.0, attributed=0.5)
    found = joined([decode, prefill])
    assert found.facts.metrics["kernel_time_s"] == 7.0
    assert (found.facts.metrics["copy_s"], found.facts.metrics["copy_launches"]) == (3.0, 6.0)
    assert found.facts.metrics.get("copy_bytes") is None
    assert found.facts.time_attributed_ratio == pytest.approx((8.0 + 0.5 * 2.0) / 10.0)
    assert found.facts.timeline == {"phase": "decode"}
    assert found.facts.budget["all"].span_s == pytest.approx(20.0)
    assert sum(one.share_ratio or 0.0 for one in found.facts.kernels) == pytest.approx(1.0)


def test_a_phase_seen_twice_counts_once_and_its_copies_are_not_guessed() -> None:
    again = capture("again", "decode", 5.0, copy_s=4.0)
    first = capture("first", "decode", 6.0, copy_s=2.0)
    prefill = capture("prefill", "prefill", 1.0, copy_s=1.0)
    found = joined([first, prefill, again])
    assert found.facts.metrics["kernel_time_s"] == 7.0  # the capture with more of the phase
    assert found.facts.metrics["copy_s"] == 3.0  # of the two captures that are used
    both = capture("both", "decode", 8.0)
    both.facts.kernels.append(kernel("both-prefill", "prefill", 0.5))
    mixed = joined([both, prefill])
    assert mixed.facts.metrics.get("copy_s") is None
    assert mixed.facts.time_attributed_ratio is None


def test_a_time_axis_is_preferred_to_totals() -> None:
    totals = capture("a-table", None, 100.0, axis=False)
    timeline = capture("export", "decode", 1.0)
    for order in ([totals, timeline], [timeline, totals]):
        found = joined(order)
        assert found.has_time_axis
        assert [one.name for one in found.facts.kernels] == ["export-kernel"]
    assert not joined([totals]).has_time_axis


_CAPTURES = st.lists(
    st.builds(
        capture,
        st.sampled_from(["a", "b", "c", "d"]),
        st.sampled_from(["vision", "prefill", "decode", None]),
        st.floats(0.001, 10.0),
        copy_s=st.floats(0.0, 5.0),
        disturbance=st.integers(0, 1),
        axis=st.booleans(),
    ),
    max_size=4,
    unique_by=lambda one: str(one.path),
)


@given(_CAPTURES)
def test_the_order_of_captures_does_not_matter(captures: list[Capture]) -> None:
    found = []
    for order in itertools.permutations(captures):
        result = asdict(joined(order))
        result["notes"] = sorted(result["notes"])
        found.append(result)
    assert all(one == found[0] for one in found)


@given(_CAPTURES)
def test_shares_of_joined_captures_never_exceed_one(captures: list[Capture]) -> None:
    found = joined(captures)
    assert sum(one.share_ratio or 0.0 for one in found.facts.kernels) <= len(found.facts.kernels[:1]) * (
        1.0 + 1e-9
    )
    for budget in found.facts.budget.values():
        assert sum(part.share_ratio for part in budget.parts) <= 1.0 + 1e-9


def test_what_stages_add_is_kept_and_the_first_value_counts() -> None:
    clock = WallClock(Timings(), Workload(model="measured"), None, False)
    finding = Finding("f", "t", None, [], None, "", "", "low")
    parts = [
        Facts(wall_clock=clock, metrics={"x_s": 1.0}, notes=["n"]),
        Facts(
            wall_clock=WallClock(Timings(), Workload(model="other"), None, False),
            metrics={"x_s": 2.0, "y_s": 3.0},
            module_times={("m", "decode"): 0.5},
            findings=[finding],
            sections=[Section("s", "title")],
            notes=["n"],
        ),
    ]
    merged, found = merge_facts("", parts), summarised(*parts)
    assert merged.wall_clock is clock
    assert merged.module_times == {("m", "decode"): 0.5}
    assert (found.metrics["x_s"], found.metrics["y_s"]) == (1.0, 3.0)
    assert found.workload.model == "measured"
    assert found.findings == [finding]
    assert [section.title for section in found.sections] == ["title"]
    assert found.notes == ["n"]


def test_the_profilers_cost_is_reported_only_for_equal_work() -> None:
    clock = WallClock(Timings(), Workload(), None, False, sample_totals={"s0": SampleTotal(4, 2.0)})
    same = summarised(Facts(wall_clock=clock), Facts(profiled=ProfiledPass(["s0"], 4, 2, 8.0)))
    assert same.metrics["profiled_over_unprofiled_ratio"] == pytest.approx(2.0)
    assert same.metrics["profiled_decode_steps"] == 6.0
    cut = summarised(Facts(wall_clock=clock), Facts(profiled=ProfiledPass(["s0"], 3, 1, 4.0)))
    assert "profiled_over_unprofiled_ratio" not in cut.metrics


def test_parts_of_a_stage_merge_field_by_field() -> None:
    merged = merge_facts(
        "torch_profiler",
        [
            Facts(metrics={"a": 1.0}, notes=["one"], sources={"timings": (Path("t"),)}),
            Facts(metrics={"a": 2.0, "b": 3.0}, notes=["two"], model={"name": "m"}),
        ],
    )
    assert merged.stage == "torch_profiler"
    assert merged.metrics == {"a": 1.0, "b": 3.0}
    assert merged.notes == ["one", "two"]
    assert merged.model == {"name": "m"}
    assert merged.sources == {"timings": (Path("t"),)}


def test_fields_with_a_rule_of_their_own() -> None:
    first, second = Operator("mm", 1, 1.0, 1.0, None, None), Operator("add", 1, 1.0, 1.0, None, None)
    merged = merge_facts(
        "",
        [
            Facts(stage="empty"),
            Facts(
                stage="one",
                operators=[first],
                memory={"decode": MemoryUse(1.0)},
                sources={"trace": (Path("a"),)},
            ),
            Facts(
                stage="two",
                operators=[second],
                memory={"decode": MemoryUse(2.0, counts="process"), "prefill": MemoryUse(3.0)},
                sources={"trace": (Path("b"),), "memory": (Path("c"),)},
            ),
        ],
    )
    assert merged.stage == ""
    assert merged.operators == [first]  # of one stage only: the same pass must not count twice
    assert (merged.memory["decode"].peak_bytes, merged.memory["prefill"].peak_bytes) == (2.0, 3.0)
    assert merged.sources == {"trace": (Path("a"), Path("b")), "memory": (Path("c"),)}


def test_merging_leaves_the_parts_as_they_are() -> None:
    parts = [Facts(notes=["a"], metrics={"x_s": 1.0}), Facts(notes=["b"], metrics={"y_s": 2.0})]
    merged = merge_facts("", parts)
    merged.notes.append("c")
    merged.metrics["z_s"] = 3.0
    assert parts == [Facts(notes=["a"], metrics={"x_s": 1.0}), Facts(notes=["b"], metrics={"y_s": 2.0})]


def test_facts_are_empty_until_something_is_found() -> None:
    assert Facts(stage="nsys").is_empty()
    assert not Facts(stage="nsys", notes=["unreadable"]).is_empty()


@pytest.mark.parametrize(
    ("source", "different"),
    [
        (Facts, {"sources", "wall_clock", "counters"}),
        (TimelineFacts, {"devices"}),
        (CapturedWork, set()),
    ],
)
def test_what_has_the_name_of_a_field_of_the_summary_is_carried_over(
    source: type, different: set[str]
) -> None:
    """A field whose type is spelt otherwise than in the summary would be left out without a word."""
    ours, theirs = ({item.name: item.type for item in fields(kind)} for kind in (Summary, source))
    assert {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]} == different


def test_stages_fill_in_the_budget_of_phases_no_capture_splits() -> None:
    own = {phase: Budget(1.0, [BudgetPart("compute", 1.0, 1.0)], "stage") for phase in ("decode", "vision")}
    found = summarised(Facts(budget=own), Facts(captures=[capture("nsys", "decode", 6.0)]))
    assert (found.budget["decode"].source, found.budget["vision"].source) == ("nsys", "stage")


def test_a_summary_is_made_without_changing_the_facts() -> None:
    facts = Facts(wall_clock=WallClock(Timings(), Workload(), None, False), model={"name": "m"})
    subject = Subject(run=RunInfo("run", "ok", "", None, []), workload=Workload(device="cpu"))
    found = summarise(subject, facts, join_captures(facts), unknown_hardware(None, "test"))
    assert (found.workload.model, found.workload.device) == ("m", "cpu")
    assert facts.wall_clock is not None and facts.wall_clock.workload == Workload()


def test_missing_timings_are_noted_once() -> None:
    clock = WallClock(Timings(), Workload(), None, False)
    assert len(missing_clock_note(Facts())) == 1
    assert missing_clock_note(Facts(wall_clock=clock)) == []
    assert missing_clock_note(Facts(unreadable=[TIMINGS])) == []
    assert len(missing_clock_note(Facts(unreadable=["torch trace"]))) == 1
