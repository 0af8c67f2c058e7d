"""What a comparison concludes of hand-made sides: work, causes, owners, devices, wall-clock."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.compare.compare import compare
from llm_perf_opt.compare.data import Comparison, Conclusion
from llm_perf_opt.compare.gates import gate_exit_code, parse_gate
from llm_perf_opt.compare.page import comparison_console, comparison_html, comparison_markdown
from llm_perf_opt.compare.sentences import captured_sentence, signed_seconds, speed
from llm_perf_opt.core.units import format_signed_percent
from llm_perf_opt.summary import Budget, BudgetPart, Kernel, Summary, Workload
from llm_perf_opt.summary.codec import to_plain
from llm_perf_opt.summary.devices import Collective, Communication, DeviceUse, IdleOwner, RankUse
from tests.text_facts import mentions_in_order
from tests.unit.compare.test_compare import document
from tests.unit.summaries import kernel, one, summary, timings


def side(*summaries: Summary, documents: list[Any] | None = None) -> Side:
    return Side("x", [], list(summaries), documents or [None] * len(summaries))


def parts(**seconds: float) -> list[BudgetPart]:
    whole = sum(seconds.values())
    return [BudgetPart(name, value, value / whole if whole else 0.0) for name, value in seconds.items()]


def budget_of(*given: BudgetPart) -> Budget:
    return Budget(sum(part.seconds for part in given), list(given))


def captured(
    kernels: list[Kernel], extra: list[BudgetPart] | None = None, steps: float | None = None, **fields: Any
) -> Summary:
    compute = sum(k.total_s or 0.0 for k in kernels if k.family != "communication")
    whole = budget_of(BudgetPart("compute", compute, 0.0), *(extra or []))
    metrics = {"profiler_steps": steps} if steps else {}
    return summary(**{"kernels": kernels, "budget": {"all": whole}, "metrics": metrics, **fields})


def gemm(seconds: float = 0.6, launches: int = 100) -> Kernel:
    return kernel("gemm", "gemm", seconds, launches=launches)


def norm(seconds: float = 0.3, launches: int = 200) -> Kernel:
    return kernel("norm", "norm", seconds, launches=launches)


def concluded(a: Summary, b: Summary) -> Conclusion:
    result = compare(side(a), side(b))
    (found,) = result.conclusions
    assert result.sentence == found.sentence
    assert found.a_s is not None and found.b_s is not None and found.remainder_s is not None
    explained = sum(cause.change_s for cause in found.causes) + found.remainder_s
    assert explained == pytest.approx(found.b_s - found.a_s, abs=1e-12)
    return found


def test_shares_are_of_the_change_and_add_up() -> None:
    waits = IdleOwner("data loading", "DataLoader.__next__", "main")
    a = captured([gemm(0.6), norm(0.3)], [BudgetPart("host", 0.1, 0.1, waits)], steps=10)
    b = captured([gemm(0.7), norm(0.28)], [BudgetPart("host", 0.12, 0.1, waits)], steps=10)
    found = concluded(a, b)
    assert found.verdict == "slower"
    assert [(c.kind, round(c.change_s, 9)) for c in found.causes] == [
        ("time per launch", 0.1),
        ("idle", 0.02),
        ("time per launch", -0.02),
    ]
    assert sum(c.share_ratio or 0.0 for c in found.causes) == pytest.approx(1.0)
    assert found.ratio == pytest.approx(1.1)
    of_gemm = ("`gemm`", "16.7 %", "+10.0 ms", "+100 ms")
    of_host = ("data loading", "`DataLoader.__next__`", "+2.00 ms", "+20.0 ms", "20.0 %")
    for fact in ("10.0 %", "110 ms", "100 ms", found.work.unit, *of_gemm, *of_host):
        assert fact in found.sentence
    assert found.sentence.index("`gemm`") < found.sentence.index("`DataLoader.__next__`")
    assert "norm" not in found.sentence and "−" not in found.sentence, "too small to be named"


def test_owners_of_one_part_are_causes_of_their_own() -> None:
    def made(loading: float, python: float) -> Summary:
        owned = [
            BudgetPart("host", loading, 0.0, IdleOwner("data loading")),
            BudgetPart("host", python, 0.0, IdleOwner("python")),
        ]
        return captured([gemm()], owned)

    found = concluded(made(0.1, 0.2), made(0.3, 0.1))
    loading, python = found.causes
    assert (loading.kind, round(loading.change_s, 9)) == ("idle", 0.2) and "data loading" in loading.name
    assert (python.kind, round(python.change_s, 9)) == ("idle", -0.1) and "python" in python.name
    assert mentions_in_order(found.sentence, "data loading", "+200 ms", "python", "−100 ms")


def collectives(total: float, exposed: float) -> Communication:
    return Communication([Collective("all_reduce", 10, None, total, exposed, None)], total, exposed)


@pytest.mark.parametrize(
    ("total", "grown"),
    [
        (0.3, []),  # as long as before, but overlapped less
        (0.6, ["2.00"]),
    ],
)
def test_exposed_communication_names_whether_it_grew_or_lost_its_overlap(
    total: float, grown: list[str]
) -> None:
    def made(whole: float, exposed: float) -> Summary:
        rows = [gemm(), kernel("nccl", "communication", whole, launches=10)]
        return captured(rows, parts(communication=exposed), communication=collectives(whole, exposed))

    found = concluded(made(0.3, 0.1), made(total, 0.3))
    assert found.causes[0].kind == "communication"
    assert found.causes[0].change_s == pytest.approx(0.2)
    assert found.causes[0].text is not None and "`all_reduce`" in found.causes[0].text
    assert re.findall(r"\d[\d.]*", found.causes[0].text) == grown
    assert found.causes[0].text in found.sentence and "+200 ms" in found.sentence
    assert len(found.causes) == 1, "its kernels are not compute"


def device(number: int, communication: float, idle: float) -> DeviceUse:
    busy = 1.0 - idle
    return DeviceUse(
        number,
        span_s=1.0,
        busy_s=busy,
        busy_ratio=busy,
        idle_s=idle,
        queued_s=0.0,
        communication_s=communication,
        exposed_communication_s=communication,
        copy_s=0.0,
    )


def on_two(first: float, second: float) -> Summary:
    """Two devices that compute half a second each and communicate."""
    rows = [gemm(1.0), kernel("nccl", "communication", first + second, launches=10)]
    mean = (first + second) / 2
    return captured(
        rows,
        budget={"all": budget_of(*parts(compute=0.5, communication=mean, host=0.5 - mean))},
        devices=[device(0, first, 0.5 - first), device(1, second, 0.5 - second)],
    )


def test_time_that_moved_between_devices_is_named_and_not_gained() -> None:
    found = concluded(on_two(0.3, 0.1), on_two(0.12, 0.28))
    assert found.verdict == "no change"
    (move,) = found.moved
    assert (move.what, move.source, move.target) == ("communication", "GPU 0", "GPU 1")
    assert (move.left_s, move.came_s, move.net_s) == pytest.approx((0.18, 0.18, 0.0))
    for fact in ("1.00 s", move.text):
        assert fact in found.sentence
    for fact in ("GPU 0", "GPU 1", "+180 ms", "−180 ms"):
        assert fact in move.text
    back = concluded(on_two(0.12, 0.28), on_two(0.3, 0.1)).moved[0]
    assert (back.source, back.target) == ("GPU 1", "GPU 0") and back.text != move.text
    result = compare(side(on_two(0.3, 0.1)), side(on_two(0.12, 0.28)))
    console = comparison_console(result, width=1000)
    for shown in (console, comparison_markdown(result), comparison_html(result)):
        assert move.text in shown
        assert "exposed communication" in shown
    assert concluded(on_two(0.3, 0.1), on_two(0.3, 0.1)).moved == []
    assert concluded(on_two(0.3, 0.1), on_two(0.1, 0.1)).moved == [], "less on one device is no move"


def test_what_moved_counts_at_equal_work() -> None:
    """Half the steps: half the communication on each device, and nothing moved."""
    a, b = on_two(0.3, 0.1), on_two(0.15, 0.05)
    for each, steps in ((a, 10.0), (b, 5.0)):
        each.metrics["profiler_steps"] = steps
    for row in b.kernels:
        row.launches = (row.launches or 0) // 2
    assert compare(side(a), side(b)).conclusions[0].moved == []


def test_ranks_show_who_waits_and_for_whom() -> None:
    def made(waits: tuple[float, float], straggler: int) -> Summary:
        ranks = [RankUse(number, waits_s=wait, compute_s=0.4) for number, wait in enumerate(waits)]
        return captured([gemm()], ranks=ranks, communication=Communication(straggler=straggler))

    found = concluded(made((0.0, 0.2), 0), made((0.2, 0.0), 1))
    (move,) = found.moved
    assert (move.what, move.source, move.target) == ("waiting for other ranks", "rank 1", "rank 0")
    (detail,) = found.details
    assert "rank 1" in detail and "rank 0" in detail
    (back,) = concluded(made((0.2, 0.0), 1), made((0.0, 0.2), 0)).details
    assert back != detail, "it says which rank is waited for now"
    assert concluded(made((0.0, 0.2), 0), made((0.0, 0.2), 0)).details == []


def test_phases_are_counted_each_by_itself() -> None:
    def made(decode_steps: int, decode_s: float) -> Summary:
        rows = [
            kernel("gemm", "gemm", 0.4, phase="prefill", launches=40),
            kernel("gemv", "gemm", decode_s, phase="decode", launches=10 * decode_steps),
        ]
        budgets = {
            "prefill": budget_of(*parts(compute=0.4, host=0.1)),
            "decode": budget_of(*parts(compute=decode_s, host=0.01 * decode_steps)),
        }
        counts = {"captured_prefill_count": 1.0, "captured_decode_count": float(decode_steps)}
        return summary(kernels=rows, budget=budgets, metrics=counts)

    found = concluded(made(64, 0.64), made(32, 0.32))
    assert found.work.basis == "phases" and found.work.phases == {"prefill": 1.0, "decode": 0.5}
    assert found.verdict == "no change" and found.causes == []
    same = concluded(made(64, 0.64), made(64, 0.64))
    assert found.work.ratio is None and (found.a_s, found.b_s) == pytest.approx((same.a_s, same.b_s))
    assert len(found.sentence) > len(same.sentence), "the other mix of work is said"
    slower = concluded(made(64, 0.64), made(32, 0.48))
    cause = slower.causes[0]
    assert (cause.kind, cause.phase) == ("time per launch", "decode")
    assert cause.change_s == pytest.approx(0.32)
    for fact in ("`gemv`", "decode", "50.0 %", "+320 ms"):
        assert fact in slower.sentence
    five = [Side("x", [], [made(*size)] * 5, [None] * 5) for size in ((64, 0.64), (32, 0.32))]
    (gate,) = compare(*five, [parse_gate("kernel_time:+3%")]).gates
    assert gate.status == "passed" and gate.ratio == pytest.approx(1.0)


def test_time_outside_the_phases_is_a_scope_of_its_own() -> None:
    def made(outside: float) -> Summary:
        rows = [kernel("gemv", "gemm", 0.4, phase="decode"), kernel("copy", "copy", 0.1)]
        budgets = {
            "decode": budget_of(*parts(compute=0.4, host=0.1)),
            "all": budget_of(*parts(compute=0.5, host=0.1 + outside)),
        }
        return summary(kernels=rows, budget=budgets, metrics={"profiler_steps": 4.0})

    found = concluded(made(0.1), made(0.3))
    (cause,) = found.causes
    assert (cause.kind, cause.phase) == ("idle", None) and "host" in cause.name
    assert cause.change_s == pytest.approx(0.2)


def test_kernels_that_came_went_and_were_replaced() -> None:
    a = captured([gemm(), kernel("add", "elementwise", 0.2), kernel("mul", "elementwise", 0.2)])
    b = captured([gemm(), kernel("triton_fused", "other", 0.1)])
    found = concluded(a, b)
    assert found.verdict == "faster"
    assert {c.kind: round(c.change_s, 9) for c in found.causes} == {"vanished": -0.4, "appeared": 0.1}
    assert mentions_in_order(found.sentence, "2 elementwise", "−400 ms", "`triton_fused`", "+100 ms")


def test_kernels_of_another_capture_do_not_explain_the_budget() -> None:
    def made(compute: float) -> Summary:
        return summary(kernels=[gemm(9.0)], budget={"all": budget_of(*parts(compute=compute, host=0.1))})

    (cause,) = concluded(made(0.5), made(0.7)).causes
    assert (cause.name, cause.kind) == ("compute", "device")
    assert cause.change_s == pytest.approx(0.2)


def test_kernels_that_overlap_less_are_a_cause_of_their_own() -> None:
    def made(compute: float) -> Summary:
        rows = [gemm(0.6), norm(0.3)]
        return summary(kernels=rows, budget={"all": budget_of(*parts(compute=compute, host=0.1))})

    found = concluded(made(0.6), made(0.9))
    assert [(c.kind, round(c.change_s, 9)) for c in found.causes] == [("overlap", 0.3)]
    assert "+300 ms" in found.sentence


def test_a_table_of_kernels_without_a_time_axis() -> None:
    a, b = summary(kernels=[gemm(0.6), norm(0.3)]), summary(kernels=[gemm(0.3, 50), norm(0.15, 100)])
    found = concluded(a, b)
    assert (found.whole, found.verdict, found.work.basis) == ("kernel_time", "no change", "launches")
    assert found.work.ratio == pytest.approx(0.5) and "50.0 %" in found.sentence
    slow = concluded(a, summary(kernels=[gemm(0.9), norm(0.3)]))
    assert [(c.kind, round(c.change_s, 9)) for c in slow.causes] == [("time per launch", 0.3)]
    for fact in ("`gemm`", "50.0 %", "+300 ms"):
        assert fact in slow.sentence


def unknown_work() -> tuple[Summary, Summary]:
    a = captured([gemm(0.6, 100), norm(0.3, 200)])
    return a, captured([gemm(0.3, 50), norm(0.1, 20)])


def no_conclusion(result: Comparison) -> None:
    """The work of the captures is not known: nothing is concluded, and the sentence says why."""
    (found,) = result.conclusions
    assert (found.verdict, found.ratio, found.change_s, found.causes) == ("undecided", None, None, [])
    assert (found.work.basis, found.work.ratio) == (None, None)
    assert found.work.text and found.work.text in result.sentence


def test_work_that_cannot_be_compared_is_no_conclusion_and_no_gate() -> None:
    a, b = unknown_work()
    five = [Side("x", [], [each] * 5, [None] * 5) for each in (a, b)]
    for first, second in (five, five[::-1]):
        result = compare(first, second, [parse_gate("kernel_time:+3%"), parse_gate("launches:+3%")])
        no_conclusion(result)
        assert [gate.status for gate in result.gates] == ["not comparable"] * 2
        assert gate_exit_code(result.gates, strict=False) == 0
        assert gate_exit_code(result.gates, strict=True) == 1
        row = next(row for row in result.metrics if row.name == "kernel_time")
        assert (row.ratio, row.outcome) == (None, "not comparable")
        assert row.a is not None and row.b is not None and row.note is not None
        assert all(each.ratio is None for each in (*result.families, *result.kernels))


def test_steps_that_the_launches_contradict_decide_no_gate() -> None:
    a = captured([gemm(0.6, 100), norm(0.3, 200)], steps=3)
    b = captured([gemm(0.3, 50), norm(0.15, 100)], steps=3)
    found = concluded(a, b)
    assert not found.work.sure and found.work.ratio == pytest.approx(0.5)
    assert (found.verdict, found.work.basis) == ("no change", "launches")
    assert re.search(r"steps\D*3\b", found.work.text), "the count it contradicts"
    five = [Side("x", [], [each] * 5, [None] * 5) for each in (a, b)]
    (gate,) = compare(*five, [parse_gate("kernel_time:+3%")]).gates
    assert (gate.status, gate.reason) == ("not comparable", found.work.text)


def test_a_program_that_fuses_half_of_its_launches_is_faster_not_shorter() -> None:
    """Other kernels took over: that is no capture cut short, so the steps count."""
    a = captured([gemm(0.4, 100), norm(0.4, 200), kernel("add", "elementwise", 0.2, launches=400)], steps=4)
    b = captured([gemm(0.2, 50), norm(0.2, 100), kernel("fused", "other", 0.3, launches=50)], steps=4)
    found = concluded(a, b)
    assert (found.work.basis, found.work.sure, found.work.ratio) == ("steps", True, 1.0)
    assert not found.work.confirmed
    assert (found.verdict, found.ratio) == ("faster", pytest.approx(0.7))
    assert "30.0 %" in found.sentence and "`fused`" in found.sentence
    assert [round(c.change_s, 9) for c in found.causes if c.kind == "appeared"] == [0.3]
    sure = dataclasses.replace(found, work=dataclasses.replace(found.work, confirmed=True))
    assert len(captured_sentence(sure)) < len(found.sentence), "the doubt is said"
    for each in (a, b):
        each.metrics.clear()
    no_conclusion(compare(side(a), side(b)))  # without steps it cannot be told


@pytest.mark.parametrize(
    ("factor", "documents", "verdict"),
    [
        (1.5, True, "slower"),
        (1.0, True, "not shown"),
        (0.5, True, "faster"),
        (1.5, False, "undecided"),  # too few repeats
    ],
)
def test_the_wall_clock_comes_first_with_its_interval(factor: float, documents: bool, verdict: str) -> None:
    def timed(by: float) -> Side:
        clock = timings(prefill=0.2, decode=2.0 * by)
        data = captured([gemm()], timings=clock, workload=Workload(samples=3, new_tokens=11.0))
        return side(data, documents=[document(by) if documents else None])

    result = compare(timed(1.0), timed(factor))
    assert [each.whole for each in result.conclusions] == ["wall_clock", "captured_time"]
    found = result.conclusions[0]
    assert found.verdict == verdict
    total = next(row for row in result.metrics if row.name == "total")
    assert (total.low_ratio is not None) is (total.high_ratio is not None) is documents
    for ratio in (total.low_ratio, total.high_ratio):
        assert ratio is None or format_signed_percent(ratio) in found.sentence
    if verdict != "not shown":
        assert found.ratio is not None and (found.ratio > 1) == (factor > 1)
        assert f"{100 * abs(found.ratio - 1):.1f} %" in found.sentence
    if verdict in ("slower", "faster"):
        cause = found.causes[0]
        assert cause.name == "decode" and cause.share_ratio == pytest.approx(1.0, abs=0.01)
        assert (cause.change_s > 0) == (factor > 1)
        assert "decode" in found.sentence and signed_seconds(cause.change_s) in found.sentence
        per_token = signed_seconds(cause.change_s / 11)
        assert per_token not in found.sentence, "it is the time of one answer"
    assert result.sentence == found.sentence


def fewer_tokens(tokens: int, seconds: float) -> Side:
    found = document(seconds)
    for sample in found["samples"]:
        sample["new_tokens"] = tokens
    clock = timings(prefill=0.2, decode=2.0 * seconds)
    return side(summary(timings=clock, workload=Workload(samples=3, new_tokens=tokens)), documents=[found])


@pytest.mark.parametrize("metric", ["decode", "total", "tpot"])
def test_fewer_tokens_pass_and_fail_no_gate(metric: str) -> None:
    long, short = fewer_tokens(11, 1.0), fewer_tokens(6, 0.5)
    for a, b in ((long, short), (short, long)):
        result = compare(a, b, [parse_gate(f"{metric}:+10%")])
        assert result.gates[0].status == "passed"
        assert result.gates[0].ratio == pytest.approx(1.0, abs=0.02)
        assert [each.verdict for each in result.conclusions] == ["not shown"]
        assert result.conclusions[0].work.ratio == pytest.approx(0.5 if a is long else 2.0)
    slow = compare(long, fewer_tokens(6, 0.75), [parse_gate(f"{metric}:+10%")])
    assert slow.gates[0].status == "regression", "fewer tokens, but each takes longer"
    (found,) = slow.conclusions
    assert (found.verdict, found.work.basis, found.work.ratio) == ("slower", "tokens", pytest.approx(0.5))
    assert "50.0 %" in found.sentence and "decode" in found.sentence
    (cause,) = [cause for cause in found.causes if abs(cause.change_s) > 1e-6]
    assert cause.name.startswith("decode") and cause.change_s == pytest.approx(1.0, rel=0.02), "at A's steps"
    assert signed_seconds(cause.change_s) in found.sentence


def test_summaries_without_raw_timings_are_put_at_equal_tokens_too() -> None:
    long, short = fewer_tokens(11, 1.0), fewer_tokens(6, 0.5)
    result = compare(side(long.first), side(short.first))
    rows = {row.name: row.ratio for row in result.metrics}
    assert rows["decode"] == pytest.approx(1.0) and rows["total"] == pytest.approx(1.0)


def test_other_batches_are_compared_per_generated_token() -> None:
    def made(batch: float, rate: float) -> Side:
        clock = timings(prefill=0.2, decode=2.0)
        clock.tokens_per_s = one(rate)
        return side(summary(timings=clock, workload=Workload(batch_size=batch, new_tokens=11.0)))

    (found,) = compare(made(1.0, 10.0), made(4.0, 25.0)).conclusions
    assert found.ratio == pytest.approx(0.4)
    assert (found.work.basis, found.a_s, found.b_s) == ("tokens", pytest.approx(0.1), pytest.approx(0.04))
    assert found.work.text in found.sentence and found.work.unit in found.sentence
    assert sorted(re.findall(r"\d+", found.work.text)) == ["1", "4"]


def test_sides_that_failed_or_measured_nothing_get_no_conclusion() -> None:
    good, bad = captured([gemm()]), captured([gemm()])
    bad.run = dataclasses.replace(bad.run, status="failed")
    result = compare(side(good), side(bad))
    assert result.conclusions == []
    assert re.search(rf"\bB\b.*\b{bad.run.id}\b.*\bfailed\b", result.sentence)
    nothing = compare(side(summary()), side(summary()))
    assert nothing.conclusions == [] and nothing.metrics == []
    assert nothing.sentence and "failed" not in nothing.sentence


def test_other_models_are_reported_with_the_conclusion() -> None:
    a = captured([gemm()], workload=Workload(model="small"))
    b = captured([gemm(0.9)], workload=Workload(model="large"))
    found = concluded(a, b)
    (detail,) = found.details
    assert re.search(r"\bmodel\b.*\bsmall\b.*\blarge\b", detail)
    assert concluded(a, captured([gemm(0.9)], workload=Workload(model="small"))).details == []


def test_every_form_begins_with_the_sentence() -> None:
    result: Comparison = compare(side(captured([gemm(0.6)], steps=3)), side(captured([gemm(0.9)], steps=3)))
    assert comparison_console(result, width=1000).startswith(result.sentence)
    assert all(len(line) < 80 for line in comparison_console(result).splitlines()[:2])
    assert result.sentence.split(":")[0] in comparison_markdown(result).split("\n- ")[0]
    page = comparison_html(result)
    (answer,) = re.findall(r'<p class="answer">(.*?)</p>', page, re.S)
    assert result.conclusions[0].verdict == "slower"
    assert result.sentence.split(":")[0] in answer and "50.0 %" in answer and "gemm" in answer
    (why,) = re.findall(r'<section id="why-0">(.*?)</section>', page, re.S)
    assert "lpo-waterfall" in why
    plain = to_plain(result)
    assert plain["sentence"] == result.sentence
    assert plain["conclusions"][0]["causes"][0]["share_ratio"] == pytest.approx(1.0)
    assert plain["conclusions"][0]["work"]["basis"] == "steps"


@pytest.mark.parametrize(
    ("ratio", "size", "way"),
    [
        (0.88, "12.0 %", "faster"),
        (1.12, "12.0 %", "slower"),
        (2.0, "2.00", "slower"),
        (0.25, "4.00", "faster"),
    ],
)
def test_described_speed(ratio: float, size: str, way: str) -> None:
    assert size in speed(ratio)
    assert [word for word in ("faster", "slower") if word in speed(ratio)] == [way]


def test_speed_without_a_ratio_claims_nothing() -> None:
    assert not re.search(r"\d|faster|slower", speed(None)) and speed(None)
