"""Which processes compute on a GPU or a slice of one, by the driver's library (nvidia-ml-py) or ``nvidia-smi``."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.hardware.sensors import nvml
from llm_perf_opt.process.groups import is_started_by

Programs = dict[int, str]
"""Process number → name of the program; empty where that is not known."""
_ASK_S = 10.0
_NUMBERS = Path("/proc/self/ns/pid")
_NUMBERS_OF_MACHINE = "pid:[4026531836]"
"""The kernel's name for the process numbers that drivers use."""


def gpu_programs(names: Sequence[str]) -> dict[str, Programs | None]:
    """Return for each GPU (``GPU-…``) or slice (``MIG-…``) who computes on it; ``None``: nobody tells."""
    return _by_library(names) if has_library() else _by_tool(names)


def has_library() -> bool:
    """Whether the driver can be asked without starting a program."""
    return importlib.util.find_spec(nvml.MODULE) is not None


def is_own(pid: int, root: int | None = None) -> bool:
    """Whether a process belongs to this run: it, what it started, and who started it.

    ``root``: the process whose programs are this run's; by default this one.
    """
    return pid == os.getppid() or is_started_by(pid, os.getpid() if root is None else root)


def numbers_are_the_drivers() -> bool:
    """Whether a process has the same number here and for the driver; in a container it has another one."""
    try:
        return str(_NUMBERS.readlink()) == _NUMBERS_OF_MACHINE
    except OSError:
        return False


def _by_library(names: Sequence[str]) -> dict[str, Programs | None]:
    library: Any = importlib.import_module(nvml.MODULE)
    try:
        library.nvmlInit()
    except library.NVMLError:
        return dict.fromkeys(names)  # the program needs the same driver library
    try:
        return {name: _of_handle(library, name) for name in names}
    finally:
        library.nvmlShutdown()


def _of_handle(library: Any, name: str) -> Programs | None:
    try:
        gpu = library.nvmlDeviceGetHandleByUUID(name)
        found = [int(one.pid) for one in library.nvmlDeviceGetComputeRunningProcesses(gpu)]
    except nvml.refusals(library):
        return None
    return {pid: _program(pid) for pid in found}


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""  # gone again, or a number of another machine's view


def _by_tool(names: Sequence[str]) -> dict[str, Programs | None]:
    if shutil.which("nvidia-smi") is None:
        return dict.fromkeys(names)
    found: dict[str, Programs | None] = {}
    rows = query_tool("gpu_uuid,pid,process_name", of="compute-apps")
    for name in names:
        # The tool lists programs by whole GPUs: of a slice it does not tell.
        found[name] = {
            int(pid): program.rpartition("/")[2]
            for uuid, pid, program in rows
            if uuid == name and pid.isdigit()
        }
        if name.startswith("MIG-"):
            found[name] = None
    return found


def query_tool(columns: str, *, of: str = "gpu") -> list[tuple[str, ...]]:
    """Return what ``nvidia-smi`` lists, one row for each line that has all columns; none where it cannot be asked."""
    from llm_perf_opt.process.launch import run_probe

    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        result = run_probe([tool, f"--query-{of}={columns}", "--format=csv,noheader"], timeout_s=_ASK_S)
    except ToolError:
        return []
    if result.returncode != 0:
        return []
    rows = csv.reader(io.StringIO(result.stdout), skipinitialspace=True)
    wanted = columns.count(",") + 1
    return [tuple(cell.strip() for cell in row) for row in rows if len(row) == wanted]
