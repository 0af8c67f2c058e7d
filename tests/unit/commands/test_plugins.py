"""``plugins``: every entry point of the package is listed, and one that cannot be used says why."""

from __future__ import annotations

import json
from importlib.metadata import entry_points

import pytest

from llm_perf_opt.cli import main


def test_every_interface_and_plugin_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["interfaces"]) == {"stages", "models", "datasets", "sinks", "remedies"}
    for interface in answer["interfaces"].values():
        listed = {one["name"] for one in answer["plugins"] if one["interface"] in interface["group"]}
        assert {point.name for point in entry_points(group=interface["group"])} <= listed
    assert {one["problem"] for one in answer["plugins"] if one["interface"] in ("stages", "remedies")} == {
        None
    }


def test_what_is_missing_is_reported_with_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_PERF_OPT_HIDE", "mlflow,torch")
    assert main(["plugins"]) == 0
    shown = capsys.readouterr().out
    assert "llm-perf-opt[mlflow]" in shown and "llm-perf-opt[run]" in shown
