"""The sampler: bounded, cheap by its own measure, and honest about errors. No assertion on wall-clock."""

from __future__ import annotations

import itertools
import threading
from typing import ClassVar

import pytest

from llm_perf_opt.hardware.sensors.base import DeviceLimits, Reading
from llm_perf_opt.hardware.sensors.sampler import MOST_COST_RATIO, Sampler


class Counting:
    """Counts its readings, and says when there were enough."""

    reader: ClassVar[str] = "counting"
    device = "counter"
    limits = DeviceLimits()
    absent: dict[str, str] = {}

    def __init__(self, enough: int = 1, work: int = 0, error: Exception | None = None) -> None:
        self.looks, self.enough, self.work, self.error = 0, enough, work, error
        self.done = threading.Event()

    def read(self) -> Reading:
        self.looks += 1
        sum(range(self.work))
        if self.looks >= self.enough:
            self.done.set()
            if self.error is not None:
                raise self.error
        return Reading(clock_hz=float(self.looks))

    def close(self) -> None:
        """Nothing is open."""


def sampled(sensor: Counting, interval_s: float = 1e-4, **options: int) -> Sampler:
    sampler = Sampler(sensor, interval_s, **options)
    sampler.start()
    assert sensor.done.wait(60)
    return sampler


def test_every_look_is_kept_in_order() -> None:
    found = sampled(Counting(5)).stop()
    assert [reading.clock_hz for reading in found.readings] == [
        float(n + 1) for n in range(len(found.readings))
    ]
    assert len(found.time_s) == len(found.readings) >= 5
    assert all(earlier <= later for earlier, later in itertools.pairwise(found.time_s))


def test_a_full_table_loses_every_other_row_and_looks_half_as_often() -> None:
    sampler = Sampler(Counting(), 0.25, most_rows=8)
    for _ in range(20):
        sampler.look()
    found = sampler.samples
    assert len(found.readings) < 8
    assert found.readings[0].clock_hz == 1.0
    assert found.interval_s > 0.25


def test_a_slow_sensor_is_looked_at_less_often_until_it_is_cheap() -> None:
    found = sampled(Counting(3, work=20_000), interval_s=1e-6).stop()
    assert found.interval_s > 1e-6
    assert found.interval_s >= found.cost_s / len(found.readings) / MOST_COST_RATIO * 0.5
    assert found.cost_ratio is not None


def test_an_error_of_the_sensor_is_the_callers() -> None:
    sampler = sampled(Counting(2, error=RuntimeError("the GPU fell off the bus")))
    with pytest.raises(RuntimeError, match="fell off"):
        sampler.stop()


def test_stopping_what_never_began_gives_nothing() -> None:
    found = Sampler(Counting(), 1.0).stop()
    assert (found.readings, found.cost_ratio) == ([], None)
