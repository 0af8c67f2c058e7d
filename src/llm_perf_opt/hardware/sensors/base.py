"""The interface of all sensors. What a device does not tell is ``None`` with a reason, never 0."""

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
    """One look at a device."""

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
    """What the values are to be seen against."""

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
        """Look once."""
        ...

    def close(self) -> None:
        """Let go of the library."""
        ...


class LibraryQueries:
    """Asks a library for single values: the first refusal is the reason, and the question is not asked again."""

    def __init__(self, refusals: tuple[type[Exception], ...]) -> None:
        self._refusals = refusals
        self.absent: dict[str, str] = {}

    def ask(self, quantity: str, question: Callable[[], T | None]) -> T | None:
        """Return the answer; ``None`` where there is none."""
        if quantity in self.absent:
            return None
        try:
            answer = question()
        except self._refusals as error:
            self.absent[quantity] = str(error) or type(error).__name__
            return None
        if answer is None:
            self.absent[quantity] = "the device does not tell"
        return answer


def plausible_temperature(value: float) -> float | None:
    """Return a temperature in °C; ``None`` for what sensors say when they have nothing to say."""
    return value if 0.0 < value < _HOTTEST_C else None


# A GPU asked through its vendor's library, one value after the other.


class LibrarySensor(ABC):
    """Derive from it, and say how the library is asked for each value; a refusal is the reason why there is none."""

    def __init__(self, library: ModuleType, handle: Any, refusals: tuple[type[Exception], ...]) -> None:
        """Take a library that is ready, its handle of the GPU, and what it raises to say no."""
        self._library: Any = library
        self._handle = handle
        self._told = LibraryQueries(refusals)
        self.absent = self._told.absent
        self.device = self._name()
        limits = LibraryQueries(refusals)
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
