"""Losses of a timeline: every part above a stated share, by its owner, whatever the rest of the time does."""

from __future__ import annotations

import re

import pytest

from llm_perf_opt.analysis.findings import find_all, idle
from llm_perf_opt.analysis.findings.idle import advice_for, title_for
from llm_perf_opt.summary import Budget, BudgetPart, Finding, Summary
from llm_perf_opt.summary.devices import IdleGap, IdleOwner, OwnerKind
from tests.text_facts import any_mentions, mentions, mentions_in_order
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
    (found,) = idle.find_losses(data)
    return found


@pytest.mark.parametrize(("part", "id"), IDS.items())
def test_every_part_that_is_not_computing_is_a_loss(part: str, id: str) -> None:
    found = only(summary(budget={"decode": budget(2.0, compute=0.6, **{part: 0.4})}))
    assert (found.id, found.phase) == (id, "decode")
    assert found.gain_upper_s == (None if part == "queue" else pytest.approx(0.8))
    assert mentions_in_order(found.arithmetic, "2.00 s", "40.0 %", "800 ms")
    assert "decode" in found.title.lower()
    assert found.evidence and found.advice


@pytest.mark.parametrize("part", IDS)
def test_from_a_twentieth_of_the_wall_clock_on(part: str) -> None:
    assert len(idle.find_losses(summary(budget={"decode": budget(2.0, compute=0.95, **{part: 0.05})}))) == 1
    assert idle.find_losses(summary(budget={"decode": budget(2.0, compute=0.951, **{part: 0.049})})) == []


def test_a_device_that_computes_all_the_time_loses_nothing() -> None:
    assert (
        idle.find_losses(
            summary(budget={"decode": budget(2.0, compute=1.0), "all": budget(2.0, compute=1.0)})
        )
        == []
    )
    assert idle.find_losses(summary(budget={"decode": Budget(0.0, [BudgetPart("host", 0.0, 1.0)])})) == []
    assert idle.find_losses(summary()) == []


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


def test_a_capture_that_was_not_timed_reports_the_captured_time() -> None:
    found = only(summary(budget={"all": budget(4.0, compute=0.2, sync=0.8)}))
    assert (found.id, found.phase) == ("host-sync", "all")
    assert found.gain_upper_s == pytest.approx(3.2)
    assert mentions(found.evidence[0], "80.0 %", "captured") and mentions_in_order(
        found.evidence[0], "3.20 s", "4.00 s"
    )
    assert "sample" not in found.arithmetic


def synced(waits: int, steps: int | None, *, owner: str | None = None, copied: bool = False) -> list[Finding]:
    """What is found where the device runs dry after so many waits in a number of steps."""
    at = IdleOwner("synchronisation", owner, None, None) if owner else None
    parts = [BudgetPart("compute", 1.6, 0.8), BudgetPart("sync", 0.4, 0.2, at, waits)]
    metrics: dict[str, float | None] = {"captured_all_count": steps, "copy_d2h_s": 1e-5 if copied else None}
    return idle.find_losses(summary(budget={"all": Budget(2.0, parts, "run.sqlite")}, metrics=metrics))


def test_one_wait_per_step_does_not_read_results_back_inside_the_loop() -> None:
    for given in ({}, {"owner": "aten::item"}, {"copied": True}):
        (found,) = synced(10, 10, **given)  # type: ignore[arg-type]
        assert "once per step" in found.title and "nonzero" not in found.advice
    assert synced(2, 1) == []  # a synchronisation at the start and at the end of the capture


def test_many_waits_per_step_are_a_habit_of_the_loop() -> None:
    (found,) = synced(40, 10, owner="aten::item")
    assert "read results back" in found.title and ".item()" in found.advice
    (found,) = synced(40, None, copied=True)
    assert "read results back" in found.title
    (found,) = synced(40, 10)  # nothing is copied to the host: no results are read
    assert "wait for the device" in found.title


