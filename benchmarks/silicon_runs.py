"""Expected times beside real runs: an H100 trace phase by phase and operator by operator, and a run on an RTX 5090.

Run: ``python -m benchmarks.silicon_runs DATA [--write]`` with the extra ``silicon``; DATA holds ``h100-torch-traces`` and
``rtx5090-deepseek-ocr`` (public captures, not part of the project). The RTX 5090 has no tables: it tests the roofline path.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.generated import DOCS, markdown_table, write_block
from llm_perf_opt.analysis.roofline.expected_calls import At, Call, Work, calls, unfused_elementwise_work
from llm_perf_opt.analysis.roofline.expected_times import PassTime, Target, eager_work_s, pass_time
from llm_perf_opt.analysis.roofline.launches import EAGER_LAUNCH_S, HOST_BOUND
from llm_perf_opt.analysis.targets import measured_operator
from llm_perf_opt.captures.kineto.calls import Signature
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.hardware.silicon import Attention, Gemm, Operator, Silicon, open_silicon
from llm_perf_opt.summary import Static

QWEN = {
    "model_type": "qwen2", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip


KINDS: dict[type, str] = {Gemm: "products", Attention: "attention"}
PAGES, TOKENS, LAUNCHES = 20, 64, 1_695_983
"""Of the run on the RTX 5090; launches include those of the first tokens."""


@dataclass(frozen=True, slots=True)
class Traced:
    """An operator of a trace and the time of its kernels."""

    operator: Operator | None
    seconds: float


def traced_operators(path: Path) -> Iterator[Traced]:
    """Every kernel with the innermost product or attention that started it; the tail of the step before is left out."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    started = {event["args"].get("External id") for event in events if event.get("cat") == "cpu_op"}
    shaped = {
        event["args"].get("External id"): found
        for event in events
        if event.get("cat") == "cpu_op" and (found := _operator(event)) is not None
    }
    for event in events:
        if event.get("cat") == "kernel" and event["args"].get("External id") in started:
            yield Traced(shaped.get(event["args"].get("External id")), event["dur"] * 1e-6)


def _operator(event: dict[str, Any]) -> Operator | None:
    inputs = [event["args"].get(name) or [] for name in ("Input Dims", "Input type", "Concrete Inputs")]
    dims, types, concrete = (tuple(one) for one in inputs)
    return measured_operator(Signature(event["name"], dims, types, concrete))


def counted(arch: dict[str, Any], positions: int) -> Static:
    import torch

    from llm_perf_opt.config.schema import InferConfig, ModelConfig
    from llm_perf_opt.workloads.counting.static_run import StaticCounter
    from llm_perf_opt.workloads.registry import load_adapter

    adapter = load_adapter(ModelConfig(adapter="hf_causal_lm", arch=arch), InferConfig())
    shapes = replace(adapter.default_shapes(), prompt_tokens=positions, context_tokens=positions)
    return StaticCounter(adapter, torch.bfloat16).document(shapes, decode_steps=2).static


def target_of(name: str) -> Target:
    device = load_catalogue().named(name)
    return Target(device.name, device.peaks, device.bandwidth_bytes_per_s, device.link_bytes_per_s)


def h100_rows(silicon: Silicon, trace: Path) -> list[list[str]]:
    """Products, attention and the rest of one pass of Qwen1.5-0.5B, 16 × 559 positions."""
    device = "NVIDIA H100 SXM5 80GB"
    measured: dict[str, float] = {}
    expected: dict[str, float] = {}
    target = target_of(device)
    for one in traced_operators(trace):
        timing = None if one.operator is None else silicon.time(one.operator, device)
        # What no table holds (a tiny product in float32) is the rest.
        name = KINDS[type(one.operator)] if timing is not None else "element-wise"
        measured[name] = measured.get(name, 0.0) + one.seconds
        if timing is not None:
            assert one.operator is not None
            timed = pass_time([Call(name, one.operator, 1)], target, silicon, silicon.framework)
            assert timed is not None
            expected[name] = expected.get(name, 0.0) + timed.seconds
    static = counted(QWEN, 559)
    assert static.operators is not None
    at = At(16, 559, 559)
    found = [call for call in calls(static.operators, "prefill", at) if "head" not in call.name]
    timed = pass_time(found, target, silicon, silicon.framework)
    assert timed is not None
    small = sum(p.seconds for p, c in zip(timed.parts, found, strict=True) if isinstance(c.operator, Work))
    rows = [
        _row(f"H100, {name}, shapes as traced", expected[name], measured[name])
        for name in ("products", "attention")
    ]
    eager = eager_work_s(timed, unfused_elementwise_work(static.operators, "prefill", at), target)
    assert eager is not None
    whole = math.fsum(measured.values())
    rows.append(
        _row(
            "H100, element-wise, one by one as traced",
            eager - timed.seconds + small,
            measured["element-wise"],
        )
    )
    rows.append(_row("H100, whole prefill, eager (kernels)", eager, whole))
    rows.append(_row("H100, whole prefill, fused (the trace is not)", timed.seconds, whole))
    return rows


