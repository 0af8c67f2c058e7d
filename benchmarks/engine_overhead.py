"""What the engine's timing, ranges and bookkeeping cost over a bare decode loop. Ratio of both in one run.

    python benchmarks/engine_overhead.py [--rounds 40] [--tokens 32]

The two loops call the same decode step on the same inputs, in turns, on one thread. Both are timed in CPU seconds of
that thread, so that other programs on the machine do not count; the engine reads the same clock at each of its marks. The overhead is
the median of the ratios of pairs, with its confidence interval; ``own cost`` is what the engine adds to a step that
takes no time, as a share of the real step. The first row is the bare loop against itself: what noise alone gives.

Two rows say what is beside the loop. ``telemetry``: passes with and without the sampler, in CPU seconds of the whole process,
the sampler's thread included, and that thread's own share of the time it went on. ``verification``: whole runs with and without the check of the first tokens, by the decode
time they measured, which must not change, since the check comes after; and what the check costs once per run, as a share of
the shortest run that measures (a warm-up and four passes over two prompts).
The exit code is 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from llm_perf_opt.config.schema import CacheKind, DatasetConfig, InferConfig, ModelConfig
from llm_perf_opt.core.console.progress import LogProgress
from llm_perf_opt.hardware.sensors.sampler import MonitoredDevice, Sampler, find_sensor
from llm_perf_opt.workloads.base import LEAST_REPEATS, Batch, Sample, WorkloadConfig
from llm_perf_opt.workloads.engine.driver import run_workload
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.measure import EngineRun, check_tokens

LIMIT = 0.02
TELEMETRY_LIMIT = 0.01


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


@dataclass(frozen=True)
class Overhead:
    """Median of paired ratios minus one, and where it lies with 95 % confidence."""

    median: float
    low: float
    high: float
    own: float = 0.0
    """The engine's own cost as a share of the step."""

    @classmethod
    def of_pairs(cls, values: Sequence[float], own: float) -> Overhead:
        """Order statistics around the median: no assumption on how the noise is distributed."""
        ordered, count = sorted(values), len(values)
        reach = 0.98 * math.sqrt(count)
        low, high = max(0, round(count / 2 - reach) - 1), min(count - 1, round(count / 2 + reach))
        return cls(statistics.median(ordered), ordered[low], ordered[high], own)


def measure(
    preset: str, cache: CacheKind, rounds: int, tokens: int, own_s: float, *, against_itself: bool = False
) -> Overhead:
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
            bare_again = which == "bare" or against_itself
            taken[which] = bare_loop(engine, batch, tokens) if bare_again else engine_loop(engine, batch)
        if taken["bare"][1] != taken["ours"][1]:
            raise SystemExit("the two loops gave different tokens")
        if number:  # the first round warms up
            bare.append(taken["bare"][0])
            ours.append(taken["ours"][0])
    steps = tokens - 1
    step_s = statistics.median(bare) / steps
    found = Overhead.of_pairs([a / b - 1 for a, b in zip(ours, bare, strict=True)], own_s / step_s)
    print(
        f"{preset:14} {'noise' if against_itself else cache.value:8} bare {step_s * 1e3:6.3f} ms/token"
        f"   engine {statistics.median(ours) / steps * 1e3:6.3f} ms/token"
        f"   overhead {found.median:+.2%} (95 %: {found.low:+.2%} to {found.high:+.2%})   own cost {found.own:.2%}"
    )
    return found


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


def small_engine(tokens: int, repeats: int = 1) -> Engine:
    """The tiny text model with its default cache."""
    model = ModelConfig(adapter="hf_causal_lm", name="llama_tiny", config_name="llama_tiny")
    infer = InferConfig(max_new_tokens=tokens)
    return Engine(WorkloadConfig(model, infer, DatasetConfig(), "cpu", repeats, tokens))


