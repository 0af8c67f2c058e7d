"""Summaries made by hand for the report tests: one with everything, one with nothing, one that attacks its reader."""

from __future__ import annotations

from llm_perf_opt.analysis.shares import add_shares
from llm_perf_opt.summary import (
    Budget,
    BudgetPart,
    Coverage,
    CoverageSummary,
    Finding,
    Hardware,
    Kernel,
    LedgerRow,
    Operator,
    Params,
    Peak,
    Prediction,
    RunInfo,
    SampleTimes,
    StageInfo,
    Stat,
    Static,
    StaticPhase,
    Summary,
    Timings,
    Utilisation,
    VendorRule,
    Verdict,
    WhatIf,
    Workload,
)

HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>|`a`[x](javascript:window.hacked=1)\n# head **b** </script></title>\u202e\x00\"'&amp;"


def stat(median: float, n: int = 9) -> Stat:
    return Stat(median, median * 0.9, median * 1.2, median * 1.02, median * 0.1 if n > 1 else None, n)


def bare_summary(run_id: str = "empty") -> Summary:
    """Nothing but the run itself."""
    return Summary(
        run=RunInfo(run_id, "ok", "2026-01-02T03:04:05+00:00", None, ["llm-perf-opt", "ingest"]),
        environment={},
        hardware=Hardware(None, "unknown", {}, None, "none", reason="the captures do not name the device"),
        workload=Workload(),
    )


def kernel(
    place: int, *, name: str | None = None, phase: str | None = "decode", counted: bool = False
) -> Kernel:
    total = 0.4 / (place + 1)
    counters: dict[str, float | None] = {}
    if counted:
        counters = {
            "duration_s": 6.75e-6,
            "intensity_flops_per_byte": 0.5 * 4**place,
            "achieved_flops_per_s": 3.4e11 * 3**place,
            "compute_ratio": 0.0915,
            "dram_ratio": 0.1966,
            "dram_bytes": 2330000.0,
            "occupancy_ratio": None,
        }
    return Kernel(
        name=name or f"void kernel_{place}<int, float, (bool)1>(T{place}::Params)",
        short_name=f"kernel {place}" if name is None else name[:60],
        family=("gemm", "elementwise", "attention")[place % 3],
        phase=phase,
        module="model.layers.*.mlp" if place == 0 else None,
        launches=1000 // (place + 1),
        total_s=total,
        share_ratio=total / 1.0,
        bound="dram" if counted else None,
        vendor_verdict="Memory is more heavily utilized than Compute." if counted else None,
        counters=counters,
        estimated_speedup_ratio=0.38 if counted else None,
        agreement="agrees" if counted else None,
    )


