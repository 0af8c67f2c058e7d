"""Measure this machine: large matrix products, streaming memory, and what an operator costs by itself. Runs as a program of its own.

``python -m llm_perf_opt.hardware.probe_worker cpu THREADS DTYPE…`` prints one JSON object per line as each
result is in, so that a processor that kills the process on an instruction it announced but does not have
(seen with bfloat16 on virtual machines) loses only what came after.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llm_perf_opt.hardware.accelerator import Accelerator, device_properties, open_accelerator
from llm_perf_opt.hardware.contention import DeviceLoads, other_load_ratio, processor_time, read_device_loads

_LEAST_S = 0.04
"""Measuring time of one call, after warm-up, on a machine that nothing disturbs."""
_MOST_S = 0.5
"""The same where no time is reached twice: other programs run, and an undisturbed moment must be waited for."""
_AGREEING = 3
_AGREEMENT_RATIO = 0.02
"""So many times this close to the best: the best is what the machine can do, not an accident."""
_CPU_SIDES = (512, 1024, 2048, 4096)
_GPU_SIDES = (2048, 4096, 8192, 16384)
_LONG_ENOUGH_S = 0.03
"""A product this long hides the cost of starting it."""
_LARGER_GAIN_RATIO = 0.02
"""A larger product that gains less than this ends the search."""
_MIN_STREAM_BYTES = 256 << 20
_MAX_STREAM_BYTES = 1 << 30
_PIECES = 8
_CALLS = 200
"""Operator calls that are timed together: one of them is hardly longer than reading the clock."""
_OTHERS = ("bandwidth", "operator")
"""What can be asked for besides data types."""
Timer = Callable[[Callable[[], object]], float]
"""Runs a call to its end on the device and returns its seconds."""


def host_timer(call: Callable[[], object]) -> float:
    """Time a call with the host clock."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def device_timer(accelerator: Accelerator) -> Timer:
    """Return a timer with device events, which excludes host work including launches."""

    def timer(call: Callable[[], object]) -> float:
        begin = accelerator.record(timed=True)
        call()
        end = accelerator.record(timed=True)
        accelerator.wait(end)
        return accelerator.seconds(begin, end)

    return timer


def best_time(
    call: Callable[[], object],
    timer: Timer,
    *,
    least_s: float = _LEAST_S,
    most_s: float = _MOST_S,
) -> float:
    """Return the shortest time of ``call``: a ceiling is the undisturbed time.

    Ends after ``least_s`` once the shortest time was nearly reached several times, at the latest after ``most_s``.
    """
    timer(call)
    times: list[float] = []
    started = time.perf_counter()
    while True:
        times.append(timer(call))
        if len(times) < _AGREEING:
            continue
        passed, best = time.perf_counter() - started, min(times)
        agreeing = sum(taken <= best * (1 + _AGREEMENT_RATIO) for taken in times)
        if passed >= most_s or (passed >= least_s and agreeing >= _AGREEING):
            return best


def _gemm_flops_per_s(torch: Any, device: str, dtype: Any, timer: Timer) -> tuple[float, int]:
    """Return the best rate of square products and the side it was reached at."""
    best, best_side = 0.0, 0
    for side in _GPU_SIDES if device != "cpu" else _CPU_SIDES:
        a = torch.randn(side, side, device=device).to(dtype)
        b = torch.randn(side, side, device=device).to(dtype)
        out = torch.empty(side, side, device=device, dtype=dtype)

        def product(a: Any = a, b: Any = b, out: Any = out) -> object:
            return torch.mm(a, b, out=out)

        seconds = best_time(product, timer)
        rate = 2.0 * side**3 / seconds
        gained = rate > best * (1 + _LARGER_GAIN_RATIO)
        if rate > best:
            best, best_side = rate, side
        if seconds > _LONG_ENOUGH_S or not gained:
            break
    return best, best_side


