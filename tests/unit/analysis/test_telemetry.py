"""Samples of a device → statistics, energy, throttling; what is not told stays ``None``."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.analysis.telemetry import MOST_POINTS, absent_notes, memory_of, telemetry_of
from llm_perf_opt.captures.documents import PhasePeak, TelemetryColumns, TelemetryDocument
from tests.text_facts import mentions


def document(
    rows: int = 21, *, step_s: float = 0.1, begin_s: float = -0.5, **changes: Any
) -> TelemetryDocument:
    times = [begin_s + step_s * row for row in range(rows)]
    columns: dict[str, Any] = {
        "clock_hz": [1e9] * rows,
        "power_w": [100.0] * rows,
        "temperature_c": [50.0] * rows,
        "energy_j": [1e6 + 300.0 * at for at in times],
        "memory_bytes": [2.0**30] * rows,
        "throttled": [[] for _ in range(rows)],
    }
    given = {name: changes.pop(name) for name in list(columns) if name in changes}
    base: dict[str, Any] = {"span_s": times[-1], "new_tokens": 30, "samples": 3}
    return TelemetryDocument(
        1, "cuda:0", TelemetryColumns(times, **{**columns, **given}), **{**base, **changes}
    )


def test_warm_up_is_left_out() -> None:
    hot = [200.0] * 5 + [50.0] * 16  # the first half second is warm-up
    found = telemetry_of(document(temperature_c=hot))
    assert found.samples == 16
    assert found.temperature_c is not None
    assert (found.temperature_c.median, found.temperature_c.p95) == (50.0, 50.0)


def test_energy_is_the_meters_own() -> None:
    found = telemetry_of(document()).energy_j
    assert found.source == "counter"
    assert found.total == pytest.approx(450.0)
    assert (found.per_token, found.per_sample) == (pytest.approx(15.0), pytest.approx(150.0))


def test_without_a_meter_power_is_summed() -> None:
    found = telemetry_of(document(energy_j=[None] * 21)).energy_j
    assert (found.source, found.total) == ("power", pytest.approx(150.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"energy_j": [None] * 21, "power_w": [None] * 21},
        {"energy_j": [None] * 21, "power_w": [100.0] * 12 + [None] + [100.0] * 8},
        {"energy_j": [5.0] * 21, "power_w": [None] * 21},
        {"rows": 8},
    ],
    ids=["nothing told", "a gap", "a meter that stands still", "too short"],
)
def test_energy_is_not_guessed(changes: dict[str, Any]) -> None:
    rows = changes.pop("rows", 21)
    energy = telemetry_of(document(rows, **changes)).energy_j
    assert (energy.total, energy.per_token, energy.per_sample, energy.source) == (None, None, None, None)


def test_a_run_without_tokens_has_no_energy_per_token() -> None:
    assert telemetry_of(document(new_tokens=0)).energy_j.per_token is None


def test_throttle_reasons_have_shares() -> None:
    throttled: list[Any] = [["hot"]] * 5 + [["hot", "cap"]] * 4 + [["cap"]] * 4 + [[]] * 8
    found = telemetry_of(document(throttled=throttled))
    assert found.throttled == ["cap", "hot"]
    assert found.throttled_ratio == {"cap": 0.5, "hot": 0.25}


def test_unknown_reasons_are_not_none() -> None:
    assert telemetry_of(document(throttled=[None] * 21)).throttled_ratio is None
    assert telemetry_of(document()).throttled_ratio == {}


def test_series_are_bounded_and_leave_out_what_is_not_reported() -> None:
    found = telemetry_of(document(5000, clock_hz=[None] * 5000))
    assert [series.name for series in found.series] == ["power_w", "temperature_c", "memory_bytes"]
    assert all(1 < len(series.points) <= MOST_POINTS for series in found.series)


def test_the_notes_give_each_reason_once() -> None:
    made = document(
        energy_j=[None] * 21, power_w=[None] * 21, absent={"power_w": "no RAPL", "energy_j": "no RAPL"}
    )
    (note,) = absent_notes(made, telemetry_of(made))
    assert mentions(note, "power", "energy") and note.count("no RAPL") == 1
    assert absent_notes(document(), telemetry_of(document())) == []


def test_a_short_run_gives_the_reason_for_no_energy() -> None:
    short = document(8)
    (note,) = absent_notes(short, telemetry_of(short))
    assert "shorter than 0.5 s" in note


def test_peaks_keep_what_they_count() -> None:
    made = document(memory={"prefill": PhasePeak(10.0, 12.0)}, memory_counts="allocator")
    use = memory_of(made)["prefill"]
    assert (use.peak_bytes, use.reserved_bytes, use.counts) == (10.0, 12.0, "allocator")