def test_copies_have_their_numbers() -> None:
    found = only(
        summary(budget={"decode": budget(4.0, compute=0.75, copy=0.25)}, sources={"nsys": "a.sqlite"})
    )
    assert (found.id, found.phase) == ("copies", "decode")
    share, source = found.evidence
    assert mentions(share, "25.0 %", "decode") and mentions_in_order(share, "1.00 s", "4.00 s")
    assert source == "nsys: a.sqlite"


# the owner


def test_the_owner_is_named_with_its_share_and_thread() -> None:
    owner = IdleOwner("data loading", "DataLoader.__next__", "main", 0.98)
    found = only(summary(budget={"all": owned("data", owner)}))
    assert (found.id, found.phase) == ("input-pipeline", "all")
    assert mentions(found.evidence[1], "data loading", "DataLoader.__next__", "98.0 %", "main")
    assert found.confidence == "high"
    nobody = only(summary(budget={"all": owned("data", None)}))
    assert (nobody.confidence, len(nobody.evidence)) == ("medium", 1)
    outside = only(summary(budget={"all": owned("host", IdleOwner("python", None, "thread 7", 0.5))}))
    assert (outside.id, len(outside.evidence)) == ("host-idle", 2)
    assert mentions(outside.evidence[1], "python", "50.0 %", "thread 7")


def test_a_queue_is_nobodys_gain() -> None:
    found = only(summary(budget={"all": owned("queue", IdleOwner("queued work"))}))
    assert (found.gain_upper_s, found.confidence) == (None, "low")
    assert not any(setting in found.advice for setting in ("model.", "infer.", "run.")), (
        "no setting of the host"
    )


@pytest.mark.parametrize(
    ("part", "what", "own_title", "own_advice", "advice"),
    [
        ("data", "data loading", None, False, "workers"),
        ("data", "tokenising", "token", False, "workers"),
        ("host", "compilation", "compil", True, "compiled"),
        ("host", "not recorded", None, True, "NVTX"),
        ("host", "range", None, True, "sample"),
        ("host", "operator", None, True, "sample"),
        ("allocation", "allocation", None, False, "expandable_segments"),
        ("sync", "synchronisation", None, False, ".item()"),
        ("launch", "launch calls", None, False, "model.cuda_graphs=true"),
    ],
)
def test_the_advice_follows_the_owner(
    part: str, what: OwnerKind, own_title: str | None, own_advice: bool, advice: str
) -> None:
    found = only(summary(budget={"decode": owned(part, IdleOwner(what, "sample"))}))
    nobody = only(summary(budget={"decode": owned(part, None)}))
    assert (found.id, found.phase) == (nobody.id, nobody.phase) == (IDS[part], "decode")
    assert (found.title != nobody.title) is (own_title is not None)
    assert own_title is None or (own_title in found.title and own_title not in nobody.title)
    assert (found.advice != nobody.advice) is own_advice
    assert advice in found.advice and (advice in nobody.advice) is not own_advice


def test_only_launching_is_answered_with_cuda_graphs() -> None:
    for part in IDS:
        (found,) = idle.find_losses(summary(budget={"decode": budget(2.0, compute=0.6, **{part: 0.4})}))
        assert ("CUDA graph" in found.advice) is (part == "launch")


def test_text_for_a_cpu_and_for_unknown_owners() -> None:
    assert "CUDA" not in advice_for("launch-bound", None, cpu().kind)
    assert advice_for("host-idle", IdleOwner("python"), "gpu") == advice_for("host-idle", None, "gpu")
    assert title_for("host-idle", IdleOwner("python"), "all") == title_for("host-idle", None, "all")
    assert "decode" in title_for("host-idle", None, "decode").lower()
    assert "all" not in title_for("host-idle", None, "all").split(), "the whole run is no phase by name"


