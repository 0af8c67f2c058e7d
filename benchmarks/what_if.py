"""How long one more device costs in the what-if table. Run: ``python benchmarks/what_if.py``.

With the extra ``silicon`` also: the first use of a device (at most 2 s), expected times of 20 devices × 4 batch sizes × 3
contexts in a process of their own (at most 5 s), and their memory (at most 500 MB).
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from dataclasses import replace

from llm_perf_opt.analysis.roofline.demand import Point, own_point
from llm_perf_opt.analysis.roofline.expected_times import tables_of
from llm_perf_opt.analysis.roofline.launches import started_by
from llm_perf_opt.analysis.roofline.what_if import price, what_if
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.hardware.silicon import Gemm, open_silicon
from llm_perf_opt.summary import (
    AttentionPart,
    Coverage,
    ExpertPart,
    KvPart,
    Params,
    Scaling,
    Static,
    StaticPhase,
)
from llm_perf_opt.summary.static import AttentionShape, ExpertShape, OperatorShapes, ProductShape, SmallShape

ROUNDS = 200
FIRST_USE_S, TABLE_S, MEMORY_MB = 2.0, 5.0, 500.0


def deepseek_ocr() -> Static:
    """The 3B decoder of DeepSeek-OCR at 913 prompt positions, in closed form."""
    body = 2 * (12 * 4 * 1280**2 + 3 * 1280 * 6848 + 11 * 8 * 3 * 1280 * 896 + 11 * 64 * 1280)
    head, tokens, context = 2 * 1280 * 129280, 913, 945
    prefill_attention, decode_attention = 4 * tokens**2 * 1280 * 12, 4 * (context + 1) * 1280 * 12
    return Static(
        params=Params(3_336_106_240, 574_095_360, {}),
        kv_bytes_per_token=61440.0,
        phases={
            "vision": StaticPhase(3.468866060288e12, 802_739_200.0, None, 0.0, None),
            "prefill": StaticPhase(
                body * tokens + prefill_attention + head, 5.87e9, None, 61440.0 * tokens, None, tokens
            ),
            "decode": StaticPhase(
                body + decode_attention + head, 1.148e9, None, 61440.0 * (context + 1), None, 1
            ),
        },
        modules=[],
        coverage=Coverage(1.0, []),
        conventions={},
        scaling=Scaling(
            1,
            tokens,
            context,
            2.0,
            [AttentionPart("prefill", prefill_attention), AttentionPart("decode", decode_attention)],
            {"prefill": head, "decode": head},
            [ExpertPart(4_844_421_120.0, 64, 6)],
            [KvPart(12, 5120.0)],
        ),
    )


def shapes_of(static: Static) -> Static:
    """Give a model the operators of Qwen3-30B-A3B by shape: what expected times are added up from."""
    products, attention, experts, small = [], [], [], []
    for phase, rows in (("prefill", 913), ("decode", 1)):
        for name, outputs, inputs in (
            ("q_proj", 4096, 2048),
            ("k_proj", 512, 2048),
            ("v_proj", 512, 2048),
            ("o_proj", 2048, 4096),
        ):
            products.append(
                ProductShape(phase, f"model.layers.*.self_attn.{name}", 48, rows, outputs, inputs)
            )
        products.append(ProductShape(phase, "lm_head", 1, 1, 151936, 2048, "sequences"))
        attention.append(AttentionShape(phase, "model.layers.*.self_attn", 48, rows, 913, 32, 4, 128))
        experts.append(ExpertShape(phase, "model.layers.*.mlp.experts", 48, rows, 2048, 768, 128, 8))
        small.append(SmallShape(phase, "model.layers.*.input_layernorm", 96, rows * 4096))
    return replace(static, operators=OperatorShapes(1, 913, 945, 2048, products, attention, experts, small))


def expected_times() -> None:
    """The limits of the issue, in this process: nothing was read before."""
    begin = time.perf_counter()
    catalogue = load_catalogue()
    silicon = open_silicon(catalogue)
    if silicon is None:
        print("expected times: the extra silicon is not installed")
        return
    silicon.time(Gemm(1, 4096, 4096), "NVIDIA H100 SXM5 80GB", framework="vllm")
    first = time.perf_counter() - begin
    static, tables = shapes_of(deepseek_ocr()), tables_of(silicon)
    assert tables is not None
    known = [device for device in catalogue.devices if "bfloat16" in device.peaks]
    devices = sorted(known, key=lambda device: not tables.knows(device.name))[:20]
    points = [
        Point("bfloat16", batch, length, length) for batch in (1, 8, 32, 128) for length in (512, 4096, 16384)
    ]
    begin = time.perf_counter()
    rows = price(static, devices, points, started=started_by(static), tables=tables)
    whole = time.perf_counter() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    measured = sum(tables.knows(device.name) for device in devices)
    print(f"first use of a device: {first:.2f} s (at most {FIRST_USE_S:g})")
    print(
        f"expected times: {len(rows)} rows, {measured} of {len(devices)} devices with tables, {whole:.2f} s (at most {TABLE_S:g})"
    )
    print(f"memory of the process: {memory:.0f} MB (at most {MEMORY_MB:g})")
    if first > FIRST_USE_S or whole > TABLE_S or memory > MEMORY_MB:
        sys.exit("a limit was missed")


def best_seconds(call: object, rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()  # type: ignore[operator]
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    expected_times()
    begin = time.perf_counter()
    catalogue = load_catalogue()
    loading = time.perf_counter() - begin
    static = deepseek_ocr()
    point = own_point(static, "bfloat16")
    assert point is not None
    one = best_seconds(lambda: price(static, catalogue.devices[:1], [point]))
    every = best_seconds(lambda: price(static, catalogue.devices, [point]))
    table = what_if(static, catalogue, dtype="bfloat16")
    whole = best_seconds(lambda: what_if(static, catalogue, dtype="bfloat16"))
    each = (every - one) / (len(catalogue.devices) - 1)
    print(f"catalogue: {len(catalogue.devices)} devices read in {loading * 1e3:.1f} ms, once")
    print(f"one more device: {each * 1e6:.1f} µs (median of {ROUNDS})")
    print(f"whole default table: {len(table)} rows in {whole * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
