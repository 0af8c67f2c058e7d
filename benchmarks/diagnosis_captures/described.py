"""Captures written by hand from descriptions: what must be concluded, in which order, and where to abstain.

The simulated machine of this folder makes steady states. These are the other classes: one-off costs, too little data, a queue
held by earlier work, a saturated device, one synchronisation that is no habit, several captures of unlike jobs. Each case says
in plain terms what a careful reader of the trace would conclude; none was derived from the rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000, "numSms": 108}


@dataclass(frozen=True, slots=True)
class Described:
    """One class of captures and what to conclude."""

    name: str
    files: Callable[[], list[tuple[str, dict[str, Any]]]]
    """Names and contents of the traces."""
    bounds: frozenset[str] = frozenset()
    """Verdicts on the whole capture that are right; empty: refused with an error."""
    order: tuple[str, ...] = ()
    """Findings that must come first, in this order; ``a|b``: either."""
    absent: frozenset[str] = frozenset()
    """Findings that would be wrong."""
    most_gain_s: float | None = None
    """No finding may claim more than this."""


@dataclass(slots=True)
class Trace:
    """Builds a trace of one thread and one device."""

    events: list[Event] = field(default_factory=list)
    calls: int = 0

    def span(self, cat: str, name: str, start: float, length: float, **args: Any) -> None:
        device = cat in ("kernel", "gpu_memcpy")
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 0 if device else 10, "tid": 7 if device else 11, "ts": start, "dur": length,
             "args": args}
        )  # fmt: skip

    def launch(
        self,
        kernel: str,
        call_at: float,
        call: float,
        at: float,
        length: float,
        *,
        traced: bool = True,
        stream: int = 7,
    ) -> None:
        """One launching call and its kernel; ``traced=False``: the call lies before the capture."""
        self.calls += 1
        if traced:
            self.span("cuda_runtime", "cudaLaunchKernel", call_at, call, correlation=self.calls)
        args = {"correlation": self.calls} if traced else {}
        self.span("kernel", kernel, at, length, device=0, stream=stream, **args)

    def document(self, **more: Any) -> dict[str, Any]:
        return {"schemaVersion": 1, "deviceProperties": [A100], **more, "traceEvents": self.events}


def _first_uses() -> list[tuple[str, dict[str, Any]]]:
    """Twenty kernels, each 30 ms to load at its first launch, then ten quick rounds of all of them."""
    trace, at = Trace(), 0.0
    for round_ in range(11):
        for number in range(20):
            call = 30_000.0 if round_ == 0 else 6.0
            trace.launch(f"kernel_{number}", at, call, at + call, 20.0)
            at += call + 20.0
    return [("first_uses.json", trace.document())]


def _warm_up() -> list[tuple[str, dict[str, Any]]]:
    """A range named warmup of two seconds with allocations and slow calls; then a measured part that keeps the device busy."""
    trace, at = Trace(), 0.0
    for number in range(30):
        trace.span(
            "cuda_runtime",
            "cudaMalloc" if number % 2 else "cudaFree",
            at,
            50_000.0,
            correlation=9_000 + number,
        )
        trace.launch("gemm_kernel", at + 50_000.0, 8.0, at + 50_010.0, 50.0)
        at += 66_000.0
    trace.span("user_annotation", "warmup", 0.0, at)
    for _ in range(300):
        trace.launch("gemm_kernel", at, 8.0, at + 10.0, 100.0)
        at += 110.0
    return [("warm_up.json", trace.document())]


def _two_kernels() -> list[tuple[str, dict[str, Any]]]:
    trace = Trace()
    trace.launch("a", 0.0, 10.0, 10.0, 5.0)
    trace.launch("b", 9_000.0, 900.0, 10_000.0, 5.0)
    return [("two_kernels.json", trace.document())]


def _queue_before() -> list[tuple[str, dict[str, Any]]]:
    """Ten gaps of 20 ms between kernels whose launch lies before the capture, while the host sits in one long copy call."""
    trace, at = Trace(), 0.0
    for group in range(10):
        at += 20_000.0 if group else 0.0
        for _ in range(30):
            trace.launch("graph_kernel", 0.0, 0.0, at, 100.0, traced=False)
            at += 101.0
    trace.span("cuda_runtime", "cudaMemcpyAsync", 100.0, at, correlation=900_000)
    for _ in range(40):
        trace.launch("graph_kernel", at + 200.0, 8.0, at + 210.0, 100.0)
        at += 120.0
    return [("queue_before.json", trace.document())]


def _saturated() -> list[tuple[str, dict[str, Any]]]:
    """A device that never idles: three products of the same kind, one of which runs at half the rate of the others."""
    trace, at = Trace(), 1_000.0
    shapes = (
        ([8192, 4096], [4096, 24576], 120.0),
        ([8192, 12288], [12288, 4096], 240.0),
        ([8192, 4096], [4096, 6144], 230.0),
    )
    host = 0.0
    for _ in range(40):
        for number, (left, right, tflops) in enumerate(shapes):
            length = 2 * left[0] * left[1] * right[1] / tflops / 1e6
            dims = {
                "Input Dims": [left, right],
                "Input type": ["c10::BFloat16", "c10::BFloat16"],
                "Concrete Inputs": ["", ""],
            }
            trace.span("cpu_op", "aten::mm", host, 8.0, **{"External id": trace.calls + 1}, **dims)
            trace.launch(
                f"ampere_bf16_s16816gemm_bf16_128x{64 * (number + 1)}_ldg8_f2f_stages_64x3_nn",
                host + 2,
                4.0,
                at,
                length,
            )
            host, at = host + 10.0, at + length + 1.0
    return [("saturated.json", trace.document(record_shapes=1))]


def _one_sync() -> list[tuple[str, dict[str, Any]]]:
    """A step that begins with one synchronisation and then feeds a busy device."""
    trace = Trace()
    trace.launch("before", 0.0, 5.0, 10.0, 3_000.0)
    trace.span("cuda_runtime", "cudaDeviceSynchronize", 20.0, 3_000.0, correlation=900_000)
    host, at = 3_600.0, 3_700.0
    for _ in range(400):
        trace.launch("gemm_kernel", host, 6.0, max(at, host + 8.0), 20.0)
        host, at = host + 15.0, max(at, host + 8.0) + 20.5
    return [("one_sync.json", trace.document())]


def _unlike_jobs() -> list[tuple[str, dict[str, Any]]]:
    """Two captures without ranks: nobody can say that they belong together."""
    return [(f"{name}.json", _two_kernels()[0][1]) for name in ("monday", "tuesday")]


def _different_worlds() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for rank, size in ((0, 8), (1, 2)):
        document = _first_uses()[0][1]
        found.append(
            (f"rank{rank}.json", {**document, "distributedInfo": {"rank": rank, "world_size": size}})
        )
    return found


def _compiled_again() -> list[tuple[str, dict[str, Any]]]:
    """A compiled function whose input size changes every tenth step: the host compiles it for 40 ms, the device waits each time."""
    trace, at = Trace(), 0.0
    for step in range(50):
        version = step // 10
        if step and step % 10 == 0:
            trace.span("cpu_op", "entire_frame_compile", at, 40_000.0)
            trace.span("cpu_op", "backend_compile (dynamo_timed)", at + 5, 39_990.0)
            trace.span(
                "user_annotation",
                f"entire_frame_compile_data: fn_name=f, compile_id=0/{version}",
                at + 2,
                1.0,
            )
            at += 40_000.0
        trace.span("cpu_op", f"Torch-Compiled Region: 0/{version}", at, 300.0)
        for number in range(10):
            trace.launch(f"triton_poi_fused_{number}", at + number * 5, 4.0, at + 10 + number * 30, 29.0)
        at += 310.0
    return [("compiled_again.json", trace.document())]


def _busy_graphs() -> list[tuple[str, dict[str, Any]]]:
    """A decode step replayed as graphs: the device never idles, expert kernels are most of it, nothing else is known of them."""
    trace, at = Trace(), 1_000.0
    for step in range(40):
        trace.calls += 1
        trace.span("cuda_runtime", "cudaGraphLaunch", step * 20.0, 15.0, correlation=trace.calls)
        for number in range(20):
            name = (
                "fused_moe_kernel"
                if number % 2
                else "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x5_tn"
            )
            length = 80.0 if number % 2 else 20.0
            trace.span("kernel", name, at, length, device=0, stream=7, correlation=trace.calls)
            at += length + 0.5
    return [("busy_graphs.json", trace.document())]


def _one_gap() -> list[tuple[str, dict[str, Any]]]:
    """A busy device, and one pause of the program of 200 ms in the middle: something happened once."""
    trace, at = Trace(), 0.0
    for number in range(600):
        at += 200_000.0 if number == 300 else 0.0
        trace.launch("gemm_kernel", at, 5.0, at + 6.0, 200.0)
        at += 201.0
    return [("one_gap.json", trace.document())]


LAUNCHING = frozenset({"launch-bound", "host-idle", "allocation", "host-sync"})
CASES: Sequence[Described] = (
    Described("first-uses", _first_uses, frozenset({"one-off"}), ("one-off-costs",), LAUNCHING, 0.01),
    Described("warm-up-range", _warm_up, frozenset({"one-off"}), ("one-off-costs",), LAUNCHING, 0.05),
    Described("two-kernels", _two_kernels, frozenset({"unknown"}), (), LAUNCHING, 0.0),
    Described("queue-before-capture", _queue_before, frozenset({"queue"}), ("queued-work",), LAUNCHING),
    Described(
        "saturated-device", _saturated, frozenset({"compute"}), ("slow-kernels|far-from-measured",), LAUNCHING
    ),
    Described("one-synchronisation", _one_sync, frozenset({"unknown", "compute", "memory"}), (), LAUNCHING),
    Described(
        "compiled-in-the-steady-state",
        _compiled_again,
        frozenset({"host"}),
        ("host-idle", "recompilation"),
        frozenset({"one-off-costs"}),
        0.18,
    ),
    Described(
        "busy-graphs",
        _busy_graphs,
        frozenset({"unknown", "compute", "memory"}),
        ("dominant-kernels",),
        LAUNCHING,
        0.0,
    ),
    Described("one-pause", _one_gap, frozenset({"host", "unknown", "one-off"}), (), frozenset(), 0.02),
    Described("captures-without-ranks", _unlike_jobs),
    Described("ranks-of-two-jobs", _different_worlds),
)


def write_described(case: Described, folder: Path) -> list[Path]:
    """Write the traces of a case."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, document in case.files():
        paths.append(folder / name)
        paths[-1].write_text(json.dumps(document), encoding="utf-8")
    return paths


