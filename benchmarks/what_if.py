"""How long one more device costs in the what-if table. Run: ``python benchmarks/what_if.py``."""

from __future__ import annotations

import statistics
import time

from llm_perf_opt.analysis.roofline.demand import own_point
from llm_perf_opt.analysis.roofline.what_if import price, what_if
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.model.summary import (
    AttentionPart,
    Coverage,
    ExpertPart,
    KvPart,
    Params,
    Scaling,
    Static,
    StaticPhase,
)

ROUNDS = 200


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


def best_seconds(call: object, rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()  # type: ignore[operator]
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
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
