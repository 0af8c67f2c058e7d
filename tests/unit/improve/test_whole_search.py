"""One whole search through the command line, shared by its tests: a real baseline with a real fault, two processes that take
turns, a gain that is shown, confirmed and written down, and a run of the result."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import jsonschema
import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.commands.schema import schema
from llm_perf_opt.remedies.data import Improvement, load_improvement
from tests.support import cli
from tests.unit.improve.tiny import TINY
from tests.warm import warm_python

pytestmark = pytest.mark.slow
SLOW, FAST = "run.env.SAMPLER=running", "run.env.SAMPLER=stopped"
SAMPLER = """
import functools, os, sys, threading, time

def slow_down():
    name = "transformers.models.llama.modeling_llama"
    while not hasattr(sys.modules.get(name), "LlamaForCausalLM"):
        time.sleep(0.02)
    kind = sys.modules[name].LlamaForCausalLM
    plain = kind.forward

    @functools.wraps(plain)  # its parameters are looked at
    def forward(self, *given, **named):
        started = time.thread_time()
        result = plain(self, *given, **named)
        end = time.thread_time() + 2 * (time.thread_time() - started)
        while time.thread_time() < end:
            pass
        return result

    kind.forward = forward

if os.environ.get("SAMPLER") == "running":
    threading.Thread(target=slow_down, daemon=True).start()
"""
"""Something that somebody forgot to switch off: every call of the model takes three times its processor time, on a busy machine
as on a quiet one."""
CHEAP = ("hardware.probe=false", "pipeline.static_analysis.enable=false")
ONLY = ("--try", FAST, "--pairs", "40", "--samples", "2", "--processes", "2")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search") / "out"
    with pytest.MonkeyPatch.context() as patch, warm_python():
        patch.setenv("XDG_STATE_HOME", str(folder.parent / "state"))
        patch.chdir(folder.parent)
        (folder.parent / "sitecustomize.py").write_text(SAMPLER)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder.parent), *sys.path[1:]]))
        assert (
            main(["improve", *TINY, *CHEAP, SLOW, *ONLY, "--budget", "5m", "--out", str(folder), "--quiet"])
            == 0
        )
    return folder


@pytest.fixture(scope="module")
def found(out: Path) -> Improvement:
    return load_improvement(out)


def test_two_processes_took_turns_and_answered_alike(found: Improvement) -> None:
    trial = found.tried[0]
    assert (trial.overrides, trial.how, trial.output) == ([FAST], "own processes", "equal")
    assert trial.measured is not None
    assert trial.check is not None
    assert trial.check.largest_logit_difference == 0
    assert found.baseline.samples == ["synthetic_8_000", "synthetic_8_001"]


def test_a_gain_is_shown_confirmed_and_can_be_run(out: Path, found: Improvement) -> None:
    assert [(trial.role, trial.decision) for trial in found.tried] == [
        ("single", "keep"),
        ("confirmation", "keep"),
    ], [trial.reason for trial in found.tried]
    best = found.best
    assert best.overrides == [FAST] and best.confirmed and best.output == "equal"
    assert best.low is not None and best.high is not None
    assert best.low < (best.change_ratio or 0.0) < best.high < 0
    for trial in found.tried:
        assert (
            trial.measured is not None
            and trial.measured.processes == len(trial.measured.process_changes) >= 2
        )
        assert trial.measured.low < trial.measured.change_ratio < trial.measured.high
    done = cli(
        *shlex.split(best.command or "")[1:], f"artifacts.runs_dir={out.parent / 'best'}", cwd=out.parent
    )
    assert done.returncode == 0, done.stderr
    config = (out.parent / "best" / "config.yaml").read_text(encoding="utf-8")
    assert "SAMPLER: stopped" in config
    assert "num_hidden_layers: 2" in config, "what the baseline was given is in it, too"


def test_the_files_are_there_and_fit(out: Path, found: Improvement) -> None:
    jsonschema.validate(json.loads((out / "improve.json").read_text()), schema("improve"))
    assert (out / "baseline" / "summary.json").is_file()
    assert found.tried[0].comparison is not None
    assert (out / found.tried[0].comparison).is_file()
    assert found.tried[0].comparison in (out / "improve.html").read_text()
    assert "SAMPLER" in (out / "improve.html").read_text()


def test_resuming_a_finished_search_measures_nothing_again(
    out: Path, found: Improvement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(out.parent / "state"))
    before = sorted(path.name for path in (out / "experiments").iterdir())
    # Variables of the environment are not taken over from a file.
    assert main(["improve", "--resume", str(out), "--quiet"]) == 2
    assert main(["improve", "--resume", str(out), SLOW, FAST, "--quiet"]) == 0
    assert sorted(path.name for path in (out / "experiments").iterdir()) == before
    assert load_improvement(out).tried == found.tried


def test_the_plan_of_the_same_run_gives_its_duration(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["improve", str(out / "baseline"), SLOW, *ONLY, "--plan", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert [each["overrides"] for each in planned["candidates"]] == [[FAST]]
    assert planned["expected_experiments"] == 2
    assert 16 < planned["expected_s"] < 120
