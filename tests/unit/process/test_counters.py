"""Who may read counters: users, root, root in a container with and without the capability, root in a user namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.process.tools import counter_permission
from tests.text_facts import mentions

ALL, DOCKER_DEFAULT = "000001ffffffffff", "00000000a80425fb"
SYS_ADMIN_ADDED, PERFMON_ADDED = "00000000a82425fb", "00000040a80425fb"
NONE = "0000000000000000"


def machine(
    root: Path, capabilities: str | None, *, restricted: int | None = 1, user_map: str = "0 0 4294967295"
) -> Path:
    """Write the files the kernel and the driver would show."""
    for folder in ("proc/self", "proc/driver/nvidia"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    if restricted is not None:
        text = f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {restricted}\nPreserveVideoMemoryAllocations: 0\n"
        (root / "proc/driver/nvidia/params").write_text(text, encoding="ascii")
    if capabilities is not None:
        status = f"Name:\tpython3\nCapPrm:\t{capabilities}\nCapEff:\t{capabilities}\nCapBnd:\t{ALL}\n"
        (root / "proc/self/status").write_text(status, encoding="ascii")
    (root / "proc/self/uid_map").write_text(f"         {user_map}\n", encoding="ascii")
    return root


@pytest.mark.parametrize(
    ("capabilities", "euid", "allowed", "facts"),
    [
        (ALL, 0, True, ["CAP_SYS_ADMIN", "CAP_PERFMON"]),
        (DOCKER_DEFAULT, 0, False, ["root", "CAP_SYS_ADMIN"]),
        (SYS_ADMIN_ADDED, 0, True, ["CAP_SYS_ADMIN"]),
        (PERFMON_ADDED, 0, True, ["CAP_PERFMON"]),
        (NONE, 1000, False, ["driver"]),
        (PERFMON_ADDED, 1000, True, ["CAP_PERFMON"]),
        (None, 0, True, ["root"]),
        (None, 1000, False, ["root"]),
    ],
)
def test_what_counts_is_the_capability(
    tmp_path: Path, capabilities: str | None, euid: int, allowed: bool, facts: list[str]
) -> None:
    found = counter_permission(machine(tmp_path, capabilities), euid)
    assert found.allowed is allowed and found.reason and mentions(found.reason, *facts)
    assert (found.fix is None) is allowed


def test_a_container_gets_the_option_to_add(tmp_path: Path) -> None:
    fix = counter_permission(machine(tmp_path, DOCKER_DEFAULT), 0).fix or ""
    assert "--cap-add=SYS_ADMIN" in fix and "NVreg_RestrictProfilingToAdminUsers=0" in fix


def test_root_of_a_user_namespace_is_not_the_machines(tmp_path: Path) -> None:
    found = counter_permission(machine(tmp_path, ALL, user_map="0 1000 1"), 0)
    assert found.allowed is False and "rootless" in found.reason


def test_open_to_all_and_no_driver(tmp_path: Path) -> None:
    assert counter_permission(machine(tmp_path / "open", NONE, restricted=0), 1000).allowed is True
    found = counter_permission(machine(tmp_path / "none", ALL, restricted=None), 0)
    assert found.allowed is None and "no NVIDIA driver" in found.reason
