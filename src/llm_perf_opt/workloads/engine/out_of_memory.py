"""Running out of memory, told: what did not fit, by how much, and what to change. The allocators only say it in prose."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_perf_opt.core import units
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.workloads.memory import available_bytes
from llm_perf_opt.workloads.shortage import Shortage, is_out_of_memory, shortage

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import ModelConfig


class OutOfMemory(ToolError):
    """A workload that does not fit; the stage fails, the others have their turn."""

    code = "memory"


@dataclass(frozen=True, slots=True)
class Attempt:
    """What was going on when memory ran out."""

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
    """Turn running out of memory inside into :class:`OutOfMemory`; other errors pass."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(error, attempt) from error


def out_of_memory(error: BaseException, attempt: Attempt) -> OutOfMemory:
    """Say what did not fit and by how much."""
    found = shortage(error, available_bytes("cpu") if attempt.device == "cpu" else None)
    sentences = [_what(attempt), *_amounts(found, attempt.device)]
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


def _what(attempt: Attempt) -> str:
    where = "this machine's memory" if attempt.device == "cpu" else f"the memory of {attempt.device}"
    if attempt.batch_size is None:
        return f"{attempt.model.name} does not fit into {where}: it ran out while {attempt.phase}"
    return (
        f"{where} ran out in {attempt.phase} of {attempt.model.name}: batch of {attempt.batch_size}, "
        f"{attempt.prompt_tokens} prompt tokens, room for {attempt.new_tokens} new ones"
    )


def _amounts(found: Shortage, device: str) -> Iterator[str]:
    if found.tried_bytes is not None:
        words = f"{units.size(found.tried_bytes)} more were asked for"
        if found.free_bytes is not None:
            words += f", {units.size(found.free_bytes)} were free"
            # A kernel refuses what exceeds its own rules too, however much it calls available.
            if found.missing_bytes:
                words += f": {units.size(found.missing_bytes)} were missing"
        yield words
    if found.total_bytes is not None:
        taken = (
            f", of which torch had {units.size(found.allocated_bytes)} in use"
            if found.allocated_bytes
            else ""
        )
        yield f"{device} has {units.size(found.total_bytes)}{taken}"


def _fixes(attempt: Attempt, found: Shortage) -> str:
    """Name the keys that make it smaller, the ones that fit the moment first."""
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
