"""Expected times beside the estimates of the package that brings the tables: same tables, another program.

Run: ``python -m benchmarks.silicon_estimates [--write] [--models N]`` with the extra ``silicon`` (minutes). Five models, five
systems, three batch sizes, one, two and eight devices where the weights fit; vLLM tables on both sides, 1,024 positions.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import warnings
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.generated import DOCS, markdown_table, write_block
from llm_perf_opt.analysis.roofline.demand import demand, own_point
from llm_perf_opt.analysis.roofline.expected_calls import At, Call, Work, calls
from llm_perf_opt.analysis.roofline.expected_times import (
    PassTime,
    Tables,
    Target,
    at_point,
    expect,
    tables_of,
    target_of,
)
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.hardware.silicon import AllReduce, Attention, LatentBlock, MoeLayer, Silicon, open_silicon
from llm_perf_opt.summary import Static

POSITIONS = 1024
BATCHES = (1, 8, 64)
RANKS = (1, 2, 8)
SYSTEMS = ("a100_sxm", "l40s", "h100_sxm", "h200_sxm", "b200_sxm")
MODELS = (
    "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Meta-Llama-3.1-70B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3",
)


@dataclass(frozen=True, slots=True)
class Compared:
    model: str
    system: str
    ranks: int
    batch: int
    phase: str
    ours_s: float
    theirs_s: float
    reason: str

    @property
    def difference(self) -> float:
        return self.ours_s / self.theirs_s - 1


def counted(model: str) -> Static:
    """The static model of a configuration that the package ships, weights stored as it says."""
    import torch

    from llm_perf_opt.config.schema import InferConfig, ModelConfig
    from llm_perf_opt.workloads.counting.static_run import StaticCounter
    from llm_perf_opt.workloads.registry import load_adapter

    spec = find_spec("aiconfigurator_core")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "model_configs"
    config = folder / f"{model.replace('/', '--')}_config.json"
    adapter = load_adapter(ModelConfig(adapter="hf_causal_lm", config_name=str(config)), InferConfig())
    counter = StaticCounter(adapter, torch.bfloat16)
    shapes = replace(adapter.default_shapes(), prompt_tokens=POSITIONS, context_tokens=POSITIONS)
    return counter.document(shapes, decode_steps=2).static


def group_of(call: Call) -> str:
    match call.operator:
        case Attention() | LatentBlock():
            return "attention"
        case MoeLayer():
            return "experts"
        case AllReduce():
            return "all-reduces"
        case Work():
            return "element-wise"
    if ".shared_expert" in call.name:
        return "experts"
    return "output head" if "head" in call.name else "products"


_THEIR_GROUPS = (
    ("dispatch", "all-reduces"),
    ("_ar", "all-reduces"),
    ("allreduce", "all-reduces"),
    ("shared", "experts"),
    ("_moe", "experts"),
    ("logits", "output head"),
    ("attention", "attention"),
    ("mla", "attention"),
    ("gemm", "products"),
)


def their_group(name: str) -> str:
    return next((group for part, group in _THEIR_GROUPS if part in name), "element-wise")


def reason(ours: dict[str, float], theirs: dict[str, float]) -> str:
    """The group that differs most."""
    apart = {name: ours.get(name, 0.0) - theirs.get(name, 0.0) for name in {*ours, *theirs}}
    name = max(apart, key=lambda key: abs(apart[key]))
    return f"{name} {apart[name] * 1e3:+.2f} ms"


def by_group(found: list[Call], timed: PassTime) -> dict[str, float]:
    groups: dict[str, float] = {}
    for call, part in zip(found, timed.parts, strict=True):
        if not call.overlaps_experts:
            groups[group_of(call)] = groups.get(group_of(call), 0.0) + part.seconds
    return groups


def compare(silicon: Silicon, model: str, static: Static) -> list[Compared]:
    from aiconfigurator_core.sdk.engine import EngineHandle

    own, tables = own_point(static, "bfloat16"), tables_of(silicon, "vllm")
    assert own is not None
    rows = []
    for system in silicon.systems:
        device = load_catalogue().look_up(system.driver_names[0])[0]
        if system.key not in SYSTEMS or device is None:
            continue
        limits = device.peaks, device.bandwidth_bytes_per_s, device.link_bytes_per_s
        target = target_of(device.name, *limits, tables)
        for ranks in RANKS:
            point = replace(own, batch_size=1, tensor_parallel=ranks)
            dtype = at_point(static, point).dtype
            needed = demand(static, point).resident_bytes
            if device.memory_bytes is None or needed > device.memory_bytes:
                continue
            engine: Any = None
            try:
                engine = EngineHandle.compile(
                    model, system.key, "vllm", tp_size=ranks, moe_tp_size=ranks, moe_ep_size=1, gemm_quant_mode=dtype,
                    moe_quant_mode=dtype, kvcache_quant_mode="bfloat16",
                )  # fmt: skip
            except (ValueError, KeyError, RuntimeError) as error:
                print(f"  {model} {system.key} × {ranks}: they refuse: {str(error).splitlines()[0][:100]}")
                continue
            for batch in BATCHES:
                at = at_point(static, replace(point, batch_size=batch))
                rows += _compare_point(tables, static, engine, target, model, system.key, at)
    return rows


def _compare_point(
    tables: Tables | None, static: Static, engine: Any, target: Target, model: str, system: str, at: At
) -> list[Compared]:
    assert static.operators is not None
    try:
        theirs = engine.run_static_per_op(batch_size=at.batch_size, isl=POSITIONS, osl=2)
    except (ValueError, KeyError, RuntimeError) as error:
        print(
            f"  {model} {system} × {at.tensor_parallel}: they have no answer: {str(error).splitlines()[0][:100]}"
        )
        return []
    expected = expect(static.operators, ("prefill",), at, target, tables)
    if expected is None:
        return []
    rows = []
    ours_by_phase = (*(expected.passes or (None,)), expected.step)
    for phase, parts, ours in zip(("prefill", "decode"), theirs, ours_by_phase, strict=True):
        if ours is None:
            continue
        found = calls(static.operators, phase, at)
        groups: dict[str, float] = {}
        for name, milliseconds, *_ in parts:
            groups[their_group(name)] = groups.get(their_group(name), 0.0) + milliseconds / 1e3
        said = reason(by_group(found, ours), groups)
        rows.append(Compared(model, system, at.tensor_parallel, at.batch_size, phase, ours.seconds, sum(groups.values()), said))  # fmt: skip
    return rows


def table(rows: list[Compared]) -> str:
    header = ["model, system, devices"]
    header += [
        f"{'TTFT' if phase == 'prefill' else 'TPOT'}, batch {batch}"
        for phase in ("prefill", "decode")
        for batch in BATCHES
    ]
    header.append("differs most in (TPOT, batch 8)")
    found = {(r.model, r.system, r.ranks, r.phase, r.batch): r for r in rows}
    lines = []
    for model, system, ranks in dict.fromkeys((r.model, r.system, r.ranks) for r in rows):
        cells = []
        for phase in ("prefill", "decode"):
            for batch in BATCHES:
                one = found.get((model, system, ranks, phase, batch))
                cells.append(
                    "–"
                    if one is None
                    else f"{one.ours_s * 1e3:.4g} / {one.theirs_s * 1e3:.4g} ({one.difference * 100:+.0f} %)"
                )
        why = found.get((model, system, ranks, "decode", 8))
        lines.append([f"{model.partition('/')[2]}, {system} × {ranks}", *cells, why.reason if why else "–"])
    return markdown_table(header, lines)


def summary(rows: list[Compared]) -> str:
    lines = []
    for model in dict.fromkeys(r.model for r in rows):
        for phase in ("prefill", "decode"):
            apart = sorted(abs(r.difference) for r in rows if (r.model, r.phase) == (model, phase))
            if apart:
                lines.append([f"{model.partition('/')[2]}, {'TTFT' if phase == 'prefill' else 'TPOT'}", str(len(apart)), f"{statistics.median(apart) * 100:.1f} %", f"{apart[int(0.95 * (len(apart) - 1))] * 100:.0f} %", f"{apart[-1] * 100:.0f} %"])  # fmt: skip
    every = sorted(abs(r.difference) for r in rows)
    lines.append(["all", str(len(every)), f"{statistics.median(every) * 100:.1f} %", f"{every[int(0.95 * (len(every) - 1))] * 100:.0f} %", f"{every[-1] * 100:.0f} %"])  # fmt: skip
    return markdown_table(["difference, absolute", "points", "median", "95th percentile", "most"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/expected-times-accuracy.md"
    )
    parser.add_argument("--models", type=int, default=len(MODELS), help="only the first so many")
    options = parser.parse_args()
    silicon = open_silicon()
    if silicon is None:
        raise SystemExit("the extra is not installed: pip install 'llm-perf-opt[silicon]'")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rows: list[Compared] = []
    for model in MODELS[: options.models]:
        rows += compare(silicon, model, counted(model))
        print(f"{model}: {len(rows)} points so far", flush=True)
    text = f"{summary(rows)}\n\nOurs / theirs in ms:\n\n{table(rows)}"
    print(text)
    if options.write:
        write_block(DOCS / "expected-times-accuracy.md", "silicon_estimates", text)


if __name__ == "__main__":
    main()
