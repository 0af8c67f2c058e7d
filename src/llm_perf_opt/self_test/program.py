"""The known work as a program: alone under a tool, or with clock, profiler, memory and sensors looked at.

``python -m llm_perf_opt.self_test.program work DEVICE`` does the work once (for nsys and ncu), ``… graph DEVICE`` as replays of
a CUDA graph, and ``… profiled DEVICE`` twice, of which only the second time between cudaProfilerStart and cudaProfilerStop;
``… look DEVICE FOLDER`` prints one JSON object per line as each part is done: a part that kills the process loses only what
comes after it. ``… engine DEVICE MODE…`` does the same for runs of the engine, and ``… collective DEVICE`` is one rank of an
all-reduce.
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

from llm_perf_opt.config.devices import is_rocm
from llm_perf_opt.hardware.accelerator import Accelerator, device_properties, offered_device, open_accelerator
from llm_perf_opt.self_test.known_work import (
    ENGINE_MODES,
    EXPECTED_OPERATORS,
    PRODUCT_RANGE,
    PRODUCTS,
    REDUCED_ELEMENTS,
    ROUND_RANGE,
    ROUNDS,
    SIDE,
    SUM_RANGE,
    SUMS,
)

_TRIALS = 5
_NEW_TOKENS = 8
_LONG_S = 0.05
"""Work that is timed by two clocks takes about as long, so that starting and ending it do not count."""
_BLOCK_BYTES = 256 << 20
_WATCHED_S = 0.5
TRACE = "profile.json"


def prepare(torch: Any, accelerator: Accelerator) -> list[Any]:
    """Return the operands, and load what the first call of an operator loads."""
    a, b = (torch.ones(SIDE, SIDE, device=accelerator.device) for _ in range(2))
    out = torch.empty_like(a)
    torch.mm(a, b, out=out)
    torch.add(a, b, out=out)
    accelerator.synchronize()
    return [a, b, out]


def work(
    torch: Any,
    accelerator: Accelerator,
    operands: list[Any],
    named: Callable[[str], AbstractContextManager[Any]],
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
            accelerator.synchronize()


def replay(torch: Any, accelerator: Accelerator, operands: list[Any]) -> None:
    """Do the known work as one CUDA graph of a round, replayed; capturing it runs nothing."""
    from llm_perf_opt.workloads.engine import nvtx

    a, b, out = operands
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(PRODUCTS):
            torch.mm(a, b, out=out)
        for _ in range(SUMS):
            torch.add(a, b, out=out)
    for _ in range(ROUNDS):
        with nvtx.stage(ROUND_RANGE):
            graph.replay()
            accelerator.synchronize()


def _run_engine_modes(device: str, modes: list[str]) -> Iterator[dict[str, Any]]:
    """Measure ``llama_tiny`` in each mode: its tokens, whether they are those of ``generate()``, and the phases' times."""
    from llm_perf_opt.config.compose import compose_config
    from llm_perf_opt.core.console.progress import SilentProgress
    from llm_perf_opt.workloads.measure import check_tokens, run_engine
    from llm_perf_opt.workloads.registry import load_dataset
    from llm_perf_opt.workloads.setup import workload_config

    for mode in modes:
        settings = ["model=llama_tiny", "model.dtype=float32", f"run.device={device}", *ENGINE_MODES[mode]]
        workload = workload_config(compose_config(settings), repeats=_TRIALS, max_new_tokens=_NEW_TOKENS)
        samples = list(load_dataset(workload.dataset).samples())[:1]
        run = run_engine(workload, samples, progress=SilentProgress())
        check_tokens(run, workload, SilentProgress())
        passes = run.result.batches[0].repeats
        release = run.engine.release()
        yield {
            "part": f"engine {mode}",
            "tokens": run.result.samples[0].token_ids,
            "verified": run.result.tokens_verified,
            "prefill_s": [one.prefill_s for one in passes],
            "decode_s": [one.decode_s for one in passes],
            "load_s": run.result.info.load_s,
            "warmup_s": run.result.warmup_s,
            "notes": list(run.result.notes),
            "release": None if release is None else {**release.to_dict(), "problem": release.problem()},
        }


def _add_ranks(torch: Any, device: str) -> dict[str, Any]:
    """Be one rank of an all-reduce; torchrun tells which."""
    rank = int(os.environ["LOCAL_RANK"])
    if device.startswith("cuda"):
        torch.cuda.set_device(rank)
        place = f"cuda:{rank}"
    else:
        place = "cpu"
    distributed = torch.distributed
    distributed.init_process_group("nccl" if place != "cpu" else "gloo")
    try:
        values = torch.full((REDUCED_ELEMENTS,), float(rank + 1), device=place)
        distributed.all_reduce(values)
        low, high = float(values.min()), float(values.max())
        return {
            "part": f"collective {rank}",
            "world": distributed.get_world_size(),
            "backend": distributed.get_backend(),
            "low": low,
            "high": high,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if place != "cpu" else None,
        }
    finally:
        distributed.destroy_process_group()


