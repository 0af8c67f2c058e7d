"""Four FLOP counters on three models, side by side: ours, torch's FlopCounterMode, fvcore, calflops.

Every (counter, model) pair runs in a process of its own, on the meta device, over the same calls: vision where
there is one, prefill, and one decode step. Peers are installed into a folder of their own (``--peers``), never
into the environment that is measured; a peer that cannot be installed is skipped and named. Ratios are of CPU
time, which other work on the machine disturbs least.

    python benchmarks/static_counters.py
    python benchmarks/static_counters.py --models llama3_8b --counters ours flop_counter_mode --json out.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COUNTERS = ("ours", "flop_counter_mode", "fvcore", "calflops")
MODELS = ("llama3_8b", "qwen3_30b_a3b", "deepseek_ocr")
PEER_PACKAGES = {
    "fvcore": ("fvcore", "iopath", "yacs", "portalocker", "termcolor", "tabulate", "tqdm", "pyyaml"),
    "calflops": ("calflops", "accelerate", "psutil"),
}
REPEATS = 5
ENOUGH_S = 20.0
"""A counter that has used this much time is not repeated."""
LIMIT_S = 240.0
"""A pair that takes longer, imports included, is given up and says so."""
PROMPT_TOKENS = 512


def adapter_and_shapes(name: str) -> tuple[Any, Any]:
    """Return the model's adapter and the shapes every counter sees."""
    from llm_perf_opt.config.schema import ImageMode, InferConfig, ModelConfig
    from llm_perf_opt.workloads.base import PhaseShapes
    from llm_perf_opt.workloads.registry import load_adapter

    infer = InferConfig(mode=ImageMode.gundam)
    if name == "deepseek_ocr":
        adapter = load_adapter(ModelConfig(name=name), infer)
        return adapter, adapter.default_shapes()
    adapter = load_adapter(ModelConfig(name=name, adapter="hf_causal_lm", config_name=name), infer)
    return adapter, PhaseShapes(1, PROMPT_TOKENS, 0, PROMPT_TOKENS)


