"""Each capture is read once and attributed once per command: by the end of a run, by ``report`` and by ``ingest``."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.timeline import attribution, export, summary
from llm_perf_opt.captures.kineto import reader as kineto_reader
from llm_perf_opt.captures.ncu import reader as ncu_reader
from llm_perf_opt.captures.nsys import reader as nsys_reader
from llm_perf_opt.cli import main
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.runs.assemble import assemble_run
from llm_perf_opt.runs.finish import save_and_render
from llm_perf_opt.runs.manifest import StageRecord, new_manifest, write_manifest
from tests.support import copy_writable
from tests.unit import kineto_traces, nsys_exports


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is read and attributed."""
    found: Counter[str] = Counter()

    inside: set[str] = set()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name in inside:  # a folder is read file by file through the same function
                return real(*arguments, **options)
            found[name] += 1
            inside.add(name)
            try:
                return real(*arguments, **options)
            finally:
                inside.discard(name)

        return call

    attribute = counted("attributed", attribution.attribute)
    for module in (attribution, export, summary):
        monkeypatch.setattr(module, "attribute", attribute)
    monkeypatch.setattr(kineto_reader, "read_kineto", counted("trace", kineto_reader.read_kineto))
    monkeypatch.setattr(nsys_reader, "read_nsys", counted("nsys", nsys_reader.read_nsys))
    monkeypatch.setattr(ncu_reader, "read_ncu", counted("ncu", ncu_reader.read_ncu))
    return found


def _captures(root: Path, shared_data: Path) -> dict[str, Path]:
    """Lay a trace, an nsys export and ncu tables where the stages leave them."""
    trace = root / "torch_profiler" / "trace.json.gz"
    trace.parent.mkdir(parents=True)
    events = [
        kineto_traces.annotation("decode_step", 0.0, 90.0),
        kineto_traces.op("aten::mm", 5.0, 20.0),
        kineto_traces.call("cudaLaunchKernel", 10.0, 5.0, 1),
        kineto_traces.kernel("gemm_kernel", 30.0, 40.0, 1),
    ]
    trace.write_bytes(gzip.compress(json.dumps(kineto_traces.document(events)).encode()))
    export_file = root / "nsys" / "run.sqlite"
    export_file.parent.mkdir(parents=True)
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [nsys_exports.kernel(1000, 7000, 1, 1)],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [nsys_exports.call(100, 200, 1, 2)],
        "NVTX_EVENTS": [nsys_exports.nvtx(0, 9000, "decode")],
    }
    nsys_exports.write_export(export_file, tables, {1: "gemm_kernel", 2: "cudaLaunchKernel_v7000"})
    copy_writable(shared_data / "rtx5090-deepseek-ocr" / "ncu", root / "ncu")
    return {"trace": trace, "nsys": export_file, "ncu": root / "ncu"}


def test_by_a_run_and_by_report(tmp_path: Path, shared_data: Path, reads: Counter[str]) -> None:
    _captures(tmp_path, shared_data)
    artifacts = Artifacts.for_run(tmp_path)
    manifest = new_manifest(artifacts, ["test"])
    manifest.status = "ok"
    manifest.stages = {name: StageRecord("ok") for name in ("torch_profiler", "nsys", "ncu")}
    write_manifest(artifacts, manifest)
    assembled = assemble_run(tmp_path)
    save_and_render(assembled.summary, assembled.facts, tmp_path)
    assert reads == {"trace": 1, "nsys": 1, "ncu": 1, "attributed": 2}
    reads.clear()
    assert main(["report", str(tmp_path)]) == 0
    assert reads == {"nsys": 1, "ncu": 1, "attributed": 1}  # no page is made from the trace


def test_by_ingest(tmp_path: Path, shared_data: Path, reads: Counter[str]) -> None:
    sources = _captures(tmp_path / "captures", shared_data)
    options = [f"--{kind}={path}" for kind, path in sources.items()]
    assert main(["ingest", *options, f"--out={tmp_path / 'out'}"]) == 0
    assert reads == {"trace": 1, "nsys": 1, "ncu": 1, "attributed": 2}
