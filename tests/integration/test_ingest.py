"""Captures made elsewhere, ingested: known answers, contradictions, and files that are not what they should be."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt
from llm_perf_opt.cli import main
from llm_perf_opt.core import units
from llm_perf_opt.reporting.wording import PHASE_NAMES
from llm_perf_opt.summary import Summary
from llm_perf_opt.summary.file import load_summary
from tests.unit.kineto_traces import annotation, document
from tests.unit.kineto_traces import call as host_call
from tests.unit.kineto_traces import kernel as device_kernel
from tests.unit.kineto_traces import op as host_op
from tests.unit.kineto_traces import write as write_trace

WALL = {"samples": 20, "new_tokens": 64, "prefill_s": 0.0983, "decode_s": 0.7074}
RTX = "NVIDIA GeForce RTX 5090"


def wall(folder: Path, **changes: Any) -> Path:
    path = folder / "wall.json"
    path.write_text(json.dumps({**WALL, **changes}), encoding="utf-8")
    return path


def ingest(out: Path, *arguments: object) -> Summary:
    assert main(["ingest", "--out", str(out), *(str(argument) for argument in arguments)]) == 0
    return load_summary(out)


@pytest.fixture(scope="module")
def static_document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DeepSeek-OCR counted at the shapes of the published run: 913 positions, 2 x 3 tiles, 64 decode steps."""
    pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("static") / "run"
    overrides = [
        "model=deepseek_ocr",
        "infer.mode=gundam",
        "pipeline.torch_profiler.enable=false",
        "pipeline.static_analysis.grid=[2,3]",
        "pipeline.static_analysis.prompt_tokens=913",
        "pipeline.static_analysis.decode_tokens=64",
        "pipeline.static_analysis.head_positions=all",
        "pipeline.static_analysis.rotary=per_layer",
        "hardware.probe=false",
        f"artifacts.runs_dir='{out}'",
    ]
    assert main(["run", "-q", *overrides]) == 0
    return out / "static_analysis" / "static_compute.json"


