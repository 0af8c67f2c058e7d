"""Named ranges that work with every generation of Nsight, on CPU and CUDA builds of torch.

``torch.cuda.nvtx`` needs a CUDA build, and the ``nvtx`` package (0.2.12 and later) is silently ignored by
Nsight Systems up to 2024.2. So the C library is called directly: ``libnvtx3interop`` (from ``nvidia-nvtx``)
or the older ``libnvToolsExt``. Names are *registered* strings where possible: ``nsys --nvtx-capture`` matches
only those unless ``NSYS_NVTX_PROFILER_REGISTER_ONLY=0`` is set.

Without an attached tool, detected at the first push, a range costs about a microsecond.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

_MODULE_PREFIX = "module:"
"""What per-module range names start with, so that readers tell them from phases and components."""
_LIBRARIES = ("libnvtx3interop.so.1", "libnvToolsExt.so.1")
_NO_TOOL = -2
"""What push returns when nothing listens; -1 (Nsight Systems) or a depth >= 0 (Nsight Compute): a tool does."""


class _EventAttributes(ctypes.Structure):
    """``nvtxEventAttributes_t``, version 2 (unchanged since)."""

    _fields_ = [
        ("version", ctypes.c_uint16),
        ("size", ctypes.c_uint16),
        ("category", ctypes.c_uint32),
        ("colorType", ctypes.c_int32),
        ("color", ctypes.c_uint32),
        ("payloadType", ctypes.c_int32),
        ("reserved0", ctypes.c_int32),
        ("payload", ctypes.c_uint64),
        ("messageType", ctypes.c_int32),
        ("message", ctypes.c_void_p),
    ]


_MESSAGE_REGISTERED = 3


class _Backend(Protocol):
    """Destination of ranges."""

    name: str

    def push(self, label: str) -> int: ...

    def pop(self) -> None: ...

    def mark(self, label: str) -> None: ...


class _CLibrary:
    """Registered strings in the default domain, through ctypes."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        self.name = path
        self._register = library.nvtxDomainRegisterStringA
        self._register.restype = ctypes.c_void_p
        self._register.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._push = library.nvtxDomainRangePushEx
        self._push.restype = ctypes.c_int
        self._push.argtypes = [ctypes.c_void_p, ctypes.POINTER(_EventAttributes)]
        self._push_plain = library.nvtxRangePushA
        self._push_plain.restype = ctypes.c_int
        self._push_plain.argtypes = [ctypes.c_char_p]
        self._pop = library.nvtxRangePop
        self._pop.restype = ctypes.c_int
        self._mark = library.nvtxMarkA
        self._mark.restype = None
        self._mark.argtypes = [ctypes.c_char_p]
        self._events: dict[str, _EventAttributes | bytes] = {}

    def push(self, label: str) -> int:
        event = self._events.get(label)
        if event is None:
            event = self._events[label] = self._event(label)
        if isinstance(event, bytes):
            return int(self._push_plain(event))
        return int(self._push(None, ctypes.byref(event)))

    def pop(self) -> None:
        self._pop()

    def mark(self, label: str) -> None:
        self._mark(_encode(label))

    def _event(self, label: str) -> _EventAttributes | bytes:
        """Register the name once; a tool without registered strings returns no handle and gets plain text."""
        text = _encode(label)
        handle = self._register(None, text)
        if not handle:
            return text
        size = ctypes.sizeof(_EventAttributes)
        return _EventAttributes(version=2, size=size, messageType=_MESSAGE_REGISTERED, message=handle)


class _Torch:
    """``torch.cuda.nvtx`` of a CUDA build: plain strings."""

    name = "torch.cuda.nvtx"

    def __init__(self) -> None:
        # Through sys.modules: this module must not import torch.
        self._nvtx: Any = sys.modules["torch"].cuda.nvtx

    def push(self, label: str) -> int:
        return int(self._nvtx.range_push(label))

    def pop(self) -> None:
        self._nvtx.range_pop()

    def mark(self, label: str) -> None:
        self._nvtx.mark(label)


class _State:
    """Chosen backend, and whether a tool is attached (``None``: not known yet)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.looked = False
        self.backend: _Backend | None = None
        self.attached: bool | None = None
        self.recording: Callable[[], bool] | None = None
        """torch's function that tells whether a profiler records; ``None``: torch is not imported."""


_state = _State()


def stage(name: str) -> AbstractContextManager[None]:
    """Name what happens inside, for Nsight (NVTX) and, while it records, for the torch profiler."""
    return _Range(name)


def mark(name: str) -> None:
    """Put a point event on the timeline."""
    backend = _listening_backend()
    if backend is not None:
        backend.mark(name)


def is_attached() -> bool:
    """Return whether Nsight Systems or Nsight Compute (with ``--nvtx``) records ranges of this process."""
    backend = _listening_backend()
    if backend is None:
        return False
    if _state.attached is None:
        # Tools inject themselves through this variable; without it no tool is attached and ranges are skipped.
        if not (os.environ.get("NVTX_INJECTION64_PATH") or os.environ.get("NVTX_INJECTION32_PATH")):
            return False
        with _Range("llm_perf_opt.probe"):
            pass
    return bool(_state.attached)


