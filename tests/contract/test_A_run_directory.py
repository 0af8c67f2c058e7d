"""Contract A: the run directory."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from llm_perf_opt.commands.migrate import migrate, plan_moves
from llm_perf_opt.core.artifacts import Artifacts, create_stage2_root, reserve_directory
from llm_perf_opt.core.errors import ConfigError, ToolError

STAGES = ("static_analysis", "torch_profiler", "nsys", "ncu", "direct_inference")


@pytest.mark.parametrize("stage", STAGES)
def test_A1_each_stage_has_a_folder_and_a_scratch_folder(tmp_path: Path, stage: str) -> None:
    artifacts = Artifacts.for_run(tmp_path / "run")
    assert artifacts.out_dir(stage) == (tmp_path / "run" / stage).resolve()
    assert artifacts.tmp_dir(stage) == (tmp_path / "run" / "tmp" / stage).resolve()
    assert artifacts.tmp_dir("workload").is_dir()


def test_A3_set_root_resolves_relative_paths_and_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    artifacts = Artifacts("link/../real/run")
    assert artifacts.root == (tmp_path / "real" / "run").resolve()
    monkeypatch.chdir("/")
    assert artifacts.path("report.md") == (tmp_path / "real" / "run" / "report.md").resolve()
    assert artifacts.out_dir("nsys").is_absolute()


def test_A4_directories_are_made_on_demand_only(tmp_path: Path) -> None:
    artifacts = Artifacts.for_run(tmp_path / "run")
    assert list(artifacts.root.iterdir()) == []
    artifacts.path("a/b/c.txt")
    assert (artifacts.root / "a" / "b").is_dir()
    assert not (artifacts.root / "a" / "b" / "c.txt").exists()


@pytest.mark.parametrize("bad", ["nsy", "workload", "../nsys", ""])
def test_A4_an_unknown_stage_is_a_clear_error(tmp_path: Path, bad: str) -> None:
    with pytest.raises(ConfigError, match="unknown stage"):
        Artifacts.for_run(tmp_path).out_dir(bad)


def test_A4_the_nearest_stage_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Artifacts.for_run(tmp_path).tmp_dir("torch_profler")
    assert caught.value.hint == "did you mean 'torch_profiler'?"


@pytest.mark.parametrize("bad", ["../outside.md", "/etc/passwd", "a/../../b", ".", ""])
def test_A4_a_path_that_leaves_the_root_is_refused(tmp_path: Path, bad: str) -> None:
    artifacts = Artifacts.for_run(tmp_path / "run")
    with pytest.raises(ConfigError) as refused:
        artifacts.path(bad)
    assert f"'{bad}'" in refused.value.message and str(artifacts.root) in refused.value.message
    assert "'..'" in (refused.value.hint or "")


def test_A4_a_link_out_of_the_root_is_refused(tmp_path: Path) -> None:
    artifacts = Artifacts.for_run(tmp_path / "run")
    (artifacts.root / "leak").symlink_to(tmp_path)
    with pytest.raises(ToolError, match="leads out of the run directory"):
        artifacts.path("leak/file.txt")


def _nested(run: Path) -> None:
    inner = run / "tmp" / "stage2" / run.name
    (inner / "nsys").mkdir(parents=True)
    (inner / "nsys" / "run.nsys-rep").write_text("report")
    (inner / "stage1").mkdir()
    (inner / "stage1" / "operators.md").write_text("ops")


def test_A8_migration_flattens_nested_runs_and_is_idempotent(tmp_path: Path) -> None:
    run = tmp_path / "20251107-040000"
    _nested(run)
    assert [m.blocked for m in migrate(run)] == [False, False]
    assert (run / "nsys" / "run.nsys-rep").read_text() == "report"
    assert (run / "stage1" / "operators.md").exists()
    assert not (run / "tmp" / "stage2").exists()
    assert migrate(run) == []


def test_A8_dry_run_moves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "r"
    _nested(run)
    before = sorted(str(p) for p in run.rglob("*"))
    assert len(migrate(run, dry_run=True)) == 2
    assert sorted(str(p) for p in run.rglob("*")) == before


def test_A8_nothing_is_overwritten(tmp_path: Path) -> None:
    run = tmp_path / "r"
    _nested(run)
    (run / "nsys").mkdir()
    (run / "nsys" / "run.nsys-rep").write_text("newer")
    moves = migrate(run)
    assert {m.target.name: m.blocked for m in moves} == {"run.nsys-rep": True, "stage1": False}
    assert (run / "nsys" / "run.nsys-rep").read_text() == "newer"
    assert (run / "tmp" / "stage2" / "r" / "nsys" / "run.nsys-rep").read_text() == "report"
    assert [m.blocked for m in plan_moves(run)] == [True]


def test_B4_two_runs_in_one_second_do_not_share_a_directory(tmp_path: Path) -> None:
    first, second, third = (reserve_directory(tmp_path / "runs" / "20260101-000000") for _ in range(3))
    assert [p.name for p in (first, second, third)] == [
        "20260101-000000",
        "20260101-000000-2",
        "20260101-000000-3",
    ]


def test_B8_old_constructors_work_and_warn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert Artifacts.from_root(tmp_path / "a").root == Artifacts.for_run(tmp_path / "a").root
    logging.getLogger("llm_perf_opt").propagate = True
    with caplog.at_level("WARNING"):
        artifacts = create_stage2_root(tmp_path / "stage2")
    assert artifacts.root.parent == (tmp_path / "stage2").resolve()
    assert "create_stage2_root() is deprecated" in caplog.text


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.EACCES, "no permission"), (errno.EROFS, "no permission"), (errno.ENOSPC, "no space left")],
)
def test_a_directory_that_cannot_be_made_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ToolError, match=expected) as caught:
        Artifacts.for_run(tmp_path / "run")
    assert "artifacts.runs_dir" in (caught.value.hint or "")


def test_A8_two_nested_copies_of_one_file_lose_neither(tmp_path: Path) -> None:
    run = tmp_path / "run[1]"  # a name that is a pattern to glob
    for folder, text in (("tmp", "outer"), ("tmp/stage2", "deeper")):
        nested = run / folder / run.name / "nsys"
        nested.mkdir(parents=True)
        (nested / "run.nsys-rep").write_text(text)
        (nested / f"{text}.csv").write_text(text)
    planned = migrate(run, dry_run=True)
    assert migrate(run) == planned
    assert (run / "nsys" / "run.nsys-rep").read_text() == "outer"
    assert (run / "tmp" / "stage2" / run.name / "nsys" / "run.nsys-rep").read_text() == "deeper"
    assert (run / "nsys" / "deeper.csv").read_text() == "deeper"
    assert not (run / "tmp" / run.name).exists()


def test_A8_a_copy_inside_a_copy_is_flattened_too(tmp_path: Path) -> None:
    run = tmp_path / "r"
    inner = run / "tmp" / "r" / "tmp" / "r"
    inner.mkdir(parents=True)
    (inner / "inner.md").write_text("inner")
    (run / "tmp" / "r" / "outer.md").write_text("outer")
    migrate(run)
    assert sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()) == ["inner.md", "outer.md"]
    assert migrate(run) == []
