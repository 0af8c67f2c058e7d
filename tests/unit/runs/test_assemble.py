"""Any subset of sources gives a summary; what is missing or contradictory is said."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.analysis.summarise import Subject
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.runs.assemble import DeviceChoice, assemble, assemble_run, shown_sources
from llm_perf_opt.runs.manifest import RankRecord, new_manifest, write_manifest
from llm_perf_opt.stages.facts import Part, collect, timings_facts
from llm_perf_opt.stages.ncu.facts import ncu_facts
from llm_perf_opt.stages.nsys.facts import nsys_facts
from llm_perf_opt.stages.static_analysis import static_facts
from llm_perf_opt.stages.torch_profiler.facts import trace_facts
from llm_perf_opt.summary import Hardware, RunInfo, Summary
from llm_perf_opt.summary.codec import save_json
from tests.unit import kineto_traces as kineto
from tests.unit import nsys_exports

RUN = RunInfo("run", "ok", "2026-01-01T00:00:00+00:00", None, [])

KERNELS = """Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
75.0,3000000,30,100000,100000,1,1,0,ampere_bf16_s16816gemm_bf16_128x64_tn
25.0,1000000,10,100000,100000,1,1,0,vectorized_elementwise_kernel
"""


def document(samples: int = 1, **repeat: Any) -> dict[str, Any]:
    one = {"preprocess_s": 0.1, "vision_s": None, "prefill_s": 0.2, "decode_s": 0.6, "token_s": [], **repeat}
    rows = [
        {"id": f"s{i}", "new_tokens": 4, "batch_size": 1, "prompt_tokens": 8, "facts": {}, "repeats": [one]}
        for i in range(samples)
    ]
    return {"schema": 1, "workload": {"model": "tiny", "weights": "random", "batch_size": 1}, "samples": rows}


def save(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def facts_of(**sources: Any) -> list[Facts]:
    readers = {
        "timings": timings_facts,
        "static": static_facts,
        "trace": trace_facts,
        "nsys": nsys_facts,
        "ncu": ncu_facts,
    }
    return [
        readers[kind](path)
        for kind, given in sources.items()
        for path in (given if isinstance(given, tuple) else (given,))
    ]


def build(**sources: Any) -> Summary:
    facts = facts_of(**sources)
    return assemble(Subject(run=RUN, sources=shown_sources(facts)), facts, DeviceChoice()).summary


def test_nothing_at_all_is_a_summary_with_a_note() -> None:
    found = build()
    assert found.verdicts == {}
    assert found.findings == []
    assert any("No wall-clock timings" in note for note in found.notes)


def test_timings_alone(tmp_path: Path) -> None:
    found = build(timings=save(tmp_path, "timings.json", document(3)))
    assert found.workload.samples == 3
    assert found.notes[0].startswith("Random weights")
    assert found.wall_clock is not None
    assert found.wall_clock.span_s == pytest.approx(0.9)
    assert found.verdicts["decode"].bound == "unknown"


def test_kernel_totals_and_wall_clock_give_the_busy_share(tmp_path: Path) -> None:
    timings = save(
        tmp_path, "wall.json", {"samples": 2, "new_tokens": 4, "prefill_s": 0.002, "decode_s": 0.008}
    )
    found = build(timings=timings, nsys=(save(tmp_path, "kern_sum.csv", KERNELS),))
    assert found.metrics["device_busy_s"] == pytest.approx(0.004)
    assert found.utilisation["all"].device_busy_ratio == pytest.approx(0.004 / 0.020)
    assert found.metrics["launches_per_token"] is None  # the table is of all phases
    assert found.verdicts["decode"].bound == "launch"
    assert found.coverage.kernel_time_classified_ratio == 1.0


def _module_trace(tmp_path: Path, *, kernels: bool, passes: int = 1, calls: bool = True) -> Path:
    events = []
    for step in range(3 * passes):
        start = 100.0 * step
        events += [
            kineto.annotation("decode_step", start, 90.0),
            kineto.annotation("module:lm_head", start + 10, 45.0),
        ]
        events += [kineto.op("aten::mm", start + 15, 30.0, step + 1)]
        if calls:
            events += [kineto.call("cudaLaunchKernel", start + 16, 2.0, 50 + step)]
        if kernels:
            events += [kineto.kernel("gemm", start + 20, 8.0, 50 + step, step + 1)]
    return kineto.write(tmp_path / "trace.json", kineto.document(events))


WALL = {"samples": 4, "new_tokens": 4, "decode_steps": 3, "prefill_s": 0.002, "decode_s": 0.0003}


@pytest.mark.parametrize("passes", [1, 3])
def test_times_of_modules_in_decode_are_of_one_step_however_many_were_captured(
    tmp_path: Path, passes: int
) -> None:
    """The static model counts one step. A capture may hold one pass of many samples, or every repeat of one."""
    found = build(
        timings=save(tmp_path, "wall.json", WALL), trace=_module_trace(tmp_path, kernels=True, passes=passes)
    )
    (row,) = [row for row in found.ledger if row.module == "lm_head"]
    assert (row.phase, row.device_s, row.launches) == ("decode", pytest.approx(8e-6), 1)


def test_a_trace_of_the_cpu_gives_modules_their_share_of_the_measured_time(tmp_path: Path) -> None:
    trace = _module_trace(tmp_path, kernels=False, calls=False)
    found = build(timings=save(tmp_path, "wall.json", WALL), trace=trace)
    (row,) = [row for row in found.ledger if row.module == "lm_head"]
    assert (row.measured_s, row.measured_source) == (pytest.approx(0.0001 * 0.5), "profiler")


def test_host_time_of_a_gpu_run_is_nobodys_time(tmp_path: Path) -> None:
    """Without kernels in the trace the host's time is that of queueing work, not of doing it."""
    wall = save(tmp_path, "wall.json", WALL)
    assert build(timings=wall, trace=_module_trace(tmp_path, kernels=False)).ledger == []
    on_gpu = document()
    on_gpu["workload"]["device"] = "cuda:0"
    trace = _module_trace(tmp_path, kernels=False, calls=False)
    assert build(timings=save(tmp_path, "timings.json", on_gpu), trace=trace).ledger == []


