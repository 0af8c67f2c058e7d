"""A measured run has its device alone: it waits for its turn, and says where it had to share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.clock import now_text
from llm_perf_opt.core.console.signals import raise_if_interrupted
from llm_perf_opt.core.ranks import this_rank
from llm_perf_opt.core.run_directory.artifacts import Artifacts
from llm_perf_opt.hardware.contention.sharing import CpuWatch, GpuWatch, allotted_gpus, gpu_name
from llm_perf_opt.hardware.lease import Held, cpu_device, gpu_device, hold_device
from llm_perf_opt.runs.records.manifest import DeviceLease, Manifest, write_manifest

_UNMEASURED = frozenset({"static_analysis"})
"""Stages that run nothing on the device."""
NOT_ASKED = "run.exclusive=false: other runs may have measured on it"


@contextlib.contextmanager
def device_lease(config: AppConfig, artifacts: Artifacts, manifest: Manifest) -> Iterator[None]:
    """Hold the device of a run while the block runs, and write into the manifest how it was had."""
    measured = [name for name, stage in config.pipeline.items() if stage.enable and name not in _UNMEASURED]
    if not measured and config.workload_command.command is None:
        yield
        return
    on_gpu = config.resolved_device.startswith("cuda")
    rank = this_rank()
    if rank is not None and not on_gpu:
        # The ranks of a machine share its processor by design: the first holds it, and who else used it cannot be told.
        with _processor_of_ranks(config, artifacts, manifest, first=rank.local_rank == 0):
            yield
        return
    gpus = _gpus(config)
    device = gpu_device(*gpus) if gpus else cpu_device()
    holding: contextlib.AbstractContextManager[Held] = (
        hold_device(device, str(artifacts.root), check=raise_if_interrupted)
        if config.run.exclusive
        else contextlib.nullcontext(Held(reason=NOT_ASKED))
    )
    with holding as held:
        manifest.lease = lease = DeviceLease(
            device.name, exclusive=held.reason is None, waited_s=held.waited_s, began=now_text()
        )
        write_manifest(artifacts, manifest)
        watch = GpuWatch(*gpus) if gpus else CpuWatch()
        try:
            yield
        finally:
            use = watch.use()
            lease.ended, lease.others_ratio = now_text(), use.others_ratio
            # Not having asked for the device is no finding where nobody used it and that could be seen.
            seen_alone = use.words is None and use.others_ratio is not None
            lease.shared = use.words or (None if seen_alone else held.reason)
            if lease.shared is not None:
                manifest.notes.append(
                    f"The device was shared ({device.name}): {lease.shared}. Times may be too long."
                )


def _gpus(config: AppConfig) -> list[str]:
    """Return the GPUs a run measures on; none: it measures on the processor.

    A user's own program may use all that was given to the job, whatever the torch of this environment can do.
    """
    if config.workload_command.command is not None and (given := allotted_gpus()):
        return given
    kind, _, index = config.resolved_device.partition(":")
    return [gpu_name(int(index or 0))] if kind == "cuda" else []


@contextlib.contextmanager
def _processor_of_ranks(
    config: AppConfig, artifacts: Artifacts, manifest: Manifest, *, first: bool
) -> Iterator[None]:
    if not first or not config.run.exclusive:
        yield
        return
    device = cpu_device()
    with hold_device(device, str(artifacts.root), check=raise_if_interrupted) as held:
        manifest.lease = DeviceLease(
            device.name, exclusive=held.reason is None, waited_s=held.waited_s, began=now_text()
        )
        write_manifest(artifacts, manifest)
        try:
            yield
        finally:
            manifest.lease.ended = now_text()
