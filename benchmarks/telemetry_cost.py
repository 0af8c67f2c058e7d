"""What the telemetry sampler costs the work beside it. Passes with and without it, in turns, in one run.

    python benchmarks/telemetry_cost.py [--rounds 30] [--tokens 64] [--interval 0.1]

``own cost`` is the sampler thread's processor time as a share of the time it went on: what it takes away at most, and
free of the machine's noise. ``slow-down`` is the median of the ratios of pairs of passes, with its 95 % interval; the
first row has no sampler on either side: what noise alone gives. The exit code is 1 when the own cost misses the limit, or
when the whole interval of the slow-down lies above it.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import time
from collections.abc import Iterator

from llm_perf_opt.config.schema import DatasetConfig, InferConfig, ModelConfig
from llm_perf_opt.hardware.sensors.base import Sensor
from llm_perf_opt.hardware.sensors.sampler import MonitoredDevice, Sampler, find_sensor
from llm_perf_opt.workloads.base import Batch, Sample, WorkloadConfig
from llm_perf_opt.workloads.engine.engine import Engine

LIMIT = 0.01


class Cost:
    """Processor time of the sampler over all passes it stood beside."""

    def __init__(self) -> None:
        self.cost_s = self.elapsed_s = 0.0
        self.looks = 0

    @contextlib.contextmanager
    def sampled(self, sensor: Sensor, interval_s: float) -> Iterator[None]:
        sampler = Sampler(sensor, interval_s)
        sampler.start()
        try:
            yield
        finally:
            found = sampler.stop()
            self.cost_s += found.cost_s
            self.elapsed_s += found.elapsed_s
            self.looks += len(found.readings)

    @property
    def ratio(self) -> float:
        return self.cost_s / self.elapsed_s


def seconds_of_pass(engine: Engine, batch: Batch) -> float:
    started = time.perf_counter()
    engine.run_prepared(batch)
    return time.perf_counter() - started


def slow_down(ratios: list[float]) -> tuple[float, float, float]:
    """Median of the ratios minus one, with order statistics around it: no assumption on the noise."""
    ordered, count = sorted(ratios), len(ratios)
    reach = 0.98 * math.sqrt(count)
    low, high = max(0, round(count / 2 - reach) - 1), min(count - 1, round(count / 2 + reach))
    return statistics.median(ordered) - 1, ordered[low] - 1, ordered[high] - 1


def compare(
    engine: Engine, batch: Batch, rounds: int, sensor: Sensor, interval_s: float, cost: Cost | None
) -> tuple[float, float, float]:
    ratios = []
    for number in range(rounds + 1):
        taken = {}
        for sampled in (True, False) if number % 2 else (False, True):
            beside = (
                cost.sampled(sensor, interval_s) if sampled and cost is not None else contextlib.nullcontext()
            )
            with beside:
                taken[sampled] = seconds_of_pass(engine, batch)
        if number:  # the first round warms up
            ratios.append(taken[True] / taken[False])
    return slow_down(ratios)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--interval", type=float, default=0.1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    sensor = find_sensor(MonitoredDevice(options.device))
    if isinstance(sensor, str):
        print(f"nothing to sample: {sensor}")
        return 0
    model = ModelConfig(adapter="hf_causal_lm", name="llama_tiny", config_name="llama_tiny")
    infer = InferConfig(max_new_tokens=options.tokens, warmup_rounds=0)
    engine = Engine(WorkloadConfig(model, infer, DatasetConfig(), options.device, 1, options.tokens))
    batch = engine.prepare([Sample("x", synthetic_tokens=128)])
    cost = Cost()
    rows = {
        "noise": compare(engine, batch, options.rounds, sensor, options.interval, None),
        "sampled": compare(engine, batch, options.rounds, sensor, options.interval, cost),
    }
    for name, (median, low, high) in rows.items():
        print(f"{name:8} slow-down {median:+.2%} (95 %: {low:+.2%} to {high:+.2%})")
    print(
        f"{sensor.reader}: {cost.looks} looks in {cost.elapsed_s:.1f} s, {cost.cost_s / cost.looks * 1e6:.0f} µs each, "
        f"own cost {cost.ratio:.3%} of one processor"
    )
    missed = cost.ratio > LIMIT or rows["sampled"][1] > LIMIT
    print(f"limit {LIMIT:.0%}: {'too slow' if missed else 'kept'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
