"""Capabilities of this machine: optional programs and packages, disk space, permissions. Read-only."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from llm_perf_opt.core.errors import ToolError

_UNPACKED_TOOLS = Path("/opt/nsight")
"""Where ``scripts/install-nsight-debian.sh --unpack`` puts tools by default (``<suite>/usr/bin/nsys``)."""
HIDE = "LLM_PERF_OPT_HIDE"
"""Environment variable: optional programs and Python packages, separated by commas, that are treated as not installed.

A tool that is configured by its path (``pipeline.nsys.executable``, ``LLM_PERF_OPT_NSYS``) is used all the same.
"""
_VENDOR_PATTERNS = {
    "nsys": ("nvidia/nsight-systems/*/bin/nsys", "nvidia/nsight-systems-cli/*/bin/nsys"),
    "ncu": ("nvidia/nsight-compute/*/ncu",),
}
"""Where NVIDIA's own packages put them below ``/opt``; often not on PATH."""


def is_hidden(name: str) -> bool:
    """Whether a program or package is to be treated as not installed."""
    return name in _hidden_names(os.environ.get(HIDE, ""))


def find_program(name: str) -> str | None:
    """Return the path of an optional program on ``PATH``."""
    return None if is_hidden(name) else shutil.which(name)


def has_package(name: str) -> bool:
    """Whether an optional Python package is installed. Nothing is imported, except the parents of a submodule."""
    root = name.partition(".")[0]
    if is_hidden(root) or importlib.util.find_spec(root) is None:
        return False
    return root == name or importlib.util.find_spec(name) is not None


def import_optional(name: str) -> ModuleType:
    """Import an optional Python package; raises :class:`ImportError` where it is not installed."""
    root = name.partition(".")[0]
    if is_hidden(root):
        raise ModuleNotFoundError(f"No module named {name!r}: hidden by {HIDE}", name=root)
    return importlib.import_module(name)


_ENGINE_PACKAGES = {"torch": "torch", "transformers": "transformers", "PIL": "pillow"}
"""Module → package of the extra ``run`` without which no model can be run."""
ENGINE_INSTALL = "pip install 'llm-perf-opt[run]'"


def missing_engine() -> ToolError | None:
    """Return the error for running a model in the light installation; ``None``: everything is installed."""
    missing = [package for module, package in _ENGINE_PACKAGES.items() if not has_package(module)]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return ToolError(
        f"running a model needs the extra 'run': {', '.join(missing)} {verb} not installed",
        hint=ENGINE_INSTALL,
        missing=missing,
    )


@functools.cache
def _hidden_names(value: str) -> frozenset[str]:
    return frozenset(filter(None, (part.strip() for part in value.split(","))))


def _environment_variable(tool: str) -> str:
    """Return the variable that names a tool's executable: ``LLM_PERF_OPT_NSYS``, ``LLM_PERF_OPT_NCU``."""
    return f"LLM_PERF_OPT_{tool.upper()}"


def find_tool(tool: str, configured: str | None = None) -> Path | None:
    """Return the tool to use: the configured one, else the environment's, PATH's, or an installed one.

    A configured tool that does not exist is not replaced by another: the result is ``None``.
    """
    if configured:
        return _executable(configured)
    if os.environ.get(_environment_variable(tool)):
        return next(iter(_from_environment(tool)), None)
    return next(iter(find_tools(tool)), None)


def find_tools(tool: str) -> list[Path]:
    """Return every installation of a tool, best first, each once (by its real path)."""
    found: dict[Path, Path] = {}
    for path in _candidates(tool):
        found.setdefault(path.resolve(), path)
    return list(found.values())


def missing_tool(tool: str, configured: str | None = None) -> ToolError:
    """Explain why :func:`find_tool` found nothing: not installed, or a file that is not executable."""
    named = configured or os.environ.get(_environment_variable(tool)) or tool
    for path in _files_named(named):
        if path.is_dir():
            return ToolError(
                f"{path} is a directory, not the program {tool}",
                hint=f"name the program itself, as in {path / tool}",
            )
        return ToolError(f"{path} exists but is not executable", hint=f"chmod +x {path}")
    return ToolError(f"{named} is not installed", hint=install_hint(tool))


def install_hint(tool: str) -> str:
    """Return how to install a tool."""
    product = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}.get(tool, tool)
    return (
        f"install {product} (on Debian: scripts/install-nsight-debian.sh --apt), "
        f"or point pipeline.{tool}.executable or {_environment_variable(tool)} at it"
    )


def modified_ns(executable: Path | str, tool: str) -> int:
    """Return the modification time of a tool's file, used as a cache key."""
    try:
        return Path(executable).stat().st_mtime_ns
    except OSError as error:
        raise ToolError(f"cannot use {executable}: {error.strerror}", hint=install_hint(tool)) from error


def free_bytes(path: Path) -> int:
    """Return the free space where ``path`` is, or would be created."""
    return shutil.disk_usage(_nearest_existing(path)).free


