"""From a trace to targets in the summary: with tables, without them, and on a device they do not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.analysis.captures import join_captures
from llm_perf_opt.analysis.facts import Facts, add_fields
from llm_perf_opt.analysis.ncu.summary import CounterFacts, join_counters
from llm_perf_opt.analysis.summarise import add_kernel_targets
from llm_perf_opt.analysis.targets import TITLE
from llm_perf_opt.captures.ncu.launches import NcuCapture
from llm_perf_opt.cli import main
from llm_perf_opt.hardware.resolve import hardware_by_name
from llm_perf_opt.hardware.silicon import Silicon
from llm_perf_opt.stages.torch_profiler.facts import traces_facts
from llm_perf_opt.summary import RunInfo, Summary, Workload
from llm_perf_opt.summary.file import load_summary
from tests.text_facts import mentions
from tests.unit.analysis.operators.test_work import GEMM, shaped, trace
from tests.unit.analysis.test_profiled import launch
from tests.unit.hardware.silicon.tables import H100, gemm_row, installation, write_table
from tests.unit.kineto_traces import call, document, kernel, write


@pytest.fixture
def silicon(tmp_path: Path) -> Silicon:
    place = installation(tmp_path)
    rows = [gemm_row(m, n, 1024, 1e-9 * m * n * 1024 + 0.01) for m in (64, 256) for n in (1024, 4096)]
    for version, slower in (("0.24.0", 1.0), ("0.22.0", 1.2)):
        table = [{**one, "latency": one["latency"] * slower} for one in rows]
        write_table(place.systems, f"h100_sxm/gemm/vllm/{version}/gemm_perf.parquet", table)
    return Silicon(place)


def traced(folder: Path) -> Facts:
    """A product of a measured shape, one far outside the tables, and one without a shape."""
    path = trace(
        folder,
        shaped("aten::mm", 1, 10, [64, 1024], [1024, 4096]),
        call("cudaLaunchKernel", 2, 1, 1),
        kernel(GEMM, 100, 800, 1),
        shaped("aten::mm", 20, 10, [64, 17], [17, 4096]),
        call("cudaLaunchKernel", 22, 1, 2),
        kernel("other_bf16_gemm", 900, 50, 2),
        call("cudaLaunchKernel", 42, 1, 3),
        kernel("third_bf16_gemm", 950, 50, 3),
    )
    return traces_facts([path])


def targeted(
    facts: Facts, device: str, silicon: Silicon | None, counters: CounterFacts | None = None
) -> Summary:
    """The kernels of a capture with their targets, nothing else judged."""
    summary = Summary(RunInfo("run", "ok", "", None, []), {}, hardware_by_name(device), Workload())
    for source in (join_captures(facts).facts, facts):
        add_fields(summary, source)
    if counters is not None:
        summary.kernels = counters.kernels
    add_kernel_targets(summary, facts, silicon, counters)
    return summary


def test_targets_reach_the_kernels_of_the_summary(tmp_path: Path, silicon: Silicon) -> None:
    found = targeted(traced(tmp_path), H100, silicon)
    targets = {row.name: row.target for row in found.kernels}
    first = targets[GEMM]
    assert first is not None and targets["other_bf16_gemm"] is None and targets["third_bf16_gemm"] is None
    best = (64 * 4096 * 1024 * 1e-9 + 0.01) * 1e-3
    assert first.best_s == pytest.approx(best) and first.median_s == pytest.approx(1.1 * best)
    assert first.ratio == pytest.approx(800e-6 / best) and first.source == "vLLM 0.24, linear"
    assert first.how == "measured" and first.at_stake_s == pytest.approx(800e-6 - best)
    assert found.metrics["kernel_targets_outside_s"] == pytest.approx(50e-6)
    (section,) = [one for one in found.sections if one.title == TITLE]
    assert "aiconfigurator-core 0.12.0" in section.paragraphs[0] and len(section.tables[0].rows) == 1
    assert "64 × 4096 × 17 bfloat16 (50.0 µs)" in section.paragraphs[1]


def test_without_the_extra_a_device_of_the_tables_is_advised_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_perf_opt.hardware.silicon.installation.installed", lambda: None)
    found = targeted(traced(tmp_path), H100, None)
    (section,) = [one for one in found.sections if one.title == TITLE]
    assert "pip install 'llm-perf-opt[silicon]'" in section.paragraphs[0]
    assert not any(row.target for row in found.kernels) and "kernel_targets_compared_s" not in found.metrics


def test_without_the_extra_other_devices_get_no_such_advice(tmp_path: Path) -> None:
    found = targeted(traced(tmp_path), "NVIDIA GeForce RTX 5090", None)
    assert not any(one.title == TITLE for one in found.sections)


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 5090", "AMD Instinct MI300X", "no such device"])
def test_a_device_without_a_table_is_reported_and_has_no_target(
    tmp_path: Path, silicon: Silicon, name: str
) -> None:
    found = targeted(traced(tmp_path), name, silicon)
    (section,) = [one for one in found.sections if one.title == TITLE]
    (text,) = section.paragraphs
    assert mentions(text, name) and not section.tables
    assert not any(row.target for row in found.kernels)


def test_a_trace_without_shapes_is_not_compared(tmp_path: Path, silicon: Silicon) -> None:
    facts = traced(tmp_path)
    facts.shaped_calls = []
    found = targeted(facts, H100, silicon)
    assert found.sections == facts.sections and not any(row.target for row in found.kernels)


def test_damaged_tables_are_reported_and_the_rest_works(tmp_path: Path) -> None:
    place = installation(tmp_path)
    good = [gemm_row(m, n, 1024, 0.1) for m in (64, 256) for n in (1024, 4096)]
    write_table(place.systems, "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", good)
    other = [{key: value for key, value in row.items() if key != "k"} for row in good]
    write_table(place.systems, "h100_sxm/gemm/sglang/1.0/gemm_perf.parquet", other)
    found = targeted(traced(tmp_path), H100, Silicon(place))
    assert any(row.target for row in found.kernels)
    (note,) = [note for note in found.notes if "gemm_perf.parquet" in note]
    assert mentions(note, "sglang/1.0/gemm_perf.parquet", "k") and "vllm" not in note


def test_launches_of_nsight_compute_inside_ranges_that_name_sizes(silicon: Silicon) -> None:
    sized = launch("prefill", "aten::mm, op_id = 3, sizes = [[64, 1024], [1024, 4096]]", seconds=800e-6)
    plain = launch("prefill", kernel="another_bf16_gemm")
    capture = NcuCapture([sized, plain], "x.ncu-rep")
    counters = join_counters(capture, [], hardware_by_name(H100))
    found = targeted(Facts(counters=capture), H100, silicon, counters)
    targets = {row.name: row.target for row in found.kernels}
    target = targets[sized.kernel]
    assert target is not None and targets["another_bf16_gemm"] is None
    assert target.ratio == pytest.approx(800e-6 / target.best_s) and target.at_stake_s is None
    (section,) = [one for one in found.sections if one.title == TITLE]
    assert target.remark and section.tables[0].rows[0][-1] == f"vLLM 0.24, linear ({target.remark})"


def test_counters_without_sizes_are_not_compared(silicon: Silicon) -> None:
    capture = NcuCapture([launch("prefill")], "x.ncu-rep")
    counters = join_counters(capture, [], hardware_by_name(H100))
    found = targeted(Facts(counters=capture), H100, silicon, counters)
    assert not found.sections and not any(row.target for row in found.kernels)


@pytest.mark.parametrize(("slower", "expected"), [(2.5, True), (1.2, False)])
def test_the_finding_follows_from_a_whole_capture(
    tmp_path: Path, silicon: Silicon, monkeypatch: pytest.MonkeyPatch, slower: float, expected: bool
) -> None:
    """The same trace with the problem and without: 40 products, at 2.5 and at 1.2 times the best measured."""
    monkeypatch.setattr("llm_perf_opt.runs.assemble.open_silicon", lambda *_: silicon)
    best_us = 64 * 4096 * 1024 * 1e-6 + 10
    events = []
    for place in range(40):
        at = 1000 * place
        events += [
            shaped("aten::mm", at, 10, [64, 1024], [1024, 4096]),
            call("cudaLaunchKernel", at + 2, 1, place + 1),
            kernel(GEMM, at + 20, slower * best_us, place + 1),
        ]
    names = [{"id": 0, "name": H100, "totalGlobalMem": 85899345920}]
    path = write(tmp_path / "t.json", document(events, record_shapes=1, deviceProperties=names))
    assert main(["ingest", "--out", str(tmp_path / "run"), "--trace", str(path)]) == 0
    found = load_summary(tmp_path / "run")
    (row,) = found.kernels
    assert row.target is not None and row.target.ratio == pytest.approx(slower, rel=1e-3)
    claims = [one for one in found.findings if one.id == "far-from-measured"]
    assert bool(claims) is expected
    if claims:
        stake = 40 * (slower - 1) * best_us * 1e-6
        assert claims[0].gain_upper_s == pytest.approx(stake, rel=1e-2)
        assert mentions(claims[0].evidence[0], "2.50", "vLLM 0.24, linear")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "× best" in page and TITLE in page
