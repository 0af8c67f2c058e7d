"""One interface for every device torch can compute on: CUDA, ROCm, XPU, MPS, a backend of its own, and the CPU.

It wraps ``torch.accelerator``, ``torch.Event`` and ``torch.Stream`` for one named device, and never for what happens to
be current. Timing, synchronisation, memory counts and seeds use it; torch is imported when a device is opened.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

_PLACE = ("pci_domain_id", "pci_bus_id", "pci_device_id")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of a device that this process has."""

    allocated_bytes: int
    """In tensors."""
    reserved_bytes: int
    """Taken from the device: tensors, and what the allocator keeps for the next ones."""


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """Device properties from torch; ``None``: unknown."""

    name: str | None
    memory_bytes: int | None
    uuid: str | None = None
    bus_id: str | None = None
    """``0000:c1:00``: domain, bus and device."""


class Accelerator(Protocol):
    """A device to compute on."""

    device: str
    is_asynchronous: bool
    """Whether a call may return before its work is done."""

    def use(self) -> None:
        """Make it the current device: libraries launch their own kernels there."""
        ...

    def synchronize(self) -> None:
        """Wait for all its streams."""
        ...

    def record(self, *, timed: bool = False) -> Any:
        """Return an event that completes when the current work of its stream is done."""
        ...

    def wait(self, event: Any) -> None:
        """Wait for an event."""
        ...

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time between two timed events; synchronise first."""
        ...

    def memory(self) -> MemoryUse | None:
        """Return what this process holds; ``None``: the device's allocator has no statistics."""
        ...

    def peak_memory(self) -> MemoryUse | None:
        """Return the peak since :meth:`reset_peak`."""
        ...

    def reset_peak(self) -> None:
        """Begin a new peak at what is in use now."""
        ...

    def free_bytes(self) -> int | None:
        """Return the device's memory that is free."""
        ...

    def empty_cache(self) -> None:
        """Release the allocator's cached memory."""
        ...


class HostProcessor:
    """The CPU: a call returns when its work is done, so the host's clock is exact and no waiting is needed."""

    device = "cpu"
    is_asynchronous = False

    def use(self) -> None:
        """No effect: there is only one."""

    def synchronize(self) -> None:
        """No effect: nothing is pending."""

    def record(self, *, timed: bool = False) -> float:
        """Return the host's clock."""
        return time.perf_counter()

    def wait(self, event: float) -> None:
        """No effect: the event is complete."""

    def seconds(self, start: float, end: float) -> float:
        """Return the difference."""
        return end - start

    def memory(self) -> MemoryUse | None:
        """torch does not count the host's memory."""
        return None

    def peak_memory(self) -> MemoryUse | None:
        """torch does not count the host's memory."""
        return None

    def reset_peak(self) -> None:
        """torch does not count the host's memory."""

    def free_bytes(self) -> int | None:
        """torch does not count the host's memory."""
        return None

    def empty_cache(self) -> None:
        """No effect: torch does not cache host memory."""


class TorchAccelerator:
    """A device of ``torch.accelerator``."""

    is_asynchronous = True

    def __init__(self, device: str) -> None:
        import torch

        self.device = device
        self._place = torch.device(device)
        self._index = self._place.index or 0
        # torch before 2.9 counts memory under the device's own name only.
        has_memory = hasattr(torch.accelerator, "max_memory_allocated")
        self._memory: Any = torch.accelerator if has_memory else torch.get_device_module(self._place)

    def use(self) -> None:
        """Make it the current device."""
        import torch

        torch.accelerator.set_device_index(self._index)

    def synchronize(self) -> None:
        """Wait for all its streams."""
        import torch

        torch.accelerator.synchronize(self._place)

    def record(self, *, timed: bool = False) -> torch.Event:
        """Record an event on this device's stream, whichever device is current."""
        import torch

        event = torch.Event(self._place, enable_timing=timed)
        # By number: a microsecond less than by name, at every token.
        event.record(torch.accelerator.current_stream(self._index))
        return event

    def wait(self, event: torch.Event) -> None:
        """Wait for the event's stream to get there."""
        event.synchronize()

    def seconds(self, start: torch.Event, end: torch.Event) -> float:
        """Return the device's time between two events."""
        return float(start.elapsed_time(end)) / 1e3

    def memory(self) -> MemoryUse | None:
        """Return what the allocator has in tensors and in total."""
        return self._use("memory_allocated", "memory_reserved")

    def peak_memory(self) -> MemoryUse | None:
        """Return the allocator's peaks."""
        return self._use("max_memory_allocated", "max_memory_reserved")

    def reset_peak(self) -> None:
        """Begin a new peak."""
        if self.memory() is not None:
            self._memory.reset_peak_memory_stats(self._place)

    def free_bytes(self) -> int | None:
        """Return the driver's free memory, if reported."""
        for module, name in ((self._memory, "get_memory_info"), (self._memory, "mem_get_info")):
            if hasattr(module, name):
                with contextlib.suppress(NotImplementedError):
                    return int(getattr(module, name)(self._place)[0])
        return None

    def empty_cache(self) -> None:
        """Release the allocator's cached memory, including cuBLAS workspaces."""
        import torch

        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None and self._place.type == "cuda" and torch.cuda.is_initialized():
            clear()
        empty = getattr(self._memory, "empty_cache", None)
        if empty is not None:
            empty()

    def _use(self, allocated: str, reserved: str) -> MemoryUse | None:
        if not hasattr(self._memory, allocated) or not _counts_memory():
            return None
        return MemoryUse(
            int(getattr(self._memory, allocated)(self._place)),
            int(getattr(self._memory, reserved)(self._place)),
        )


