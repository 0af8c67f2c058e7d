"""Cost of the statistics plug-in in a real vLLM server, as a share of the time of its steps: less than 1 %.

    python -m benchmarks.vllm_plugin_cost --vllm .venv-vllm/bin/vllm      # two minutes; scripts/engines/make-vllm.sh installs the CPU build

The server is started by ``llm-perf-opt serve`` as always. A second plug-in derives from ours and measures each call of ``record`` in the server's own
thread, and the processor time in which the writing thread makes its lines. The tiny model on a CPU has short steps, so the share is an upper end.
Other work on the machine makes steps longer and the share smaller: run it on a quiet one. The 95 % interval is a bootstrap over blocks of
successive steps; the exit code is 1 if its upper end is above 1 %.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MOST_RATIO = 0.01
_BLOCK, _RESAMPLES = 20, 2000
_PLUGIN = """
import os, threading, time
import llm_perf_opt_vllm_steps as base

class TimedLogger(base.StepLogger):
    def __init__(self, vllm_config, engine_index=0):
        super().__init__(vllm_config, engine_index)
        self._out = open(os.environ["PLUGIN_COST"], "a", buffering=1)
        self._writer = base.StepWriter(os.environ["PLUGIN_COST"] + ".steps")
        dumps = base.json.dumps
        self.written = 0.0

        def timed(*words, **named):
            began = time.thread_time()
            text = dumps(*words, **named)
            if threading.current_thread() is self._writer._thread:  # not that of the plug-in itself, which runs as well
                self.written += time.thread_time() - began
            return text

        class Json:
            dumps = staticmethod(timed)

        base.json = Json

    def record(self, scheduler_stats=None, iteration_stats=None, mm_cache_stats=None, engine_idx=0, **more):
        wall, cpu = time.perf_counter(), time.thread_time()
        super().record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx, **more)
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        details = getattr(scheduler_stats, "iteration_details", None)
        if details is not None:
            self._out.write("%.9f %.9f %.9f %.6f\\n" % (wall, cpu, self.written, details.elapsed_ms))
"""
_ENTRY = "[vllm.stat_logger_plugins]\nplugin_cost = plugin_cost:TimedLogger\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", type=Path, default=Path(".venv-vllm/bin/vllm"), help="program of vLLM")
    parser.add_argument("--requests", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), Path(name) / "cost.txt"
        (folder / "plugin_cost.py").write_text(_PLUGIN)
        metadata = folder / "plugin_cost-1.0.dist-info"
        metadata.mkdir()
        (metadata / "entry_points.txt").write_text(_ENTRY)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-cost\nVersion: 1.0\n")
        words = [
            "serve", "-q", "--engine", "vllm", "--model", "llama_tiny", "--executable", str(options.vllm.absolute()), "--concurrency", "4",
            "--requests", str(options.requests), "--new-tokens", "32", "--out", str(folder / "run"), "hardware.probe=false",
            "pipeline.serve.certify=false", f"pipeline.serve.env={{PYTHONPATH:{folder},PLUGIN_COST:{out}}}",
        ]  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "llm_perf_opt", *words], env=dict(os.environ), check=False
        )
        if not out.is_file():
            print(f"no step was measured (exit code {done.returncode})", file=sys.stderr)
            return 1
        rows = [tuple(map(float, line.split())) for line in out.read_text().splitlines()]
    wall, cpu, written, step = (list(column) for column in zip(*rows, strict=True))
    lines = [after - before for before, after in itertools.pairwise([0.0, *written])]
    costs = [one + other for one, other in zip(cpu, lines, strict=True)]
    ratio, low, high = share(costs, [1e-3 * each for each in step])
    print(
        f"{len(rows)} steps, median {statistics.median(step):.2f} ms. In the server's thread: median {1e6 * statistics.median(wall):.0f} µs, "
        f"mean {1e6 * sum(cpu) / len(rows):.0f} µs of processor time; writer: {1e6 * max(written) / len(rows):.0f} µs per step. "
        f"Together {100 * ratio:.2f} % [{100 * low:.2f} … {100 * high:.2f}] of the time of the steps (at most {100 * MOST_RATIO:g} %)"
    )
    return int(high > MOST_RATIO)


def share(costs: Sequence[float], steps: Sequence[float]) -> tuple[float, float, float]:
    """Return the sum of the costs ÷ that of the steps, with the ends of its 95 % interval."""
    blocks = [
        (sum(costs[at : at + _BLOCK]), sum(steps[at : at + _BLOCK])) for at in range(0, len(steps), _BLOCK)
    ]
    chance = random.Random(1)
    ratios = []
    for _ in range(_RESAMPLES):
        drawn = chance.choices(blocks, k=len(blocks))
        ratios.append(sum(cost for cost, _ in drawn) / sum(step for _, step in drawn))
    ends = statistics.quantiles(ratios, n=40)
    return sum(costs) / sum(steps), ends[0], ends[-1]


if __name__ == "__main__":
    sys.exit(main())
