"""Where limits and times come from, in words: which source, when, how often, how disturbed."""

from __future__ import annotations

from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Hardware, Timings

THEIR_CLOCK = "as given in the file; whether the run was warmed up and synchronised is not known"


def hardware_text(hardware: Hardware) -> str:
    """Say which limits the run is measured against and where they come from."""
    name = hardware.name or "this device"
    if hardware.source == "none":
        return f"No limits are known for {name}: {hardware.reason or 'unknown device'}."
    peaks = ", ".join(
        f"{dtype} {units.flops_per_s(peak.dense)}" for dtype, peak in hardware.peak_flops_per_s.items()
    )
    memory = units.bytes_per_s(hardware.bandwidth_bytes_per_s)
    origins = {
        "catalogue": "from the device catalogue",
        "probe": _measured_when(hardware),
        "user": "given by the user",
    }
    origin = origins.get(hardware.source, f"source: {hardware.source or 'not told'}")
    text = f"{name}: dense peaks {peaks or units.MISSING}; memory {memory} ({origin})."
    return f"{text} {reached}" if (reached := _reached_text(hardware)) else text


def _reached_text(hardware: Hardware) -> str:
    """Say what was measured on devices of this kind; empty where nothing was."""
    rates = [
        f"{dtype} {units.flops_per_s(peak.dense)}" for dtype, peak in hardware.reached_flops_per_s.items()
    ]
    if hardware.reached_bandwidth_bytes_per_s is not None:
        rates.append(f"memory {units.bytes_per_s(hardware.reached_bandwidth_bytes_per_s)}")
    return f"The best measured on such a device: {', '.join(rates)}." if rates else ""


def _measured_when(hardware: Hardware) -> str:
    """Say when the machine was measured, and whether anything disturbed it."""
    text = "measured on this machine"
    if hardware.measured_at is not None:
        text += f" {hardware.measured_at[:16].replace('T', ' ')}"
    if (hardware.measurements or 1) > 1:
        text += f", the best of {hardware.measurements} measurements"
    if hardware.measured_under_load is None:
        return text
    share = hardware.measured_other_load_ratio
    used = "GPU" if hardware.kind == "gpu" else "processor"
    load = f" ({units.percent(share)} of the {used})" if share is not None else ""
    return f"{text}, beside other programs{load}" if hardware.measured_under_load else f"{text}, undisturbed"


_OUR_CLOCK = (
    "wall-clock per sample, warmed up, device-synchronised at phase edges, no profiler attached; "
    "median over samples and "
)
_STOPPED = {
    "asked": "as asked for",
    "narrow": "enough for a narrow interval",
    "time": "as many as the time limit allows",
    "most": "as many as are sensible",
}


def clock_text(timings: Timings) -> str:
    """Say how times were measured, how often and how well they are known."""
    if timings.repeats is None:
        return _OUR_CLOCK + "repeats"
    text = f"{_OUR_CLOCK}{timings.repeats} repeat{'s' if timings.repeats > 1 else ''}"
    if timings.stopped is not None:
        text += f" ({_STOPPED[timings.stopped]})"
    if timings.interval_ratio is not None:
        text += f"; the 95 % interval of a pass is {units.percent(timings.interval_ratio)} wide"
    return text
