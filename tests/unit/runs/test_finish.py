"""The exit code of a run whose stages went through."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.runs.execute import Outcome
from llm_perf_opt.runs.finish import finish_run
from llm_perf_opt.runs.manifest import StageRecord, list_files, new_manifest, write_manifest
from tests.unit.runs.test_assemble import document


def finished(folder: Path, verified: bool | None, code: int = 0) -> Outcome:
    artifacts = Artifacts.for_run(folder)
    manifest = new_manifest(artifacts, ["test"])
    manifest.status = "ok"
    manifest.stages = {
        "torch_profiler": StageRecord(
            "degraded" if verified is False else "ok", artifacts=["torch_profiler/timings.json"]
        )
    }
    timings = document()
    timings["workload"]["tokens_verified"] = verified
    path = artifacts.out_dir("torch_profiler") / "timings.json"
    path.write_text(json.dumps(timings), encoding="utf-8")
    list_files(artifacts, manifest)
    write_manifest(artifacts, manifest)
    return Outcome(folder, manifest, code)


@pytest.mark.parametrize(
    ("verified", "code", "expected"),
    [(True, 0, 0), (None, 0, 0), (False, 0, 1), (False, 3, 3), (False, 130, 130)],
)
def test_tokens_that_differ_from_generate_are_no_success(
    tmp_path: Path, verified: bool | None, code: int, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert finish_run(finished(tmp_path, verified, code), quiet=True, as_json=False) == expected
    assert ("generate()" in caplog.text) is (expected == 1)


def test_a_silent_rank_leaves_the_verdict_to_whoever_joins_the_ranks(tmp_path: Path) -> None:
    assert finish_run(finished(tmp_path, False), quiet=True, as_json=False, silent=True) == 0
