"""The interface of all sensors. An unreported value is ``None`` with a reason, never 0."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Protocol, TypeVar

T = TypeVar("T")
CLOCK, POWER, TEMPERATURE, ENERGY, MEMORY, THROTTLED = (
    "clock_hz",
    "power_w",
    "temperature_c",
    "energy_j",
    "memory_bytes",
    "throttled",
)
QUANTITIES = (CLOCK, POWER, TEMPERATURE, ENERGY, MEMORY, THROTTLED)
_HOTTEST_C = 200.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample of a device."""

    clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    energy_j: float | None = None
    """Since some moment in the past: only differences mean something."""
    memory_bytes: float | None = None
    throttled: tuple[str, ...] | None = None
    """Reasons in force since the last look; empty: none, ``None``: not reported."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Reference limits of the values."""

    clock_max_hz: float | None = None
    power_limit_w: float | None = None


class Sensor(Protocol):
    """A source of readings. ``read`` is called from one thread and never raises for a value that is not reported."""

    reader: ClassVar[str]
    device: str
    limits: DeviceLimits
    absent: dict[str, str]
    """Quantity → why it is not reported."""

    def read(self) -> Reading:
        """Sample once."""
        ...

    def close(self) -> None:
        """Release the library."""
        ...


class _LibraryQueries:
    """Queries single values from a library: the first error is kept as the reason, and the query is not repeated."""

    def __init__(self, refusals: tuple[type[Exception], ...]) -> None:
        self._refusals = refusals
        self.absent: dict[str, str] = {}

    def query(self, quantity: str, question: Callable[[], T | None]) -> T | None:
        """Return the answer; ``None`` where there is none."""
        if quantity in self.absent:
            return None
        try:
            answer = question()
        except self._refusals as error:
            self.absent[quantity] = str(error) or type(error).__name__
            return None
        if answer is None:
            self.absent[quantity] = "not provided by the device"
        return answer


def plausible_temperature(value: float) -> float | None:
    """Return a temperature in °C; ``None`` for placeholder values."""
    return value if 0.0 < value < _HOTTEST_C else None


# A GPU queried through its vendor's library.


class LibrarySensor(ABC):
    """Derive from it, and define the query of each value; an error is recorded as the reason for a missing value."""

    def __init__(self, library: ModuleType, handle: Any, refusals: tuple[type[Exception], ...]) -> None:
        """Take an initialised library, its GPU handle, and its exception types."""
        self._library: Any = library
        self._handle = handle
        self._queries = _LibraryQueries(refusals)
        self.absent = self._queries.absent
        self.device = self._name()
        limits = _LibraryQueries(refusals)
        self.limits = DeviceLimits(
            limits.query(CLOCK, self._clock_max_hz), limits.query(POWER, self._power_limit_w)
        )

    def read(self) -> Reading:
        """Query every value that has not failed yet."""
        query = self._queries.query
        return Reading(
            clock_hz=query(CLOCK, self._clock_hz),
            power_w=query(POWER, self._power_w),
            temperature_c=query(TEMPERATURE, self._temperature_c),
            energy_j=query(ENERGY, self._energy_j),
            memory_bytes=query(MEMORY, self._memory_bytes),
            throttled=query(THROTTLED, self._reasons),
        )

    @abstractmethod
    def close(self) -> None:
        """Release the library."""

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
        """Return the throttle reasons."""
