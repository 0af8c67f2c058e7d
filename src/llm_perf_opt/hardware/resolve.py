"""Which limits a run is measured against: chosen by the user, found in the catalogue, or measured here."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.hardware.catalogue import Catalogue, load_catalogue
from llm_perf_opt.hardware.detect import detect_cpu, detect_device
from llm_perf_opt.model.summary import Hardware


def unknown_hardware(name: str | None, reason: str) -> Hardware:
    """Return a device without limits and why; utilisation is then left out, never guessed."""
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
        return catalogue.named(chosen).to_hardware()
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
    off; on a GPU the data sheet is the limit and the measurement stands beside it.
    """
    catalogue = load_catalogue(Path(catalogue_file) if catalogue_file else None)
    if chosen:
        return catalogue.named(chosen).to_hardware()
    if run_device == "cpu":
        items = ("operator", "bandwidth", "float32") if dtype in (None, "auto", "float32") else None
        return _resolve_cpu(catalogue, allow_probe, threads, cache_dir, items)
    gpu = detect_device(run_device)
    if gpu is None:
        return unknown_hardware(None, f"no GPU was found for {run_device}")
    hardware = _look_up_hardware(catalogue, gpu.name, gpu.memory_bytes)
    hardware.kind = "gpu"
    hardware.memory_bytes = gpu.memory_bytes or hardware.memory_bytes
    if allow_probe:
        _add_measured(hardware, run_device, gpu.name, cache_dir)
    return hardware


def _look_up_hardware(catalogue: Catalogue, name: str, memory_bytes: float | None) -> Hardware:
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
) -> None:
    """Put what this machine reached beside the data sheet; the sheet stays the denominator."""
    from llm_perf_opt.hardware.probe import probe

    probe(run_device, name=name, threads=threads, cache_dir=cache_dir).describe(hardware)