def test_the_busy_share_of_batches_counts_each_batch_once(tmp_path: Path) -> None:
    wall = {"samples": 4, "batch_size": 2, "new_tokens": 4, "prefill_s": 0.002, "decode_s": 0.008}
    found = build(timings=save(tmp_path, "wall.json", wall), nsys=(save(tmp_path, "kern_sum.csv", KERNELS),))
    assert found.utilisation["all"].device_busy_ratio == pytest.approx(0.004 / 0.020)
    assert "2 batches" in (found.utilisation["all"].arithmetic or "")


def phase_export(folder: Path, phase: str, lengths_ns: list[int]) -> Path:
    """An nsys capture of one phase: kernels one after the other, 1000 ns apart, in a range of that name."""
    kernels, calls, now = [], [], 1000
    for number, length in enumerate(lengths_ns, 1):
        calls.append(nsys_exports.call(now - 900, now - 800, number, 2))
        kernels.append(nsys_exports.kernel(now, now + length, number, 1))
        now += length + 1000
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls,
        "NVTX_EVENTS": [nsys_exports.nvtx(0, now, phase)],
    }
    name = "ampere_bf16_s16816gemm_bf16_128x64_tn" if phase == "prefill" else "nobody_knows_this"
    strings = {1: name, 2: "cudaLaunchKernel_v7000"}
    return nsys_exports.write_export(folder / f"run-{phase}.sqlite", tables, strings)