def test_the_longest_gaps_of_the_same_owner_are_listed() -> None:
    owner = IdleOwner("data loading", "load_batch")
    gaps = [
        IdleGap(0, 0.0, 0.3, owner, "decode", frames=["app.py(1): main", "app.py(9): load"]),
        IdleGap(0, 1.0, 0.2, IdleOwner("range", "sample"), "decode"),
        IdleGap(0, 2.0, 0.1, owner, "decode"),
        IdleGap(0, 3.0, 0.1, owner, "prefill"),
    ]
    found = only(summary(budget={"decode": owned("data", owner)}, idle_gaps=gaps))
    assert re.findall(r"\d+ ms", found.evidence[-1]) == ["300 ms", "100 ms"]
    assert "app.py(9): load" in found.evidence[-1] and "app.py(1)" not in found.evidence[-1]
    whole = only(summary(budget={"all": owned("data", owner)}, idle_gaps=gaps))
    assert re.findall(r"\d+ ms", whole.evidence[-1]) == ["300 ms", "100 ms", "100 ms"]
    other = only(summary(budget={"decode": owned("host", IdleOwner("python"))}, idle_gaps=gaps))
    assert (
        len(other.evidence) == 1 and "300 ms" not in other.evidence[0] and "200 ms" not in other.evidence[0]
    )


# what was counted beside it


def test_launches_and_reads_per_token_are_listed_with_their_time() -> None:
    data = summary(
        budget={"decode": budget(2.0, compute=0.2, launch=0.4, sync=0.4), "prefill": budget(2.0, launch=1.0)},
        operators=[operator("aten::item", 300), operator("aten::nonzero", 10)],
        metrics={"profiled_decode_steps": 10.0, "launches_per_token": 1320.0},
    )
    found = {(one.id, one.phase): one.evidence for one in idle.find_losses(data)}
    assert any_mentions(found["launch-bound", "decode"], "1320")
    assert not any_mentions(found["launch-bound", "prefill"], "1320")
    (reads,) = [line for line in found["host-sync", "decode"] if "aten::" in line]
    assert mentions(reads, "aten::item", "30.0") and "aten::nonzero" not in reads


def test_the_inflation_of_the_profiler_is_reported_where_it_is_known() -> None:
    spans = {"decode": Budget(2.0, [BudgetPart("launch", 2.0, 1.0)], "t", 6.0, 3.0)}
    assert mentions_in_order(only(summary(budget=spans)).evidence[-1], "2.00 s", "6.00 s", "3.00")
    spans["decode"] = Budget(2.0, [BudgetPart("launch", 2.0, 1.0)], "t")
    assert not any_mentions(only(summary(budget=spans)).evidence, "6.00 s")


# phases and the whole


def test_phases_have_their_own_losses_and_the_whole_only_what_lies_between() -> None:
    spans = {
        "prefill": budget(1.0, compute=0.5, host=0.5),
        "decode": budget(4.0, compute=1.0),
        "all": budget(8.0, compute=4.5 / 8, host=3.5 / 8),
    }
    found = {one.phase: one for one in idle.find_losses(summary(budget=spans))}
    assert found.keys() == {"prefill", "all"}
    assert found["prefill"].gain_upper_s == pytest.approx(0.5)
    assert found["all"].gain_upper_s == pytest.approx(3.0)
    assert sum(one.gain_upper_s or 0.0 for one in found.values()) == pytest.approx(3.5)  # nothing twice
    spans["all"] = budget(5.0, compute=4.5 / 5, host=0.5 / 5)
    assert [one.phase for one in idle.find_losses(summary(budget=spans))] == ["prefill"]


def test_what_lies_between_phases_is_not_compared_with_unprofiled_phases() -> None:
    phase = Budget(1.0, [BudgetPart("compute", 1.0, 1.0)], "t", 2.0, 2.0)
    spans = {"decode": phase, "all": budget(8.0, compute=0.25, host=0.75)}
    assert idle.find_losses(summary(budget=spans)) == []


def test_losses_of_a_phase_sum_to_no_more_than_its_time() -> None:
    shares = dict.fromkeys(IDS, 1 / 8)
    found = idle.find_losses(summary(timings=timings(decode=3.0), budget={"decode": budget(9.0, **shares)}))
    assert len(found) == 8
    assert sum(one.gain_upper_s or 0.0 for one in found) == pytest.approx(3.0 * 7 / 8)
