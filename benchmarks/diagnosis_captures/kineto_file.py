"""Write a rank as torch 2.x's profiler does: one Chrome trace per rank."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .events import AUTOGRAD_THREAD, DeviceEvent, HostEvent, RankEvents
from .gpus import A100, H100, MI300X

BASE_NS = 1_790_857_026_000_000_000
SHIFT_NS = 3_910_892_163_000_000
"""Times are written relative to ``baseTimeNanoseconds``; a process has been running for a while."""
PROPERTIES = {gpu.name: gpu.properties for gpu in (H100, A100, MI300X)}
CATEGORIES = {"op": "cpu_op", "range": "user_annotation", "frame": "python_function", "call": "cuda_runtime"}
CALL_IDS = {
    "cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cudaMemcpyAsync": 41, "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165, "cudaMalloc": 20, "cudaFree": 22, "cudaGraphLaunch": 311, "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147, "cuLaunchKernel": 307,
}  # fmt: skip


def write_kineto(path: Path, rank: RankEvents) -> Path:
    """Write one rank's trace, compressed where the name ends in ``.gz``."""
    lines = ",\n".join("  " + json.dumps(event) for event in _events(rank))
    head = json.dumps(_header(rank), indent=2)[:-2]
    text = f'{head},\n  "traceEvents": [\n{lines}\n  ],\n  "traceName": "{path.name}"\n}}\n'
    data = text.encode()
    path.write_bytes(gzip.compress(data, 4, mtime=0) if path.suffix == ".gz" else data)
    return path


def _header(rank: RankEvents) -> dict[str, Any]:
    amd = rank.gpu.startswith("AMD")
    versions = (
        {"roctracer_version": 4.1, "hip_runtime_version": 70253211, "hip_driver_version": 70253211}
        if amd
        else {"cupti_version": 26, "cuda_runtime_version": 12080, "cuda_driver_version": 12080}
    )
    header: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": number, "name": rank.gpu, **PROPERTIES[rank.gpu]} for number in range(max(rank.world, 1))
        ],
        **versions,
        "record_shapes": 1,
        "trace_id": "D74EA3FAC1814011AB8FC4FC00427B48",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }
    if rank.with_stack:
        header["with_stack"] = 1
    if rank.world > 1:
        group = {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "backend_config": "cuda:nccl",
            "pg_size": rank.world,
        }
        header["distributedInfo"] = {
            "backend": "nccl",
            "rank": rank.rank,
            "world_size": rank.world,
            "pg_count": 1,
            "pg_config": [group | {"ranks": list(range(rank.world))}],
            "nccl_version": "2.27.5",
        }
    return header


