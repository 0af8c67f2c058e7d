"""The known work as a program: alone under a tool, or with clock, profiler, memory and sensors looked at.

``python -m llm_perf_opt.runs.self_test.program work DEVICE`` does the work once (for nsys and ncu);
``… look DEVICE FOLDER`` prints one JSON object per line as each part is done: a part that kills the process loses only what
comes after it.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llm_perf_opt.runs.self_test.known_work import (
    PRODUCT_RANGE,
    PRODUCTS,
    ROUND_RANGE,
    ROUNDS,
    SIDE,
    SUM_RANGE,
    SUMS,
)

_TRIALS = 5
_LONG_S = 0.05
"""Work that is timed by two clocks takes about as long, so that starting and ending it do not count."""
_BLOCK_BYTES = 256 << 20
TRACE = "profile.json"


def prepare(torch: Any, device: str) -> list[Any]:
    """Return the operands, and load what the first call of an operator loads."""
    a, b = (torch.ones(SIDE, SIDE, device=device) for _ in range(2))
    out = torch.empty_like(a)
    torch.mm(a, b, out=out)
    torch.add(a, b, out=out)
    wait(torch, device)
    return [a, b, out]


def work(
    torch: Any, device: str, operands: list[Any], named: Callable[[str], AbstractContextManager[Any]]
) -> None:
    """Do the known work once."""
    a, b, out = operands
    for _ in range(ROUNDS):
        with named(ROUND_RANGE):
            with named(PRODUCT_RANGE):
                for _ in range(PRODUCTS):
                    torch.mm(a, b, out=out)
            with named(SUM_RANGE):
                for _ in range(SUMS):
                    torch.add(a, b, out=out)
            wait(torch, device)


def wait(torch: Any, device: str) -> None:
    """Wait for the device."""
    if device != "cpu":
        torch.accelerator.synchronize()


def look(torch: Any, device: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield one part at a time."""
    yield {"part": "device", **_device(torch, device)}
    yield {"part": "clock", **_clocks(torch, device)}
    yield {"part": "profiler", **_profile(torch, device, folder)}
    yield {"part": "memory", **_memory(torch, device)}
    yield {"part": "telemetry", **_telemetry(torch, device)}


def _device(torch: Any, device: str) -> dict[str, Any]:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found: dict[str, Any] = {
        "torch": str(torch.__version__),
        "accelerator": accelerator.type if accelerator is not None else None,
        "count": torch.accelerator.device_count() if accelerator is not None else 0,
        "rocm": getattr(torch.version, "hip", None),
        "cuda": getattr(torch.version, "cuda", None),
        "used": device,
    }
    if device.startswith("cuda"):
        seen = torch.cuda.get_device_properties(device)
        found |= {
            "name": str(seen.name),
            "memory_bytes": float(seen.total_memory),
            "multiprocessors": seen.multi_processor_count,
        }
    return found


def _clocks(torch: Any, device: str) -> dict[str, Any]:
    """Time the same work by clocks that know nothing of each other."""
    steps = [time.perf_counter_ns() for _ in range(20_000)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(steps)]
    raw = getattr(time, "CLOCK_MONOTONIC_RAW", None)
    found: dict[str, Any] = {
        "backward_steps": sum(gap < 0 for gap in gaps),
        "smallest_step_ns": min((gap for gap in gaps if gap > 0), default=None),
        "trials": [],
    }
    side, count = 1024, 1
    a, b = (torch.ones(side, side, device=device) for _ in range(2))
    out = torch.empty_like(a)

    def product() -> None:
        for _ in range(count):
            torch.mm(a, b, out=out)

    began = time.perf_counter()
    product()
    wait(torch, device)
    began = time.perf_counter()
    product()
    wait(torch, device)
    count = max(1, round(_LONG_S / max(time.perf_counter() - began, 1e-6)))
    for _ in range(_TRIALS):
        wait(torch, device)
        events = (
            [torch.Event(device=torch.device(device), enable_timing=True) for _ in range(2)]
            if device != "cpu"
            else []
        )
        raw_began = time.clock_gettime(raw) if raw is not None else None
        began = time.perf_counter()
        if events:
            events[0].record()
        product()
        if events:
            events[1].record()
        wait(torch, device)
        host_s = time.perf_counter() - began
        trial = {"host_s": host_s}
        if raw is not None and raw_began is not None:
            trial["raw_s"] = time.clock_gettime(raw) - raw_began
        if events:
            trial["events_s"] = float(events[0].elapsed_time(events[1])) / 1e3
        found["trials"].append(trial)
    return found


