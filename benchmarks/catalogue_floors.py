"""Hold the catalogue's floors against measured operators: no program may be faster than a floor.

``python -m benchmarks.catalogue_floors`` reads the tables of ``aiconfigurator-core`` (the extra ``silicon``) itself, without
this project's reader of them, so that an error there cannot hide one here. For every row it computes the work from the
shape, the floor from the catalogue, and counts the rows that were faster. ``--write`` renews ``hardware/reached.yaml``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import yaml

from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.hardware.catalogue import Device, load_catalogue
from llm_perf_opt.hardware.silicon.lookup import MISLABELLED

Column = npt.NDArray[np.float64]

PACKAGE = "aiconfigurator_core"
REACHED = Path(__file__).resolve().parents[1] / "src/llm_perf_opt/hardware/reached.yaml"
LEAST_STREAMED_BYTES = 2e9
"""Weights from which a rate counts as that of the memory: a cache of 128 MB then helps by a few percent at most."""
_MIB = 2.0**20
_CACHE_BYTES = {
    "a100_sxm": 40 * _MIB,
    "h100_sxm": 50 * _MIB,
    "h200_sxm": 50 * _MIB,
    "b200_sxm": 126 * _MIB,
    "b300_sxm": 126 * _MIB,
    "gb200": 126 * _MIB,
    "gb300": 126 * _MIB,
    "l40s": 96 * _MIB,
    "rtx_pro_6000_server": 128 * _MIB,
    "b60": 18 * _MIB,
}
"""Second-level cache. A loop over one operand finds at most this much of it there."""


@dataclass(frozen=True, slots=True)
class Number:
    """A data type of the tables: the peak it runs at, and bytes of a weight and of an activation."""

    peak: str
    weight_bytes: float
    activation_bytes: float


_NUMBERS = {
    "bfloat16": Number("bfloat16", 2, 2),
    "fp8": Number("float8", 1, 1),
    "fp8_block": Number("float8", 1, 1),
    "nvfp4": Number("float4", 0.5, 0.5),
    "sq": Number("int8", 1, 1),
    "int4_wo": Number("bfloat16", 0.5, 2),
    # SGLang 0.5.6 multiplies these in eight bits (it is faster than any product in sixteen), TensorRT-LLM 1.0 in sixteen:
    # the floor takes the faster rate.
    "int8_wo": Number("int8", 1, 2),
    "w4a16_mxfp4": Number("bfloat16", 0.5, 2),
    "w4a8_mxfp4_mxfp8": Number("float8", 0.5, 1),
    "w4afp8": Number("float8", 0.5, 1),
}


_OVER_FP8 = " over fp8 cache"


@dataclass(frozen=True, slots=True)
class Work:
    """What each row of a table computes and must read."""

    flops: Column
    read_bytes: Column
    """Read at least once, by whoever computes this."""


@dataclass(slots=True)
class Checked:
    """One table, one data type, against the floors of its device."""

    system: str
    device: str
    operator: str
    dtype: str
    tables: int = 0
    rows: int = 0
    no_time: int = 0
    """Rows whose time is zero or not a number."""
    no_peak: int = 0
    """Rows of a type the catalogue has no peak for: only their memory floor is held against them."""
    faster_than_compute: int = 0
    faster_than_memory: int = 0
    """Rows faster than reading all operands once."""
    not_by_cache: int = 0
    """Of those, faster than reading what no cache could hold."""
    floor_ratio: list[float] | None = None


def _gemm(t: pl.DataFrame, number: Number) -> Work:
    m, n, k = (_numbers(t, name) for name in ("m", "n", "k"))
    return Work(
        2 * m * n * k,
        n * k * number.weight_bytes + m * k * number.activation_bytes,
    )


def _context_attention(t: pl.DataFrame, number: Number) -> Work:
    batch, new, past, heads, kv_heads, width = _attention_sizes(t)
    window = _numbers(t, "window_size") if "window_size" in t.columns else np.zeros(len(t))
    # A query sees those before it and itself; with a window at most that many of them.
    growing = np.where(window > 0, np.clip(window - past, 0.0, new), new)
    pairs = growing * past + growing * (growing + 1) / 2 + (new - growing) * window
    seen = np.where(window > 0, np.minimum(past + new, window + new), past + new)
    both = width + _value_width(width)
    return Work(2 * batch * heads * pairs * both, batch * seen * kv_heads * both * _cache_bytes(t))


def _generation_attention(t: pl.DataFrame, number: Number) -> Work:
    batch, _, past, heads, kv_heads, width = _attention_sizes(t)
    window = _numbers(t, "window_size") if "window_size" in t.columns else np.zeros(len(t))
    seen = np.where(window > 0, np.minimum(past, window), past)
    both = width + _value_width(width)
    return Work(2 * batch * heads * seen * both, batch * seen * kv_heads * both * _cache_bytes(t))


def _encoder_attention(t: pl.DataFrame, number: Number) -> Work:
    batch, length, heads, width = (
        _numbers(t, name) for name in ("batch_size", "isl", "num_heads", "head_dim")
    )
    return Work(4 * batch * heads * length**2 * width, 3 * batch * heads * length * width * 2)


def _attention_sizes(t: pl.DataFrame) -> tuple[Column, ...]:
    batch, new, past, heads, kv_heads, width = (
        _numbers(t, name)
        for name in ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim")
    )
    return batch, new, past, heads, np.where(kv_heads > 0, kv_heads, heads), width


def _value_width(width: Column) -> Column:
    """Heads of 192 are those of models whose values are narrower than their keys."""
    return np.where(width == 192, 128.0, width)


_LATENT, _ROPE, _NOPE, _VALUE = 512, 64, 128, 128
"""Widths of DeepSeek's latent attention, the one these tables hold."""


