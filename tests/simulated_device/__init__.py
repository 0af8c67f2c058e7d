"""A second device for tests: ``sim``, a backend of torch outside its source tree (PrivateUse1).

Two devices with streams, events, an allocator that keeps what was freed, and kernels in torch's traces. The host computes
every operator, but results and events become visible when the device's simulated time has come: who does not wait reads
too short a time and stale data. See ``csrc/simulation.h``.
"""

from __future__ import annotations

import ctypes
import functools
import types
from pathlib import Path
from typing import Any

from tests.simulated_device.build import library_path

NAME = "sim"
DEVICES = 2


class Simulation:
    """What a test sets and reads of the simulated device."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.simulated_host_now_ns.restype = ctypes.c_int64
        library.simulated_note_count.restype = ctypes.c_int64
        library.simulated_note_at.restype = ctypes.c_char_p
        library.simulated_note_at.argtypes = [ctypes.c_int64]
        library.simulated_costs.argtypes = [ctypes.c_int64, ctypes.c_int64]
        library.simulated_total_bytes.argtypes = [ctypes.c_int64]

    def virtual_time(self, enabled: bool) -> None:
        """Let only launching and waiting move the host's clock, so that times are the same on every machine."""
        self._library.simulated_virtual_time(int(enabled))

    def costs(self, launch_ns: int, kernel_ns: int) -> None:
        """Set what a launch costs the host (in virtual time) and a kernel the device."""
        self._library.simulated_costs(launch_ns, kernel_ns)

    def total_bytes(self, total: int) -> None:
        """Set each device's memory."""
        self._library.simulated_total_bytes(total)

    def host_s(self) -> float:
        """Return the host's clock in seconds."""
        return float(self._library.simulated_host_now_ns()) / 1e9

    def begin_notes(self) -> None:
        """Note from here on what is asked of the device."""
        self._library.simulated_note(1)

    def notes(self) -> list[str]:
        """Return what was asked, in order: ``launch 1 0 aten::mm``, ``record_timed 1 0``, ``synchronize 1``."""
        count = int(self._library.simulated_note_count())
        return [self._library.simulated_note_at(place).decode() for place in range(count)]

    def reset(self) -> None:
        """Go back to real time, the usual costs and no notes."""
        self.virtual_time(False)
        self.costs(1_000, 20_000)
        self.total_bytes(4 << 30)
        self._library.simulated_note(0)


@functools.cache
def load() -> Simulation:
    """Register the backend with torch, once per process; builds its library if need be."""
    import torch

    library = library_path()
    torch.ops.load_library(str(library))
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _device_module())
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    return Simulation(ctypes.CDLL(str(library)))


def autoload() -> None:
    """What torch calls when it is imported and the entry point of ``plugin/`` is on the path."""
    load()


PLUGIN = Path(__file__).parent / "plugin"
"""A folder to put on ``PYTHONPATH``: its metadata makes torch load the device by itself."""


def _device_module() -> types.ModuleType:
    """Return what torch looks for under ``torch.sim``."""
    import torch

    module: Any = types.ModuleType(f"torch.{NAME}")
    states = [torch.Generator("cpu") for _ in range(DEVICES)]

    def place(device: Any) -> int:
        if device is None or device == NAME:
            return int(torch.accelerator.current_device_index())
        return device if isinstance(device, int) else torch.device(device).index or 0

    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    module.device_count = lambda: DEVICES
    module.current_device = lambda: int(torch.accelerator.current_device_index())
    module.set_device = lambda device: torch.accelerator.set_device_index(place(device))
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.get_device_name = lambda device=None: "Simulated Accelerator"
    module.manual_seed_all = lambda seed: [state.manual_seed(seed) for state in states]
    module.manual_seed = lambda seed: states[place(None)].manual_seed(seed)
    module.get_rng_state = lambda device=None: states[place(device)].get_state()
    module.set_rng_state = lambda value, device=None: states[place(device)].set_state(value)
    return module