@pytest.mark.contract("B15")
@pytest.mark.parametrize("order", [("decode", "prefill"), ("prefill", "decode")])
def test_one_capture_per_phase_is_summed_over_all_of_them(order: tuple[str, str], tmp_path: Path) -> None:
    lengths = {"prefill": [6000], "decode": [1000, 1000, 2000]}
    timings = save(
        tmp_path, "wall.json", {"samples": 1, "new_tokens": 4, "prefill_s": 0.01, "decode_s": 0.02}
    )
    found = build(timings=timings, nsys=tuple(phase_export(tmp_path, name, lengths[name]) for name in order))
    assert {kernel.phase: kernel.share_ratio for kernel in found.kernels} == pytest.approx(
        {"prefill": 0.6, "decode": 0.4}
    )
    assert found.metrics["kernel_time_s"] == pytest.approx(10e-6)
    assert found.metrics["kernel_launches"] == 4
    assert found.coverage.kernel_time_classified_ratio == pytest.approx(0.6)
    assert found.metrics["launches_per_token"] == pytest.approx(1.0)  # three launches, three decoded tokens
    whole, parts = found.budget["all"], (found.budget["prefill"], found.budget["decode"])
    assert whole.span_s == pytest.approx(sum(part.span_s for part in parts))
    assert sum(part.share_ratio for part in whole.parts) == pytest.approx(1.0)
    compute = {part.name: part.seconds for part in whole.parts}["compute"]
    assert compute == pytest.approx(10e-6)
    assert found.utilisation["all"].device_busy_ratio == pytest.approx(compute / whole.span_s)


def test_a_capture_without_decode_has_no_launches_per_token(tmp_path: Path) -> None:
    timings = save(
        tmp_path, "wall.json", {"samples": 1, "new_tokens": 4, "prefill_s": 0.01, "decode_s": 0.02}
    )
    found = build(timings=timings, nsys=(phase_export(tmp_path, "prefill", [6000]),))
    assert found.metrics["kernel_launches"] == 1
    assert found.metrics["launches_per_token"] is None


def test_more_device_time_than_wall_clock_is_capped_and_noted(tmp_path: Path) -> None:
    timings = save(
        tmp_path, "wall.json", {"samples": 1, "prefill_s": 0.001, "decode_s": 0.001, "new_tokens": 4}
    )
    found = build(timings=timings, nsys=(save(tmp_path, "kern_sum.csv", KERNELS),))
    assert found.utilisation["all"].device_busy_ratio == 1.0
    assert [note for note in found.notes if "wall-clock" in note and "kernel" in note]
    enough = build(
        timings=save(
            tmp_path, "w.json", {"samples": 1, "prefill_s": 99.0, "decode_s": 99.0, "new_tokens": 4}
        ),
        nsys=(tmp_path / "kern_sum.csv",),
    )
    assert set(found.notes) - set(enough.notes), "only where it was capped"


def test_a_source_the_user_named_must_be_readable_one_a_stage_left_need_not(tmp_path: Path) -> None:
    broken = save(tmp_path, "timings.json", "{")
    with pytest.raises(InputError):
        build(timings=broken)
    parts = [
        Part("timings", lambda: timings_facts(broken)),
        Part("nsys capture", lambda: nsys_facts(broken)),
        Part("static model", lambda: static_facts(broken)),
    ]
    lenient = assemble(Subject(run=RUN), [collect("stage", parts)], DeviceChoice()).summary
    # One note of each that says what it was; that there are no timings is not said a second time.
    messages = [note.partition(str(broken))[0] for note in lenient.notes if str(broken) in note]
    assert len(messages) == 3
    for what, phrase in zip(("timings", "nsys capture", "static model"), messages, strict=True):
        assert what in phrase
    assert not [note for note in lenient.notes if "timings" in note and str(broken) not in note]


def _trace(folder: Path, events: list[dict[str, Any]]) -> Path:
    path = folder / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