@pytest.fixture(scope="module")
def rtx5090(shared_data: Path, static_document: Path, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    folder, out = shared_data / "rtx5090-deepseek-ocr", tmp_path_factory.mktemp("rtx")
    return ingest(
        out / "run",
        "--nsys", folder / "nsys" / "all-stage.cuda_gpu_kern_sum.csv",
        "--ncu", folder / "ncu",
        "--timings", wall(out),
        "--static", static_document,
        "--device", RTX,
    )  # fmt: skip


def test_decode_of_the_rtx_5090_run_is_launch_bound(rtx5090: Summary) -> None:
    assert rtx5090.verdicts["decode"].bound == "launch"
    assert rtx5090.verdicts["all"].bound == "launch"
    busy = rtx5090.utilisation["all"].device_busy_ratio
    assert busy == pytest.approx(4.946064742 / (20 * (0.0983 + 0.7074)), rel=1e-9)
    assert busy == pytest.approx(0.307, abs=5e-4)
    assert rtx5090.findings[0].id == "launch-bound"
    assert rtx5090.findings[0].gain_upper_s is not None
    assert rtx5090.findings[0].gain_upper_s <= 0.7074


def test_utilisation_of_the_rtx_5090_run(rtx5090: Summary) -> None:
    used = rtx5090.utilisation
    assert used["prefill"].mfu_ratio == pytest.approx(0.222, abs=1e-3)
    assert used["decode"].mfu_ratio == pytest.approx(0.000521, abs=1e-6)
    assert used["total"].mfu_ratio == pytest.approx(0.0275, abs=1e-4)
    assert "weights alone 5.8" in (used["decode"].arithmetic or "")


def test_kernels_of_the_rtx_5090_run_are_all_there(rtx5090: Summary) -> None:
    timed = [kernel for kernel in rtx5090.kernels if kernel.total_s is not None]
    assert len(timed) == 113
    assert sum(kernel.launches or 0 for kernel in timed) == 1_695_983
    assert sum(kernel.total_s or 0.0 for kernel in timed) == pytest.approx(4.946064742, rel=1e-9)
    assert sum(1 for kernel in timed if kernel.counters) == 7


def test_coverage_is_never_above_one(rtx5090: Summary) -> None:
    coverage = rtx5090.coverage
    for value in (
        coverage.kernel_time_classified_ratio,
        coverage.flops_counted_ratio,
        coverage.time_attributed_ratio,
    ):
        assert value is None or 0 <= value <= 1
    assert all(0 <= (family.share_ratio or 0.0) <= 1 for family in rtx5090.kernel_families)


def test_a_wall_clock_that_contradicts_the_kernels_is_noted(shared_data: Path, tmp_path: Path) -> None:
    table = shared_data / "rtx5090-deepseek-ocr" / "nsys" / "all-stage.cuda_gpu_kern_sum.csv"
    found = ingest(tmp_path / "run", "--nsys", table, "--timings", wall(tmp_path, samples=2), "--device", RTX)
    assert found.utilisation["all"].device_busy_ratio == 1.0
    assert any("wall-clock" in note and "kernel" in note for note in found.notes)


def test_an_impossible_wall_clock_is_noted(static_document: Path, tmp_path: Path) -> None:
    fast = wall(tmp_path, prefill_s=0.001)
    found = ingest(tmp_path / "run", "--static", static_document, "--timings", fast, "--device", RTX)
    assert (found.utilisation["prefill"].mfu_ratio or 0.0) > 1
    assert any("100 %" in note and "prefill" in note for note in found.notes)


def independent_table(path: Path) -> dict[str, tuple[float, int]]:
    rows: dict[str, list[tuple[float, int]]] = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            total, count = (
                float(row["Kernel duration (µs)_sum"]),
                int(float(row["Kernel duration (µs)_count"])),
            )
            rows[row["Kernel name"]].append((total, count))
    return {name: (sum(t for t, _ in seen), sum(c for _, c in seen)) for name, seen in rows.items()}


def test_h100_kernel_totals_equal_the_independent_table(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "h100-torch-traces"
    (trace,) = folder.glob("Qwen*.json.gz")
    expected = independent_table(trace.with_name(trace.name.replace(".json.gz", ".kernel_summary.csv")))
    found = ingest(tmp_path / "run", "--trace", trace)
    ours: dict[str, tuple[float, int]] = {}
    for kernel in found.kernels:
        seconds, launches = ours.get(kernel.name, (0.0, 0))
        ours[kernel.name] = (seconds + (kernel.total_s or 0.0), launches + (kernel.launches or 0))
    tables = {name: value for name, value in expected.items() if name in ours}
    assert set(ours) == set(tables)
    for name, (micros, count) in tables.items():
        assert ours[name][0] * 1e6 == pytest.approx(micros, rel=1e-6), name
        assert ours[name][1] == count, name
    left_out = {name for name in expected if name not in ours}
    assert all(name.startswith(("Memcpy", "Memset")) for name in left_out), left_out
    assert 0 < (found.utilisation["all"].device_busy_ratio or 0.0) <= 1


def test_a_trace_without_kernels_of_any_model_is_ingested(shared_data: Path, tmp_path: Path) -> None:
    (trace,) = (shared_data / "h100-torch-traces").glob("gaunernst*.json.gz")
    found = ingest(tmp_path / "run", "--trace", trace)
    assert found.kernels
    assert found.budget["all"].span_s == pytest.approx(
        sum(part.seconds for part in found.budget["all"].parts)
    )


def test_an_ingested_trace_with_shapes_gets_mfu_and_a_roofline(shared_data: Path, tmp_path: Path) -> None:
    (trace,) = (shared_data / "h100-torch-traces").glob("Qwen*.json.gz")
    found = ingest(tmp_path / "run", "--trace", trace)
    use, metrics = found.utilisation["all"], found.metrics
    assert use.mfu_ratio is not None and 0.1 < use.mfu_ratio < 0.5
    assert metrics["all_traced_flops_coverage_ratio"] == 1.0
    achieved = metrics["all_achieved_flops_per_s"] or 0.0
    assert use.mfu_busy_ratio is not None and use.mfu_ratio < use.mfu_busy_ratio
    assert use.mfu_busy_ratio == pytest.approx(
        achieved / found.hardware.peak_flops_per_s["bfloat16"].dense, rel=1e-3
    )
    # What was counted stands in the report, as a table of the stage that brought the trace.
    (row,) = [
        row
        for section in found.sections
        for table in section.tables
        for row in table.rows
        if "FLOPs" in table.columns
    ]
    assert units.percent(use.mfu_busy_ratio) in row and units.flops_per_s(achieved) in row


def test_a_step_with_prompts_and_next_tokens_is_a_mixed_one(shared_data: Path, tmp_path: Path) -> None:
    (trace,) = (shared_data / "torch-traces-more").glob("*vllm*.json.gz")
    found = ingest(tmp_path / "run", "--trace", trace)
    assert {kernel.phase for kernel in found.kernels} == {"mixed"}
    assert {"mixed", "all"} <= set(found.budget)
    assert found.metrics["mixed_requests_per_step"] == 46.0
    assert found.metrics["mixed_tokens_per_step"] == 8192.0
    behind = found.metrics["graph_kernel_time_ratio"] or 0.0
    assert behind > 0.9
    # No operator claims what lies behind the graphs, so all of them together have the rest.
    assert sum(op.share_ratio or 0.0 for op in found.operators) == pytest.approx(1 - behind, abs=0.01)
    assert found.utilisation["mixed"].mfu_ratio is None
    assert any("graph" in note and units.percent(behind) in note for note in found.notes)
    report = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert PHASE_NAMES["mixed"] in report
    (steps,) = [each for each in found.sections if any("tokens per step" in t.columns for t in each.tables)]
    assert steps.title in report and steps.tables[0].rows[0][0] == "mixed"


def test_a_trace_of_a_graphs_recording_claims_no_utilisation(tmp_path: Path) -> None:
    begin, end = "cudaStreamBeginCapture", "cudaStreamEndCapture"
    events = [
        annotation("capture_4_decode", 0, 100),
        host_op("aten::mm", 5, 10, 1), host_call("cudaLaunchKernel", 6, 1, 1), device_kernel("warm_up_gemm", 20, 5, 1),
        host_call(begin, 30, 1, 2),
        host_op("aten::mm", 40, 10, 2), host_call("cudaLaunchKernel", 41, 1, 3),
        host_call(end, 60, 1, 4),
    ]  # fmt: skip
    trace = write_trace(tmp_path / "capture.json", document(events))
    found = ingest(tmp_path / "run", "--trace", trace)
    assert any("graphs being recorded" in note for note in found.notes)
    assert (found.kernels, found.budget, found.verdicts) == ([], {}, {})
    assert all(use.device_busy_ratio is None and use.mfu_ratio is None for use in found.utilisation.values())
    assert [op.name for op in found.operators] == ["aten::mm"]


def test_ingested_captures_load_through_the_python_api(rtx5090: Summary, tmp_path: Path) -> None:
    from llm_perf_opt.summary.file import save_summary

    save_summary(rtx5090, tmp_path)
    run = llm_perf_opt.load_run(tmp_path)
    frame = run.kernels()
    assert frame.height == len(rtx5090.kernels)
    assert "counter_dram_ratio" in frame.columns
    assert run.modules().height == len(rtx5090.static.modules if rtx5090.static else [])
    assert run.ledger().height == len(rtx5090.ledger)
    assert run.operators().height == 0


FLAGS = ("--trace", "--nsys", "--ncu", "--timings", "--static")
WRONG: dict[str, bytes] = {
    "empty": b"",
    "text": b"hello\n",
    "html": b"<!doctype html><title>404</title>",
    "binary": bytes(range(256)) * 8,
    "json list": b"[]",
    "json object": b'{"hello": 1}',
    "cut json": b'{"traceEvents": [{"name": "a", "ph": "X", "ts": 1',
    "csv of something": b"name,price\nbread,2\n",
    "cut gzip": gzip.compress(b'{"traceEvents": [' + b"1," * 5000)[:40],
    "cut sqlite": b"SQLite format 3\x00" + b"\x10\x00" * 30,
    "deep json": b"[" * 100_000,
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("flag", FLAGS)
def test_a_file_of_the_wrong_kind_is_an_input_error(
    flag: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in (".json", ".json.gz", ".csv", ".sqlite"):
        path = tmp_path / f"wrong{suffix}"
        path.write_bytes(WRONG[kind])
        code = main(["ingest", flag, str(path), "--out", str(tmp_path / "out")])
        output = capsys.readouterr()
        assert code == 3, (suffix, output.out)
        assert "error:" in output.err
        assert "Traceback" not in output.err
        assert not (tmp_path / "out" / "summary.json").exists()


@pytest.mark.parametrize("flag", FLAGS)
def test_a_directory_a_missing_file_and_another_flags_file(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    out = str(tmp_path / "out")
    for path in (empty, tmp_path / "absent"):
        assert main(["ingest", flag, str(path), "--out", out]) == 3
    if flag != "--timings":
        assert main(["ingest", flag, str(wall(tmp_path)), "--out", out]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_unknown_keys_in_timings_are_named_as_json_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wall.json"
    path.write_text('{"prefill": 0.1}')
    assert main(["ingest", "--timings", str(path), "--out", str(tmp_path / "out"), "--json"]) == 3
    output = json.loads(capsys.readouterr().out)
    assert output["error"] == "input"
    assert output["key"] == "prefill"
    assert "prefill_s" in output["hint"]


def test_nothing_to_ingest_is_a_mistake_of_the_command_line(tmp_path: Path) -> None:
    assert main(["ingest", "--out", str(tmp_path / "out")]) == 2
    (tmp_path / "file").write_text("x")
    assert main(["ingest", "--timings", str(wall(tmp_path)), "--out", str(tmp_path / "file")]) == 2
