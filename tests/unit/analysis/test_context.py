"""How much a capture holds, what program it is of, and advice that fits both."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from llm_perf_opt.analysis.context import (
    evidence_of,
    fit_advice,
    keep_supported,
    name_profiler_overhead,
    program_of,
)
from llm_perf_opt.analysis.findings import find_all, rank_findings
from llm_perf_opt.analysis.verdicts import judge
from llm_perf_opt.summary import Finding, Kernel, Summary
from llm_perf_opt.summary.devices import IdleGap, IdleOwner
from tests.unit.summaries import budget
from tests.unit.summaries import summary as make_summary

OWN_KEY = re.compile(r"\b(?:model|infer|run|dataset|pipeline)\.[a-z_]+")
INGEST = ["llm-perf-opt", "ingest", "--trace=a.json"]


def kernel(name: str, family: str = "gemm", launches: int = 100, total_s: float = 0.1) -> Kernel:
    return Kernel(name, name, family, None, None, launches, total_s, None)


def finding(name: str, **more: Any) -> Finding:
    fields: dict[str, Any] = {
        "title": "t", "phase": "all", "evidence": [], "gain_upper_s": 1.0, "arithmetic": "", "confidence": "high",
        "advice": "Set model.compile=true.",
    }  # fmt: skip
    return Finding(id=name, **fields | more)


def captured(launches: float, span_s: float, *, command: list[str] | None = None, **shares: float) -> Summary:
    found = make_summary(
        budget={"all": budget(span_s, **shares or {"compute": 0.2, "launch": 0.8})},
        metrics={"kernel_launches": launches, "kernel_time_s": 0.2 * span_s},
    )
    found.run = dataclasses.replace(found.run, command=command or INGEST)
    return found


@pytest.mark.parametrize(("launches", "span_s"), [(2, 1.0), (19, 1.0), (500, 0.9e-3)])
def test_a_capture_below_the_floor_has_no_verdict_no_gain_and_no_finding_of_waiting(
    launches: float, span_s: float
) -> None:
    found = captured(launches, span_s)
    verdict = judge(found)["all"]
    assert verdict.bound == "unknown"
    assert "too little was captured" in verdict.arithmetic
    assert find_all(found) == []
    slow = keep_supported([finding("slow-kernels", gain_upper_s=0.5)], found)
    assert [(one.gain_upper_s, one.confidence) for one in slow] == [(None, "low")]


@pytest.mark.parametrize(
    ("launches", "span_s", "confidence"), [(20, 1.0, "medium"), (199, 1.0, "medium"), (200, 0.01, "high")]
)
def test_confidence_needs_more_than_the_floor(launches: float, span_s: float, confidence: str) -> None:
    found = captured(launches, span_s)
    assert judge(found)["all"].bound == "launch"
    (one,) = keep_supported([finding("launch-bound")], found)
    assert (one.gain_upper_s, one.confidence) == (1.0, confidence)


def test_a_graph_captured_as_one_operation_represents_its_kernels() -> None:
    found = captured(5, 1.0)
    found.kernels = [kernel("[CUDA graph]", "graph", launches=5)]
    evidence = evidence_of(found)
    assert evidence is not None and evidence.is_enough


def test_what_is_too_small_to_matter_is_not_reported() -> None:
    found = captured(1000, 1.0)
    kept = keep_supported(
        [finding("a", gain_upper_s=0.009), finding("b", gain_upper_s=0.011), finding("c", gain_upper_s=None)],
        found,
    )
    assert [one.id for one in kept] == ["b", "c"]


def test_findings_without_a_gain_are_ordered_by_the_time_they_are_about() -> None:
    given = [
        finding("gain", gain_upper_s=0.2),
        finding("queue", gain_upper_s=None, time_s=0.6),
        finding("none", gain_upper_s=None),
    ]
    assert [one.id for one in rank_findings(given)] == ["queue", "gain", "none"]


@pytest.mark.parametrize(
    ("kernels", "wanted", "unwanted"),
    [
        (["gemm"], "torch.cuda.graph", "vLLM"),
        (["void vllm::rms_norm_kernel"], "--enforce-eager", "torch.cuda.graph"),
        (["sgl_kernel::rmsnorm"], "--disable-cuda-graph", "vLLM"),
        (
            ["aten::mul_backward", "autograd::engine::evaluate_function", "Optimizer.step"],
            "fused optimizer",
            "decode",
        ),
        (["triton_poi_fused_add_0"], "is compiled", "Compile the"),
    ],
)
def test_advice_is_in_the_terms_of_the_program(kernels: list[str], wanted: str, unwanted: str) -> None:
    found = captured(1000, 1.0)
    found.kernels = [kernel(name) for name in kernels]
    advice = fit_advice(finding("launch-bound"), program_of(found), found).advice
    assert wanted in advice and unwanted not in advice
    assert not OWN_KEY.search(advice)


def test_a_run_in_graphs_is_not_advised_to_use_them() -> None:
    found = captured(1000, 1.0)
    found.metrics["graph_kernel_time_ratio"] = 0.8
    advice = fit_advice(finding("launch-bound"), program_of(found), found).advice
    assert "already replayed as graphs" in advice


def test_our_own_runs_keep_our_keys() -> None:
    found = captured(1000, 1.0, command=["llm-perf-opt", "run"])
    assert fit_advice(finding("launch-bound"), program_of(found), found).advice == "Set model.compile=true."


@pytest.mark.parametrize(
    ("metrics", "wanted"),
    [
        ({"copy_d2d_s": 0.8, "copy_h2d_s": 0.2, "copy_pageable_s": 0.0}, "within the device"),
        ({"copy_d2d_s": 0.0, "copy_h2d_s": 1.0, "copy_pageable_s": 0.0}, "pinned already"),
        ({"copy_d2d_s": 0.0, "copy_h2d_s": 1.0, "copy_pageable_s": 0.9}, "Pin host memory"),
    ],
)
def test_advice_on_copies_follows_their_direction(metrics: dict[str, float], wanted: str) -> None:
    found = captured(1000, 1.0)
    found.metrics |= {"copy_s": 1.0, **metrics}
    copies = finding("copies", advice="Pin host memory (infer.pinned_inputs=true), copy asynchronously.")
    advice = fit_advice(copies, program_of(found), found).advice
    assert wanted in advice and not OWN_KEY.search(advice)


def test_frames_of_the_profiler_are_named_where_they_inflate_a_finding() -> None:
    found = captured(1000, 1.0)
    assert name_profiler_overhead(finding("launch-bound"), found).evidence == []
    found.metrics["profiled_python_frames"] = 50_000.0
    shown = name_profiler_overhead(finding("launch-bound"), found)
    assert "Python frames" in shown.evidence[0] and shown.confidence == "medium"
    assert name_profiler_overhead(finding("exposed-communication"), found).evidence == []


def test_the_largest_of_findings_that_split_one_loss_is_placed_by_the_whole_of_it() -> None:
    found = rank_findings(
        [
            finding("launch-bound", gain_upper_s=5.2),
            finding("exposed-communication", gain_upper_s=1.6, time_s=5.9),
            finding("straggler", gain_upper_s=4.9, time_s=5.9),
        ]
    )
    assert [one.id for one in found] == ["straggler", "launch-bound", "exposed-communication"]


def test_a_ratio_of_peaks_does_not_come_before_time_that_was_lost() -> None:
    found = rank_findings(
        [finding("full-precision-kernels", gain_upper_s=1.7), finding("copies", gain_upper_s=1.0)]
    )
    assert [one.id for one in found] == ["copies", "full-precision-kernels"]


@pytest.mark.parametrize("name", ["old-flash-attention", "kv-cache-growth", "padding-waste", "noisy-timings"])
def test_advice_without_our_keys_is_still_a_whole_sentence(name: str) -> None:
    found = captured(1000, 1.0)
    long = "Try a newer make: model.attn_implementation=flash_attention_3, or another; compare the outputs."
    fitted = fit_advice(finding(name, advice=long), program_of(found), found).advice
    assert not OWN_KEY.search(fitted) and fitted[0].isupper() and len(fitted.split()) > 5


def test_levers_do_not_suggest_what_a_capture_does_already() -> None:
    found = captured(1000, 1.0, copy=0.8, compute=0.2)
    found.metrics |= {
        "copy_s": 0.8,
        "copy_h2d_s": 0.8,
        "copy_d2h_s": 0.0,
        "copy_d2d_s": 0.0,
        "copy_pageable_s": 0.0,
    }
    lever = judge(found)["all"].lever
    assert lever is not None and "pinned already" in lever
    graphs = captured(1000, 1.0)
    graphs.metrics["graph_kernel_time_ratio"] = 0.9
    lever = judge(graphs)["all"].lever
    assert lever is not None and "already replayed as graphs" in lever


def test_one_gap_is_no_habit_and_start_up_is_no_steady_state() -> None:
    once = captured(1000, 1.0, host=0.6, compute=0.4)
    once.idle_gaps = [IdleGap(0, 0.1, 0.55, IdleOwner("python"))]
    (gap,) = [one for one in find_all(once) if one.id == "host-idle"]
    assert (gap.gain_upper_s, gap.time_s, gap.confidence) == (None, pytest.approx(0.6), "low")
    often = captured(1000, 1.0, host=0.6, compute=0.4)
    often.idle_gaps = [IdleGap(0, 0.1 * number, 0.06, IdleOwner("python")) for number in range(10)]
    assert [one.gain_upper_s for one in find_all(often) if one.id == "host-idle"] == [pytest.approx(0.6)]
    starting = captured(1000, 1.0, **{"one-off": 0.6, "host": 0.3, "compute": 0.1})
    assert [one.id for one in find_all(starting)] == ["one-off-costs"]
