"""All rules together: their order, and what holds for any summary."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.analysis.findings import find_all
from llm_perf_opt.analysis.timeline.budget import PARTS
from llm_perf_opt.summary import StaticPhase, Summary
from tests.unit.summaries import budget, gpu, kernel, static, summary, timings, verdict


def test_findings_are_ordered_by_gain_and_deterministic() -> None:
    data = summary(
        timings=timings(vision=0.8, prefill=0.2, decode=2.0),
        budget={"decode": budget(1.0, compute=0.3, launch=0.6, copy=0.1)},
        verdicts={"decode": verdict("launch")},
        metrics={"padding_ratio": 0.5, "first_repeat_ratio": 2.0},
    )
    found = find_all(data)
    assert [f.id for f in found] == [f.id for f in find_all(data)]
    gains = [f.gain_upper_s for f in found]
    assert gains == sorted(gains, key=lambda gain: -(gain or 0.0))
    assert found[0].id == "launch-bound"
    assert found[-1].gain_upper_s is None


shares = st.floats(0.0, 1.0)


@settings(deadline=None)
@given(
    split=st.lists(st.floats(0.01, 1.0), min_size=len(PARTS), max_size=len(PARTS)),
    vision=st.floats(0.001, 5.0),
    prefill=st.floats(0.001, 5.0),
    decode=st.floats(0.001, 5.0),
    times=st.lists(st.floats(0.0, 3.0), min_size=4, max_size=4),
    ratios=st.lists(shares, min_size=2, max_size=2),
)
def test_no_gain_exceeds_its_phase_and_nothing_is_reported_without_evidence(
    split: list[float], vision: float, prefill: float, decode: float, times: list[float], ratios: list[float]
) -> None:
    total = sum(split)
    parts = dict(zip(PARTS, (size / total for size in split), strict=True))
    families = ("elementwise", "copy", "gemm", "norm")
    data = summary(
        hardware=gpu(float32=1e13, bfloat16=8e13),
        timings=timings(vision=vision, prefill=prefill, decode=decode),
        budget={"decode": budget(3.0, **parts), "all": budget(5.0, **parts)},
        kernels=[
            kernel(f"sgemm {f}", f, t, counters={"waves": 0.5}) for f, t in zip(families, times, strict=True)
        ],
        verdicts={"decode": verdict("launch")},
        static=static(decode=StaticPhase(1e9, 1e9, None, ratios[0] * 1e9, None)),
        metrics={"padding_ratio": ratios[1], "tpot_growth_ratio": 1 + ratios[0]},
    )
    whole = vision + prefill + decode
    limits = {"vision": vision, "prefill": prefill, "decode": decode, None: whole, "all": 5.0}
    for finding in find_all(data):
        assert finding.evidence
        assert finding.arithmetic
        if finding.gain_upper_s is not None:
            assert 0 <= finding.gain_upper_s <= limits[finding.phase] * (1 + 1e-9), finding


def test_a_summary_without_samples_does_not_mention_samples() -> None:
    data = Summary(
        **{
            **{f: getattr(summary(), f) for f in ("run", "environment", "hardware", "workload")},
            "budget": {"all": budget(4.0, compute=0.2, launch=0.5, sync=0.2, copy=0.1)},
            "verdicts": {"all": verdict("launch")},
            "kernels": [kernel("add", "elementwise", 0.5), kernel("copy", "copy", 0.3)],
        }
    )
    for finding in find_all(data):
        assert "sample" not in finding.arithmetic
        assert finding.gain_upper_s is None or finding.gain_upper_s <= 4.0
