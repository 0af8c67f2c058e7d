"""Running out of memory: what did not fit, by how much, and what to change. Parsed from the allocators' messages."""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from llm_perf_opt.core import units
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.phases import REQUEST_PHASES, WHOLE
from llm_perf_opt.hardware.accelerator import Accelerator, MemoryUse, open_accelerator
from llm_perf_opt.workloads.devices import Shortage, is_out_of_memory, shortage
from llm_perf_opt.workloads.memory_estimate import available_bytes

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import ModelConfig


class OutOfMemory(ToolError):
    """A workload that does not fit; the stage fails, the others still run."""

    code = "memory"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The attempt during which memory ran out."""

    phase: str
    """``loading``, or a phase of a request."""
    device: str
    model: ModelConfig
    batch_size: int | None = None
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    predict: Callable[[], Mapping[str, float] | None] = lambda: None
    """Bytes by part (weights, cache), asked for only when they are needed."""


@contextlib.contextmanager
def explained(attempt: Attempt) -> Iterator[None]:
    """Convert out-of-memory errors to :class:`OutOfMemory`; other errors pass."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(error, attempt) from error


def out_of_memory(error: BaseException, attempt: Attempt) -> OutOfMemory:
    """Describe what did not fit and by how much."""
    found = shortage(error, available_bytes("cpu") if attempt.device == "cpu" else None)
    sentences = [_describe_attempt(attempt), *_amounts(found, attempt.device)]
    if predicted := attempt.predict():
        parts = ", ".join(f"{units.size(size)} of {name}" for name, size in predicted.items())
        sentences.append(f"expected by the static model: {parts}")
    return OutOfMemory(
        "; ".join(sentences),
        hint=_fixes(attempt, found),
        phase=attempt.phase,
        device=attempt.device,
        tried_bytes=found.tried_bytes,
        missing_bytes=found.missing_bytes,
    )


def _describe_attempt(attempt: Attempt) -> str:
    where = "this machine's memory" if attempt.device == "cpu" else f"the memory of {attempt.device}"
    if attempt.batch_size is None:
        return f"{attempt.model.name} does not fit into {where}: it ran out while {attempt.phase}"
    return (
        f"{where} ran out in {attempt.phase} of {attempt.model.name}: batch of {attempt.batch_size}, "
        f"{attempt.prompt_tokens} prompt tokens, room for {attempt.new_tokens} new ones"
    )


def _amounts(found: Shortage, device: str) -> Iterator[str]:
    if found.tried_bytes is not None:
        text = f"{units.size(found.tried_bytes)} more were requested"
        if found.free_bytes is not None:
            text += f", {units.size(found.free_bytes)} were free"
            # A kernel may also reject sizes by its own limits, regardless of available memory.
            if found.missing_bytes:
                text += f": {units.size(found.missing_bytes)} were missing"
        yield text
    if found.total_bytes is not None:
        taken = (
            f", of which torch had {units.size(found.allocated_bytes)} in use"
            if found.allocated_bytes
            else ""
        )
        yield f"{device} has {units.size(found.total_bytes)}{taken}"


