"""Who else used a device while it was measured: other programs on the processor cores, other processes on the GPU."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
from dataclasses import dataclass

from llm_perf_opt.core import units
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.hardware.contention.processor_load import (
    UNDER_LOAD_RATIO,
    ProcessorTime,
    other_load_ratio,
    processor_time,
)

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_WHOLE_NAME = re.compile(r"(GPU|MIG)-\S+")
_LEAST_WATCHED_S = 0.5
"""The processor's account has ticks of a hundredth of a second: less is too short to tell."""


@dataclass(frozen=True, slots=True)
class Use:
    """What was seen of others."""

    others_ratio: float | None = None
    """Share of the processor's time; ``None``: not known."""
    words: str | None = None
    """What they did; ``None``: nothing worth saying."""


class CpuWatch:
    """Tells how much of the cores other programs used since it was made."""

    def __init__(self) -> None:
        self._before = processor_time()
        self._children_s = _children_s()

    def use(self) -> Use:
        """Look again; programs this process started and waited for count as its own."""
        after = processor_time()
        if self._before is None or after is None or after.clock_s - self._before.clock_s < _LEAST_WATCHED_S:
            return Use()
        own_s = after.own_s + _children_s() - self._children_s
        ratio = other_load_ratio(self._before, ProcessorTime(after.all_s, own_s, after.clock_s, after.cores))
        if ratio is None or ratio <= UNDER_LOAD_RATIO:
            return Use(ratio)
        return Use(ratio, f"other processes used {units.percent(ratio)} of the processor")


class GpuWatch:
    """Tells which processes had GPUs before this one, and whether more came."""

    def __init__(self, *uuids: str) -> None:
        self._uuids = uuids
        self._before = [compute_processes(uuid) for uuid in uuids]

    def use(self) -> Use:
        """Look again; one process more than before is this one (under another number inside a container)."""
        said = [self._words(uuid, before) for uuid, before in zip(self._uuids, self._before, strict=True)]
        return Use(None, "; ".join(words for words in said if words) or None)

    def _words(self, uuid: str, before: list[str] | None) -> str | None:
        if before is None:
            return None
        after = compute_processes(uuid) or []
        others = max(len(before), len(after) - 1)
        if others <= 0:
            return None
        named = f" ({', '.join(before[:4])})" if before else ""
        which = f"the GPU {uuid}" if len(self._uuids) > 1 else "the GPU"
        return f"{others} other process{'es' if others > 1 else ''}{named} used {which}"


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def gpu_name(index: int) -> str:
    """Return the UUID of CUDA device ``index`` as this process sees it; without a driver's tool, its number."""
    visible = _visible()
    chosen = visible[index] if index < len(visible) else str(index)
    if _WHOLE_NAME.fullmatch(chosen):
        return chosen
    return _uuids().get(chosen, f"gpu {chosen}")


def allotted_gpus() -> list[str]:
    """Return the GPUs that were given to this process (an engine sets ``CUDA_VISIBLE_DEVICES``) and are there."""
    visible = _visible()
    listed = _uuids() if visible else {}
    found = [part if _WHOLE_NAME.fullmatch(part) else listed.get(part) for part in visible]
    return sorted({name for name in found if name is not None})


def _visible() -> list[str]:
    return [part.strip() for part in os.environ.get(_VISIBLE, "").split(",") if part.strip()]


def _uuids() -> dict[str, str]:
    return {row[0]: row[1] for row in _query("index,uuid")}


def compute_processes(uuid: str) -> list[str] | None:
    """Return the processes that compute on a GPU, as ``name pid``; ``None``: nobody tells."""
    if shutil.which("nvidia-smi") is None:
        return None
    rows = _query("gpu_uuid,pid,process_name", of="compute-apps")
    return [f"{row[2].rpartition('/')[2]} {row[1]}" for row in rows if len(row) > 2 and row[0] == uuid]


def _query(columns: str, *, of: str = "gpu") -> list[tuple[str, ...]]:
    from llm_perf_opt.process.launch import run_probe

    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        result = run_probe([tool, f"--query-{of}={columns}", "--format=csv,noheader"], timeout_s=10.0)
    except ToolError:
        return []
    if result.returncode != 0:
        return []
    rows = csv.reader(io.StringIO(result.stdout), skipinitialspace=True)
    wanted = columns.count(",") + 1
    return [tuple(cell.strip() for cell in row) for row in rows if len(row) == wanted]