def _events(rank: RankEvents) -> Iterator[dict[str, Any]]:
    pid = 25_286 + rank.rank
    us = _clock(rank)
    yield from _names(rank, pid, us)
    frames = [event for event in rank.host if event.kind == "frame"]
    parents = _parents(frames)
    frame_ids = {id(event): number for number, event in enumerate(frames, 1)}
    for index, event in enumerate(rank.host):
        yield _host(event, index, pid, us, parents.get(id(event)), frame_ids.get(id(event)))
        if (event.kind == "call" and "Launch" in event.name) or event.name.endswith("MemcpyAsync"):
            yield _flow("s", event.correlation, pid, _thread(pid, event.thread), us(event.start_ns))
    for device in rank.devices:
        yield _device(device, rank, us)
        yield _flow("f", device.correlation, rank.device, device.stream, us(device.start_ns)) | {"bp": "e"}
    yield from _device_ranges(rank, us)
    ends = [event.end_ns for event in rank.host] + [device.end_ns for device in rank.devices]
    end = max(ends)
    begin = min(event.start_ns for event in rank.host)
    yield {
        "ph": "X", "cat": "Trace", "ts": us(begin), "dur": (end - begin) / 1000, "pid": "Spans",
        "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", "args": {"Op count": 0},
    }  # fmt: skip
    yield {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": us(end)}


def _clock(rank: RankEvents) -> Any:
    shift = SHIFT_NS + rank.clock_offset_ns

    def us(nanoseconds: int) -> float:
        return (nanoseconds + shift) / 1000

    return us


def _thread(pid: int, thread: int) -> int:
    return pid + 97 * thread


def _names(rank: RankEvents, pid: int, us: Any) -> Iterator[dict[str, Any]]:
    first = us(rank.host[0].start_ns)
    labels = (("process_name", pid, 0, {"name": "python3"}), ("process_labels", pid, 0, {"labels": "CPU"}))
    device = (
        ("process_name", rank.device, 0, {"name": "python3"}),
        ("process_labels", rank.device, 0, {"labels": f"GPU {rank.device}"}),
    )
    threads = [
        ("thread_name", pid, _thread(pid, number), {"name": name})
        for number, name in ((0, f"thread {pid} (python3)"), (AUTOGRAD_THREAD, "thread (pt_autograd_0)"))
    ]
    for name, process, thread, args in (*labels, *device, *threads):
        yield {"name": name, "ph": "M", "ts": first, "pid": process, "tid": thread, "args": args}


def _host(
    event: HostEvent, index: int, pid: int, us: Any, parent: int | None, frame_id: int | None
) -> dict[str, Any]:
    args: dict[str, Any] = {}
    if event.kind == "frame":
        args = {"Python parent id": parent, "Python id": frame_id, "Ev Idx": index}
    elif event.kind == "call":
        known = {"External id": event.external} if event.external is not None else {}
        which = {"cid": 107} if event.name.startswith("hip") else {"cbid": CALL_IDS[event.name]}
        args = known | which | _correlated(event)
    else:
        args = {"External id": event.external, "Record function id": 0, **event.args, "Ev Idx": index}
    category = (
        "cuda_driver" if event.kind == "call" and event.name.startswith("cuL") else CATEGORIES[event.kind]
    )
    return {
        "ph": "X", "cat": category, "name": event.name, "pid": pid, "tid": _thread(pid, event.thread),
        "ts": us(event.start_ns), "dur": (event.end_ns - event.start_ns) / 1000, "args": args,
    }  # fmt: skip


def _device(event: DeviceEvent, rank: RankEvents, us: Any) -> dict[str, Any]:
    amd = rank.gpu.startswith("AMD")
    args: dict[str, Any] = {"device": rank.device, "stream": event.stream, **_correlated(event)}
    if not amd:
        args = {"External id": event.external, "queued": 0, **args, "context": 1}
    if event.kind == "kernel":
        args |= {"grid": list(event.grid), "block": list(event.block)}
        args |= {"kind": "Dispatch Kernel"} if amd else {"registers per thread": 96, "shared memory": 0}
        if event.graph_node is not None:
            args["graph node id"] = event.graph_node
    elif event.bytes is not None:
        rate = event.bytes / max(event.end_ns - event.start_ns, 1)
        args |= {"bytes": event.bytes, "memory bandwidth (GB/s)": rate}
    category = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}[event.kind]
    name = event.name.replace("Pageable", "Host").replace("Pinned", "Host") if amd else event.name
    return {
        "ph": "X", "cat": category, "name": name, "pid": rank.device, "tid": event.stream,
        "ts": us(event.start_ns), "dur": (event.end_ns - event.start_ns) / 1000, "args": args | event.args,
    }  # fmt: skip


def _correlated(event: HostEvent | DeviceEvent) -> dict[str, int]:
    """A damaged trace may lack the number."""
    return {} if event.correlation is None else {"correlation": event.correlation}


def _flow(phase: str, number: int | None, pid: int, tid: int, ts: float) -> dict[str, Any]:
    return {"ph": phase, "id": number, "pid": pid, "tid": tid, "ts": ts, "cat": "ac2g", "name": "ac2g"}


def _device_ranges(rank: RankEvents, us: Any) -> Iterator[dict[str, Any]]:
    """Torch draws every range once more, from the first to the last kernel it launched on a stream."""
    names = {event.external: event.name for event in rank.host if event.kind == "range"}
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for event in rank.devices:
        for external in event.ranges:
            key = (external, event.stream)
            start, end = spans.get(key, (event.start_ns, event.end_ns))
            spans[key] = (min(start, event.start_ns), max(end, event.end_ns))
    for (external, stream), (start, end) in spans.items():
        yield {
            "ph": "X", "cat": "gpu_user_annotation", "name": names[external], "pid": rank.device, "tid": stream,
            "ts": us(start), "dur": (end - start) / 1000, "args": {"External id": external},
        }  # fmt: skip


def _parents(frames: list[HostEvent]) -> dict[int, int | None]:
    """Frame → number of the frame around it; frames are in order of their start."""
    found: dict[int, int | None] = {}
    around: list[tuple[int, int, int]] = []  # end, thread, number
    for number, event in enumerate(frames, 1):
        around = [one for one in around if one[0] >= event.end_ns]
        same = [one for one in around if one[1] == event.thread]
        found[id(event)] = same[-1][2] if same else None
        around.append((event.end_ns, event.thread, number))
    return found
