"""Where limits and times come from, in words."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from llm_perf_opt.reporting.wording import describe_clock, describe_hardware
from llm_perf_opt.summary import Hardware, Peak, Stopped, Timings


@pytest.mark.parametrize(
    ("under_load", "load", "measurements", "numbers"),
    [
        (None, None, None, []),
        (False, 0.01, 1, []),
        (True, 0.534, 3, ["3", "53.4 %"]),
        (True, None, 1, []),
    ],
)
def test_measured_limits_record_when_and_how_disturbed(
    under_load: bool | None, load: float | None, measurements: int | None, numbers: list[str]
) -> None:
    hardware = Hardware("AMD EPYC", "cpu", {"float32": Peak(181e9, "")}, 20e9, "probe")
    hardware.measured_at, hardware.measurements = "2025-03-01T09:30:12+01:00", measurements
    hardware.measured_under_load, hardware.measured_other_load_ratio = under_load, load
    _, when, how = describe_hardware(hardware).partition("2025-03-01 09:30")
    assert when and re.findall(r"[\d.]+(?: %)?", how.rstrip(".)")) == numbers
    # Nothing known of it, undisturbed, and disturbed are three things to say.
    text = {how}
    for other in {None, True, False} - {under_load}:
        hardware.measured_under_load = other
        text.add(describe_hardware(hardware).partition("2025-03-01 09:30")[2])
    assert len(text) == 3


@pytest.mark.parametrize(
    ("repeats", "stopped", "interval", "numbers"),
    [
        (None, None, None, []),
        (1, "asked", None, ["1"]),
        (6, "narrow", 0.042, ["6", "95 %", "4.20 %"]),
        (4, "time", 0.12, ["4", "95 %", "12.0 %"]),
    ],
)
def test_times_record_how_often_they_were_measured(
    repeats: int | None, stopped: Stopped | None, interval: float | None, numbers: list[str]
) -> None:
    shown = describe_clock(Timings(repeats=repeats, stopped=stopped, interval_ratio=interval))
    assert re.findall(r"\b\d[\d.]*(?: %)?", shown) == numbers


def test_why_no_more_repeats_were_made_is_reported() -> None:
    reasons = {describe_clock(Timings(repeats=4, stopped=stopped)) for stopped in (None, *get_args(Stopped))}
    assert len(reasons) == 1 + len(get_args(Stopped))