def _profiled(tmp_path: Path, **profile: Any) -> Summary:
    """A run whose torch profiler left a trace of one operator and its notes on the pass."""
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 5, "pid": 1, "tid": 1}
    operator = {
        "name": "aten::mm", "calls": 1, "self_cpu_s": 1.0, "total_cpu_s": 1.0, "self_device_s": None,
        "total_device_s": None,
    }  # fmt: skip
    notes = {
        "operators": [operator], "rank_by": "auto", "max_operators": None, "sample_ids": ["s0"],
        "prompt_tokens": 8, "notes": [], "flops_by_operator": {}, "trace": "trace.json.gz",
    }  # fmt: skip
    trace = _trace(tmp_path, [event])
    save(tmp_path, "profile.json", {**notes, **profile})
    return build(trace=trace, timings=save(tmp_path, "timings.json", document()))


def test_the_profilers_own_notes_give_its_cost_and_its_steps(tmp_path: Path) -> None:
    found = _profiled(tmp_path, new_tokens=4, profiled_s=4.8, options={"active_passes": 2})
    assert found.metrics["profiled_decode_steps"] == 6.0
    assert found.metrics["profiled_over_unprofiled_ratio"] == pytest.approx(4.8 / 2 / 0.8)
    assert [finding.id for finding in found.findings] == ["profiler-pollution"]


def test_a_profiled_pass_of_other_length_is_not_compared(tmp_path: Path) -> None:
    found = _profiled(tmp_path, new_tokens=2, profiled_s=9.0)
    assert "profiled_over_unprofiled_ratio" not in found.metrics


def test_a_trace_without_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="operator") as refused:
        trace_facts(_trace(tmp_path, []))
    assert refused.value.data["path"] == str(tmp_path / "trace.json.gz")
    assert "torch.profiler" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("every_us", "bound", "finding"), [(500, "launch", "launch-bound"), (1000, "host", "host-idle")]
)
def test_a_trace_with_a_gpu_gives_budget_and_kernels(
    tmp_path: Path, every_us: int, bound: str, finding: str
) -> None:
    """Kernels of 100 µs: what keeps the host for 400 µs between them is dispatch, for 900 µs it is something else."""
    events: list[dict[str, Any]] = []
    for number in range(30):
        start = every_us * number
        events += [
            kineto.call("cudaLaunchKernel", start, 10, number + 1),
            kineto.kernel("gemm_kernel", start + 20, 100, number + 1),
        ]
    found = build(trace=_trace(tmp_path, events))
    assert sum(kernel.total_s or 0.0 for kernel in found.kernels) == pytest.approx(3e-3)
    parts = found.budget["all"].parts
    assert sum(part.share_ratio for part in parts) == pytest.approx(1.0)
    assert found.verdicts["all"].bound == bound
    assert found.findings[0].id == finding
    assert found.findings[0].gain_upper_s == pytest.approx(
        29 * (every_us - 120 if bound == "host" else every_us - 100) * 1e-6
    )
    assert "sample" not in found.findings[0].arithmetic
    assert len(found.idle_gaps) == 10  # the longest
    assert found.devices[0].busy_s == pytest.approx(3e-3)


def test_a_run_of_several_ranks_names_its_device(tmp_path: Path) -> None:
    """Its limits are not those of one device, but which device it was must stay known: machines are told apart by it."""
    artifacts = Artifacts.for_run(tmp_path)
    manifest = new_manifest(artifacts, ["test"])
    manifest.status = "ok"
    manifest.ranks = [RankRecord(rank, f"ranks/{rank}", "ok") for rank in range(2)]
    write_manifest(artifacts, manifest)
    for rank in manifest.ranks:
        own = Artifacts.for_run(tmp_path / rank.directory)
        write_manifest(own, new_manifest(own, ["test"]))
        save_json(
            tmp_path / rank.directory / "hardware.json", Hardware("NVIDIA H100", "gpu", {}, None, "catalogue")
        )
    hardware = assemble_run(tmp_path).summary.hardware
    assert (hardware.name, hardware.kind, hardware.peak_flops_per_s) == ("NVIDIA H100", "unknown", {})
    assert "2 ranks" in (hardware.reason or "")
