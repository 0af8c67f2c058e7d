"""What the engine's timing, ranges and bookkeeping cost over a bare decode loop. Ratio of both in one run.

    python benchmarks/engine_overhead.py [--rounds 40] [--tokens 32]

The two loops call the same decode step on the same inputs, in turns, on one thread. Both are timed in CPU seconds of
that thread, so that other programs on the machine do not count; the engine reads the same clock at each of its marks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from llm_perf_opt.config.schema import CacheKind, DatasetConfig, InferConfig, ModelConfig
from llm_perf_opt.workloads.base import Batch, Sample, WorkloadConfig
from llm_perf_opt.workloads.engine import Engine

LIMIT = 0.02


class ThreadClock:
    """The engine's clock, in CPU seconds of this thread."""

    def mark(self) -> float:
        return time.thread_time()

    def synchronize(self) -> None:
        """Nothing is pending on a CPU."""

    def seconds(self, start: float, end: float) -> float:
        return end - start


def bare_loop(engine: Engine, batch: Batch, tokens: int) -> tuple[float, list[int]]:
    """Prefill, then argmax and the next step, and nothing else."""
    adapter: Any = engine.adapter
    with torch.no_grad():
        cache = adapter.make_cache(engine.model, batch, tokens)
        token = adapter.prefill(engine.model, batch, None, cache).argmax(-1, keepdim=True)
        ids = [token]
        started = time.thread_time()
        for step in range(tokens - 1):
            token = adapter.decode_step(engine.model, batch, token, step, cache).argmax(-1, keepdim=True)
            ids.append(token)
        seconds = time.thread_time() - started
    return seconds, torch.cat(ids, dim=1)[0].tolist()


def engine_loop(engine: Engine, batch: Batch) -> tuple[float, list[int]]:
    """The engine's own pass; its decode time includes its marks and ranges."""
    done = engine.run_prepared(batch)
    if done.timings.decode_s is None:
        raise SystemExit("the engine did not decode")
    return done.timings.decode_s, done.token_ids[0]


def measure(preset: str, cache: CacheKind, rounds: int, tokens: int) -> float:
    """Print one row; return the overhead as a share of decode time."""
    model = ModelConfig(adapter="hf_causal_lm", name=preset, config_name=preset, cache=cache)
    infer = InferConfig(max_new_tokens=tokens, warmup_rounds=0)
    engine = Engine(WorkloadConfig(model, infer, DatasetConfig(), "cpu", 1, tokens))
    engine.clock = ThreadClock()
    batch = engine.prepare([Sample("x", synthetic_tokens=128)])
    bare: list[float] = []
    ours: list[float] = []
    for number in range(rounds + 1):
        # The order alternates, or the second of the two would always find warmer caches.
        order = ("bare", "ours") if number % 2 else ("ours", "bare")
        taken = {}
        for which in order:
            taken[which] = bare_loop(engine, batch, tokens) if which == "bare" else engine_loop(engine, batch)
        if taken["bare"][1] != taken["ours"][1]:
            raise SystemExit("the two loops gave different tokens")
        if number:  # the first round warms up
            bare.append(taken["bare"][0])
            ours.append(taken["ours"][0])
    overhead = statistics.median(ours) / statistics.median(bare) - 1
    steps = tokens - 1
    print(
        f"{preset:14} {cache.value:8} bare {statistics.median(bare) / steps * 1e3:6.3f} ms/token"
        f"   engine {statistics.median(ours) / steps * 1e3:6.3f} ms/token   overhead {overhead:+.2%}"
        f"   fastest {min(ours) / min(bare) - 1:+.2%}"
    )
    return overhead


def own_cost(rounds: int, tokens: int) -> float:
    """CPU seconds per token that the engine adds when the model's step takes no time at all."""
    model = ModelConfig(adapter="hf_causal_lm", config_name="llama_tiny", arch={"num_hidden_layers": 1})
    engine = Engine(
        WorkloadConfig(model, InferConfig(max_new_tokens=tokens), DatasetConfig(), "cpu", 1, tokens)
    )
    engine.clock = ThreadClock()
    batch = engine.prepare([Sample("x", synthetic_tokens=16)])
    logits = torch.randn(1, 4096)
    adapter: Any = engine.adapter
    adapter.decode_step = lambda *_: logits
    pairs = [(engine_loop(engine, batch)[0], bare_loop(engine, batch, tokens)[0]) for _ in range(rounds)]
    return statistics.median(a - b for a, b in pairs) / (tokens - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"engine's own cost: {own_cost(options.rounds, 256) * 1e6:.1f} µs of CPU per token")
    worst = max(
        measure(preset, cache, options.rounds, options.tokens)
        for preset in ("llama_tiny", "qwen_moe_tiny")
        for cache in (CacheKind.dynamic, CacheKind.static)
    )
    print(f"worst {worst:+.2%}, limit {LIMIT:.0%}: {'ok' if worst < LIMIT else 'too slow'}")


if __name__ == "__main__":
    main()
