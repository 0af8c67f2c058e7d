"""Progress: few lines in a log, one line on a terminal, in its width and its character set."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from llm_perf_opt.core.console.logs import PLAIN, wants_ascii
from llm_perf_opt.core.console.progress import LogProgress, progress_line


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("llm_perf_opt"), "propagate", True)
    caplog.set_level(logging.INFO, logger="llm_perf_opt")
    return caplog


def test_quick_steps_print_one_line(lines: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with LogProgress(clock).task("measuring", total=1000) as task:
        for _ in range(1000):
            clock.now += 0.001
            task.advance(note="pass 1")
    assert [record.getMessage() for record in lines.records] == ["measuring …"]


def test_a_long_task_prints_place_and_time_now_and_then(lines: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with LogProgress(clock).task("nsys: capture 1 of 2 (prefill)") as task:
        for _ in range(25):
            clock.now += 1
            task.advance(0)
    with LogProgress(clock).task("measuring", total=4) as task:
        clock.now += 12
        task.advance(note="pass 2")
    messages = [record.getMessage() for record in lines.records]
    assert messages[1:3] == [
        "nsys: capture 1 of 2 (prefill), 10 s",
        "nsys: capture 1 of 2 (prefill), 20 s",
    ]
    assert messages[-1] == "measuring: 1 of 4, 12 s (pass 2)"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_one_line_within_the_width_of_the_terminal(encoding: str) -> None:
    screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=PLAIN, write_through=True)
    console = Console(file=screen, width=60, force_terminal=True, color_system=None)
    with progress_line(console) as progress, progress.task("measuring", total=600) as outer:
        outer.advance(note="a note that is much longer than what is left of a line of sixty columns")
        with progress.task("nsys: capture 1 of 2 (prefill)") as inner:
            inner.advance(0, note="writing the report")
            assert [task.description for task in progress._bars.tasks if task.visible] == [
                "nsys: capture 1 of 2 (prefill)"
            ]
            shown = console.render_lines(progress._bars.get_renderable(), pad=False)
            assert len(shown) == 1
            text = "".join(segment.text for segment in shown[0])
            assert len(text) <= 60 and "capture 1 of 2 (prefill)" in text
    written = screen.buffer.getvalue() if isinstance(screen.buffer, io.BytesIO) else b""
    assert written
    if encoding == "ascii":
        assert b"\\u" not in written  # no escape in place of a spinner or a bar


def test_bars_in_ascii() -> None:
    assert "██▌ − → µs".encode("ascii", PLAIN) == b"### - -> us"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"LC_ALL": "C"}, True),
        ({"LANG": "POSIX"}, True),
        ({"LC_ALL": "C.UTF-8"}, False),
        ({"LC_ALL": "", "LC_CTYPE": "C.UTF-8", "LANG": "C"}, False),
        ({"LC_ALL": "C", "PYTHONUTF8": "1"}, False),
        ({}, False),
    ],
)
def test_which_locale_asks_for_ascii(environ: dict[str, str], expected: bool) -> None:
    assert wants_ascii(environ) is expected