def _context_mla(t: pl.DataFrame, number: Number) -> Work:
    batch, new, past, heads = (_numbers(t, name) for name in ("batch_size", "isl", "step", "num_heads"))
    pairs = new * past + new * (new + 1) / 2
    read = batch * (past + new) * (_LATENT + _ROPE) * _cache_bytes(t)
    return Work(2 * batch * heads * pairs * (_NOPE + _ROPE + _VALUE), read)


def _generation_mla(t: pl.DataFrame, number: Number) -> Work:
    batch, past, heads = (_numbers(t, name) for name in ("batch_size", "step", "num_heads"))
    read = batch * past * (_LATENT + _ROPE) * _cache_bytes(t)
    return Work(2 * batch * heads * past * (2 * _LATENT + _ROPE), read)


def _mla_bmm(t: pl.DataFrame, number: Number) -> Work:
    tokens, heads = _numbers(t, "num_tokens"), _numbers(t, "num_heads")
    return Work(2 * tokens * heads * _NOPE * _LATENT, heads * _NOPE * _LATENT * number.weight_bytes)


def _moe(t: pl.DataFrame, number: Number) -> Work:
    names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    tokens, hidden, inter, top_k, experts, tp, ep = (_numbers(t, name) for name in names)
    # Nemotron 3 has 512 experts of two matrices, of which a token meets 22: only one framework names them "nongated".
    ungated = t["kernel_source"].str.contains("nongated").to_numpy() | ((experts == 512) & (top_k == 22))
    matrices = np.where(ungated, 2.0, 3.0)
    one_expert = matrices * hidden * inter / tp
    # Of several ranks the tables time one, whose load the distribution decides: at least nothing is known of it.
    alone = ep == 1
    flops = np.where(alone, 2 * tokens * top_k * one_expert, 0.0)
    # A token meets top_k different experts; more than that only a distribution could tell.
    read = np.where(alone, top_k * one_expert * number.weight_bytes, 0.0)
    return Work(flops, read)


def _scale_matrix(t: pl.DataFrame, number: Number) -> Work:
    m, k = _numbers(t, "m"), _numbers(t, "k")
    return Work(np.zeros(len(t)), m * k * 2)


def _numbers(t: pl.DataFrame, name: str) -> Column:
    return t[name].cast(pl.Float64).to_numpy()


def _cache_bytes(t: pl.DataFrame) -> Column:
    return np.where(t["kv_cache_dtype"].str.contains("fp8").to_numpy(), 1.0, 2.0)


