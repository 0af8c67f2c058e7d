"""Passes under the torch profiler: one for the operators and the timeline, a separate one for memory.

Neither is a measurement of speed: the profiler slows the program, so timings come from passes without it.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.files import atomic_path, explain_os_errors
from llm_perf_opt.stages.torch_profiler.config import PRIVATE
from llm_perf_opt.workloads.engine.nvtx import module_ranges

if TYPE_CHECKING:
    from llm_perf_opt.workloads.base import Batch
    from llm_perf_opt.workloads.engine.engine import Engine

_START_UP_TOKENS = 2
"""Enough to have run prefill and decode once under the profiler."""
_GZIP_LEVEL = 4
"""A tenth of the size at a third of the time of the default level."""


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Settings of the profiler."""

    activities: tuple[str, ...]
    """``cpu``, ``cuda``, ``xpu``, ``privateuse1``: only those this machine has."""
    record_shapes: bool = False
    with_stack: bool = False
    with_flops: bool = False
    group_by_input_shape: bool = False
    record_modules: bool = False
    start_up_passes: int = 0
    active_passes: int = 1


@dataclass(slots=True)
class Profile:
    """Result of a profiled pass."""

    trace: Path
    """Uncompressed JSON, in scratch."""
    seconds: float
    """Wall-clock of the profiled passes, profiler included."""
    new_tokens: int
    flops_by_operator: dict[str, int] = field(default_factory=dict)
    """torch's own count, where it has a formula (``with_flops``)."""
    operators_by_shape: list[dict[str, Any]] = field(default_factory=list)
    """Operators distinguished by the shapes of their inputs, largest self host time first (``group_by_input_shape``)."""


def profile_pass(
    engine: Engine, batch: Batch, max_new_tokens: int, options: ProfileOptions, scratch: Path
) -> Profile:
    """Run prepared passes under the profiler and export the trace to ``scratch``."""
    _start_profiler_once(engine, options)
    for _ in range(options.start_up_passes):
        with _profiler(options):
            engine.run_prepared(batch, max_new_tokens=min(_START_UP_TOKENS, max_new_tokens))
    modules = module_ranges(engine.model) if options.record_modules else contextlib.nullcontext()
    new_tokens = 0
    with _profiler(options) as profiler:
        started = time.perf_counter()
        with modules:
            for _ in range(options.active_passes):
                new_tokens = engine.run_prepared(batch, max_new_tokens=max_new_tokens).new_tokens
        seconds = time.perf_counter() - started
    trace = export_trace(profiler, scratch / "trace.json")
    flops = _flops(profiler) if options.with_flops else {}
    shapes = _by_shape(profiler) if options.group_by_input_shape else []
    return Profile(trace, seconds, new_tokens, flops, shapes)


def memory_pass(
    engine: Engine, batch: Batch, max_new_tokens: int, activities: Sequence[str], scratch: Path
) -> Path:
    """Run one pass with allocator events; return the trace."""
    from torch.profiler import profile

    with profile(activities=_activities(activities), profile_memory=True) as profiler:
        engine.run_prepared(batch, max_new_tokens=max_new_tokens)
    return export_trace(profiler, scratch / "memory_trace.json")


def export_trace(profiler: Any, path: Path) -> Path:
    """Write a trace as JSON; torch itself does not report a full disk."""
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        profiler.export_chrome_trace(str(path))
    if not path.is_file() or not _is_complete(path):
        raise ToolError(
            f"torch could not write the trace {path}",
            hint="is the disk full? choose another artifacts.runs_dir",
            path=str(path),
        )
    return path


def compress(source: Path, target: Path) -> Path:
    """Compress a file atomically."""
    with (
        atomic_path(target) as temporary,
        source.open("rb") as plain,
        temporary.open("wb") as raw,
        # A fixed time stamp: the same trace gives the same bytes.
        gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed, 1 << 20)
    return target


def _start_profiler_once(engine: Engine, options: ProfileOptions) -> None:
    """Let the tracer load its libraries and allocate its buffers; otherwise this would be part of the first phase."""
    import torch

    # Kineto prints a line for every start and stop; it reads the variable when it is first used.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with _profiler(options):
        torch.ones(1, device=engine.device).add_(1)
        engine.clock.synchronize()


def _profiler(options: ProfileOptions) -> Any:
    from torch.profiler import profile

    return profile(
        activities=_activities(options.activities),
        record_shapes=options.record_shapes or options.with_flops or options.group_by_input_shape,
        with_stack=options.with_stack,
        with_flops=options.with_flops,
    )


def _activities(names: Sequence[str]) -> list[Any]:
    from torch.profiler import ProfilerActivity

    return [
        ProfilerActivity.PrivateUse1 if name == PRIVATE else getattr(ProfilerActivity, name.upper())
        for name in names
    ]


def supported_activities(names: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Keep the activities that this torch can trace; other backends may have no tracer."""
    from torch.profiler import supported_activities as supported

    can = supported()
    kept = tuple(name for name in names if _activities([name])[0] in can)
    return kept, [
        f"{name} activity is not recorded: this torch has no tracer for it"
        for name in names
        if name not in kept
    ]


def _flops(profiler: Any) -> dict[str, int]:
    found = {str(row.key): int(row.flops) for row in profiler.key_averages() if row.flops}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _by_shape(profiler: Any) -> list[dict[str, Any]]:
    rows = [
        {
            "name": str(row.key),
            "shapes": row.input_shapes,
            "calls": int(row.count),
            "self_cpu_s": row.self_cpu_time_total / 1e6,
            "total_cpu_s": row.cpu_time_total / 1e6,
        }
        for row in profiler.key_averages(group_by_input_shape=True)
    ]
    return sorted(rows, key=lambda row: (-row["self_cpu_s"], row["name"], str(row["shapes"])))


def _is_complete(path: Path) -> bool:
    with path.open("rb") as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - 64))
        return stream.read().rstrip().endswith(b"}")
