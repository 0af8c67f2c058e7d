"""``report`` remakes every page of a run byte for byte, and needs nothing of the run's scratch."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.runs.assemble import assemble_run
from llm_perf_opt.runs.finish import report_run, save_and_render
from llm_perf_opt.runs.manifest import StageRecord, new_manifest, write_manifest
from tests.support import QUICK, cli, copy_writable, files_below

RAW = {"manifest.json", "env.json", "config.yaml", "inputs.yaml", "hardware.json", "run.log"}


def digests(root: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256((root / name).read_bytes()).hexdigest()
        for name in files_below(root)
        if not name.startswith("tmp/")
    }


def made_pages(root: Path, raw: set[str]) -> list[str]:
    """Names of files that are made from others."""
    return [name for name in digests(root) if name not in raw and name not in RAW and name != "summary.json"]


def remade(root: Path, raw: set[str]) -> None:
    """Delete scratch and every page, render again, and compare."""
    before = digests(root)
    shutil.rmtree(root / "tmp", ignore_errors=True)
    for name in made_pages(root, raw):
        (root / name).unlink()
    assert report_run(root, reanalyse=False, as_json=False) == 0
    assert digests(root) == before
    assert report_run(root, reanalyse=True, as_json=False) == 0
    assert digests(root) == before


@pytest.mark.needs("nsys")
def test_every_page_of_a_run_is_remade_byte_for_byte(tmp_path: Path) -> None:
    root = tmp_path / "run"
    stages = (
        "pipeline.nsys.enable=true",
        "pipeline.nsys.gating_nvtx=false",
        "pipeline.torch_profiler.profile_memory=true",
    )
    done = cli("run", *QUICK, *stages, f"artifacts.runs_dir={root}")
    assert done.returncode == 0, done.stderr
    made = {
        "report.html", "report.md", "stakeholder_summary.md", "kernels.md", "torch_profiler/operators.md",
        "static_analysis/static_compute.md", "nsys/timeline_ranges.csv", "nsys/timeline_ranges.parquet",
        "nsys/timeline.perfetto.json.gz",
    }  # fmt: skip
    assert made <= set(files_below(root))
    assert not (root / "nsys" / "export").exists()
    pages = {name for name in files_below(root) if name in made or name.endswith((".svg",))}
    remade(root, set(digests(root)) - pages)


def test_every_page_of_counters_is_remade_byte_for_byte(
    tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "run"
    copy_writable(shared_data / "rtx5090-deepseek-ocr" / "ncu", root / "ncu")
    raw = set(digests(root))
    artifacts = Artifacts.for_run(root)
    manifest = new_manifest(artifacts, ["test"])
    manifest.status, manifest.stages = "ok", {"ncu": StageRecord("ok")}
    write_manifest(artifacts, manifest)
    assembled = assemble_run(root)
    save_and_render(assembled.summary, assembled.facts, root)
    assert {"ncu/index.md", "ncu/kernels.csv", "ncu/roofline.svg", "report.html"} <= set(digests(root))
    remade(root, raw)
