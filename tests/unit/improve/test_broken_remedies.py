"""Remedies of other packages that cannot be loaded or raise errors: they cost neither a run its report nor a search the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.improve.improve import Request, make_plan
from llm_perf_opt.remedies import registry
from llm_perf_opt.remedies.base import Machine, Remedy, Situation, fixed
from llm_perf_opt.remedies.data import SearchSettings
from llm_perf_opt.runs.experiments import add_experiments
from llm_perf_opt.summary import Finding, Summary
from tests.unit.summaries import summary

WRONG = "thing"


def _raises(_: Situation) -> Any:
    raise KeyError(WRONG)


def _remedy(name: str, **more: Any) -> Remedy:
    return Remedy(
        **{
            "name": name,
            "title": "",
            "options": fixed("run.threads=1"),
            "answers": ("growing-cache", "own-finding"),
            **more,
        }
    )


@dataclass
class _Point:
    name: str
    loaded: Any
    value: str = "package.module:remedy"

    def load(self) -> Any:
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        _Point("gone", ImportError("No module named 'gone'")),
        _Point("worse", ValueError("at import")),
        _Point("nothing", 7),
        _Point("again", _remedy("threads")),
        _Point("asks", _remedy("asks", why_not=_raises)),
        _Point("offers", _remedy("offers", options=_raises)),
        _Point("flat", _remedy("flat", options=lambda _: ["run.threads=1"])),
        _Point("fine", _remedy("fine")),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_a_finished_run_keeps_its_report_and_names_them() -> None:
    made: Summary = summary(findings=[Finding("own-finding", "", "decode", [], 0.1, "", "", "high")])
    made.run.command, made.workload.program = ["llm-perf-opt", "run", "model=llama_tiny"], None
    add_experiments(made)
    named = [(re.search(r"\bremedy (\w+)", note), note) for note in made.notes]
    shown = {name[1]: note for name, note in named if name is not None}
    assert set(shown) == {"gone", "worse", "nothing", "again", "asks", "offers", "flat"}
    assert "package.module:remedy: ImportError: No module named 'gone'" in shown["gone"]
    assert "KeyError" in shown["asks"] and "KeyError" in shown["offers"]
    assert made.findings[0].improve_command is not None


def test_a_search_tries_the_rest_and_gives_reasons_for_these() -> None:
    request = Request(overrides=["model=llama_tiny"], settings=SearchSettings(only=["growing-cache"]))
    planned = make_plan(request, None, Machine(cpus=4))
    assert "fine" in {each.remedy.name for each in planned.candidates}
    reasons = {item.remedy: item.reason for item in planned.not_tried}
    assert {"gone", "worse", "nothing", "again", "asks", "offers", "flat"} <= set(reasons)
    assert f"KeyError: {WRONG!r}" in reasons["offers"]


def test_the_list_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["improve", "--list"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^gone +.*package\.module:remedy", output, flags=re.MULTILINE)
    assert "\nfine " in output
