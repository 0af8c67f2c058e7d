"""Where a search starts: runs that are there already."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.improve.baseline import newest_like, run_first
from tests.unit.history.runs_made import make_run


def test_the_newest_run_of_a_configuration_is_found_where_runs_go(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "old", day=1)
    make_run(tmp_path / "runs", "failed", day=3, status="failed")
    newest = make_run(tmp_path / "improve" / "x", "baseline", day=2)
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "summary.json").write_text("{")
    found = newest_like([], tmp_path)
    assert found is not None and found.run == newest.absolute()
    assert newest_like(["model=llama_tiny"], tmp_path) is None
    assert newest_like([], tmp_path / "nowhere") is None


def test_a_baseline_of_another_configuration_is_not_taken(tmp_path: Path) -> None:
    """What a search left there that failed before its result was written."""
    make_run(tmp_path, "baseline")
    assert run_first([], tmp_path).run == tmp_path / "baseline"
    with pytest.raises(ConfigError) as refused:
        run_first(["model=llama_tiny"], tmp_path)
    assert str(tmp_path) in refused.value.message and "--out" in (refused.value.hint or "")
