"""Where people already work: the action's steps in a shell, workflows, container files, the skill."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from llm_perf_opt.commands import VERBS
from tests.support import REPOSITORY
from tests.unit import kineto_traces

ACTION = yaml.safe_load((REPOSITORY / "action.yml").read_text(encoding="utf-8"))
CONTAINERS = ("Dockerfile", "Dockerfile.cuda")


class Runner:
    """Runs the steps of the action as a runner does: ``bash -e``, inputs as variables, outputs in a file."""

    def __init__(self, folder: Path, run_id: str, **inputs: str) -> None:
        self.folder, self.outputs = folder, dict[str, str]()
        defaults = {name: str(one["default"]) for name, one in ACTION["inputs"].items()}
        self.values = {
            **{f"inputs.{name}": value for name, value in defaults.items()},
            **{f"inputs.{name.replace('_', '-')}": value for name, value in inputs.items()},
            "github.run_id": run_id,
            "github.run_attempt": "1",
            "github.token": "a-token",
            "github.event.pull_request.number": "7",
            "github.action_path": str(REPOSITORY),
        }
        tools = folder / "tools"
        tools.mkdir(exist_ok=True)
        for name, text in {
            "llm-perf-opt": f'exec {shlex.quote(sys.executable)} -m llm_perf_opt "$@"',
            "gh": f'echo "$@" >> {shlex.quote(str(folder / "asked"))}',
            "python": f'echo "$@" >> {shlex.quote(str(folder / "installed"))}',
        }.items():
            (tools / name).write_text(f"#!/bin/sh\n{text}\n")
            (tools / name).chmod(0o755)

    def step(self, name: str) -> subprocess.CompletedProcess[str]:
        step = next(one for one in ACTION["runs"]["steps"] if one.get("name") == name)
        output = self.folder / "output"
        output.write_text("")
        assert "${{" not in step["run"], "expressions belong into env, where a shell does not run them"
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env={
                **os.environ,
                **{key: self._fill(value) for key, value in step.get("env", {}).items()},
                "PATH": f"{self.folder / 'tools'}:{os.environ['PATH']}",
                "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
            },
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        for line in output.read_text().splitlines():
            key, _, value = line.partition("=")
            self.values[f"steps.{step.get('id')}.outputs.{key}"] = value
        return done

    def _fill(self, text: str) -> str:
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda found: self.values.get(found.group(1), ""), text)


@pytest.mark.needs("bash")
def test_the_steps_of_the_action_run(tmp_path: Path) -> None:
    events = [kineto_traces.call("cudaLaunchKernel", 0, 5, 1), kineto_traces.kernel("gemm", 10, 20, 1)]
    kineto_traces.write(tmp_path / "a trace.json", kineto_traces.document(events))
    given = {"ingest_args": "--trace 'a trace.json'", "gates": "tpot:+5% ttft:+5%"}
    first = Runner(tmp_path, "100", **given)
    assert first.step("Install").returncode == 0
    assert (tmp_path / "installed").read_text().endswith(f" {REPOSITORY}\n")
    assert first.step("Measure").returncode == 0
    done = first.step("Compare")
    assert done.returncode == 0 and first.values["steps.compare.outputs.compared"] == "false"
    assert first.step("Comment").returncode == 0
    assert not (tmp_path / "asked").exists() and (tmp_path / "summary.md").stat().st_size > 0

    second = Runner(tmp_path, "200", **given)
    assert second.step("Measure").returncode == 0
    done = second.step("Compare")
    assert second.values["steps.compare.outputs.compared"] == "true", done.stderr
    comparison = json.loads((tmp_path / "comparison" / "comparison.json").read_text(encoding="utf-8"))
    assert (comparison["a"]["name"], comparison["b"]["name"]) == ("100-1", "200-1")
    cases = ElementTree.parse(tmp_path / "comparison" / "junit.xml").getroot().iter("testcase")
    assert len(list(cases)) == 2
    assert second.step("Comment").returncode == 0
    assert "pr comment 7 --body-file comparison/comment.md --edit-last" in (tmp_path / "asked").read_text()


@pytest.mark.needs("bash")
def test_inputs_are_text_and_never_commands(tmp_path: Path) -> None:
    runner = Runner(tmp_path, "1", ingest_args=f"--trace $(touch {tmp_path}/ran) `touch {tmp_path}/ran`")
    assert runner.step("Measure").returncode != 0
    assert not (tmp_path / "ran").exists()
    both = Runner(tmp_path, "1", ingest_args="--trace x", run_args="model=llama_tiny")
    assert both.step("Measure").returncode == 2


@pytest.mark.needs("bash")
def test_what_runs_models_is_installed_only_to_run_them(tmp_path: Path) -> None:
    assert Runner(tmp_path, "1", run_args="model=llama_tiny").step("Install").returncode == 0
    assert (tmp_path / "installed").read_text().endswith(f" {REPOSITORY}[run]\n")


@pytest.mark.parametrize("path", sorted((REPOSITORY / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_workflows_and_templates_are_whole(path: Path) -> None:
    document: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.parent.name == "workflows":
        assert document["permissions"] == {"contents": "read"}
        steps = [step for job in document["jobs"].values() for step in job["steps"]]
        for command in (step["run"] for step in steps if "run" in step):
            assert "${{" not in command
            for script in re.findall(r"scripts/[\w-]+\.py", command):
                assert (REPOSITORY / script).is_file()
            for target in re.findall(r"\bmake (\w+)", command):
                assert f"\n{target}:" in (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    elif path.name != "config.yml":
        assert document["name"] and all(field["type"] for field in document["body"])


@pytest.mark.parametrize("name", CONTAINERS)
def test_images_run_as_an_ordinary_user_and_copy_what_exists(name: str) -> None:
    text = (REPOSITORY / name).read_text(encoding="utf-8").replace("\\\n", " ")
    instructions = [line.split(None, 1) for line in text.splitlines() if line and line[0] not in "# "]
    last_user = [value for word, value in instructions if word == "USER"][-1]
    number = last_user.partition(":")[0]  # a number, by which Kubernetes can tell that it is not root
    assert int(number) >= 1000 and f"useradd --uid {number} " in text
    assert {"LABEL", "ENTRYPOINT", "WORKDIR"} <= {word for word, _ in instructions}
    ignored = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for word, value in instructions:
        if word == "COPY" and "--from" not in value:
            for source in value.split()[:-1]:
                assert (REPOSITORY / source).exists() and f"!{source}" in ignored, source


@pytest.mark.needs("hadolint")
@pytest.mark.parametrize("name", CONTAINERS)
def test_the_linter_has_nothing_to_say_of_images(name: str) -> None:
    done = subprocess.run(
        ["hadolint", str(REPOSITORY / name)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_skill_names_verbs_and_tools_that_exist() -> None:
    text = (REPOSITORY / "skills" / "llm-perf-opt" / "SKILL.md").read_text(encoding="utf-8")
    _, head, body = text.split("---\n", 2)
    meta = yaml.safe_load(head)
    assert meta["name"] == "llm-perf-opt" and len(meta["description"]) < 1024
    assert set(re.findall(r"`llm-perf-opt ([a-z-]+)", body)) <= set(VERBS)
    tools = (REPOSITORY / "src" / "llm_perf_opt" / "mcp_server" / "server.py").read_text(encoding="utf-8")
    for name in ("list_runs", "summarise_run", "findings", "table", "compare_runs", "what_if"):
        assert name in body and f"def {name}(" in tools
