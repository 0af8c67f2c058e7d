"""The commands of ``examples/ci/performance.yml``, run as the workflow runs them: main measures, then a pull request."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from tests.support import REPOSITORY, cli
from tests.unit.history.runs_made import make_run

WORKFLOW = REPOSITORY / "examples" / "ci" / "performance.yml"
QUICKER = [
    "run.repeats=5",
    "pipeline.static_analysis.enable=false",
    "infer.max_new_tokens=4",
    "infer.warmup_rounds=0",
]


def _text(workflow: dict[str, object], step: str, run_id: str) -> str:
    steps = workflow["jobs"]["measure"]["steps"]  # type: ignore[index]
    text: str = next(item["run"] for item in steps if item.get("name") == step)
    text = text.replace("${{ github.run_id }}", run_id).replace("${{ github.run_attempt }}", "1")
    assert "${{" not in text
    return text


def _command(workflow: dict[str, object], step: str, run_id: str) -> list[str]:
    text = _text(workflow, step, run_id)
    arguments = shlex.split(text.replace("$RUN_ARGS", workflow["env"]["RUN_ARGS"]).replace("\\\n", " "))  # type: ignore[index]
    assert arguments[0] == "llm-perf-opt"
    return arguments[1:]


def _comment(workflow: dict[str, object], folder: Path, *, fails: str = "") -> tuple[list[str], str]:
    """Run the step that comments, as the runner does (``bash -e``); return what ``gh`` was asked and the job's summary."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    gh, requested, shown = tools / "gh", folder / "asked", folder / "summary.md"
    for path in (requested, shown):
        path.unlink(missing_ok=True)
    gh.write_text(f'#!/bin/sh\necho "$@" >> {requested}\ncase "$*" in {fails or "never"}) exit 1;; esac\n')
    gh.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(shown),
        "NUMBER": "7",
    }
    done = subprocess.run(
        ["bash", "-e", "-c", _text(workflow, "Comment", "200")], cwd=folder, env=env, check=False, timeout=60
    )
    assert done.returncode == 0
    return requested.read_text().splitlines() if requested.exists() else [], shown.read_text()


def _compare(workflow: dict[str, object], folder: Path, run_id: str) -> subprocess.CompletedProcess[str]:
    """Run the step that compares, as the runner does (``bash -e``)."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    program = tools / "llm-perf-opt"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m llm_perf_opt.cli "$@"\n')
    program.chmod(0o755)
    return subprocess.run(
        ["bash", "-e", "-c", _text(workflow, "Compare with the latest run of main", run_id)],
        cwd=folder,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_without_a_run_of_main_nothing_is_gated(tmp_path: Path) -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    make_run(tmp_path / "runs", "200-1", day=2)
    done = _compare(workflow, tmp_path, "200")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stdout
    assert "main" in done.stdout and "-1" not in done.stdout
    assert not (tmp_path / "comparison").exists()
    make_run(tmp_path / "runs", "100-1", tpot_s=0.01)
    done = _compare(workflow, tmp_path, "200")
    assert "100-1" in done.stdout and (tmp_path / "comparison" / "junit.xml").is_file(), done.stderr


@pytest.mark.slow
def test_the_workflow_runs(tmp_path: Path) -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    requested, shown = _comment(workflow, tmp_path)
    assert requested == [] and shown.count("\n") == 1 and "main" in shown
    for run_id in ("100", "200"):
        arguments = [w for w in _command(workflow, "Measure", run_id) if not w.startswith("run.repeats=")]
        done = cli(*arguments, *QUICKER, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    done = cli(*_command(workflow, "History", "100"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "history.html").is_file()
    done = _compare(workflow, tmp_path, "200")
    assert done.returncode in (0, 1), (
        done.stderr
    )  # whether a busy machine shows a regression is not the point
    comparison = json.loads((tmp_path / "comparison" / "comparison.json").read_text(encoding="utf-8"))
    assert comparison["a"]["name"] == "100-1" and comparison["b"]["name"] == "200-1"
    suite = ElementTree.parse(tmp_path / "comparison" / "junit.xml").getroot()[0]
    assert [case.get("name") for case in suite.iter("testcase")] == ["gate tpot:+5.0%", "gate ttft:+5.0%"]
    assert int(suite.get("failures", "0")) == sum(g["status"] == "regression" for g in comparison["gates"])
    assert re.search(r"\*\*tpot\*\*: ", (tmp_path / "comparison" / "comment.md").read_text(encoding="utf-8"))
    edit, new = (
        "pr comment 7 --body-file comparison/comment.md --edit-last",
        "pr comment 7 --body-file comparison/comment.md",
    )
    comment = (tmp_path / "comparison" / "comment.md").read_text(encoding="utf-8")
    assert _comment(workflow, tmp_path) == ([edit], comment)
    assert _comment(workflow, tmp_path, fails="*--edit-last") == (
        [edit, new],
        comment,
    )  # the first comment of all
    assert _comment(workflow, tmp_path, fails="*") == (
        [edit, new],
        comment,
    )  # from a fork, without the right to