def _fixes(attempt: Attempt, found: Shortage) -> str:
    """Name the keys that reduce memory, the most relevant first."""
    fixes = []
    if attempt.batch_size is not None and attempt.batch_size > 1:
        fixes.append(f"infer.batch_size={max(1, attempt.batch_size // 2)}")
    if attempt.batch_size is not None:
        fixes.append("shorter prompts (dataset.synthetic_tokens, infer.mode) or infer.max_new_tokens")
    if attempt.model.dtype.value not in ("bfloat16", "float16"):
        fixes.append("model.dtype=bfloat16")
    if attempt.batch_size is None:
        fixes.append(
            "a smaller model (model.arch, model=llama_tiny), a quantised checkpoint, another run.device"
        )
    in_pieces = found.unused_bytes or 0.0
    if attempt.device != "cpu" and found.missing_bytes is not None and 0 < found.missing_bytes <= in_pieces:
        held = units.size(in_pieces)
        fixes.insert(0, f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ({held} are held in pieces)")
    fixes.append("without running the model, only what it must do: pipeline.torch_profiler.enable=false")
    return "; or ".join(fixes)


# Peak memory of each phase: from an accelerator's allocator, or from the kernel on a CPU.


Peaks = dict[str, dict[str, int]]
"""Phase → ``peak_bytes`` and ``reserved_bytes``."""


class MemoryMeter(Protocol):
    """Peaks since the last reset."""

    counts: Literal["allocator", "process"]

    def reset(self) -> None:
        """Reset the peak."""
        ...

    def peaks(self) -> tuple[int, int]:
        """Return the peaks since then: allocated and reserved."""
        ...


class PhaseMemory:
    """Keeps the highest peak of every phase over all passes."""

    def __init__(self, meter: MemoryMeter) -> None:
        self.meter = meter
        self.found: Peaks = {}

    @contextlib.contextmanager
    def watch(self, phase: str) -> Iterator[None]:
        """Measure one phase; the device is idle before and after it."""
        if phase not in REQUEST_PHASES:
            yield
            return
        self.meter.reset()
        yield
        used, held = self.meter.peaks()
        for name in (phase, WHOLE):
            entry = self.found.setdefault(name, {"peak_bytes": used, "reserved_bytes": held})
            entry["peak_bytes"] = max(entry["peak_bytes"], used)
            entry["reserved_bytes"] = max(entry["reserved_bytes"], held)


class _AllocatorMeter:
    """All that torch's allocator of an accelerator holds, weights included."""

    counts: Literal["allocator", "process"] = "allocator"

    def __init__(self, accelerator: Accelerator) -> None:
        """Watch a device whose allocator counts."""
        self._accelerator = accelerator

    def reset(self) -> None:
        """Begin a new peak at what is in use now."""
        self._accelerator.reset_peak()

    def peaks(self) -> tuple[int, int]:
        """Return the peaks of allocated and of reserved memory."""
        found = self._accelerator.peak_memory()
        if found is None:
            raise RuntimeError(f"the allocator of {self._accelerator.device} has ceased to count")
        return found.allocated_bytes, found.reserved_bytes


class ResidentMeter:
    """Memory of this process above its level before the model was built."""

    counts: Literal["allocator", "process"] = "process"

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        """Use the current memory as the base level; :class:`OSError` where the kernel keeps no peak."""
        self._status, self._clear = proc / "status", proc / "clear_refs"
        gc.collect()
        self.reset()
        self._base_bytes = self._high_water()

    def reset(self) -> None:
        """Make the kernel start a new peak at the current size."""
        self._clear.write_text("5")

    def peaks(self) -> tuple[int, int]:
        """Return the peak above the base level, and the total."""
        whole = self._high_water()
        return max(0, whole - self._base_bytes), whole

    def _high_water(self) -> int:
        for line in self._status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise OSError(f"{self._status} has no VmHWM")


def memory_meter(device: str) -> MemoryMeter | str:
    """Return the meter of a device; a string is the reason if there is none. Call before the model is built."""
    if device != "cpu":
        accelerator = open_accelerator(device)
        if accelerator.peak_memory() is None:
            return f"torch's allocator of {device} does not count what it holds"
        return _AllocatorMeter(accelerator)
    try:
        return ResidentMeter()
    except OSError as error:
        return f"the peak of this process is not available: {error}"


# Verified release of a model's memory: a captured program loads the same model on the same device again.


LOGGER = logging.getLogger("llm_perf_opt")
TOLERANCE_BYTES = 64 << 20
"""What libraries keep for themselves (workspaces, one block of the allocator) and no model is made of."""


@dataclass(frozen=True, slots=True)
class Release:
    """Result of releasing a model's memory."""

    device: str
    at_start: MemoryUse
    """Before the model was built."""
    before: MemoryUse
    after: MemoryUse

    @property
    def left_bytes(self) -> int:
        """Memory held now that was not held before the model was built."""
        return max(0, self.after.reserved_bytes - self.at_start.reserved_bytes)

    @property
    def is_proved(self) -> bool:
        """Whether the model was released completely."""
        return self.left_bytes <= TOLERANCE_BYTES

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": 1, **asdict(self), "left_bytes": self.left_bytes, "proved": self.is_proved}

    def problem(self) -> str | None:
        """Describe remaining memory, if any."""
        if self.is_proved:
            return None
        return (
            f"{units.size(self.left_bytes)} of {self.device} could not be given back after measuring "
            f"({units.size(self.after.allocated_bytes)} of it in tensors)"
        )


def release_model(accelerator: Accelerator) -> MemoryUse | None:
    """Collect garbage, empty the allocator, and measure what remains."""
    if "torch._dynamo" in sys.modules:
        # Compiled functions keep the parameters they were specialised on.
        sys.modules["torch._dynamo"].reset()
    gc.collect()
    held = accelerator.memory()
    if held is None or held.reserved_bytes == 0:
        return held  # nothing was allocated there; a CPU build of torch could answer none of the calls below
    accelerator.synchronize()
    accelerator.empty_cache()
    return accelerator.memory()


def require_room(device: str) -> None:
    """Check, before starting a program that loads the model again, that this process does not hold the device's memory.

    What is held is named in the log; when what is free is less than this process itself needed, nothing is started.
    """
    if device == "cpu" or "torch" not in sys.modules:
        return
    accelerator = open_accelerator(device)
    held = accelerator.memory()
    if held is None or held.reserved_bytes == 0:
        return
    needed, held = accelerator.peak_memory(), release_model(accelerator)
    if held is None or held.reserved_bytes <= TOLERANCE_BYTES:
        return
    text = f"this process still holds {units.size(held.reserved_bytes)} of {device}"
    free = accelerator.free_bytes()
    if free is not None and needed is not None and free < needed.allocated_bytes:
        raise ToolError(
            f"{text}: the captured program needs about {units.size(needed.allocated_bytes)}, and {units.size(free)} are free",
            hint="capture in a run of its own: pipeline.torch_profiler.enable=false pipeline.direct_inference.enable=false "
            "pipeline.telemetry.enable=false",
        )
    LOGGER.warning("%s while the captured program runs", text)
