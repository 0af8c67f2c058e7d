"""A GPU asked through its vendor's library, one value after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any

from llm_perf_opt.hardware.sensors.base import (
    CLOCK,
    ENERGY,
    MEMORY,
    POWER,
    TEMPERATURE,
    THROTTLED,
    DeviceLimits,
    Reading,
    Told,
)


class LibrarySensor(ABC):
    """Derive from it, and say how the library is asked for each value; a refusal is the reason why there is none."""

    def __init__(self, library: ModuleType, handle: Any, refusals: tuple[type[Exception], ...]) -> None:
        """Take a library that is ready, its handle of the GPU, and what it raises to say no."""
        self._library: Any = library
        self._handle = handle
        self._told = Told(refusals)
        self.absent = self._told.absent
        self.device = self._name()
        limits = Told(refusals)
        self.limits = DeviceLimits(
            limits.ask(CLOCK, self._clock_max_hz), limits.ask(POWER, self._power_limit_w)
        )

    def read(self) -> Reading:
        """Ask the library for every value it has not refused yet."""
        ask = self._told.ask
        return Reading(
            clock_hz=ask(CLOCK, self._clock_hz),
            power_w=ask(POWER, self._power_w),
            temperature_c=ask(TEMPERATURE, self._temperature_c),
            energy_j=ask(ENERGY, self._energy_j),
            memory_bytes=ask(MEMORY, self._memory_bytes),
            throttled=ask(THROTTLED, self._reasons),
        )

    @abstractmethod
    def close(self) -> None:
        """Let go of the library."""

    @abstractmethod
    def _name(self) -> str: ...

    @abstractmethod
    def _clock_hz(self) -> float | None: ...

    @abstractmethod
    def _clock_max_hz(self) -> float | None: ...

    @abstractmethod
    def _power_w(self) -> float | None: ...

    @abstractmethod
    def _power_limit_w(self) -> float | None: ...

    @abstractmethod
    def _temperature_c(self) -> float | None: ...

    @abstractmethod
    def _energy_j(self) -> float | None: ...

    @abstractmethod
    def _memory_bytes(self) -> float | None: ...

    @abstractmethod
    def _reasons(self) -> tuple[str, ...] | None:
        """Return what holds the clock down."""
