"""The ranks of one run as a process group: entered before the model is built, left at the first failure.

A rank that fails must not enter the next collective, which the others would confuse with their current one. It leaves
instead; their connections break, and each reports it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.core.ranks import Rank

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import RunConfig

T = TypeVar("T")
LOGGER = logging.getLogger("llm_perf_opt")
_POLL_S = 0.1
_STORE_S = 60.0
"""For an answer of the store where ranks meet."""


def enter_group(rank: Rank, device: str, timeout_s: float, *, name: str | None = None) -> None:
    """Join the group of ranks; no rank waits longer than ``timeout_s`` for another, here or later.

    ``name``: of a further group, of programs that the ranks have started next to themselves. They meet where the ranks met,
    which is still open, under a name that no other group has.
    """
    if device == "cpu":
        # transformers splits over any accelerator that torch finds, but this run was configured not to use one.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch
    import torch.distributed as dist

    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(rank.local_rank)
    backend, limit = "cpu:gloo,cuda:nccl" if on_gpu else "gloo", timedelta(seconds=timeout_s)
    try:
        if name is None:
            dist.init_process_group(backend, timeout=limit)
        else:
            dist.init_process_group(
                backend,
                store=_meeting_place(name, limit),
                rank=rank.rank,
                world_size=rank.size,
                timeout=limit,
            )
    except (RuntimeError, ValueError) as error:
        raise ToolError(
            f"rank {rank.rank} of {rank.size} did not meet the others: {_first_line(error)}",
            hint="start all ranks with one torchrun; MASTER_ADDR and MASTER_PORT must be reachable; "
            "run.ranks_timeout_s is the limit of waiting",
        ) from error


def _meeting_place(name: str, timeout: timedelta) -> Any:
    """Return the launcher's store, or that of rank 0, as one of its clients."""
    import torch.distributed as dist

    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not address or not port.isdigit():
        raise ValueError("MASTER_ADDR and MASTER_PORT are not set")
    store = dist.TCPStore(address, int(port), is_master=False, timeout=timeout)
    return dist.PrefixStore(f"llm_perf_opt/{name}", store)


def in_group() -> bool:
    """Whether this process is currently in a group of several ranks."""
    dist = _distributed()
    return dist is not None and bool(dist.is_initialized()) and int(dist.get_world_size()) > 1


def group_size() -> int:
    """Return how many ranks the group has; 1 outside of one."""
    dist = _distributed()
    return int(dist.get_world_size()) if dist is not None and dist.is_initialized() else 1


def agreed(value: T) -> T:
    """Return rank 0's value on every rank; outside of a group, the value itself.

    Decisions based on a clock must be agreed on: ranks with different numbers of passes would wait forever.
    """
    if not in_group():
        return value
    import torch.distributed as dist

    box: list[Any] = [value]
    try:
        dist.broadcast_object_list(box, src=0, device=None)
    except RuntimeError as error:
        raise ToolError(
            f"another rank is gone: {_first_line(error)}", hint="see the run.log of the other ranks"
        ) from error
    found: T = box[0]
    return found


def require_equal_settings(rank: Rank, settings: Mapping[str, str]) -> None:
    """Compare the settings of all ranks; where they differ, every rank raises :class:`ConfigError` with the keys.

    Ranks that do different work stop in the first collective that does not fit, without a word about the reason. Paths may differ:
    machines keep the same files in different places.
    """
    if not in_group():
        return
    import torch.distributed as dist

    of_first = agreed(dict(settings))
    different = sorted(
        key
        for key in {*of_first, *settings}
        if of_first.get(key) != settings.get(key)
        and not any("/" in one.get(key, "") for one in (of_first, settings))
    )
    found: list[Any] = [None] * rank.size
    try:
        dist.all_gather_object(found, different)
    except RuntimeError as error:
        raise ToolError(
            f"another rank is gone: {_first_line(error)}", hint="see the run.log of the other ranks"
        ) from error
    others = {number: keys for number, keys in enumerate(found) if keys}
    if others:
        number, keys = next(iter(others.items()))
        raise ConfigError(
            f"rank {number} has other settings than rank 0: {', '.join(keys[:5])}",
            hint="start every rank with the same arguments",
            key=keys[0],
        )


