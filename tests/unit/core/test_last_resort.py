from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from llm_perf_opt.core.console.command_line import EXIT_CODES, print_error, run_guarded
from llm_perf_opt.core.console.logs import PLAIN, PlainFormatter
from llm_perf_opt.core.errors import InputError, ToolError
from llm_perf_opt.core.escape import csv_text
from llm_perf_opt.core.files import is_own_file, refuse_link
from tests.text_facts import mentions


def broken(_: Sequence[str]) -> int:
    return {}["nobody foresaw this"]


def test_a_defect_is_a_sentence_a_file_and_an_exit_code_of_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("LLM_PERF_OPT_DEBUG", raising=False)
    assert run_guarded(broken, []) == 70
    output = capsys.readouterr().err
    assert output.startswith("error: ") and mentions(output, "KeyError")
    assert "Traceback" not in output
    (details,) = tmp_path.glob("llm-perf-opt-*.log")
    assert str(details) in output
    assert "nobody foresaw this" in details.read_text()
    assert details.stat().st_mode & 0o077 == 0
    assert run_guarded(broken, ["--json"]) == 70
    assert json.loads(capsys.readouterr().out)["error"] == "defect"


def test_the_traceback_is_shown_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_PERF_OPT_DEBUG", "1")
    assert run_guarded(broken, []) == 70
    assert "Traceback" in capsys.readouterr().err


def test_the_exit_code_is_listed_everywhere(repository: Path) -> None:
    from llm_perf_opt.core import errors

    for text in (EXIT_CODES, errors.__doc__ or "", (repository / "docs" / "scripting.md").read_text()):
        assert "70" in text


@pytest.mark.parametrize(
    ("error", "code"),
    [(MemoryError(), 4), (RecursionError(), 70), (OSError(36, "File name too long", "x" * 300), 4)],
)
def test_what_the_machine_refuses(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_: Sequence[str]) -> int:
        raise error

    assert run_guarded(refused, []) == code
    assert "Traceback" not in capsys.readouterr().err


def test_nothing_printed_is_obeyed_by_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def shows(_: Sequence[str]) -> int:
        print("kernel\x1b[2J\x1b]0;title\x07\x9b31m, plain\ttext\nnext")
        return print_error(InputError("\x1b[31mred"))

    assert run_guarded(shows, []) == 3
    out, err = capsys.readouterr()
    assert not {"\x1b", "\x07", "\x9b"} & set(out + err)
    assert out.endswith(", plain\ttext\nnext\n")
    record = logging.LogRecord("x", logging.INFO, "", 0, "a\x1b[1mb", None, None)
    assert "\x1b" not in PlainFormatter().format(record)


def test_an_ascii_terminal_gets_our_signs_in_ascii_and_names_escaped() -> None:
    assert (
        "1 µs … 2 × 3 – ü \U0001f600".encode("ascii", errors=PLAIN) == b"1 us ... 2 x 3 - \\xfc \\U0001f600"
    )


def test_streams_are_given_back() -> None:
    before = sys.stdout
    run_guarded(lambda _: 0, [])
    assert sys.stdout is before


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_a_cell_that_a_spreadsheet_would_run_is_quoted(text: str) -> None:
    assert csv_text(text) == f"'{text}"
    assert csv_text("void k<int>") == "void k<int>"


def test_a_planted_link_is_not_written_through_and_not_believed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "run.log"
    target.write_text("mine")
    link.symlink_to(target)
    with pytest.raises(ToolError, match="symbolic link"):
        refuse_link(link)
    assert not is_own_file(link)
    assert is_own_file(target)
    target.chmod(0o666)
    assert not is_own_file(target)
