"""What the advice for work on a processor does to prefill, decode and the whole answer. Ratios within one run.

    python benchmarks/cpu_advice.py [--rounds 9] [KEY=VALUE …]

Every option is a workload of its own, and the options take turns, forwards and backwards. One thread, timed in CPU seconds of
that thread, so that other programs on the machine do not count; the vision encoder, which no option touches, runs once. A
ratio is the median over rounds of an option's time ÷ the default's in the same round, with the middle half of the rounds;
``default again`` is the default against itself: what noise alone gives. ``KEY=VALUE`` overrides apply to all options
(``model=llama_tiny dataset.synthetic_tokens=3500``). The exit code is 1 when an option changes a token.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch

from llm_perf_opt.config.compose import typed_config
from llm_perf_opt.config.hydra_bridge.compose import compose_raw
from llm_perf_opt.workloads.base import Batch
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.registry import load_dataset
from llm_perf_opt.workloads.setup import workload_config

OPTIONS: dict[str, list[str]] = {
    "default": [],
    "default again": [],
    "preallocated": ["model.cache=preallocated"],
    "static": ["model.cache=static"],
    "static, compiled": ["model.cache=static", "model.compile=true"],
    "… experts batched in prefill too": [
        "model.cache=static",
        "model.compile=true",
        "model.experts_implementation=batched_mm",
    ],
}


class ThreadClock:
    """The engine's clock, in CPU seconds of this thread."""

    def mark(self) -> float:
        return time.thread_time()

    def synchronize(self) -> None:
        """Nothing is pending on a CPU."""

    def seconds(self, start: float, end: float) -> float:
        return end - start


@dataclasses.dataclass
class Option:
    """One way to run the workload, warmed up."""

    engine: Engine
    batch: Batch
    times: list[dict[str, float]] = dataclasses.field(default_factory=list)
    tokens: list[list[int]] = dataclasses.field(default_factory=list)

    def run(self) -> None:
        """Run one pass and keep its times."""
        done = self.engine.run_prepared(self.batch, components=False)
        prefill, decode = done.timings.prefill_s or 0.0, done.timings.decode_s or 0.0
        self.times.append({"prefill": prefill, "decode": decode, "answer": prefill + decode})
        self.tokens = done.token_ids


def build(overrides: Sequence[str]) -> Option:
    """Build an engine, run its vision encoder once, and warm it up."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*overrides, f"artifacts.runs_dir={folder}"]
        workload = workload_config(typed_config(compose_raw(words), words), repeats=1)
    engine = Engine(dataclasses.replace(workload, threads=1, device="cpu"))
    engine.clock = ThreadClock()
    sample = next(iter(load_dataset(workload.dataset).samples()))
    batch = engine.prepare([sample] * workload.infer.batch_size)
    if "vision" in engine.adapter.phases:
        adapter: Any = engine.adapter
        with torch.no_grad():
            features = adapter.vision(engine.model, batch)
        adapter.vision = lambda *_: features
    option = Option(engine, batch)
    for _ in range(2):
        option.run()
    option.times.clear()
    return option


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("overrides", nargs="*")
    asked = parser.parse_args()
    options = {name: build([*asked.overrides, *changes]) for name, changes in OPTIONS.items()}
    for number in range(asked.rounds):
        for option in list(options.values())[:: 1 if number % 2 else -1]:
            option.run()
    default = options["default"]
    for name, option in options.items():
        cells = []
        for part in ("prefill", "decode", "answer"):
            ratios = sorted(a[part] / b[part] for a, b in zip(option.times, default.times, strict=True))
            low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
            median_s = statistics.median(each[part] for each in option.times)
            cells.append(
                f"{part} {median_s * 1e3:7.1f} ms × {statistics.median(ratios):5.2f} ({low:.2f}–{high:.2f})"
            )
        same = "same tokens" if option.tokens == default.tokens else "OTHER TOKENS"
        print(f"{name:34} {'   '.join(cells)}   {same}")
    return 0 if all(option.tokens == default.tokens for option in options.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
