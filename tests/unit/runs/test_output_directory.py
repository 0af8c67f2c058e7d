"""Where ``ingest`` writes: one at a time, over an earlier ingest, never over a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.runs.directory import lock_output
from llm_perf_opt.runs.lock import hold


def _summary(out: Path, *command: str) -> None:
    out.mkdir()
    (out / "summary.json").write_text(json.dumps({"run": {"command": list(command)}}))


def test_it_is_held_and_another_gets_the_way_to_use_another(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with lock_output(out):
        assert (out / "run.lock").is_file()
        with pytest.raises(ConfigError, match="another process writes") as caught, lock_output(out):
            pass
    assert "--out DIR" in (caught.value.hint or "")
    assert "runs_dir" not in str(caught.value)
    assert not (out / "run.lock").exists()


@pytest.mark.parametrize("made_before", [True, False])
def test_a_directory_made_for_nothing_is_removed(made_before: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if made_before:
        out.mkdir()
    with pytest.raises(ValueError, match="unreadable"), lock_output(out):
        raise ValueError("unreadable")
    assert out.exists() == made_before


def test_a_result_stays(tmp_path: Path) -> None:
    with lock_output(tmp_path / "out"):
        (tmp_path / "out" / "summary.json").write_text("{}")
    assert (tmp_path / "out" / "summary.json").is_file()


def test_the_directory_of_a_run_is_refused_with_or_without_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    _summary(tmp_path / "old", "llm-perf-opt", "run", "model=x")
    for name in ("run", "old"):
        with pytest.raises(ConfigError, match="contains a run"), lock_output(tmp_path / name):
            raise AssertionError("it was not refused")
        with hold(tmp_path / name):
            pass  # nor is it held any longer


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": null}', '{"run": {"command": "x"}}', "[" * 100_000])
def test_an_empty_summary_is_overwritten(text: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(text)
    with lock_output(tmp_path):
        pass


def test_an_earlier_ingest_is_overwritten(tmp_path: Path) -> None:
    _summary(tmp_path / "out", "llm-perf-opt", "ingest", "--timings=x")
    with lock_output(tmp_path / "out"):
        pass
