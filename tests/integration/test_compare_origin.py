"""What a comparison says about where its sides come from, and what it refuses to believe."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.cli import main
from llm_perf_opt.compare.compare import compare
from llm_perf_opt.summary import Summary
from llm_perf_opt.summary.file import save_summary
from tests.support import read_json
from tests.unit.report_summaries import full_summary


def summary(status: str = "ok", *overrides: str) -> Summary:
    made = full_summary()
    command = ["llm-perf-opt", "run", *overrides, "artifacts.runs_dir=/x"]
    made.run = dataclasses.replace(made.run, status=status, command=command)  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize("status", ["failed", "interrupted"])
@pytest.mark.parametrize("side", ["a", "b"])
def test_a_side_that_did_not_end_well_passes_no_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str, side: str
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_summary(summary(status if name == side else "ok"), tmp_path / name)
    arguments = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--gate", "tpot:+50%"]) == 1
    output = capsys.readouterr()
    shown = rf"{side.upper()} .*\({status}\)"
    assert re.search(shown, output.out)
    assert status in output.err
    found = read_json(tmp_path / "out" / "comparison.json")
    assert [gate["status"] for gate in found["gates"]] == ["side failed"]
    assert found[side]["statuses"] == [status]
    assert "SIDE FAILED" in (tmp_path / "out" / "comparison.md").read_text()
    assert re.search(shown, (tmp_path / "out" / "comparison.html").read_text())
    assert main(arguments) == 1, "as the help says: also without a gate"


def test_finished_runs_are_distinguished_by_their_command_lines() -> None:
    a = Side("one", [], [summary("ok", "model=llama_tiny", "infer.batch_size=1")], [None])
    b = Side("two", [], [summary("ok", "model=llama_tiny", "infer.batch_size=2", "~model.path")], [None])
    found = compare(a, b)
    assert found.a.overrides == ["model=llama_tiny", "infer.batch_size=1"]
    settings = {row.what: (row.a, row.b) for row in found.differences if row.what.startswith("setting ")}
    assert settings == {"setting infer.batch_size": ("1", "2"), "setting model.path": (None, "(removed)")}


@pytest.mark.slow
def test_compare_run_records_what_it_compared(tmp_path: Path) -> None:
    out = tmp_path / "out"
    common = [
        "model=llama_tiny",
        "infer.max_new_tokens=2",
        "infer.warmup_rounds=0",
        "dataset.synthetic_tokens=8",
    ]
    arguments = ["compare", *common, "--together", "--rounds", "1", "--out", str(out), "-q"]
    assert (
        main([*arguments, "--run", "model.attn_implementation=sdpa", "--", "model.attn_implementation=eager"])
        == 0
    )
    found = read_json(out / "comparison.json")
    assert found["common_overrides"] == common
    assert found["a"]["overrides"] == ["model.attn_implementation=sdpa"]
    assert found["b"]["overrides"] == ["model.attn_implementation=eager"]
    assert {"what": "setting model.attn_implementation", "a": "sdpa", "b": "eager"} in found["differences"]
    title = "B (model.attn_implementation=eager) against A (model.attn_implementation=sdpa)"
    assert title in (out / "comparison.html").read_text()
    markdown = (out / "comparison.md").read_text().replace("\\", "")
    assert title in markdown
    assert "infer.max_new_tokens=2" in markdown
    assert "infer.max_new_tokens=2" in (out / "comparison.html").read_text()