def full_summary(kernels: int = 4) -> Summary:
    """Every section filled, with round numbers."""
    summary = Summary(
        run=RunInfo("20260102-030405", "ok", "2026-01-02T03:04:05+00:00", 61.5, ["llm-perf-opt", "run"]),
        environment={
            "llm_perf_opt": "9.9",
            "python": "3.11.7",
            "cpu": {"name": "Some CPU", "memory_bytes": 2**34},
        },
        hardware=Hardware(
            "NVIDIA Test GPU",
            "gpu",
            {"bfloat16": Peak(2e14, "data sheet"), "float32": Peak(1e14, "data sheet")},
            1e12,
            "catalogue",
            memory_bytes=2.0**35,
            bandwidth_source="data sheet",
        ),
        workload=Workload("Test-OCR", "real", "TestOCR", "cuda:0", "bfloat16", 1, 3, 900.0, 850.0, 32.0),
        notes=["The clock speed was not fixed."],
        coverage=CoverageSummary(0.97, 0.995, 0.991),
        stages={
            "static_analysis": StageInfo("ok", None, 3.2, ["static_analysis/static_compute.json"]),
            "ncu": StageInfo("skipped", "ncu is not installed (fix: install Nsight Compute)", None, []),
        },
        timings=Timings(
            stat(0.05),
            stat(0.2),
            stat(0.1),
            stat(0.3),
            stat(0.65),
            stat(0.021, 279),
            stat(47.6),
            {"sam_s": stat(0.15), "language_model_prefill_s": stat(0.09)},
            "torch_profiler/timings.json",
        ),
        samples=[
            SampleTimes("page-large", 3, 1200, 1150, 32, 0.06, 0.3, 0.12, 0.66, 0.42, 0.0213),
            SampleTimes("page-small", 3, 300, 250, 32, 0.04, 0.1, 0.06, 0.62, 0.16, 0.02),
        ],
        static=_static(),
        predictions={
            "prefill": Prediction(0.02, "compute", 5.0, "max(4 TFLOP ÷ 200 TFLOP/s = 20 ms, …)"),
            "decode": Prediction(0.065, "memory", 10.0, "31 steps × 2.1 ms"),
            "tpot": Prediction(0.0021, "memory", 10.0, "max(5.5 µs, 2.1 ms)"),
        },
        utilisation={
            "prefill": Utilisation(0.2, 0.03, 0.8, "MFU 20 % = 4 TFLOP ÷ (100 ms × 200 TFLOP/s)"),
            "decode": Utilisation(0.004, 0.1, 0.31, "MBU 10 % = 65 GB ÷ (650 ms × 1 TB/s)"),
        },
        budget={
            "decode": Budget(
                0.7,
                [
                    BudgetPart("compute", 0.21, 0.3),
                    BudgetPart("launch", 0.35, 0.5),
                    BudgetPart("host", 0.14, 0.2),
                ],
                "nsys/run.sqlite",
            )
        },
        operators=[
            Operator("aten::mm", 128, 0.002, 0.002, 0.03, 0.03, "prefill"),
            Operator("aten::mul", 64, 0.001, 0.001, 0.01, 0.01, "prefill"),
            Operator("aten::copy_", 3968, 0.2, 0.2, 0.1, 0.1, "decode"),
        ],
        kernels=[kernel(place, counted=place < 3) for place in range(kernels)],
        ledger=_ledger(),
        verdicts={
            "prefill": Verdict("compute", "MFU 20 %, MBU 3 %", ["timings: timings.json"], "fewer tokens"),
            "decode": Verdict(
                "launch",
                "kernels run for 30 % of 700 ms (< 50 %)",
                ["timeline: nsys/run.sqlite"],
                "CUDA graphs",
            ),
            "vision": Verdict("unknown", "not decided; would need FLOPs", []),
        },
        findings=_findings(),
        vendor_rules=[
            VendorRule(
                "kernel 0",
                "decode",
                "TheoreticalOccupancy",
                "The theoretical occupancy (16.7%) is limited by registers.",
                0.8,
                0.076,
                0.00128,
                "80 % estimated × 7.6 % of decode × 21 ms = at most 1.28 ms",
            )
        ],
        what_if=[
            WhatIf(
                "NVIDIA GeForce RTX 4090",
                "bfloat16",
                1,
                932,
                0.01,
                0.004,
                250.0,
                True,
                "memory-bound, needs 7 GiB of 24 GiB",
            ),
            WhatIf(
                "NVIDIA B200",
                "bfloat16",
                1,
                932,
                0.002,
                0.0006,
                1600.0,
                True,
                "memory-bound, needs 7 GiB of 180 GiB",
            ),
            WhatIf("NVIDIA T4", "float16", 8, 8192, 0.2, 0.05, 160.0, False, "needs 20 GiB of 16 GiB"),
        ],
        sources={
            "timings": "torch_profiler/timings.json",
            "static": "static_analysis/static_compute.json",
            "nsys": "nsys/run.sqlite",
            "ncu": "ncu/run.csv",
            "trace": "torch_profiler/trace.json.gz",
        },
        timeline={
            "phase": "decode",
            "span_s": 0.02,
            "lanes": [
                {
                    "name": "kernels, stream 7",
                    "events": [
                        {"name": "gemm", "start_s": 0.001, "end_s": 0.004, "family": "gemm"},
                        {"name": "copy", "start_s": 0.006, "end_s": 0.0065, "family": "copy"},
                    ],
                }
            ],
        },
        metrics={"kernel_time_s": 0.8333, "kernel_launches": 2083.0},
    )
    add_shares(summary)
    return summary


def _static() -> Static:
    return Static(
        params=Params(3_336_106_240, 570_000_000, {"sam": 95_000_000, "language_model": 2_900_000_000}),
        kv_bytes_per_token=61440.0,
        phases={
            "prefill": StaticPhase(4e12, 1.2e9, 3e9, 5.5e7, 940.0, 900.0),
            "decode": StaticPhase(1.1e9, 1.1e9, 1e7, 5.6e7, 0.9, 1.0),
        },
        modules=[],
        coverage=Coverage(0.991, ["aten::softmax"]),
        conventions={"mac": "one multiply-add = 2 FLOPs"},
        components={"sam": {"prefill": 1e12}, "language_model": {"prefill": 3e12, "decode": 1.1e9}},
    )