def wait_for_all_ranks(name: str, *, check: Callable[[], None]) -> None:
    """Wait until every rank of the group has reached this point, however long it takes; no effect outside of a group.

    No collective is under way meanwhile: that would break at the group's limit of waiting. ``check`` is called again and
    again, and may raise. ``name``: of the meeting; a group meets once under each.
    """
    if not in_group():
        return
    size, attempt = group_size(), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        store = _meeting_place(f"{name}/{attempt}", timedelta(seconds=_STORE_S))
        store.add("here", 1)
        while int(store.add("here", 0)) < size:
            check()
            time.sleep(_POLL_S)
    except (RuntimeError, ValueError) as error:
        raise ToolError(
            f"another rank is gone: {_first_line(error)}", hint="see the run.log of the other ranks"
        ) from error


def leave_group() -> None:
    """Close the connections to the other ranks; ranks that wait for this one get a connection error."""
    if not in_group():
        return
    import torch.distributed as dist

    # A group with broken connections cannot, and need not, be left in an orderly way.
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()


def _distributed() -> Any:
    """Return ``torch.distributed`` where it is loaded: a process that never entered a group need not load torch."""

    return sys.modules.get("torch.distributed")


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


# Settings of the whole process: processors it may use, threads next to the operators' own.


_KEY = "run.affinity"


def processors(text: str) -> set[int]:
    """Parse a Linux CPU list: ``0-3,8``."""
    return _listed(text, _KEY)


def _listed(text: str, key: str) -> set[int]:
    what = {_KEY: "processors"}.get(key, "NUMA nodes")
    found: set[int] = set()
    for part in text.split(","):
        first, sign, last = part.strip().partition("-")
        if not first.isdigit() or (sign and not last.isdigit()):
            raise ConfigError(f"{key}={text} is not a list of {what}", hint="write 0-3,8", key=key)
        found.update(range(int(first), int(last or first) + 1))
    return found


_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""Number of the system call by machine; the C library has no function for it."""
_MPOL_BIND = 2
_MOST_NODES = 1024


def _bind_memory(text: str) -> None:
    """Let this process and its later threads allocate on these NUMA nodes only."""
    import ctypes
    import platform

    key = "run.memory_nodes"
    nodes, number = _listed(text, key), _SET_MEMPOLICY.get(platform.machine())
    if number is None or not sys.platform.startswith("linux"):
        raise ConfigError(f"{key}: memory cannot be bound on this system", hint="leave it out", key=key)
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (_MOST_NODES // bits))()
    for node in nodes:
        if node < _MOST_NODES:
            mask[node // bits] |= 1 << (node % bits)
    libc = ctypes.CDLL(None, use_errno=True)
    if max(nodes) >= _MOST_NODES or libc.syscall(number, _MPOL_BIND, mask, _MOST_NODES + 1) != 0:
        reason = os.strerror(ctypes.get_errno()) if max(nodes) < _MOST_NODES else "no such node"
        raise ConfigError(
            f"{key}={text}: this machine does not let a process bind its memory so ({reason})",
            hint="see the nodes in /sys/devices/system/node, or leave it out",
            key=key,
        )


def apply_process_settings(run: RunConfig) -> None:
    """Bind this process to ``run.affinity`` and ``run.memory_nodes``, and set ``run.interop_threads``; before torch does its first work."""
    if run.affinity is not None:
        wanted = processors(run.affinity)
        try:
            os.sched_setaffinity(0, wanted)
        except (OSError, AttributeError, OverflowError) as error:
            raise ConfigError(
                f"{_KEY}={run.affinity}: this machine does not let a process use these processors",
                hint="see what it may use with `taskset -p $$`",
                key=_KEY,
            ) from error
    if run.memory_nodes is not None:
        _bind_memory(run.memory_nodes)
    if run.interop_threads is not None:
        import torch

        # Torch accepts the number once per process; the same value again is not a change.
        if torch.get_num_interop_threads() != run.interop_threads:
            with contextlib.suppress(RuntimeError):
                torch.set_num_interop_threads(run.interop_threads)
            if torch.get_num_interop_threads() != run.interop_threads:
                raise ConfigError(
                    f"run.interop_threads={run.interop_threads} came too late: torch works with "
                    f"{torch.get_num_interop_threads()} already",
                    hint="set it for the whole run, not for a part of it",
                    key="run.interop_threads",
                )