def in_turns(rounds: int, run: Callable[[bool], float]) -> Overhead:
    """Run with and without something, in turns; return what it adds."""
    ratios = []
    for number in range(rounds + 1):
        order = (True, False) if number % 2 else (False, True)
        taken = {which: run(which) for which in order}
        if number:  # the first round warms up
            ratios.append(taken[True] / taken[False] - 1)
    return Overhead.of_pairs(ratios, 0.0)


def telemetry(rounds: int, tokens: int, interval_s: float = 0.1) -> Overhead | None:
    """What the sampler beside a pass adds to the process's CPU time; ``None``: this machine has nothing to sample."""
    sensor = find_sensor(MonitoredDevice("cpu"))
    if isinstance(sensor, str):
        print(f"telemetry      nothing to sample: {sensor}")
        return None
    engine = small_engine(tokens)
    batch = engine.prepare([Sample("x", synthetic_tokens=128)])
    costs, elapsed = [], []

    def passes(sampled: bool) -> float:
        sampler = Sampler(sensor, interval_s)
        started = time.process_time()
        if sampled:
            sampler.start()
        engine.run_prepared(batch)
        if sampled:
            seen = sampler.stop()
            costs.append(seen.cost_s)
            elapsed.append(seen.elapsed_s)
        return time.process_time() - started

    found = dataclasses.replace(in_turns(rounds, passes), own=sum(costs) / sum(elapsed))
    print(
        f"telemetry      CPU of a pass with the sampler every {interval_s:g} s {found.median:+.2%} (95 %: {found.low:+.2%} to "
        f"{found.high:+.2%})   own cost {found.own:.2%} of one processor"
    )
    return found


def verification(rounds: int, tokens: int) -> Overhead:
    """What checking the first tokens changes of the times measured, and what it costs once per run."""
    engine = small_engine(tokens, LEAST_REPEATS)
    engine.clock = ThreadClock()
    requests = [Sample("x", synthetic_tokens=128), Sample("y", synthetic_tokens=100)]
    costs, wholes = [], []

    def run(checked: bool) -> float:
        started = time.thread_time()
        done = EngineRun(engine, run_workload(engine.workload, requests, engine=engine))
        measured = time.thread_time()
        if checked:
            check_tokens(done, engine.workload, LogProgress())
            if done.result.tokens_verified is not True:
                raise SystemExit(f"not verified: {done.result.notes[-1]}")
            costs.append(time.thread_time() - measured)
            wholes.append(measured - started)
        return sum(each.decode_s or 0.0 for batch in done.result.batches for each in batch.repeats)

    found = in_turns(rounds, run)
    cost_s, whole_s = statistics.median(costs), statistics.median(wholes)
    print(
        f"verification   decode times of runs that check their tokens {found.median:+.2%} (95 %: {found.low:+.2%} to "
        f"{found.high:+.2%}); the check itself {cost_s * 1e3:.0f} ms of CPU once, {cost_s / whole_s:.1%} of the shortest run"
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(1)
    own_s = own_cost(40, 256)
    print(f"engine's own cost: {own_s * 1e6:.1f} µs of CPU per token")
    measure("llama_tiny", CacheKind.dynamic, options.rounds, options.tokens, own_s, against_itself=True)
    found = [
        measure(preset, cache, options.rounds, options.tokens, own_s)
        for preset in ("llama_tiny", "qwen_moe_tiny")
        for cache in (CacheKind.dynamic, CacheKind.static)
    ]
    # Noise of the machine may be larger than the limit (bare against bare tells): an interval above the limit is a
    # miss, one around it is none, and the engine's own cost decides.
    sampled = telemetry(options.rounds, options.tokens)
    checked = verification(max(3, options.rounds // 4), options.tokens)
    beside = checked.low > LIMIT or (sampled is not None and max(sampled.low, sampled.own) > TELEMETRY_LIMIT)
    missed = beside or any(each.low > LIMIT for each in found) or max(each.own for each in found) > LIMIT
    print(
        f"own cost at most {max(each.own for each in found):.2%} of a step, worst median {max(e.median for e in found):+.2%},"
        f" limit {LIMIT:.0%}: {'too slow' if missed else 'kept'}"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