def _profile(torch: Any, device: str, folder: Path) -> dict[str, Any]:
    activities = torch.profiler.supported_activities()
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device != "cpu":
        kinds += [kind for kind in activities if kind != torch.profiler.ProfilerActivity.CPU]
    operands = prepare(torch, device)
    with torch.profiler.profile(activities=kinds, with_flops=True, record_shapes=True) as profiler:
        work(torch, device, operands, torch.profiler.record_function)
    profiler.export_chrome_trace(str(folder / TRACE))
    totals = {row.key: row for row in profiler.key_averages()}
    product = totals.get("aten::mm")
    return {
        "operators": {
            name: int(row.count) for name, row in totals.items() if name in ("aten::mm", "aten::add")
        },
        "product_flops": float(product.flops) if product is not None else None,
        "activities": sorted(kind.name for kind in kinds),
    }


def _memory(torch: Any, device: str) -> dict[str, Any]:
    def used() -> float | None:
        if device == "cpu":
            return _resident_bytes()
        if device.startswith("cuda"):
            free, total = torch.cuda.mem_get_info(device)
            return float(total - free)
        return None

    before = used()
    block = torch.ones(_BLOCK_BYTES // 4, device=device)
    wait(torch, device)
    held = used()
    del block
    if device != "cpu" and hasattr(torch.accelerator, "empty_cache"):
        torch.accelerator.empty_cache()
    wait(torch, device)
    return {"block_bytes": _BLOCK_BYTES, "before_bytes": before, "held_bytes": held, "after_bytes": used()}


def _resident_bytes() -> float | None:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def _telemetry(torch: Any, device: str) -> dict[str, Any]:
    from llm_perf_opt.hardware.sensors.find import MonitoredDevice, find_sensor

    uuid = bus_id = None
    if device.startswith("cuda"):
        seen = torch.cuda.get_device_properties(device)
        uuid = str(seen.uuid) if hasattr(seen, "uuid") else None
        if hasattr(seen, "pci_bus_id"):
            bus_id = f"{getattr(seen, 'pci_domain_id', 0):04x}:{seen.pci_bus_id:02x}:{seen.pci_device_id:02x}"
    monitored = MonitoredDevice(
        device, uuid=uuid, bus_id=bus_id, rocm=bool(getattr(torch.version, "hip", None))
    )
    sensor = find_sensor(monitored)
    if isinstance(sensor, str):
        return {"refused": sensor}
    try:
        first = sensor.read()
        began = time.perf_counter()
        a = torch.ones(1024, 1024, device=device)
        while time.perf_counter() - began < 0.5:
            a = torch.mm(a, a).clamp_(0, 1)
            wait(torch, device)
        second = sensor.read()
    finally:
        sensor.close()
    return {
        "reader": sensor.reader,
        "first": asdict(first),
        "second": asdict(second),
        "absent": dict(sensor.absent),
    }


def main(argv: list[str]) -> int:
    """Do what the first argument says."""
    import torch

    mode, device, *rest = argv
    if device != "cpu" and (index := torch.device(device).index) is not None:
        torch.accelerator.set_device_index(index)
    with torch.inference_mode():
        if mode == "work":
            from llm_perf_opt.workloads.engine import nvtx

            work(torch, device, prepare(torch, device), nvtx.stage)
            print(json.dumps({"part": "work", "tool_attached": nvtx.is_attached()}), flush=True)
        else:
            for part in look(torch, device, Path(rest[0])):
                print(json.dumps(part), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