def _counts_memory() -> bool:
    """Whether the accelerator's allocator has the common statistics (MPS's may not)."""
    import torch

    if not hasattr(torch._C, "_accelerator_isAllocatorInitialized"):
        return True
    try:
        torch._C._accelerator_isAllocatorInitialized()
    except RuntimeError:  # the allocator has no statistics
        return False
    return True


def open_accelerator(device: str) -> Accelerator:
    """Return the interface of a device by torch's name of it."""
    return HostProcessor() if device == "cpu" else TorchAccelerator(device)


def offered_device() -> tuple[str, int] | None:
    """Return the kind of accelerator that torch can use here, and how many there are; ``None``: only the CPU."""
    import torch

    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    return None if found is None else (str(found.type), int(torch.accelerator.device_count()))


def device_properties(device: str) -> DeviceProperties:
    """Return the properties of an accelerator, by the attribute names common to all kinds."""
    import torch

    module: Any = torch.get_device_module(device)
    found: Any = module.get_device_properties(device) if hasattr(module, "get_device_properties") else None
    name = getattr(found, "name", None)
    if name is None and hasattr(module, "get_device_name"):
        name = module.get_device_name(device)
    total = getattr(found, "total_memory", None)
    if total is None and hasattr(torch.accelerator, "get_memory_info"):
        with contextlib.suppress(NotImplementedError, RuntimeError):  # not every allocator reports it
            total = torch.accelerator.get_memory_info(device)[1]
    numbers = [getattr(found, part) for part in _PLACE if hasattr(found, part)]
    return DeviceProperties(
        name=None if name is None else str(name),
        memory_bytes=None if total is None else int(total),
        uuid=str(found.uuid) if hasattr(found, "uuid") else None,
        bus_id="{:04x}:{:02x}:{:02x}".format(*numbers) if len(numbers) == len(_PLACE) else None,
    )


def computes_natively(device: str, dtype: torch.dtype) -> bool:
    """Whether an accelerator has instructions of its own for a data type; emulation does not count."""
    import torch

    place = torch.device(device)
    module: Any = torch.get_device_module(place)
    if dtype is torch.bfloat16 and hasattr(module, "is_bf16_supported"):
        emulation = (
            {"including_emulation": False}
            if "including_emulation" in inspect.signature(module.is_bf16_supported).parameters
            else {}
        )
        # The function has no device argument: it refers to the current one.
        with torch.accelerator.device_index(place.index or 0):
            return bool(module.is_bf16_supported(**emulation))
    if place.type == "mps":
        return dtype is not torch.bfloat16 or bool(torch.backends.mps.is_macos_or_newer(14, 0))
    if hasattr(torch.accelerator, "get_device_capability"):
        with contextlib.suppress(RuntimeError):  # a backend need not report it
            return dtype in torch.accelerator.get_device_capability(place)["supported_dtypes"]
    return True


@contextlib.contextmanager
def seeded(device: str, seed: int) -> Iterator[None]:
    """Seed the host's and the device's generators, and restore both states at the end."""
    import torch

    place = torch.device(device)
    module: Any = None if place.type in ("cpu", "meta") else torch.get_device_module(place)
    if module is None or not hasattr(module, "get_rng_state"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
        return
    # MPS has one device, and its functions take none.
    which = (place,) if inspect.signature(module.get_rng_state).parameters else ()
    before = module.get_rng_state(*which)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        module.set_rng_state(before, *which)