def judge_described(case: Described, code: int, summary: dict[str, Any] | None) -> list[str]:
    """Return what is wrong with a conclusion; nothing where it is right."""
    if not case.bounds:
        return [] if code else ["joined, and should have been refused"]
    if summary is None:
        return [f"exit code {code}"]
    wrong = []
    bound = summary["verdicts"].get("all", {}).get("bound", "none")
    ids = [one["id"] for one in summary["findings"]]
    if bound not in case.bounds:
        wrong.append(f"verdict {bound}, not {' or '.join(sorted(case.bounds))}")
    if len(ids) < len(case.order) or any(
        one not in wanted.split("|") for one, wanted in zip(ids, case.order, strict=False)
    ):
        wrong.append(f"first {', '.join(ids[:3]) or 'nothing'}, not {', '.join(case.order)}")
    wrong += [f"false claim {one}" for one in ids[:3] if one in case.absent]
    gains = [one["gain_upper_s"] for one in summary["findings"] if one["gain_upper_s"] is not None]
    if case.most_gain_s is not None and any(gain > case.most_gain_s for gain in gains):
        wrong.append(f"claims a gain of {max(gains) * 1e3:.1f} ms")
    if case.name == "two-kernels" and any(one["confidence"] == "high" for one in summary["findings"]):
        wrong.append("high confidence from two kernels")
    return wrong
