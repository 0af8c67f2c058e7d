"""Exclusive use of the device by a measured run: it waits for its turn, and records if it had to share.

The devices of several ranks are held together by one process of their machine: the one that started them, else the first of
them. Two that each took its own would wait for each other, and those that have theirs for the ones that have not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.signals import raise_if_interrupted
from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.core.ranks import ROOT_VARIABLE, ranks_here, this_rank
from llm_perf_opt.core.units import timestamp
from llm_perf_opt.hardware.contention import CpuWatch, GpuWatch, Use, allotted_gpus, gpu_name, gpu_names
from llm_perf_opt.hardware.lease import HeldDevice, cpu_device, gpu_device, hold_device
from llm_perf_opt.runs.heartbeat import at_every_beat
from llm_perf_opt.runs.manifest import DeviceLease, Manifest, write_manifest
from llm_perf_opt.workloads.rank_group import wait_for_all_ranks

Watch = GpuWatch | CpuWatch
_UNMEASURED = frozenset({"static_analysis"})
"""Stages that run nothing on the device."""
_NOT_EXCLUSIVE = "run.exclusive=false: other runs may have measured on it"


@contextlib.contextmanager
def device_lease(config: AppConfig, artifacts: Artifacts, manifest: Manifest) -> Iterator[None]:
    """Hold the device of a run while the block runs, and record the lease in the manifest."""
    rank = this_rank()
    if not _measures(config) or (rank is not None and ROOT_VARIABLE in os.environ):
        yield  # nothing to hold, or the process that started the ranks holds the devices of all
        return
    if rank is None:
        gpus = _gpus(config)
        with _leased(config, gpus, _watch_of(gpus), artifacts, manifest):
            yield
        return
    with contextlib.ExitStack() as stack:
        if rank.local_rank == 0:
            gpus = _gpus_of_ranks(config, ranks_here())
            # The other ranks are not children of this one: their CPU use cannot be distinguished from that of others.
            watch = _watch_of(gpus, root=os.getppid()) if gpus else _no_lease
            stack.enter_context(_leased(config, gpus, watch, artifacts, manifest))
        wait_for_all_ranks("lease", check=raise_if_interrupted)
        yield


@contextlib.contextmanager
def lease_of_ranks(config: AppConfig, ranks: int, artifacts: Artifacts, manifest: Manifest) -> Iterator[None]:
    """Hold the devices of all ranks that this process starts inside the block."""
    if not _measures(config):
        yield
        return
    gpus = _gpus_of_ranks(config, ranks)
    with _leased(config, gpus, _watch_of(gpus), artifacts, manifest):
        yield


@contextlib.contextmanager
def hold_for_measurement(config: AppConfig, holder: str) -> Iterator[None]:
    """Hold a device for measurements that are not a run; they wait for runs, and runs wait for them."""
    if not config.run.exclusive:
        yield
        return
    gpus = _gpus(config)
    with hold_device(gpu_device(*gpus) if gpus else cpu_device(), holder, check=raise_if_interrupted):
        yield


def shared_note(lease: DeviceLease) -> str:
    """Return a note that a device was shared, and its effect on times."""
    return f"The device was shared ({lease.device}): {lease.shared}. Times may be too long."


def joined_lease(leases: Sequence[DeviceLease]) -> DeviceLease | None:
    """Merge the leases of several machines; a problem of one applies to all."""
    if not leases:
        return None
    ratios = [one.others_ratio for one in leases if one.others_ratio is not None]
    return DeviceLease(
        ", ".join(dict.fromkeys(one.device for one in leases)),
        exclusive=all(one.exclusive for one in leases),
        waited_s=max((one.waited_s for one in leases if one.waited_s is not None), default=None),
        began=min((one.began for one in leases if one.began is not None), default=None),
        ended=max((one.ended for one in leases if one.ended is not None), default=None),
        others_ratio=max(ratios, default=None),
        shared=next((one.shared for one in leases if one.shared is not None), None),
        directory=leases[0].directory,
    )


@contextlib.contextmanager
def _leased(
    config: AppConfig,
    gpus: Sequence[str],
    new_watch: Callable[[], Watch | None],
    artifacts: Artifacts,
    manifest: Manifest,
) -> Iterator[None]:
    device = gpu_device(*gpus) if gpus else cpu_device()
    holding: contextlib.AbstractContextManager[HeldDevice] = (
        hold_device(device, str(artifacts.root), check=raise_if_interrupted)
        if config.run.exclusive
        else contextlib.nullcontext(HeldDevice(reason=_NOT_EXCLUSIVE))
    )
    with holding as held:
        manifest.lease = lease = DeviceLease(
            device.name,
            exclusive=held.reason is None,
            waited_s=held.waited_s,
            began=timestamp(),
            directory=str(held.directory) if held.directory is not None else None,
        )
        write_manifest(artifacts, manifest)
        watch = new_watch()  # not earlier: the previous holder of the device does not count as sharing
        try:
            with _looking(watch):
                yield
        finally:
            use = watch.use() if watch is not None else Use()
            lease.ended, lease.others_ratio = timestamp(), use.others_ratio
            # A missing lease is not a problem if the device was observed to be unused by others.
            was_alone = use.description is None and use.others_ratio is not None
            lease.shared = use.description or (None if was_alone else held.reason)
            if lease.shared is not None:
                manifest.notes.append(shared_note(lease))
            with contextlib.suppress(
                LlmPerfError
            ):  # a full disk is reported by the code that needs the space
                write_manifest(artifacts, manifest)


@contextlib.contextmanager
def _looking(watch: Watch | None) -> Iterator[None]:
    """Sample GPUs repeatedly; CPU accounting needs only start and end."""
    if not isinstance(watch, GpuWatch) or not watch.looks_cheaply:
        yield
        return
    with at_every_beat(watch.look):
        yield


def _watch_of(gpus: Sequence[str], root: int | None = None) -> Callable[[], Watch | None]:
    return (lambda: GpuWatch(*gpus, root=root)) if gpus else CpuWatch


def _no_lease() -> Watch | None:
    return None


def _measures(config: AppConfig) -> bool:
    stages = (name for name, stage in config.pipeline.items() if stage.enable)
    return config.workload_command.command is not None or any(name not in _UNMEASURED for name in stages)


def _gpus(config: AppConfig) -> list[str]:
    """Return the GPUs a run measures on; empty: it measures on the CPU.

    A user's own program may use all GPUs of the job, independent of the torch in this environment.
    """
    if config.workload_command.command is not None and (given := allotted_gpus()):
        return given
    kind, _, index = config.resolved_device.partition(":")
    return [gpu_name(int(index or 0))] if kind == "cuda" else []


def _gpus_of_ranks(config: AppConfig, ranks: int) -> list[str]:
    """Return the GPUs of the ranks of this machine: one each, by their numbers."""
    return gpu_names(range(ranks)) if config.resolved_device.startswith("cuda") else []