def _ledger() -> list[LedgerRow]:
    def row(module: str, phase: str, depth: int, flops: float, measured: float | None = None) -> LedgerRow:
        return LedgerRow(
            module,
            phase,
            depth,
            1000,
            flops,
            flops / 100,
            flops / 2e14,
            measured,
            "hooks" if measured else None,
        )

    rows = [row("sam", "vision", 0, 1e12, 0.15), row("language_model", "prefill", 0, 3e12, 0.09)]
    rows[1].disagreement = "timeline 120 ms against hooks 90.0 ms"
    rows[1].others_s = {"timeline": 0.12}
    for phase in ("prefill", "decode"):
        rows += [
            row("model", phase, 1, 3e12),
            row("model.layers", phase, 2, 2.9e12),
            row("model.layers.0", phase, 3, 1e12),
            row("model.layers.1", phase, 3, 1.9e12),
            row("model.norm", phase, 2, 1e8),
            row("lm_head", phase, 1, 1e9),
        ]
    return rows


def _findings() -> list[Finding]:
    return [
        Finding(
            "launch-bound",
            "Decode waits for the host to launch work",
            "decode",
            ["kernels run for 30 % of the time", "nsys: nsys/run.sqlite"],
            0.455,
            "650 ms × 70 % = 455 ms",
            "Compile the decode step (`model.compile=true`).",
            "high",
        ),
        Finding(
            "vision-dominated-ttft",
            "The image encoder dominates the time to the first token",
            "vision",
            ["vision 200 ms of 300 ms"],
            0.2,
            "without vision 100 ms",
            "Use fewer pixels.",
            "high",
        ),
        Finding(
            "copy-kernels",
            "Copy and cast kernels take a noticeable share",
            None,
            ["13.8 % of kernel time"],
            0.02,
            "20 ms",
            "Keep one data type.",
            "medium",
        ),
        Finding(
            "noisy-timings",
            "The timings are noisy",
            None,
            ["vision: spread 49 %"],
            None,
            "spread = (p95 − p5) ÷ median",
            "Raise run.repeats.",
            "high",
        ),
    ]


def hostile_summary() -> Summary:
    """Every text that others write tries to break out of its place."""
    summary = full_summary(0)
    summary.run.id = HOSTILE
    summary.run.command = [HOSTILE]
    summary.environment = {HOSTILE: HOSTILE, "nested": {HOSTILE: HOSTILE}, "list": [HOSTILE]}
    summary.hardware.name = HOSTILE
    summary.workload.model = HOSTILE
    summary.notes = [HOSTILE]
    summary.kernels = [kernel(place, name=HOSTILE + str(place), counted=True) for place in range(8)]
    for each in summary.kernels:
        each.vendor_verdict = each.family = each.phase = each.module = each.bound = each.agreement = HOSTILE
    summary.operators = [
        Operator(HOSTILE + str(place), 1, 0.1, 0.1, None, None, HOSTILE) for place in range(8)
    ]
    summary.ledger = [LedgerRow(f"m.{HOSTILE}{place}", HOSTILE, place) for place in range(8)]
    summary.vendor_rules = [
        VendorRule(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 0.1, 0.1, 0.1, HOSTILE) for _ in range(8)
    ]
    summary.stages = {HOSTILE: StageInfo("failed", HOSTILE, 1.0, [HOSTILE])}
    summary.what_if = [
        WhatIf(HOSTILE, HOSTILE, 1, 1, 0.1, 0.1, 1.0, None, HOSTILE + str(place)) for place in range(8)
    ]
    summary.sources = dict.fromkeys(("timings", "static", "nsys", "ncu", "trace"), HOSTILE)
    summary.findings = [
        Finding(HOSTILE, HOSTILE, HOSTILE, [HOSTILE], 0.1, HOSTILE, HOSTILE, "low") for _ in range(5)
    ]
    summary.verdicts = {HOSTILE: Verdict("unknown", HOSTILE, [HOSTILE], HOSTILE)}
    summary.timings.components = {HOSTILE: stat(0.1)}
    summary.timeline["lanes"][0]["name"] = summary.timeline["lanes"][0]["events"][0]["name"] = HOSTILE
    summary.static = _static()
    summary.static.params.components = {HOSTILE: 1}
    summary.static.conventions = {HOSTILE: HOSTILE}
    summary.static.coverage.uncounted_ops = [HOSTILE]
    summary.budget[HOSTILE] = Budget(1.0, [BudgetPart(HOSTILE, 1.0, 1.0)], HOSTILE)
    summary.utilisation[HOSTILE] = Utilisation(0.1, 0.1, 0.1, HOSTILE)
    add_shares(summary)
    return summary
