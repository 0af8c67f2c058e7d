"""Whether this process may read GPU performance counters: what the driver demands, and what this process really has.

The driver asks for ``CAP_SYS_ADMIN`` or ``CAP_PERFMON`` in the machine's own user namespace, not for the name root: root in a
container has neither unless it was given them, and root in a user namespace has them there only.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_SYS_ADMIN, _PERFMON = 21, 38
"""Bits of ``CapEff`` (linux/capability.h)."""
_WHOLE_USER_MAP = ["0", "0", "4294967295"]
"""``/proc/self/uid_map`` outside of any user namespace."""
_HOST_FIX = "set the module option NVreg_RestrictProfilingToAdminUsers=0 on the host and reboot it (all users may then read them)"


@dataclass(frozen=True, slots=True)
class CounterPermission:
    """The answer, and why."""

    allowed: bool | None
    """``None``: there is no NVIDIA driver to ask."""
    reason: str
    fix: str | None = None


def counter_permission(root: Path = Path("/"), euid: int | None = None) -> CounterPermission:
    """Read the driver's parameter and this process's capabilities; nothing is tried."""
    parameters = _text(root / "proc/driver/nvidia/params")
    if not parameters:
        return CounterPermission(None, "no NVIDIA driver is loaded")
    if re.search(r"^RmProfilingAdminOnly:\s*1\s*$", parameters, re.MULTILINE) is None:
        return CounterPermission(True, "open to all users")
    is_root = (os.geteuid() if euid is None else euid) == 0
    held = _capabilities(_text(root / "proc/self/status"))
    if held is None:
        reason = "running as root; what root may do here is not told" if is_root else "not running as root"
        return CounterPermission(is_root, reason, None if is_root else f"run as root, or {_HOST_FIX}")
    if held and _text(root / "proc/self/uid_map").split() not in ([], _WHOLE_USER_MAP):
        return CounterPermission(
            False,
            "this user namespace's capabilities (rootless container) do not count for the driver",
            f"run a container that is not rootless with --cap-add=SYS_ADMIN, or {_HOST_FIX}",
        )
    if held:
        return CounterPermission(True, f"this process has {' and '.join(held)}")
    if is_root:
        return CounterPermission(
            False,
            "root, but without CAP_SYS_ADMIN and CAP_PERFMON (a container), which the driver asks for",
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
