"""Small tables as the extra lays them out, written by the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from llm_perf_opt.hardware.silicon.installation import Installation

H100 = "NVIDIA H100 80GB HBM3"


def write_table(systems: Path, place: str, rows: list[dict[str, Any]]) -> Path:
    """Write rows to ``data/<place>``."""
    path = systems / "data" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(path)
    return path


def gemm_row(m: int, n: int, k: int, latency: float | None, **more: Any) -> dict[str, Any]:
    """One row of a GEMM table; ``latency`` in ms."""
    return {
        "framework": "VLLM",
        "version": "0.24.0",
        "device": H100,
        "op_name": "gemm",
        "kernel_source": "linear",
        "gemm_dtype": "bfloat16",
        "m": m,
        "n": n,
        "k": k,
        "latency": latency,
        **more,
    }


def gemm_grid(factor: float = 1.0, **more: Any) -> list[dict[str, Any]]:
    """A grid on which time is proportional to m × n × k."""
    sizes = [(m, n, k) for m in (1, 4, 16) for n in (64, 256) for k in (64, 256)]
    return [gemm_row(m, n, k, factor * m * n * k * 1e-6, **more) for m, n, k in sizes]


def installation(tmp_path: Path, version: str = "0.12.0") -> Installation:
    """An installation whose system ``h100_sxm`` has a description and no tables yet."""
    systems = tmp_path / "systems"
    (systems / "data" / "h100_sxm").mkdir(parents=True)
    (systems / "h100_sxm.yaml").write_text("gpu: {power: 700}\nnode: {num_gpus_per_node: 8}\n")
    return Installation(systems, version)
