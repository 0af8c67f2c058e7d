"""Look at a sensor again and again, beside work that must not notice.

A thread reads and sleeps. What it costs is its own processor time: that is measured, and where it is more than a share
of :data:`MOST_COST_RATIO`, the looks become rarer until it is not. Memory is bounded: a full table loses every other row
and the interval doubles.
"""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from llm_perf_opt.hardware.sensors.base import Reading, Sensor

MOST_COST_RATIO = 0.005
"""Processor time of the sampling ÷ time: half of what is promised, so that a hiccup does not break the promise."""
MOST_ROWS = 10_000


@dataclass(slots=True)
class Samples:
    """What was read, in order."""

    time_s: list[float] = field(default_factory=list)
    """On the clock of ``time.perf_counter``."""
    readings: list[Reading] = field(default_factory=list)
    interval_s: float = 0.0
    """Between two looks, in the end."""
    cost_s: float = 0.0
    """Processor time of all looks of the thread."""
    elapsed_s: float = 0.0
    """How long the thread went on."""

    @property
    def cost_ratio(self) -> float | None:
        """Processor time ÷ time."""
        return self.cost_s / self.elapsed_s if self.elapsed_s > 0 else None


class Sampler:
    """A thread that looks at a sensor between ``start`` and ``stop``."""

    def __init__(self, sensor: Sensor, interval_s: float, *, most_rows: int = MOST_ROWS) -> None:
        self._sensor = sensor
        self._most_rows = most_rows
        self._stopping = threading.Event()
        self._reading = threading.Lock()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="telemetry")
        self._running: Future[None] | None = None
        self.samples = Samples(interval_s=interval_s)

    def start(self) -> None:
        """Begin to look."""
        self._running = self._threads.submit(self._run)

    def stop(self) -> Samples:
        """Look no more; return what was read. An error of the sensor is raised here, in the caller's thread."""
        self._stopping.set()
        self._threads.shutdown()
        if self._running is not None:
            self._running.result()
        return self.samples

    def look(self) -> float:
        """Read now and keep it, from any thread; return when."""
        with self._reading:
            now, reading = time.perf_counter(), self._sensor.read()
            self.samples.time_s.append(now)
            self.samples.readings.append(reading)
            if len(self.samples.time_s) >= self._most_rows:
                self._thin_out()
        return now

    def _run(self) -> None:
        started, cost_began = time.perf_counter(), time.thread_time()
        for looks in itertools.count(1):
            self.look()
            self._keep_cheap((time.thread_time() - cost_began) / looks)
            if self._stopping.wait(self.samples.interval_s):
                break
        self.samples.cost_s = time.thread_time() - cost_began
        self.samples.elapsed_s = time.perf_counter() - started

    def _keep_cheap(self, cost_of_a_look_s: float) -> None:
        self.samples.interval_s = max(self.samples.interval_s, cost_of_a_look_s / MOST_COST_RATIO)

    def _thin_out(self) -> None:
        kept = self.samples
        kept.time_s[:], kept.readings[:] = kept.time_s[::2], kept.readings[::2]
        kept.interval_s *= 2
