"""The commands of ``examples/ci/performance.yml``, run as the workflow runs them: main measures, then a pull request."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from tests.support import REPOSITORY, cli

WORKFLOW = REPOSITORY / "examples" / "ci" / "performance.yml"
QUICKER = [
    "run.repeats=5",
    "pipeline.static_analysis.enable=false",
    "infer.max_new_tokens=4",
    "infer.warmup_rounds=0",
]


def _command(workflow: dict[str, object], step: str, run_id: str) -> list[str]:
    steps = workflow["jobs"]["measure"]["steps"]  # type: ignore[index]
    text = next(item["run"] for item in steps if item.get("name") == step)
    text = text.replace("${{ github.run_id }}", run_id).replace("${{ github.run_attempt }}", "1")
    text = text.replace("$RUN_ARGS", workflow["env"]["RUN_ARGS"]).replace("\\\n", " ")  # type: ignore[index]
    assert "${{" not in text
    words = shlex.split(text)
    assert words[0] == "llm-perf-opt"
    return words[1:]


@pytest.mark.slow
def test_the_workflow_runs(tmp_path: Path) -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    for run_id in ("100", "200"):
        words = [w for w in _command(workflow, "Measure", run_id) if not w.startswith("run.repeats=")]
        done = cli(*words, *QUICKER, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    done = cli(*_command(workflow, "History", "100"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "history.html").is_file()
    done = cli(*_command(workflow, "Compare with the latest run of main", "200"), cwd=tmp_path)
    assert done.returncode in (0, 1), (
        done.stderr
    )  # whether a busy machine shows a regression is not the point
    comparison = json.loads((tmp_path / "comparison" / "comparison.json").read_text(encoding="utf-8"))
    assert comparison["a"]["name"] == "100-1" and comparison["b"]["name"] == "200-1"
    suite = ElementTree.parse(tmp_path / "comparison" / "junit.xml").getroot()[0]
    assert [case.get("name") for case in suite.iter("testcase")] == ["gate tpot:+5.0%", "gate ttft:+5.0%"]
    assert int(suite.get("failures", "0")) == sum(g["status"] == "regression" for g in comparison["gates"])
    assert re.search(r"\*\*tpot\*\*: ", (tmp_path / "comparison" / "comment.md").read_text(encoding="utf-8"))