def look(torch: Any, accelerator: Accelerator, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield one part at a time."""
    yield {"part": "device", **_device(torch, accelerator)}
    yield {"part": "clock", **_clocks(torch, accelerator)}
    yield {"part": "profiler", **_profile(torch, accelerator, folder)}
    yield {"part": "memory", **_memory(torch, accelerator)}
    yield {"part": "telemetry", **_telemetry(torch, accelerator)}


def _device(torch: Any, accelerator: Accelerator) -> dict[str, Any]:
    offered = offered_device()
    found: dict[str, Any] = {
        "torch": str(torch.__version__),
        "accelerator": offered[0] if offered else None,
        "count": offered[1] if offered else 0,
        "rocm": getattr(torch.version, "hip", None),
        "cuda": getattr(torch.version, "cuda", None),
        "used": accelerator.device,
    }
    if accelerator.device != "cpu":
        seen = device_properties(accelerator.device)
        found |= {"name": seen.name, "memory_bytes": seen.memory_bytes}
    return found


def _clocks(torch: Any, accelerator: Accelerator) -> dict[str, Any]:
    """Time the same work by independent clocks."""
    steps = [time.perf_counter_ns() for _ in range(20_000)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(steps)]
    a, b = (torch.ones(1024, 1024, device=accelerator.device) for _ in range(2))
    out = torch.empty_like(a)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(a, b, out=out)
        accelerator.synchronize()

    products(1)
    began = time.perf_counter()
    products(1)
    count = max(1, round(_LONG_S / max(time.perf_counter() - began, 1e-6)))
    return {
        "backward_steps": sum(gap < 0 for gap in gaps),
        "smallest_step_ns": min((gap for gap in gaps if gap > 0), default=None),
        "trials": [_trial(accelerator, lambda: products(count)) for _ in range(_TRIALS)],
    }


def _trial(accelerator: Accelerator, products: Callable[[], None]) -> dict[str, float]:
    raw = getattr(time, "CLOCK_MONOTONIC_RAW", None)
    raw_began = time.clock_gettime(raw) if raw is not None else 0.0
    began = time.perf_counter()
    start = accelerator.record(timed=True)
    products()
    end = accelerator.record(timed=True)
    accelerator.wait(end)
    trial = {"host_s": time.perf_counter() - began}
    if raw is not None:
        trial["raw_s"] = time.clock_gettime(raw) - raw_began
    if accelerator.is_asynchronous:
        trial["events_s"] = accelerator.seconds(start, end)
    return trial


def _profile(torch: Any, accelerator: Accelerator, folder: Path) -> dict[str, Any]:
    host = torch.profiler.ProfilerActivity.CPU
    kinds = [host]
    if accelerator.device != "cpu":
        kinds += [kind for kind in torch.profiler.supported_activities() if kind != host]
    operands = prepare(torch, accelerator)
    with torch.profiler.profile(activities=kinds, with_flops=True, record_shapes=True) as profiler:
        work(torch, accelerator, operands, torch.profiler.record_function)
    profiler.export_chrome_trace(str(folder / TRACE))
    # A kernel may have the name of its operator: those of the host are meant.
    rows = profiler.key_averages()
    totals = {row.key: row for row in rows if row.device_type == torch.autograd.DeviceType.CPU}
    product = totals.get("aten::mm")
    return {
        "operators": {name: int(totals[name].count) for name in EXPECTED_OPERATORS if name in totals},
        "product_flops": float(product.flops) if product is not None else None,
        "activities": sorted(kind.name for kind in kinds),
    }


def _memory(torch: Any, accelerator: Accelerator) -> dict[str, Any]:
    def used() -> float | None:
        if accelerator.device == "cpu":
            return _resident_bytes()
        free = accelerator.free_bytes()
        return None if free is None else -float(free)  # only differences are looked at

    before = used()
    block = torch.ones(_BLOCK_BYTES // 4, device=accelerator.device)
    accelerator.synchronize()
    held = used()
    del block
    accelerator.synchronize()
    accelerator.empty_cache()
    return {"block_bytes": _BLOCK_BYTES, "before_bytes": before, "held_bytes": held, "after_bytes": used()}


def _resident_bytes() -> float | None:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def _telemetry(torch: Any, accelerator: Accelerator) -> dict[str, Any]:
    from llm_perf_opt.hardware.sensors.sampler import MonitoredDevice, find_sensor

    device = accelerator.device
    seen = device_properties(device) if device != "cpu" else None
    names = (seen.uuid, seen.bus_id) if seen is not None else (None, None)
    sensor = find_sensor(MonitoredDevice(device, *names, rocm=is_rocm()))
    if isinstance(sensor, str):
        return {"refused": sensor}
    try:
        first = sensor.read()
        began = time.perf_counter()
        a = torch.ones(1024, 1024, device=device)
        while time.perf_counter() - began < _WATCHED_S:
            torch.mm(a, a)
            accelerator.synchronize()
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
    """Run the command in the first argument."""
    import torch

    mode, device, *rest = argv
    if mode == "engine":
        for part in _run_engine_modes(device, rest):
            print(json.dumps(part), flush=True)
        return 0
    if mode == "collective":
        print(json.dumps(_add_ranks(torch, device)), flush=True)
        return 0
    accelerator = open_accelerator(device)
    accelerator.use()
    with torch.inference_mode():
        if mode in ("work", "graph", "profiled"):
            from llm_perf_opt.workloads.engine import nvtx

            operands = prepare(torch, accelerator)
            if mode == "graph":
                replay(torch, accelerator, operands)
            else:
                if mode == "profiled":
                    work(torch, accelerator, operands, nvtx.stage)
                with nvtx.profiler_range():  # does nothing unless the environment asks for it
                    work(torch, accelerator, operands, nvtx.stage)
            print(json.dumps({"part": "work", "tool_attached": nvtx.is_attached()}), flush=True)
        else:
            for part in look(torch, accelerator, Path(rest[0])):
                print(json.dumps(part), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