def _stream_bytes_per_s(torch: Any, device: str, timer: Timer) -> tuple[float, str]:
    """Return the best of a copy, a sum and a matrix-vector product over more memory than any cache holds.

    Piece by piece, in turn: a short piece finds an undisturbed moment on a machine in use, and by the time its turn
    comes again the others have driven it out of the caches.
    """
    side = 4096
    source = torch.ones(stream_bytes(device) // 4 // side, side, device=device)
    target, vector = torch.empty_like(source), torch.ones(side, device=device)
    pieces = list(zip(source.chunk(_PIECES), target.chunk(_PIECES), strict=True))
    turns = itertools.cycle(pieces)
    size = float(pieces[0][0].numel() * 4)

    def copy() -> object:
        read, written = next(turns)
        return written.copy_(read)

    calls: dict[str, tuple[Callable[[], object], float]] = {
        "copy": (copy, 2 * size),
        "sum": (lambda: next(turns)[0].sum(), size),
        "matrix-vector product": (lambda: torch.mv(next(turns)[0], vector), size),
    }
    target.fill_(0.0)  # exclude the first touch of memory, which is work of the system
    rates = {name: moved / best_time(call, timer) for name, (call, moved) in calls.items()}
    fastest = max(rates, key=lambda name: rates[name])
    return rates[fastest], fastest


def operator_s(torch: Any) -> float:
    """Return what an operator on one element costs when Python calls it: dispatch, an allocation, no work."""
    one = torch.ones(1)

    def calls() -> None:
        for _ in range(_CALLS):
            torch.add(one, one)

    return best_time(calls, host_timer) / _CALLS


def stream_bytes(device: str, caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return a buffer size well above the last cache, within reason."""
    if device != "cpu":
        return _MAX_STREAM_BYTES
    largest = 0
    for path in caches.glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        if text.endswith("K") and text[:-1].isdigit():
            largest = max(largest, int(text[:-1]) << 10)
    return min(max(_MIN_STREAM_BYTES, 4 * largest), _MAX_STREAM_BYTES)


def _device_load(device: str, loads: DeviceLoads) -> Iterator[dict[str, object]]:
    """Return the load by other programs before this one uses the device, if the driver reports it."""
    load = loads.of(device_properties(device))
    if load is not None and load.busy_ratio is not None:
        yield {"kind": "load", "other_load_ratio": load.busy_ratio}
    if load is not None and load.programs:
        yield {"kind": "others", "programs": load.programs}


def measure(device: str, threads: int, dtypes: list[str]) -> Iterator[dict[str, object]]:
    """Yield one result at a time; in the order of the requested types."""
    # Before torch is imported: its own context and work would be included.
    loads = read_device_loads() if device != "cpu" else None
    import torch

    if threads > 0:
        torch.set_num_threads(threads)
    yield {"kind": "start", "threads": torch.get_num_threads(), "torch": str(torch.__version__)}

    accelerator = open_accelerator(device)
    accelerator.use()
    timer = device_timer(accelerator)
    if loads is not None:
        yield from _device_load(device, loads)
    before = processor_time() if device == "cpu" else None

    def load() -> Iterator[dict[str, object]]:
        ratio = other_load_ratio(before, processor_time())
        if ratio is not None:
            yield {"kind": "load", "other_load_ratio": ratio}

    with torch.inference_mode():
        if "operator" in dtypes:
            yield {
                "kind": "operator",
                "seconds": operator_s(torch),
                "how": f"addition of one element, {_CALLS} in a row",
            }
        if "bandwidth" in dtypes:
            rate, how = _stream_bytes_per_s(torch, device, timer)
            yield {"kind": "bandwidth", "bytes_per_s": rate, "how": how}
            yield from load()
        for name in dtypes:
            if name in _OTHERS:
                continue
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            kind = torch.float32 if name == "tf32" else getattr(torch, name)
            rate, side = _gemm_flops_per_s(torch, device, kind, timer)
            yield {"kind": "gemm", "dtype": name, "flops_per_s": rate, "side": side}
            yield from load()


def main(argv: list[str]) -> int:
    """Print results as they arrive."""
    device, threads, *dtypes = argv
    for result in measure(device, int(threads), dtypes):
        print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
