"""What an earlier run left in a directory is moved aside, never mixed in."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.layout import own_files
from llm_perf_opt.runs.directory import find_earlier
from llm_perf_opt.runs.manifest import StageRecord, list_files, new_manifest, write_manifest
from tests.support import files_below


def earlier_run(root: Path, **stages: StageRecord) -> Artifacts:
    artifacts = Artifacts.for_run(root)
    manifest = new_manifest(artifacts, ["llm-perf-opt", "run"])
    manifest.started, manifest.status, manifest.stages = "2026-01-02T03:04:05+00:00", "ok", stages
    manifest.facts = {"model": "Llama"}
    for name in ("summary.json", "report.html", "run.log"):
        (root / name).write_text("old")
    list_files(artifacts, manifest)
    write_manifest(artifacts, manifest)
    return artifacts


def put(path: Path, text: str = "old") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_everything_of_the_earlier_run_goes_and_everything_else_stays(tmp_path: Path) -> None:
    earlier_run(tmp_path, nsys=StageRecord("ok", artifacts=["nsys/run.sqlite", "kept/predictions.jsonl"]))
    for name in (
        "nsys/run.sqlite",
        "ncu/left.csv",
        "tmp/workload/x",
        "kept/predictions.jsonl",
        "notes.txt",
        "tmp/runs/1/y",
    ):
        put(tmp_path / name)
    found = find_earlier(tmp_path)
    assert found is not None
    found.set_aside()
    assert files_below(tmp_path / "earlier-20260102-030405") == [
        "kept/predictions.jsonl", "manifest.json", "ncu/left.csv", "nsys/run.sqlite", "report.html", "run.log",
        "summary.json", "tmp/workload/x",
    ]  # fmt: skip
    assert (tmp_path / "notes.txt").is_file()
    assert (tmp_path / "tmp" / "runs" / "1" / "y").is_file()
    assert "Llama" in found.note()
    assert "earlier-20260102-030405/" in found.note()


def test_a_second_and_a_third_time_get_folders_of_their_own(tmp_path: Path) -> None:
    for _ in range(3):
        earlier_run(tmp_path)
        found = find_earlier(tmp_path)
        assert found is not None
        found.set_aside()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "earlier-20260102-030405", "earlier-20260102-030405-2", "earlier-20260102-030405-3",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run_id": 1}'])
def test_a_damaged_manifest_is_an_earlier_run_too(tmp_path: Path, text: str) -> None:
    put(tmp_path / "manifest.json", text)
    put(tmp_path / "nsys" / "run.sqlite")
    found = find_earlier(tmp_path)
    assert found is not None
    found.set_aside()
    assert not (tmp_path / "nsys").exists()
    assert not (tmp_path / "manifest.json").exists()


def test_paths_and_names_in_a_manifest_cannot_reach_outside(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside" / "precious.txt", "mine")
    run = tmp_path / "run"
    run.mkdir()
    listed = ["../outside/precious.txt", str(outside), "notes.txt"]
    earlier_run(
        run,
        **{"..": StageRecord("ok"), "a/b": StageRecord("ok"), "nsys": StageRecord("ok", artifacts=listed)},
    )
    put(run / "notes.txt")
    found = find_earlier(run)
    assert found is not None
    found.set_aside()
    assert outside.read_text() == "mine"
    assert (run / "notes.txt").is_file(), "a file at the root is ours only by its name"


def test_a_stage_folder_that_no_run_wrote_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "nsys" / "theirs.sqlite")
    with pytest.raises(ConfigError, match=r"\bnsys/") as caught:
        find_earlier(tmp_path)
    assert caught.value.data["key"] == "artifacts.runs_dir"
    assert (tmp_path / "nsys" / "theirs.sqlite").is_file()


def test_an_ordinary_directory_holds_no_earlier_run(tmp_path: Path) -> None:
    put(tmp_path / "notes.txt")
    (tmp_path / "nsys").mkdir()
    assert find_earlier(tmp_path) is None


@pytest.mark.parametrize(
    ("status", "unfinished"), [("running", True), ("failed", True), ("ok", False), ("skipped", False)]
)
def test_only_an_unfinished_stage_is_continued(tmp_path: Path, status: str, unfinished: bool) -> None:
    earlier_run(tmp_path, direct_inference=StageRecord(status))  # type: ignore[arg-type]
    found = find_earlier(tmp_path)
    assert found is not None
    assert found.unfinished("direct_inference") is unfinished
    assert not found.unfinished("nsys")


def test_what_is_continued_stays_and_the_rest_of_its_folder_goes(tmp_path: Path) -> None:
    earlier_run(tmp_path, direct_inference=StageRecord("failed", reason="interrupted"))
    kept = put(tmp_path / "direct_inference" / "pred" / "predictions.jsonl", "{}")
    put(tmp_path / "direct_inference" / "timings.json")
    put(tmp_path / "direct_inference" / "pred" / "other")
    found = find_earlier(tmp_path)
    assert found is not None
    found.set_aside([kept, tmp_path / "absent"])
    assert files_below(tmp_path / "direct_inference") == ["pred/predictions.jsonl"]
    assert "direct_inference/pred/predictions.jsonl" in found.note()


def test_files_that_the_manifest_does_not_list_are_not_the_runs(tmp_path: Path) -> None:
    own, strange = put(tmp_path / "nsys" / "run.sqlite"), put(tmp_path / "nsys" / "run.2.sqlite")
    artifacts = earlier_run(
        tmp_path, nsys=StageRecord("ok", artifacts=["nsys/run.sqlite"]), ncu=StageRecord("running")
    )
    assert own_files(tmp_path, "nsys", [own, strange]) == [own]
    assert own_files(tmp_path, "ncu", [own]) == [own], "a killed stage could not say what it wrote"
    (artifacts.root / "manifest.json").unlink()
    assert own_files(tmp_path, "nsys", [own, strange]) == [own, strange], "nothing tells"