def backend_name() -> str | None:
    """Return which library ranges go through, or ``None`` when there is none (for ``doctor``)."""
    backend = _find_backend()
    return backend.name if backend else None


def module_ranges(model: torch.nn.Module, prefix: str = _MODULE_PREFIX) -> ModuleRanges:
    """Emit one range per forward call of every submodule until ``remove()``; costs time, so opt-in."""
    return ModuleRanges(model, prefix)


class ModuleRanges:
    """Hooks of :func:`module_ranges`; usable in a ``with`` statement."""

    def __init__(self, model: torch.nn.Module, prefix: str) -> None:
        self._open = threading.local()
        self._hooks: list[Any] = []
        for name, module in model.named_modules():
            if not name:
                continue  # the model itself is the surrounding phase
            self._hooks.append(module.register_forward_pre_hook(self._before(prefix + name)))
            # always_call: a range is closed also when the module raises.
            self._hooks.append(module.register_forward_hook(self._after, always_call=True))

    def remove(self) -> None:
        """Remove all hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def __enter__(self) -> ModuleRanges:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _stack(self) -> list[_Range]:
        stack: list[_Range] | None = getattr(self._open, "stack", None)
        if stack is None:
            stack = self._open.stack = []
        return stack

    def _before(self, label: str) -> Callable[[Any, Any], None]:
        def enter(_module: Any, _inputs: Any) -> None:
            opened = _Range(label)
            opened.__enter__()
            self._stack().append(opened)

        return enter

    def _after(self, _module: Any, _inputs: Any, _output: Any) -> None:
        stack = self._stack()
        if stack:
            stack.pop().__exit__(None, None, None)


class _Range:
    """One range; remembers what it opened, so that a profiler may start or stop inside."""

    __slots__ = ("_name", "_pushed", "_record")

    def __init__(self, name: str) -> None:
        self._name = name
        self._pushed: _Backend | None = None
        self._record: Any = None

    def __enter__(self) -> None:
        if _state.attached is not False:
            backend = _listening_backend()
            if backend is not None:
                depth = backend.push(self._name)
                if _state.attached is None:
                    # Tools are injected before the first call and stay, so the first result is final.
                    _state.attached = depth != _NO_TOOL
                self._pushed = backend
        recording = _state.recording or _profiler_enabled_function()
        if recording is not None and recording():
            self._record = sys.modules["torch"].profiler.record_function(self._name)
            self._record.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._record is not None:
            self._record.__exit__(kind, error, trace)
            self._record = None
        if self._pushed is not None:
            self._pushed.pop()
            self._pushed = None


def _profiler_enabled_function() -> Callable[[], bool] | None:
    """Find torch's own "is a profiler recording?" once torch has been fully imported elsewhere."""
    if _state.recording is None:
        autograd = getattr(sys.modules.get("torch"), "autograd", None)
        _state.recording = getattr(autograd, "_profiler_enabled", None)
    return _state.recording


def _listening_backend() -> _Backend | None:
    return None if _state.attached is False else _find_backend()


def _find_backend() -> _Backend | None:
    """Search once; again only if there was no library and torch with CUDA has been imported since."""
    if _state.backend is None:
        with _state.lock:
            if not _state.looked:
                _state.looked = True
                _state.backend = _load_library()
            if _state.backend is None and _torch_has_cuda():
                _state.backend = _Torch()
    return _state.backend


def _load_library() -> _Backend | None:
    for path in _library_paths():
        try:
            return _CLibrary(path)
        except (OSError, AttributeError):
            continue  # missing, for another platform, or without the required functions: try the next one
    return None


def _library_paths() -> Iterator[str]:
    """Wheels first (``nvidia/<package>/lib``), then the paths of the dynamic linker."""
    for entry in sys.path:
        root = Path(entry or ".") / "nvidia"
        if root.is_dir():
            for name in _LIBRARIES:
                yield from (str(path) for path in sorted(root.glob(f"*/lib/{name}"), reverse=True))
    yield from _LIBRARIES


def _torch_has_cuda() -> bool:
    torch_module = sys.modules.get("torch")
    version = getattr(torch_module, "version", None)
    return getattr(version, "cuda", None) is not None and hasattr(torch_module, "cuda")


def _encode(label: str) -> bytes:
    """Encode a name without NUL, which would truncate it, and surrogates."""
    return label.replace("\0", " ").encode("utf-8", errors="replace")


# Signal start and end of measuring to a tool: ``cudaProfilerStart`` and ``cudaProfilerStop`` around the measured passes.
#
# For ``pipeline.nsys.capture_range=cudaProfilerApi``, whose captures open and close by these calls. Only a workload that
# was configured to makes them: otherwise they would start another tool.


PROFILER_RANGE = "LLM_PERF_OPT_PROFILER_RANGE"
"""Set to 1 in the environment of a program that is to make the calls."""


@contextlib.contextmanager
def profiler_range() -> Iterator[None]:
    """Enclose what is measured, warm-up left out; no effect unless configured."""
    if os.environ.get(PROFILER_RANGE) != "1":
        yield
        return
    import torch

    torch.cuda.profiler.start()
    try:
        yield
        torch.cuda.synchronize()  # running work belongs to the capture
    finally:
        torch.cuda.profiler.stop()
