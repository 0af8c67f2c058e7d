"""What a processor loses beside matrix work, and phases that lose nothing."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.cpu import PhaseClock, phase_work
from llm_perf_opt.analysis.findings import RULES, conditions
from llm_perf_opt.summary import Finding, Prediction, StaticPhase, Summary, Workload
from tests.text_facts import any_mentions, mentions, mentions_in_order
from tests.unit.summaries import cpu, operator, static, summary, timings, verdict


def decode(
    *, host_s: float = 1.2, cost_s: float | None = None, phase: str = "decode", **parts: float
) -> Summary:
    """One second of a phase without a profiler: joins, copies and products as planted, the rest dispatch."""
    names = {"joins": "aten::cat", "copies": "aten::copy_", "products": "aten::mm"}
    rows = [operator(names[name], 10, seconds, phase) for name, seconds in parts.items()]
    work = phase_work(rows, PhaseClock(host_s, 1.0), operator_cost_s=cost_s, grows=phase == "decode")
    assert work is not None
    data = summary(
        hardware=cpu(), operators=rows, timings=timings(**{phase: 1.0}), workload=Workload(cache="dynamic")
    )
    data.cpu_work = {phase: work}
    data.sources = {"trace": "trace.json.gz", "timings": "timings.json"}
    return data


def by_id(data: Summary) -> dict[str, Finding]:
    return {finding.id: finding for finding in conditions.find_cpu_work(data)}


def test_every_loss_is_priced_by_its_share() -> None:
    found = by_id(decode(joins=0.3, copies=0.1, products=0.4))
    assert {name: one.gain_upper_s for name, one in found.items()} == pytest.approx(
        {"growing-cache": 0.3, "memory-movement": 0.1, "dispatch": 0.2}
    )
    assert all(one.phase == "decode" and one.confidence == "high" for one in found.values())
    assert mentions_in_order(found["growing-cache"].arithmetic, "1.00 s", "30.0 %", "300 ms")
    assert any_mentions(found["dispatch"].evidence, "1.20")  # times as long under the profiler
    assert found["dispatch"].evidence[-2:] == ["trace: trace.json.gz", "timings: timings.json"]


def test_a_phase_that_only_multiplies_loses_nothing() -> None:
    assert conditions.find_cpu_work(decode(products=0.97, joins=0.02)) == []
    assert conditions.find_cpu_work(summary(hardware=cpu())) == []


@pytest.mark.parametrize(("seconds", "speaks"), [(0.05, True), (0.049, False)])
def test_where_a_loss_begins_to_matter(seconds: float, speaks: bool) -> None:
    assert ("growing-cache" in by_id(decode(joins=seconds, products=0.94))) is speaks


def test_the_profilers_time_is_no_dispatch() -> None:
    """The profiled pass spends two thirds of its 3 s between operators; without a profiler nothing is left."""
    assert by_id(decode(host_s=3.0, products=1.0)) == {}


def test_without_the_unprofiled_time_dispatch_is_not_priced() -> None:
    data = decode(joins=0.3, products=0.4)
    work = phase_work(data.operators, PhaseClock(host_s=1.2), grows=True)
    assert work is not None
    data.cpu_work = {"decode": work}
    found = by_id(data)
    assert set(found) == {"growing-cache"}
    assert found["growing-cache"].confidence == "medium"
    assert work.of == "profiled" and any_mentions(found["growing-cache"].evidence, "profiler")
    assert not any_mentions(found["growing-cache"].evidence, "1.20")


def test_the_copied_cache_has_a_rate_where_its_size_is_known() -> None:
    """A cache of 1 MB, read and written in each of 100 steps, in 0.4 s: 500 MB/s of 10 GB/s."""
    data = decode(joins=0.4, products=0.4)
    data.static = static(decode=StaticPhase(None, None, None, 1e6, None))
    assert "MB/s" not in " ".join(by_id(data)["growing-cache"].evidence)  # the number of steps is not known
    data.timings = timings(decode=1.0, tpot=0.01)
    assert mentions_in_order(by_id(data)["growing-cache"].evidence[1], "500 MB/s", "5.00 %")
    data.hardware.bandwidth_bytes_per_s = None
    unknown = by_id(data)["growing-cache"].evidence[1]
    assert mentions(unknown, "500 MB/s") and "%" not in unknown


def test_advice_names_side_effects_and_nothing_that_was_slower() -> None:
    found = by_id(decode(joins=0.3, products=0.3, cost_s=1e-6))
    assert "model.cache=preallocated" in found["growing-cache"].advice
    assert "slower" in found["growing-cache"].advice  # of the static cache by itself
    for loss in ("growing-cache", "dispatch"):
        advised = found[loss].advice.split(". ")
        static = [sentence for sentence in advised if "model.cache=static" in sentence]
        assert static and all("model.compile=true" in one for one in static), "never the static cache alone"
    assert any_mentions(found["dispatch"].evidence, "1.00 µs")
    prefill = by_id(decode(phase="prefill", products=0.3))["dispatch"]
    assert "model.compile" not in prefill.advice  # only decode is compiled


def test_no_other_rule_reports_the_same_loss() -> None:
    data = decode(joins=0.1, products=0.1)
    data.verdicts = {"decode": verdict("launch")}
    ids = [finding.id for rule in RULES for finding in rule(data)]
    assert sorted(ids) == ["dispatch", "growing-cache"]


@pytest.mark.parametrize(("calls", "small"), [(2000, True), (20, False)])
def test_products_that_are_too_small_are_overhead_with_what_they_take_above_their_limit(
    calls: int, small: bool
) -> None:
    """0.5 s of products that could take 0.05 s, 0.5 s of dispatch: 95 % of the second is overhead if each product is tiny."""
    rows = [operator("aten::mm", calls, 0.5)]
    data = summary(hardware=cpu(), operators=rows, timings=timings(decode=1.0))
    work = phase_work(rows, PhaseClock(1.2, 1.0))
    assert work is not None
    data.cpu_work = {"decode": work}
    data.predictions = {"decode": Prediction(0.05, "memory", 20.0)}
    (found,) = conditions.find_cpu_work(data)
    assert found.id == "dispatch"
    assert found.gain_upper_s == pytest.approx(0.95 if small else 0.5)
    if small:
        assert mentions(found.evidence[0], "250 µs", "25.0 µs", "45.0 %", "50.0 %", "95.0 %")
