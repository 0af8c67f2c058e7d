"""Losses of a timeline: every part above a stated share, by its owner, whatever the rest of the time does."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.findings import find_all, losses
from llm_perf_opt.analysis.findings.loss_words import advice_for, title_for
from llm_perf_opt.model.summary import Budget, BudgetPart, Finding, Summary
from llm_perf_opt.model.summary.parallel import IdleGap, IdleOwner, OwnerKind
from tests.unit.summaries import budget, cpu, operator, summary, timings, verdict

IDS = {
    "communication": "exposed-communication",
    "copy": "copies",
    "sync": "host-sync",
    "launch": "launch-bound",
    "allocation": "allocation",
    "data": "input-pipeline",
    "host": "host-idle",
    "queue": "queued-work",
}


def owned(part: str, owner: IdleOwner | None, share: float = 0.4, span_s: float = 2.0) -> Budget:
    """A budget of one part that has an owner; the rest is computing."""
    rest = BudgetPart("compute", span_s * (1 - share), 1 - share)
    return Budget(span_s, [rest, BudgetPart(part, span_s * share, share, owner)], "run.sqlite")


def only(data: Summary) -> Finding:
    (found,) = losses.find(data)
    return found


@pytest.mark.parametrize(("part", "id"), IDS.items())
def test_every_part_that_is_not_computing_is_a_loss(part: str, id: str) -> None:
    found = only(summary(budget={"decode": budget(2.0, compute=0.6, **{part: 0.4})}))
    assert (found.id, found.phase) == (id, "decode")
    assert found.gain_upper_s == (None if part == "queue" else pytest.approx(0.8))
    assert found.arithmetic == "2.00 s × 40.0 % = at most 800 ms"
    assert found.title.startswith("Decode ")
    assert found.evidence and found.advice


@pytest.mark.parametrize("part", IDS)
def test_from_a_twentieth_of_the_wall_clock_on(part: str) -> None:
    assert len(losses.find(summary(budget={"decode": budget(2.0, compute=0.95, **{part: 0.05})}))) == 1
    assert losses.find(summary(budget={"decode": budget(2.0, compute=0.951, **{part: 0.049})})) == []


def test_a_device_that_computes_all_the_time_loses_nothing() -> None:
    assert (
        losses.find(summary(budget={"decode": budget(2.0, compute=1.0), "all": budget(2.0, compute=1.0)}))
        == []
    )
    assert losses.find(summary(budget={"decode": Budget(0.0, [BudgetPart("host", 0.0, 1.0)])})) == []
    assert losses.find(summary()) == []


def test_there_is_no_cliff_at_half_of_the_time() -> None:
    """51 % busy and 502 ms of waiting for the host; 61 % busy and 459 ms of it."""
    for busy, waits_s in ((0.51, 0.502), (0.61, 0.459)):
        span = waits_s / (1 - busy)
        found = only(summary(budget={"all": budget(span, compute=busy, host=1 - busy)}))
        assert (found.id, found.gain_upper_s) == ("host-idle", pytest.approx(waits_s))


def test_losses_are_of_the_wall_clock_that_was_measured() -> None:
    data = summary(
        timings=timings(prefill=0.1, decode=2.0),
        budget={"decode": budget(9.0, compute=0.3, launch=0.5, host=0.15, sync=0.05)},
        verdicts={"decode": verdict("launch")},
    )
    gains = {one.id: one.gain_upper_s for one in find_all(data)}
    assert gains == {
        "launch-bound": pytest.approx(1.0),
        "host-idle": pytest.approx(0.3),
        "host-sync": pytest.approx(0.1),
    }
    assert [one.id for one in find_all(data)] == ["launch-bound", "host-idle", "host-sync"]


def test_a_capture_that_was_not_timed_speaks_of_the_captured_time() -> None:
    found = only(summary(budget={"all": budget(4.0, compute=0.2, sync=0.8)}))
    assert found.title == "The run stops to read results back to the host"
    assert found.gain_upper_s == pytest.approx(3.2)
    assert found.evidence[0] == (
        "the device runs nothing, because the host had waited for it, for 80.0 % of the captured time (3.20 s of 4.00 s)"
    )
    assert "sample" not in found.arithmetic


def test_copies_have_their_numbers() -> None:
    found = only(
        summary(budget={"decode": budget(4.0, compute=0.75, copy=0.25)}, sources={"nsys": "a.sqlite"})
    )
    assert found.title == "Decode waits for copies"
    assert found.evidence == [
        "copies and fills alone occupy 25.0 % of decode (1.00 s of 4.00 s)",
        "nsys: a.sqlite",
    ]


# the owner


def test_the_owner_is_named_with_its_share_and_thread() -> None:
    owner = IdleOwner("data loading", "DataLoader.__next__", "main", 0.98)
    found = only(summary(budget={"all": owned("data", owner)}))
    assert found.title == "The run waits for its input"
    assert found.evidence[1] == (
        "data loading: in DataLoader.__next__, 98.0 % of the time looked at; thread: main"
    )
    assert found.confidence == "high"
    nobody = only(summary(budget={"all": owned("data", None)}))
    assert (nobody.confidence, len(nobody.evidence)) == ("medium", 1)
    outside = only(summary(budget={"all": owned("host", IdleOwner("python", None, "thread 7", 0.5))}))
    assert "python: outside every range and operator" in outside.evidence[1]


def test_a_queue_is_nobodys_gain() -> None:
    found = only(summary(budget={"all": owned("queue", IdleOwner("queued work"))}))
    assert (found.gain_upper_s, found.confidence) == (None, "low")
    assert "The host is not the cause" in found.advice


@pytest.mark.parametrize(
    ("part", "what", "title", "advice"),
    [
        ("data", "data loading", "Decode waits for its input", "more loader workers"),
        ("data", "tokenising", "Decode waits for text to be tokenised", "Prepare the next input"),
        ("host", "compilation", "Decode waits for code to be compiled", "Warm up before measuring"),
        ("host", "not recorded", "Decode waits for the host between launches", "Put NVTX ranges"),
        ("host", "range", "Decode waits for the host between launches", "It happens in sample."),
        ("host", "operator", "Decode waits for the host between launches", "It happens in sample."),
        ("allocation", "allocation", "Decode waits for device memory", "expandable_segments"),
        ("sync", "synchronisation", "Decode stops to read results", ".item()"),
        ("launch", "launch calls", "Decode waits for the host to launch", "CUDA graph"),
    ],
)  # fmt: skip
def test_the_advice_follows_the_owner(part: str, what: OwnerKind, title: str, advice: str) -> None:
    found = only(summary(budget={"decode": owned(part, IdleOwner(what, "sample"))}))
    assert found.title.startswith(title)
    assert advice in found.advice


def test_only_launching_is_answered_with_cuda_graphs() -> None:
    for part in IDS:
        (found,) = losses.find(summary(budget={"decode": budget(2.0, compute=0.6, **{part: 0.4})}))
        assert ("CUDA graph" in found.advice) is (part == "launch")


def test_words_for_a_cpu_and_for_owners_that_say_nothing() -> None:
    assert "CUDA" not in advice_for("launch-bound", None, cpu().kind)
    assert advice_for("host-idle", IdleOwner("python"), "gpu") == advice_for("host-idle", None, "gpu")
    assert title_for("host-idle", None, "all") == "The run waits for the host between launches"


def test_the_longest_gaps_of_the_same_owner_are_listed() -> None:
    owner = IdleOwner("data loading", "load_batch")
    gaps = [
        IdleGap(0, 0.0, 0.3, owner, "decode", frames=["app.py(1): main", "app.py(9): load"]),
        IdleGap(0, 1.0, 0.2, IdleOwner("range", "sample"), "decode"),
        IdleGap(0, 2.0, 0.1, owner, "decode"),
        IdleGap(0, 3.0, 0.1, owner, "prefill"),
    ]
    found = only(summary(budget={"decode": owned("data", owner)}, idle_gaps=gaps))
    assert found.evidence[-1] == "longest gaps: 300 ms, 100 ms; in the longest: app.py(9): load"
    whole = only(summary(budget={"all": owned("data", owner)}, idle_gaps=gaps))
    assert whole.evidence[-1].startswith("longest gaps: 300 ms, 100 ms, 100 ms;")
    other = only(summary(budget={"decode": owned("host", IdleOwner("python"))}, idle_gaps=gaps))
    assert not any("longest gaps" in line for line in other.evidence)


# what was counted beside it


def test_launches_and_reads_per_token_stand_beside_the_time_they_cost() -> None:
    data = summary(
        budget={"decode": budget(2.0, compute=0.2, launch=0.4, sync=0.4), "prefill": budget(2.0, launch=1.0)},
        operators=[operator("aten::item", 300), operator("aten::nonzero", 10)],
        metrics={"profiled_decode_steps": 10.0, "launches_per_token": 1320.0},
    )
    found = {(one.id, one.phase): one.evidence for one in losses.find(data)}
    assert "1320 kernel launches per generated token" in found["launch-bound", "decode"]
    assert not any("per generated token" in line for line in found["launch-bound", "prefill"])
    reads = [line for line in found["host-sync", "decode"] if "per token" in line]
    assert reads == ["aten::item runs 30.0 times per token"]


def test_the_inflation_of_the_profiler_is_said_where_it_is_known() -> None:
    spans = {"decode": Budget(2.0, [BudgetPart("launch", 2.0, 1.0)], "t", 6.0, 3.0)}
    assert only(summary(budget=spans)).evidence[-1] == (
        "measured against 2.00 s without a profiler; the same work took 6.00 s under it (3.00 times as long)"
    )


# phases and the whole


def test_phases_have_their_own_losses_and_the_whole_only_what_lies_between() -> None:
    spans = {
        "prefill": budget(1.0, compute=0.5, host=0.5),
        "decode": budget(4.0, compute=1.0),
        "all": budget(8.0, compute=4.5 / 8, host=3.5 / 8),
    }
    found = {one.phase: one for one in losses.find(summary(budget=spans))}
    assert found.keys() == {"prefill", "all"}
    assert found["prefill"].gain_upper_s == pytest.approx(0.5)
    assert found["all"].gain_upper_s == pytest.approx(3.0)
    assert sum(one.gain_upper_s or 0.0 for one in found.values()) == pytest.approx(3.5)  # nothing twice
    spans["all"] = budget(5.0, compute=4.5 / 5, host=0.5 / 5)
    assert [one.phase for one in losses.find(summary(budget=spans))] == ["prefill"]


def test_what_lies_between_phases_is_not_compared_with_unprofiled_phases() -> None:
    phase = Budget(1.0, [BudgetPart("compute", 1.0, 1.0)], "t", 2.0, 2.0)
    spans = {"decode": phase, "all": budget(8.0, compute=0.25, host=0.75)}
    assert losses.find(summary(budget=spans)) == []


def test_losses_of_a_phase_sum_to_no_more_than_its_time() -> None:
    shares = dict.fromkeys(IDS, 1 / 8)
    found = losses.find(summary(timings=timings(decode=3.0), budget={"decode": budget(9.0, **shares)}))
    assert len(found) == 8
    assert sum(one.gain_upper_s or 0.0 for one in found) == pytest.approx(3.0 * 7 / 8)
