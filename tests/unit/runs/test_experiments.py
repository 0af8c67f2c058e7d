"""Every finding has the command that proves its advice, or the reason why there is none."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any, get_args

import pytest

from llm_perf_opt.analysis import findings
from llm_perf_opt.analysis.findings.idle import Loss
from llm_perf_opt.cli import main
from llm_perf_opt.core.escape import md_text
from llm_perf_opt.remedies.built_in import BUILT_IN
from llm_perf_opt.reporting.report import report_markdown
from llm_perf_opt.runs.experiments import UNANSWERED, UNKNOWN, add_experiments
from llm_perf_opt.summary import Finding, Summary
from tests.unit.summaries import summary

ANSWERED = {item.partition(":")[0] for remedy in BUILT_IN for item in remedy.answers}


def finding_ids() -> set[str]:
    """Read the ids from the rules themselves: ``Finding(id="…")``, and the losses of a timeline."""
    folder = Path(inspect.getfile(findings)).parent
    found = set(get_args(Loss))
    for path in (*folder.rglob("*.py"), folder.parent / "compile_account.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                found |= {
                    str(word.value.value)
                    for word in node.keywords
                    if word.arg == "id" and isinstance(word.value, ast.Constant)
                }
    return found


IDS = finding_ids()


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def found(name: str, phase: str | None = "decode") -> Finding:
    return Finding(name, name, phase, [], 0.1, "", "", "high")


def run(
    *findings_: Finding, overrides: tuple[str, ...] = ("model=llama_tiny",), device: str = "cpu"
) -> Summary:
    made = summary(findings=list(findings_))
    made.run.command = ["llm-perf-opt", "run", *overrides, "artifacts.runs_dir=/x"]
    made.workload.device, made.workload.program = device, None
    made.environment = {"cpu": {"cores": 4}}
    add_experiments(made)
    return made


def test_the_rules_and_the_remedies_name_the_same_findings() -> None:
    assert len(IDS) > 25
    assert ANSWERED | set(UNANSWERED) == IDS


PHASES = {
    name: next(
        (
            item.partition(":")[2]
            for remedy in BUILT_IN
            for item in remedy.answers
            if item.startswith(f"{name}:")
        ),
        "decode",
    )
    for name in IDS
}


@pytest.fixture(scope="module")
def explained() -> dict[str, Finding]:
    """All findings at once, each in a phase in which it is answered if it is in any."""
    made = run(*(found(name, PHASES[name]) for name in sorted(IDS)))
    return {each.id: each for each in made.findings}


@pytest.mark.parametrize("name", sorted(IDS))
def test_every_finding_has_a_command_or_a_reason(name: str, explained: dict[str, Finding]) -> None:
    made = explained[name]
    assert (made.improve_command is None) is (made.no_experiment is not None)
    if name not in ANSWERED:
        assert made.no_experiment == UNANSWERED[name]
    if made.improve_command is not None:
        assert f"--only {name}:{PHASES[name]}" in made.improve_command


def test_the_command_is_one_that_the_program_takes(capsys: pytest.CaptureFixture[str]) -> None:
    command = run(found("growing-cache")).findings[0].improve_command
    assert command is not None
    assert command.split() == [
        "llm-perf-opt",
        "improve",
        "model=llama_tiny",
        "--only",
        "growing-cache:decode",
    ]
    assert main([*command.split()[1:], "--plan"]) == 0
    assert "model.cache=preallocated" in capsys.readouterr().out


def test_throughput_is_chosen_where_only_that_can_gain() -> None:
    made = run(found("underfilled-grids", None), overrides=("model=llama_tiny", "dataset.synthetic_count=8"))
    made.workload.samples = 8
    add_experiments(made)
    assert made.findings[0].improve_command is not None
    assert made.findings[0].improve_command.endswith("--only underfilled-grids --metric tokens_per_s")


@pytest.mark.parametrize(
    ("overrides", "device", "name", "message"),
    [
        (("model=llama_tiny",), "cpu", "padding-waste", "padded"),
        (("model=llama_tiny",), "cpu", "allocation", "no GPU"),
        (("model=llama_tiny",), "cuda:0", "throttled", "processor"),
        (("--config-name", "mine"), "cpu", "growing-cache", "run again"),
    ],
)
def test_a_remedy_that_does_not_apply_is_no_command(
    overrides: tuple[str, ...], device: str, name: str, message: str
) -> None:
    made = run(found(name), overrides=overrides, device=device).findings[0]
    assert made.improve_command is None
    assert message in (made.no_experiment or "")


@pytest.mark.parametrize("change", [{"program": ["./mine"]}, {"ranks": 2}])
def test_runs_that_no_experiment_can_repeat(change: dict[str, Any]) -> None:
    made = run(found("growing-cache"))
    if "program" in change:
        made.workload.program = change["program"]
    else:
        made.ranks = [object(), object()]  # type: ignore[list-item]  # only their number matters
    add_experiments(made)
    assert made.findings[0].improve_command is None
    assert made.findings[0].no_experiment is not None


def test_a_finding_of_another_package_has_no_explanation() -> None:
    assert run(found("machine-noise")).findings[0].no_experiment == UNKNOWN


def test_the_report_shows_it() -> None:
    made = run(found("growing-cache"), found("host-sync"))
    answered, unanswered = made.findings
    text = report_markdown(made)
    assert f"`{answered.improve_command}`" in text
    assert unanswered.improve_command is None and unanswered.no_experiment
    assert md_text(unanswered.no_experiment) in text
