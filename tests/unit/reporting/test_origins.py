"""Where limits and times come from, in words."""

from __future__ import annotations

import pytest

from llm_perf_opt.model.summary import Hardware, Peak, Stopped, Timings
from llm_perf_opt.reporting.origins import clock_text, hardware_text


@pytest.mark.parametrize(
    ("under_load", "load", "measurements", "ending"),
    [
        (None, None, None, "(measured on this machine 2025-03-01 09:30)."),
        (False, 0.01, 1, "09:30, undisturbed)."),
        (
            True,
            0.534,
            3,
            "09:30, the best of 3 measurements, beside other programs (53.4 % of the processor)).",
        ),
        (True, None, 1, "09:30, beside other programs)."),
    ],
)
def test_measured_limits_say_when_and_how_disturbed(
    under_load: bool | None, load: float | None, measurements: int | None, ending: str
) -> None:
    hardware = Hardware("AMD EPYC", "cpu", {"float32": Peak(181e9, "")}, 20e9, "probe")
    hardware.measured_at, hardware.measurements = "2025-03-01T09:30:12+01:00", measurements
    hardware.measured_under_load, hardware.measured_other_load_ratio = under_load, load
    assert hardware_text(hardware).endswith(ending)


@pytest.mark.parametrize(
    ("repeats", "stopped", "interval", "ending"),
    [
        (None, None, None, "over samples and repeats"),
        (1, "asked", None, "over samples and 1 repeat (as asked for)"),
        (
            6,
            "narrow",
            0.042,
            "6 repeats (enough for a narrow interval); the 95 % interval of a pass is 4.20 % wide",
        ),
        (
            4,
            "time",
            0.12,
            "4 repeats (as many as the time limit allows); the 95 % interval of a pass is 12.0 % wide",
        ),
    ],
)
def test_times_say_how_often_they_were_measured(
    repeats: int | None, stopped: Stopped | None, interval: float | None, ending: str
) -> None:
    assert clock_text(Timings(repeats=repeats, stopped=stopped, interval_ratio=interval)).endswith(ending)