_OPERATORS: dict[str, tuple[str, Callable[[pl.DataFrame, Number], Work]]] = {
    "gemm_perf": ("gemm_dtype", _gemm),
    "context_attention_perf": ("attn_dtype", _context_attention),
    "generation_attention_perf": ("attn_dtype", _generation_attention),
    "encoder_attention_perf": ("attn_dtype", _encoder_attention),
    "context_mla_perf": ("mla_dtype", _context_mla),
    "generation_mla_perf": ("mla_dtype", _generation_mla),
    "mla_bmm_perf": ("bmm_dtype", _mla_bmm),
    "moe_perf": ("moe_dtype", _moe),
    "scale_matrix_perf": ("quant_dtype", _scale_matrix),
}
"""Table → column of its data type, and the work of its rows. ``computescale`` is a difference of two times and has no
floor; the modules of other architectures (sparse, linear and latent attention with their projections) have none of ours."""


def data_folder() -> Path | None:
    """Where the tables lie; ``None`` without the extra. The package itself is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "systems" / "data"


def _tables(folder: Path) -> Iterator[tuple[str, str, str, pl.DataFrame]]:
    """(system, operator, framework and version, rows) of every table that has a floor."""
    for path in sorted(folder.glob("*/*/*/*/*.parquet")):
        if path.stem in _OPERATORS:
            system, _, framework, version, _ = path.relative_to(folder).parts
            rows = pl.read_parquet(path)
            if path.relative_to(folder).as_posix() in MISLABELLED:
                # Labelled bfloat16, but of a cache of eight bits: 3 to 30 GB were read at 3.4 TB/s by a memory of 2.0 TB/s; at one
                # byte an element that is 1.7 TB/s, as in the other tables of the device.
                rows = rows.with_columns(pl.lit("fp8").alias("kv_cache_dtype"))
            yield system, path.stem, f"{framework} {version}", rows


def check_floors(folder: Path) -> list[Checked]:
    """Return every system, operator and data type with the rows that were faster than a floor."""
    catalogue = load_catalogue()
    found: dict[tuple[str, str, str], Checked] = {}
    for system, operator, _, rows in _tables(folder):
        dtype_column, work_of = _OPERATORS[operator]
        device, reason = catalogue.look_up(rows["device"][0])
        if device is None:
            raise LookupError(f"{system}: {reason}")
        for dtype, part in _by_dtype(rows, dtype_column):
            key = (system, operator, dtype)
            one = found.setdefault(key, Checked(system, device.name, operator, dtype))
            number = _NUMBERS[dtype.removesuffix(_OVER_FP8)]
            if dtype.endswith(_OVER_FP8):
                number = replace(number, peak="float8")
            _add(one, device, number, work_of(part, number), _numbers(part, "latency") * 1e-3)
    return list(found.values())


def _by_dtype(rows: pl.DataFrame, dtype_column: str) -> Iterator[tuple[str, pl.DataFrame]]:
    """Split a table by data type; attention over a cache of eight bits by itself: many kernels multiply in eight bits then."""
    name = pl.col(dtype_column)
    if "kv_cache_dtype" in rows.columns:
        over_fp8 = (name == "bfloat16") & (pl.col("kv_cache_dtype") == "fp8")
        name = pl.when(over_fp8).then(name + _OVER_FP8).otherwise(name)
    for (dtype,), part in rows.group_by(name.alias("number"), maintain_order=True):
        yield str(dtype), part


def _add(one: Checked, device: Device, number: Number, work: Work, seconds: Column) -> None:
    one.tables += 1
    one.rows += len(seconds)
    timed = np.isfinite(seconds) & (seconds > 0)
    one.no_time += int((~timed).sum())
    seconds = np.where(timed, seconds, np.inf)
    peak = device.peaks.get(number.peak)
    compute_s = np.zeros_like(seconds)
    if peak is None:
        one.no_peak += len(seconds)
    else:
        compute_s = work.flops / peak.dense
        one.faster_than_compute += int((seconds < compute_s).sum())
    bandwidth = device.bandwidth_bytes_per_s
    if bandwidth is None:
        return
    memory_s = work.read_bytes / bandwidth
    one.faster_than_memory += int((seconds < memory_s).sum())
    uncached_s = np.maximum(work.read_bytes - _CACHE_BYTES[one.system], 0.0) / bandwidth
    one.not_by_cache += int((seconds < uncached_s).sum())
    ratio = np.maximum(compute_s, memory_s)[timed] / seconds[timed]
    one.floor_ratio = [*(one.floor_ratio or []), float(np.median(ratio))]


def reached_rates(folder: Path) -> dict[str, dict[str, dict[str, float | str]]]:
    """Return device → data type (or ``bandwidth``) → the best rate measured, by whom and at which shape."""
    catalogue = load_catalogue()
    best: dict[str, dict[str, dict[str, float | str]]] = {}
    for _, operator, source, rows in _tables(folder):
        device, _ = catalogue.look_up(rows["device"][0])
        if operator != "gemm_perf" or device is None:
            continue
        mine = best.setdefault(device.name, {})
        for (dtype,), part in rows.group_by("gemm_dtype", maintain_order=True):
            number = _NUMBERS[str(dtype)]
            if number.weight_bytes != number.activation_bytes:
                continue
            seconds, work = _numbers(part, "latency") * 1e-3, _gemm(part, number)
            weights = _numbers(part, "n") * _numbers(part, "k") * number.weight_bytes
            streamed = np.where(weights >= LEAST_STREAMED_BYTES, weights / seconds, 0.0)
            if number.peak in device.peaks:
                _keep_best(mine, number.peak, work.flops / seconds / 1e12, part, source)
            _keep_best(mine, "bandwidth", streamed / 1e9, part, source)
    return best


def _keep_best(
    mine: dict[str, dict[str, float | str]], name: str, rates: Column, part: pl.DataFrame, source: str
) -> None:
    row = int(np.nanargmax(np.where(np.isfinite(rates), rates, 0.0)))
    rate = float(f"{rates[row]:.4g}")
    if rate > float(mine.get(name, {}).get("rate", 0.0)):
        m, n, k = (part[axis][row] for axis in ("m", "n", "k"))
        mine[name] = {
            "rate": rate,
            "by": f"{source}, {part['kernel_source'][row]}",
            "shape": f"{m} × {n} × {k} in {part['gemm_dtype'][row]}",
        }


_HEAD = """\
# The best rate any of {package}'s tables has for a device: TFLOP/s per data type, GB/s for `bandwidth` (weights of 2 GB and
# more, read once). Written by `python -m benchmarks.catalogue_floors --write`; shapes are m × n × k of the matrix product.
"""


def render_reached(folder: Path) -> str:
    """Return ``reached.yaml`` as these tables give it."""
    version = importlib.metadata.version(PACKAGE)
    package = f"aiconfigurator-core {version}"
    body = {"package": package, "devices": reached_rates(folder)}
    text = yaml.safe_dump(body, sort_keys=True, allow_unicode=True, width=200, default_flow_style=None)
    return _HEAD.format(package=package) + text


def main() -> int:
    """Print the table; exit code 1 where a floor is above a measurement that no cache explains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew hardware/reached.yaml")
    chosen = parser.parse_args()
    folder = data_folder()
    if folder is None:
        print("the tables are not installed: pip install 'llm-perf-opt[silicon]'")
        return 2
    if chosen.write:
        atomic_write_text(REACHED, render_reached(folder))
        print(f"written: {REACHED}")
    found = check_floors(folder)
    print(
        "| device | operator | dtype | timings | no peak | faster than compute | than memory | unexplained | floor ÷ time |"
    )
    print("|---|---|---|--:|--:|--:|--:|--:|--:|")
    for one in found:
        ratio = f"{np.median(one.floor_ratio):.2f}" if one.floor_ratio else "–"
        print(
            f"| {one.device} | {one.operator.removesuffix('_perf')} | {one.dtype} | {one.rows:,} | {one.no_peak:,} "
            f"| {one.faster_than_compute:,} | {one.faster_than_memory:,} | {one.not_by_cache:,} | {ratio} |"
        )
    wrong = sum(one.faster_than_compute + one.not_by_cache for one in found)
    print(f"\n{sum(one.rows for one in found):,} timings, {wrong:,} of them faster than a floor allows")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