def rtx5090_rows(silicon: Silicon) -> list[list[str]]:
    """DeepSeek-OCR, 913 positions, 6 tiles and the whole page, 64 tokens; means over 20 pages."""
    import torch

    from llm_perf_opt.config.schema import ImageMode, InferConfig, ModelConfig
    from llm_perf_opt.workloads.base import PhaseShapes
    from llm_perf_opt.workloads.counting.static_run import StaticCounter
    from llm_perf_opt.workloads.models.deepseek_ocr import DeepseekOcrAdapter

    adapter = DeepseekOcrAdapter(
        ModelConfig(name="DeepSeek-OCR"), InferConfig(mode=ImageMode.gundam, max_tiles=40)
    )
    grid = (2, 3)
    image = adapter.image_tokens(grid)
    vision = {**adapter.default_shapes().vision, "grid": list(grid), "grids": [list(grid)]}
    shapes = PhaseShapes(1, 913, image, 945, vision)
    static = StaticCounter(adapter, torch.bfloat16).document(shapes, decode_steps=64).static
    assert static.operators is not None
    at, target = At(1, 913, 945), target_of("NVIDIA GeForce RTX 5090")
    passes: dict[str, PassTime] = {}
    for phase in ("vision", "prefill", "decode"):
        timed = pass_time(calls(static.operators, phase, at), target, silicon, silicon.framework)
        assert timed is not None
        passes[phase] = timed
    operators = {name: static.phases[name].operators or 0 for name in passes}
    launched = {name: count * EAGER_LAUNCH_S for name, count in operators.items()}
    work = {
        name: eager_work_s(one, unfused_elementwise_work(static.operators, name, at), target) or 0.0
        for name, one in passes.items()
    }
    first = sum(max(work[n], launched[n]) for n in ("vision", "prefill"))
    captured = LAUNCHES / (PAGES * TOKENS) * EAGER_LAUNCH_S
    tpot = 707.379e-3 / TOKENS
    # As a report of this run would: its steps waited for the host, so they tell what an operator costs it.
    assert tpot >= HOST_BOUND * work["decode"]
    own = tpot / operators["decode"]
    first_own = sum(max(work[n], operators[n] * own) for n in ("vision", "prefill"))
    return [
        _row(
            "RTX 5090, work of a page, eager (kernels)",
            work["vision"] + work["prefill"] + TOKENS * work["decode"],
            4.946064742 / PAGES,
        ),
        _row("RTX 5090, TTFT, eager, a typical launch: lower bound (wall-clock)", first, 98.336e-3),
        _row("RTX 5090, TTFT, eager, host cost of the run's own steps (wall-clock)", first_own, 98.336e-3),
        _row(
            "RTX 5090, TPOT, eager, a typical launch: lower bound (wall-clock)",
            max(work["decode"], launched["decode"]),
            tpot,
        ),
        _row(
            "RTX 5090, TPOT, eager, launches as captured: lower bound (wall-clock)",
            max(work["decode"], captured),
            tpot,
        ),
        _row("RTX 5090, TPOT, as a graph (the run was not)", passes["decode"].seconds, tpot),
    ]


def _row(name: str, expected_s: float, measured_s: float) -> list[str]:
    apart = (expected_s / measured_s - 1) * 100
    return [name, f"{expected_s * 1e3:.3g} ms", f"{measured_s * 1e3:.3g} ms", f"{apart:+.0f} %"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/expected-times-accuracy.md"
    )
    options = parser.parse_args()
    silicon = open_silicon()
    if silicon is None:
        raise SystemExit("the extra is not installed: pip install 'llm-perf-opt[silicon]'")
    trace = options.data / "h100-torch-traces" / "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    rows = [*h100_rows(silicon, trace), *rtx5090_rows(silicon)]
    text = markdown_table(["phase", "expected", "measured", "difference"], rows)
    print(text)
    if options.write:
        write_block(DOCS / "expected-times-accuracy.md", "silicon_runs", text)


if __name__ == "__main__":
    main()