def perf_event_paranoid() -> int | None:
    """Return the kernel's ``perf_event_paranoid``; CPU sampling needs 2 or less. ``None``: not Linux."""
    try:
        return int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    except (OSError, ValueError):
        return None


def nvidia_driver() -> str | None:
    """Return the first line of the loaded NVIDIA kernel driver's version, or ``None`` without one."""
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0].strip()
    except (OSError, IndexError):
        return None


def _candidates(tool: str) -> Iterator[Path]:
    yield from _from_environment(tool)
    if is_hidden(tool):
        return
    on_path = shutil.which(tool)
    if on_path:
        yield Path(on_path)
    # Newer versions sort later: try them first.
    for pattern in _VENDOR_PATTERNS.get(tool, ()):
        yield from _runnable(sorted(_UNPACKED_TOOLS.parent.glob(pattern), reverse=True))
    cuda = Path("/usr/local/cuda/bin") / tool
    yield from _runnable([cuda, *sorted(_UNPACKED_TOOLS.glob(f"*/usr/bin/{tool}"))])


def _from_environment(tool: str) -> Iterator[Path]:
    """The variable may list several, separated like PATH: the first that runs is used, tests use all."""
    for entry in os.environ.get(_environment_variable(tool), "").split(os.pathsep):
        path = _executable(entry) if entry else None
        if path:
            yield path


def _files_named(name: str) -> Iterator[Path]:
    """Yield files in the searched locations that are not executable."""
    if os.sep in name:
        folders = [Path(entry).expanduser() for entry in name.split(os.pathsep)]
    else:
        folders = [
            Path(folder) / name for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder
        ]
        folders = [path for path in folders if not path.is_dir()]
    yield from (path for path in folders if path.exists() and not _executable(str(path)))


def _runnable(paths: list[Path]) -> Iterator[Path]:
    yield from (path for path in paths if path.is_file() and os.access(path, os.X_OK))


def _executable(name: str) -> Path | None:
    found = shutil.which(Path(name).expanduser()) if os.sep in name else shutil.which(name)
    return Path(found).absolute() if found else None


def _nearest_existing(path: Path) -> Path:
    path = Path(path).absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


# Whether this process may read GPU performance counters: the driver's requirement, and the capabilities of this process.
#
# The driver asks for ``CAP_SYS_ADMIN`` or ``CAP_PERFMON`` in the machine's own user namespace, not for the name root: root in a
# container has neither unless it was given them, and root in a user namespace has them there only.


_SYS_ADMIN, _PERFMON = 21, 38
"""Bits of ``CapEff`` (linux/capability.h)."""
_WHOLE_USER_MAP = ["0", "0", "4294967295"]
"""``/proc/self/uid_map`` outside of any user namespace."""
_HOST_FIX = "set the module option NVreg_RestrictProfilingToAdminUsers=0 on the host and reboot it (all users may then read them)"


@dataclass(frozen=True, slots=True)
class CounterPermission:
    """The result and the reason."""

    allowed: bool | None
    """``None``: there is no NVIDIA driver to ask."""
    reason: str
    fix: str | None = None


def counter_permission(root: Path = Path("/"), euid: int | None = None) -> CounterPermission:
    """Read the driver's parameter and this process's capabilities, without trying."""
    parameters = _text(root / "proc/driver/nvidia/params")
    if not parameters:
        return CounterPermission(None, "no NVIDIA driver is loaded")
    if re.search(r"^RmProfilingAdminOnly:\s*1\s*$", parameters, re.MULTILINE) is None:
        return CounterPermission(True, "open to all users")
    is_root = (os.geteuid() if euid is None else euid) == 0
    held = _capabilities(_text(root / "proc/self/status"))
    if held is None:
        reason = "running as root; its capabilities are unknown" if is_root else "not running as root"
        return CounterPermission(is_root, reason, None if is_root else f"run as root, or {_HOST_FIX}")
    if held and _text(root / "proc/self/uid_map").split() not in ([], _WHOLE_USER_MAP):
        return CounterPermission(
            False,
            "the driver ignores capabilities of a user namespace (rootless container)",
            f"run a container that is not rootless with --cap-add=SYS_ADMIN, or {_HOST_FIX}",
        )
    if held:
        return CounterPermission(True, f"this process has {' and '.join(held)}")
    if is_root:
        return CounterPermission(
            False,
            "root, but without CAP_SYS_ADMIN and CAP_PERFMON (a container), which the driver requires",
            f"start the container with --cap-add=SYS_ADMIN (Kubernetes: securityContext.capabilities.add), or {_HOST_FIX}",
        )
    return CounterPermission(
        False, "the driver allows counters to administrators only", f"run as root, or {_HOST_FIX}"
    )


def _capabilities(status: str) -> list[str] | None:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)\s*$", status, re.MULTILINE)
    if found is None:
        return None
    bits = int(found.group(1), 16)
    names = {_SYS_ADMIN: "CAP_SYS_ADMIN", _PERFMON: "CAP_PERFMON"}
    return [name for bit, name in names.items() if bits >> bit & 1]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
