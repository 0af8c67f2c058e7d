from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from llm_perf_opt.core.console.command_line import print_error, run_guarded
from llm_perf_opt.core.errors import InputError


def broken(_: Sequence[str]) -> int:
    raise InputError("missing", hint="another", path="x")


def test_an_error_is_for_people_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(broken, ["x"]) == 3
    assert capsys.readouterr() == ("", "error: missing\n  fix: another\n")


def test_an_error_is_for_scripts_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(broken, ["x", "--json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "error": "input",
        "message": "missing",
        "hint": "another",
        "path": "x",
    }
    assert err == ""


def test_an_interrupt_is_not_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: Sequence[str]) -> int:
        raise KeyboardInterrupt

    assert run_guarded(interrupted, []) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_printing_returns_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_error(InputError("no")) == 3
    assert capsys.readouterr().err == "error: no\n"
