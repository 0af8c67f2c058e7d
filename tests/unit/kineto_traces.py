"""Small Kineto traces with known answers, in every text layout real tools write."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

HOST, THREAD = 4242, 4242


def span(cat: str, name: str, start_us: float, dur_us: float, **more: Any) -> dict[str, Any]:
    """A complete event on the host thread."""
    args = more.pop("args", {})
    return {
        "ph": "X", "cat": cat, "name": name, "pid": HOST, "tid": THREAD, "ts": start_us, "dur": dur_us, **more, "args": args,
    }  # fmt: skip


def op(name: str, start_us: float, dur_us: float, external: int = -1, **more: Any) -> dict[str, Any]:
    return span(
        "cpu_op", name, start_us, dur_us, args={"External id": external} if external >= 0 else {}, **more
    )


def annotation(name: str, start_us: float, dur_us: float, **more: Any) -> dict[str, Any]:
    return span("user_annotation", name, start_us, dur_us, **more)


def call(name: str, start_us: float, dur_us: float, correlation: int, **more: Any) -> dict[str, Any]:
    return span("cuda_runtime", name, start_us, dur_us, args={"correlation": correlation}, **more)


def kernel(
    name: str, start_us: float, dur_us: float, correlation: int, external: int = -1, **more: Any
) -> dict[str, Any]:
    device, stream = more.pop("device", 0), more.pop("stream", 7)
    args = {"device": device, "stream": stream, "correlation": correlation, **more.pop("args", {})}
    if external >= 0:
        args["External id"] = external
    return span("kernel", name, start_us, dur_us, pid=device, tid=stream, args=args, **more)


def document(events: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"schemaVersion": 1, **more, "traceEvents": events}


def torch_layout(value: dict[str, Any]) -> str:
    """One field per line, the way torch itself writes."""
    head = json.dumps({key: item for key, item in value.items() if key != "traceEvents"})[1:-1]
    events = ",\n".join(
        "  " + json.dumps(event).replace('", "', '",\n    "') for event in value["traceEvents"]
    )
    return f'{{\n  {head},\n  "traceEvents": [\n{events}\n  ],\n  "traceName": "t.json"\n}}\n'


LAYOUTS = {
    "torch": torch_layout,
    "compact": lambda value: json.dumps(value, separators=(",", ":")),
    "default": json.dumps,
    "indented": lambda value: json.dumps(value, indent=2),
    "tabs": lambda value: json.dumps(value, indent="\t"),
}


def write(path: Path, value: Any, layout: str = "torch") -> Path:
    text = value if isinstance(value, str) else LAYOUTS[layout](value)
    data = text.encode("utf-8", errors="surrogateescape")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
