"""The hardware limits of a run: chosen by the user, from the catalogue, or measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.hardware.catalogue import Catalogue, load_catalogue
from llm_perf_opt.hardware.detect import detect_cpu, detect_device
from llm_perf_opt.hardware.mig import MigSlice, limits_of_slice, slice_by_name
from llm_perf_opt.summary import Hardware

if TYPE_CHECKING:
    from llm_perf_opt.hardware.probe import ProbeResult

_UNCLEAR_SLICE = (
    "some GPUs of this machine are cut into MIG slices, and which one the run uses is unknown; "
    "name one with CUDA_VISIBLE_DEVICES=MIG-…"
)


def unknown_hardware(name: str | None, reason: str) -> Hardware:
    """Return a device without limits and the reason; utilisation is then omitted."""
    return Hardware(
        name=name,
        kind="unknown",
        peak_flops_per_s={},
        bandwidth_bytes_per_s=None,
        source="none",
        reason=reason,
    )


def hardware_by_name(
    name: str | None, *, chosen: str | None = None, catalogue_file: str | None = None
) -> Hardware:
    """Return limits for a device known only by name (an ingested capture): no detection, no measurement."""
    catalogue = load_catalogue(Path(catalogue_file) if catalogue_file else None)
    if chosen:
        return _chosen_hardware(catalogue, chosen)
    if not name:
        return unknown_hardware(
            None,
            "the captures do not name the device; name it with --device (ingest) or hardware.device (run)",
        )
    return _look_up_hardware(catalogue, name, None)


def resolve_hardware(
    run_device: str,
    *,
    chosen: str | None = None,
    catalogue_file: str | None = None,
    allow_probe: bool = True,
    threads: int | None = None,
    cache_dir: Path | None = None,
    dtype: str | None = None,
) -> Hardware:
    """Return the limits of ``run_device`` (``cpu``, ``cuda:N``, ``xpu:N``, …) on this machine.

    ``dtype`` is the run's; on a CPU the half-precision rates, slow to measure, are left out for a float32 run.

    ``chosen`` (``hardware.device``) wins over what is detected. A CPU is measured, unless ``allow_probe`` is
    off; on a GPU the data sheet is the limit and the measurement is shown next to it. A slice of a GPU (MIG) has its share of
    the sheet; a GPU without a sheet has what was measured.
    """
    catalogue = load_catalogue(Path(catalogue_file) if catalogue_file else None)
    if chosen:
        return _chosen_hardware(catalogue, chosen)
    if run_device == "cpu":
        items = ("operator", "bandwidth", "float32") if dtype in (None, "auto", "float32") else None
        return _resolve_cpu(catalogue, allow_probe, threads, cache_dir, items)
    gpu = detect_device(run_device)
    if gpu is None:
        return unknown_hardware(None, f"no GPU was found for {run_device}")
    hardware = _resolve_gpu(catalogue, gpu.name, gpu.memory_bytes, run_device)
    hardware.kind = "gpu"
    if allow_probe:
        measured = _add_measured(hardware, run_device, hardware.name or gpu.name, cache_dir)
        if hardware.source == "none":
            _limit_to_measured(hardware, measured)
    return hardware


def _resolve_gpu(catalogue: Catalogue, name: str, memory_bytes: float | None, run_device: str) -> Hardware:
    """Return the data sheet's limits of a GPU, or of the slice of it that the run sees."""
    from llm_perf_opt.hardware.mig import detect_slice

    kind, _, index = run_device.partition(":")
    part = detect_slice(int(index or 0)) if kind == "cuda" else None
    if part == "unclear" and slice_by_name(name) is None:
        return unknown_hardware(name, _UNCLEAR_SLICE)
    if isinstance(part, MigSlice):
        return _look_up_slice(catalogue, part)
    hardware = _look_up_hardware(catalogue, name, memory_bytes)
    hardware.memory_bytes = memory_bytes or hardware.memory_bytes
    return hardware


def _look_up_slice(catalogue: Catalogue, part: MigSlice) -> Hardware:
    whole = _look_up_hardware(catalogue, part.gpu, None)
    if whole.source == "none":
        whole.name, whole.memory_bytes = part.name, part.memory_bytes
        return whole
    return limits_of_slice(whole, part)


def _chosen_hardware(catalogue: Catalogue, chosen: str) -> Hardware:
    """Return the limits of a device that a user named; a MIG slice has its share of the whole GPU's."""
    if (part := slice_by_name(chosen)) is not None and catalogue.look_up(chosen)[0] is None:
        return limits_of_slice(catalogue.named(part.gpu).to_hardware(), part)
    return catalogue.named(chosen).to_hardware()


def _limit_to_measured(hardware: Hardware, measured: ProbeResult) -> None:
    """Use measurements as limits of a device without a data sheet; the reason is kept for missing values."""
    if measured.notes:
        hardware.reason = "; ".join([hardware.reason or "", *measured.notes]).removeprefix("; ")
    if measured.found:
        hardware.peak_flops_per_s = measured.peaks()
        hardware.bandwidth_bytes_per_s = measured.bandwidth_bytes_per_s
        hardware.bandwidth_source = measured.bandwidth_source()
        hardware.source = "probe"


def _look_up_hardware(catalogue: Catalogue, name: str, memory_bytes: float | None) -> Hardware:
    if (part := slice_by_name(name)) is not None and catalogue.look_up(name)[0] is None:
        return _look_up_slice(catalogue, replace(part, memory_bytes=memory_bytes))
    device, reason = catalogue.look_up(name, memory_bytes)
    if device is None:
        return unknown_hardware(name, reason or "unknown device")
    return device.to_hardware(name)


def _resolve_cpu(
    catalogue: Catalogue,
    allow_probe: bool,
    threads: int | None,
    cache_dir: Path | None,
    items: tuple[str, ...] | None,
) -> Hardware:
    from llm_perf_opt.hardware.probe import cpu_hardware, probe

    cpu = detect_cpu()
    device, _ = catalogue.look_up(cpu.name)
    if device is not None:
        hardware = device.to_hardware(cpu.name)
        hardware.memory_bytes = cpu.memory_bytes or hardware.memory_bytes
        if allow_probe:
            _add_measured(hardware, "cpu", cpu.name, cache_dir, threads)
        return hardware
    if not allow_probe:
        hardware = unknown_hardware(
            cpu.name, "limits of a CPU are measured, and hardware.probe=false forbids it"
        )
        hardware.kind, hardware.memory_bytes = "cpu", cpu.memory_bytes
        return hardware
    return cpu_hardware(probe("cpu", threads=threads, dtypes=items, cache_dir=cache_dir), cpu)


def _add_measured(
    hardware: Hardware, run_device: str, name: str, cache_dir: Path | None, threads: int | None = None
) -> ProbeResult:
    """Add measured rates next to the data sheet, which stays the denominator."""
    from llm_perf_opt.hardware.probe import probe

    measured = probe(run_device, name=name, threads=threads, cache_dir=cache_dir)
    measured.describe(hardware)
    return measured
