"""Sound inputs to begin with: small ones made here, and pieces of real captures where those are present."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from pathlib import Path
from typing import Any

from llm_perf_opt.summary.codec import to_plain
from tests.unit import kineto_traces, nsys_exports
from tests.unit.report_summaries import full_summary

SHARED_VARIABLE = "LLM_PERF_OPT_SHARED_DATA"
"""Environment variable: folder of real captures; default: ``shared/data`` beside the checkout."""
_EVENTS = 150


def shared_folder() -> Path | None:
    """Return the folder of real captures, where there is one."""
    sibling = Path(__file__).resolve().parents[3].parent / "shared" / "data"
    folder = Path(os.environ.get(SHARED_VARIABLE) or sibling)
    return folder if folder.is_dir() else None


def _shared(pattern: str) -> list[Path]:
    folder = shared_folder()
    return sorted(folder.glob(pattern))[:6] if folder is not None else []


def traces() -> list[Any]:
    """Return documents of torch traces; of real ones the first events of every kind."""
    k = kineto_traces
    events = [
        k.annotation("prefill", 0.0, 100.0), k.op("aten::mm", 1.0, 20.0, 5), k.op("aten::add", 2.0, 3.0, 6),
        k.call("cudaLaunchKernel", 5.0, 1.0, 11), k.kernel("gemm<float>", 10.0, 30.0, 11, 5),
        k.annotation("decode", 110.0, 90.0), k.call("cudaMemcpyAsync", 120.0, 1.0, 12),
        {**k.kernel("Memcpy HtoD", 125.0, 4.0, 12), "cat": "gpu_memcpy"},
        {"ph": "M", "name": "thread_name", "pid": 4242, "tid": 4242, "args": {"name": "main"}},
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 50.0, "args": {"Total Allocated": 4096, "Device Type": 1, "Device Id": 0}},
    ]  # fmt: skip
    found = [k.document(events, deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}])]
    old = [{**event, "ts": event["ts"] + 1.7e15} if "ts" in event else event for event in events]
    found.append(k.document(old))
    for path in _shared("*torch-traces*/*.json.gz"):
        if path.stat().st_size > 600_000:
            continue
        document = json.loads(gzip.decompress(path.read_bytes()))
        kept: dict[str, list[Any]] = {}
        for event in document["traceEvents"]:
            kept.setdefault(f"{event.get('ph')}{event.get('cat')}", []).append(event)
        some = [event for events in kept.values() for event in events[: _EVENTS // len(kept)]]
        found.append({**document, "traceEvents": some})
    return found


def exports(folder: Path) -> list[Path]:
    """Return nsys exports."""
    n = nsys_exports
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [n.kernel(100 + i * 50, 130 + i * 50, i, 1) for i in range(8)],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [n.call(90 + i * 50, 95 + i * 50, i, 2) for i in range(8)],
        "NVTX_EVENTS": [n.nvtx(0, 250, "prefill"), n.nvtx(260, 600, "decode")],
        "TARGET_INFO_GPU": [{"vmId": 1, "id": 0, "name": "NVIDIA H100 80GB HBM3"}],
    }
    made = n.write_export(folder / "made.sqlite", tables, {1: "gemm", 2: "cudaLaunchKernel"})
    return [made, *_shared("nsys-labelled/*.sqlite")]


_KERNEL_SUM = b"""Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.0,"6,000",3,2000.0,2000.0,1000,3000,10.0,gemm
40.0,4000,4,1000.0,1000.0,500,1500,5.0,"add<int, 2>"
"""


def kernel_tables() -> list[bytes]:
    """Return summaries of ``nsys stats``."""
    return [_KERNEL_SUM, *(path.read_bytes() for path in _shared("rtx5090-deepseek-ocr/nsys/*.csv"))]


_DETAILS = b""""ID","Process ID","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description","Estimated Speedup Type","Estimated Speedup"
"0","11","gemm","1","7","(128, 1, 1)","(152, 4, 1)","0","9.0","GPU Speed Of Light Throughput","Duration","us","23.42","","","","",""
"0","11","gemm","1","7","(128, 1, 1)","(152, 4, 1)","0","9.0","Command line profiler metrics","dram__bytes.sum","Mbyte","3.35","","","","",""
"0","11","gemm","1","7","(128, 1, 1)","(152, 4, 1)","0","9.0","Occupancy","","","","Occ","OPT","low occupancy","global","12.5"
"""
_RAW = b""""ID","Process ID","Kernel Name","Device","gpu__time_duration.sum","dram__bytes.sum"
"","","","","us","Mbyte"
"0","11","gemm","0","23.42","3.35"
"1","11","add","0","1,234.5","0"
"""


def counter_pages() -> list[bytes]:
    """Return pages of ncu."""
    real = [path.read_bytes() for path in _shared("rtx5090-deepseek-ocr/ncu/*/ncu.details.csv")]
    return [_DETAILS, _RAW, *real]


def timings() -> list[Any]:
    """Return wall-clock documents of both forms."""
    repeat = {
        "preprocess_s": 0.01, "vision_s": 0.2, "prefill_s": 0.1, "decode_s": 0.9,
        "token_s": [0.3, 0.3, 0.3], "components": {"sam_s": 0.15},
    }  # fmt: skip
    batch = {
        "id": "a",
        "new_tokens": 4,
        "batch_size": 2,
        "prompt_tokens": 7,
        "facts": {"prompt_tokens": [7, 5]},
    }
    engine = {
        "schema": 1,
        "workload": {"model": "m", "dtype": "float32", "device": "cpu", "samples": 1},
        "samples": [{**batch, "repeats": [repeat, repeat, repeat]}],
    }
    short = {"samples": 20, "new_tokens": 64, "prefill_s": 0.0983, "decode_s": 0.7074, "batch_size": 1}
    return [short, engine]


def summaries() -> list[Any]:
    """Return summaries of runs."""
    return [to_plain(full_summary())]


def statics() -> list[Any]:
    """Return static documents."""
    summary = full_summary()
    assert summary.static is not None
    modules = [
        {"name": "", "type": "Model", "depth": 0, "params": 10, "flops": {"decode": 2e9}, "component": None},
        {
            "name": "layers",
            "type": "List",
            "depth": 1,
            "params": 9,
            "flops": {"decode": 1e9},
            "counted_ratio": 0.9,
        },
    ]
    return [{"model": {"name": "m", "dtype": "bfloat16"}, **to_plain(summary.static), "modules": modules}]


def manifests() -> list[Any]:
    """Return manifests of runs."""
    stage = {"status": "ok", "seconds": 1.5, "exit_codes": {}, "artifacts": ["torch_profiler/timings.json"]}
    facts = {"model": "m", "device": "cpu", "dtype": "float32", "batch_size": 1, "hardware_device": None}
    return [
        {
            "run_id": "r", "started": "2026-01-01T00:00:00+00:00", "command": ["llm-perf-opt", "run"],
            "status": "ok", "seconds": 3.0, "stages": {"torch_profiler": stage}, "notes": ["n"],
            "facts": {**facts, "hardware_catalogue": None},
        }
    ]  # fmt: skip


def hardware() -> list[Any]:
    """Return settled hardware limits."""
    return [to_plain(full_summary().hardware)]


def catalogues() -> list[Any]:
    """Return hardware catalogues."""
    device = {
        "name": "Lab GPU", "kind": "gpu", "match": ["Lab GPU.*"], "memory_gib": 80, "bandwidth_gb_per_s": 3350,
        "source": "sheet", "peaks": {"bfloat16": 989.4, "float16": {"sparse": 1979}},
    }  # fmt: skip
    printed = {
        "name": "Other",
        "printed": {"sheet": {"memory_gib": 40, "float32": {"value": 19.5, "source": "x"}}},
    }
    ambiguous = {"match": ["Lab"], "reason": "two", "choose": ["Lab GPU"]}
    return [{"documents": {"sheet": "The sheet"}, "devices": [device, printed], "ambiguous": [ambiguous]}]


def probes() -> list[Any]:
    """Return kept measurements."""
    from llm_perf_opt.hardware.probe import ProbeResult

    result = ProbeResult(
        "cpu", "CPU", 2, "2.8", {"float32": 1e11}, 2e10, conditions={"float32": "matrix product"}, seconds=2.0
    )
    return [dataclasses.asdict(result)]


OVERRIDES = (
    "run.repeats=3", "run.threads=2", "model=llama_tiny", "model.dtype=float32", "infer.batch_size=1", "run.device=cpu",
    "pipeline.workload.timeout_s=10", "pipeline.nsys.enable=false", "infer.max_new_tokens=4", "dataset=prompts",
    "pipeline.nsys.timeout_s=5", "+model.arch.hidden_size=64", "hardware.device=null", "dataset.sampling.seed=1",
    "pipeline.workload.command=[a,b]", "infer.base_size=640", "dataset.prompts=[a]", "artifacts.runs_dir=x",
)  # fmt: skip