def wrapped(adapter: Any, shapes: Any) -> tuple[Any, Any]:
    """Return a module whose forward runs all phases, and its input: the only form every peer takes."""
    import torch

    model = adapter.build("meta", torch.bfloat16)
    calls = adapter.static_calls(model, shapes)

    class AllPhases(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for call in calls.values():
                # Tracing counters drop work that does not reach the output.
                x = x + sum(tensor.float().sum() for tensor in _tensors(call()))
            return x

    return AllPhases().eval(), torch.zeros(1, device="meta")


def _tensors(output: Any) -> list[Any]:
    features = getattr(output, "pooler_output", None)
    return list(features) if features is not None else [output.logits]


def counting_function(counter: str, adapter: Any, shapes: Any) -> Callable[[], int]:
    """Return a call that counts everything once; building the model is not part of it."""
    import torch

    if counter == "ours":
        from llm_perf_opt.workloads.counting.counter import count_phase, model_tree

        model = adapter.build("meta", torch.bfloat16)
        components = adapter.components()

        def ours() -> int:
            tree, total = model_tree(model, components), 0
            for call in adapter.static_calls(model, shapes).values():
                total += count_phase(model, call, tree, positions=1, batch_size=1).raw_flops()
            return total

        return ours
    module, x = wrapped(adapter, shapes)
    if counter == "flop_counter_mode":
        from torch.utils.flop_counter import FlopCounterMode

        def stock() -> int:
            with torch.no_grad(), FlopCounterMode(display=False) as mode:
                module(x)
            return int(mode.get_total_flops())

        return stock
    if counter == "fvcore":
        from fvcore.nn import FlopCountAnalysis

        def fvcore() -> int:
            analysis = FlopCountAnalysis(module, (x,))
            analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
            return int(2 * analysis.total())  # fvcore's "flops" are multiply-adds

        return fvcore
    from calflops import calculate_flops

    def calflops() -> int:
        found = calculate_flops(module, args=[x], print_results=False, output_as_string=False)
        return int(found[0])

    return calflops


def expected_flops(adapter: Any, shapes: Any) -> int:
    """Return the closed form of all phases."""
    import torch

    from llm_perf_opt.workloads.counting.static_run import StaticCounter

    form = StaticCounter(adapter, torch.bfloat16)
    at = form._formula_shapes(shapes)
    closed = form.closed_form
    assert closed is not None
    return sum(sum(closed.flops(phase, at, form.conventions).values()) for phase in adapter.phases)


def worker(counter: str, name: str) -> None:
    """Measure one pair and print one line of JSON."""
    import transformers  # noqa: F401 - imports are not part of the measurement

    adapter, shapes = adapter_and_shapes(name)
    count = counting_function(counter, adapter, shapes)
    seconds: list[float] = []
    busy: list[float] = []
    flops = 0
    for _ in range(REPEATS):
        began, busy_before = time.perf_counter(), time.process_time()
        flops = count()
        seconds.append(time.perf_counter() - began)
        busy.append(time.process_time() - busy_before)
        if sum(seconds) > ENOUGH_S:
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    expected = expected_flops(adapter, shapes)
    row = {
        "first_s": seconds[0],
        "best_s": min(seconds),
        "best_cpu_s": min(busy),
        "peak_rss_bytes": peak,
        "flops": flops,
    }
    print(json.dumps({**row, "expected_flops": expected}))


def install_peer(counter: str, folder: Path) -> str | None:
    """Install a peer into its own folder; return why it cannot be, or ``None``."""
    if counter not in PEER_PACKAGES or (folder / counter / "ready").exists():
        return None
    target = folder / counter
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
    done = subprocess.run(
        [*command, *PEER_PACKAGES[counter]], capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return lines[-1] if lines else f"pip ended with {done.returncode}"
    (target / "ready").touch()
    return None


def measure(counter: str, name: str, folder: Path) -> dict[str, Any]:
    """Run one pair in its own process."""
    environment = dict(os.environ)
    if counter in PEER_PACKAGES:
        paths = [str(folder / counter), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    command = [sys.executable, __file__, "--worker", counter, name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {LIMIT_S:.0f} s"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"error": lines[-1][:160] if lines else f"ended with {done.returncode}"}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def show(rows: list[dict[str, Any]]) -> str:
    """Return the table."""
    lines = [
        "| model | counter | FLOPs | of closed form | first s | best s | best CPU s | x FlopCounterMode | peak MB |",
        "| :--- | :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    stock = {row["model"]: row.get("best_cpu_s") for row in rows if row["counter"] == "flop_counter_mode"}
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['model']} | {row['counter']} | {row['error']} | | | | | | |")
            continue
        base = stock.get(row["model"])
        relative = f"{row['best_cpu_s'] / base:.2f}" if base else "–"
        lines.append(
            f"| {row['model']} | {row['counter']} | {row['flops']:,} | {row['flops'] / row['expected_flops']:.4f} |"
            f" {row['first_s']:.2f} | {row['best_s']:.2f} | {row['best_cpu_s']:.2f} | {relative} | {row['peak_rss_bytes'] / 1e6:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all pairs and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", nargs=2, metavar=("COUNTER", "MODEL"), help=argparse.SUPPRESS)
    parser.add_argument("--counters", nargs="+", choices=COUNTERS, default=list(COUNTERS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "llm_perf_opt_peers")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    if options.worker:
        worker(*options.worker)
        return
    rows: list[dict[str, Any]] = []
    for counter in options.counters:
        reason = install_peer(counter, options.peers)
        for name in options.models:
            row = {"error": f"not installable: {reason}"} if reason else measure(counter, name, options.peers)
            rows.append({"model": name, "counter": counter, **row})
            print(f"{counter} on {name}: {row.get('error', 'done')}", file=sys.stderr)
    rows.sort(key=lambda row: (MODELS.index(row["model"]), COUNTERS.index(row["counter"])))
    print(show(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
