"""Faults put into copied tables: each costs what it damages, never the system."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from llm_perf_opt.hardware.silicon import Attention, Gemm, Silicon
from tests.text_facts import mentions
from tests.unit.hardware.silicon.tables import H100, gemm_grid, installation, write_table

GEMM_FILE = "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet"
ATTENTION_FILE = "h100_sxm/attention/vllm/0.24.0/context_attention_perf.parquet"
PRODUCT, ATTENTION = Gemm(4, 64, 64), Attention("context", 2, 512, 8, 8, 64)


def attention_rows() -> list[dict[str, object]]:
    return [
        {
            "device": H100, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "head_dim": 64, "window_size": 0,
            "batch_size": batch, "isl": tokens, "num_heads": 8, "num_key_value_heads": 8, "step": 0,
            "kernel_source": "flash", "latency": batch * tokens * 1e-3,
        }
        for batch in (1, 2, 4) for tokens in (128, 512, 2048)
    ]  # fmt: skip


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def flipped(path: Path) -> None:
    """Damage the pages, leave the footer: the schema can be read, the rows cannot."""
    content = bytearray(path.read_bytes())
    for place in range(4, len(content) * 2 // 3):
        content[place] ^= 0xA5
    path.write_bytes(bytes(content))


def changed(**columns: pl.Expr) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        pl.read_parquet(path).with_columns(**columns).write_parquet(path)

    return change


def without(*columns: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        pl.read_parquet(path).drop(columns).write_parquet(path)

    return change


FAULTS: dict[str, Callable[[Path], None]] = {
    "truncated": truncated,
    "empty": emptied,
    "directory": a_directory,
    "flipped": flipped,
    "all zero": changed(latency=pl.lit(0.0)),
    "all nan": changed(latency=pl.lit(math.nan)),
    "all null": changed(latency=pl.lit(None, dtype=pl.Float64)),
    "latency as text": changed(latency=pl.lit("fast")),
    "latency as a list": changed(latency=pl.lit([1.0])),
    "types as numbers": changed(gemm_dtype=pl.lit(16)),
    "sizes as text": changed(m=pl.lit("many")),
    "no latency": without("latency"),
    "no sizes": without("m", "n"),
    "no device": without("device"),
    "device as a number": changed(device=pl.lit(7)),
}


@pytest.fixture
def systems(tmp_path: Path) -> Path:
    place = installation(tmp_path)
    write_table(place.systems, GEMM_FILE, gemm_grid())
    write_table(place.systems, ATTENTION_FILE, attention_rows())
    return place.systems


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_damaged_table_costs_its_operator_alone_and_is_reported(
    systems: Path, fault: Callable[[Path], None]
) -> None:
    fault(systems / "data" / GEMM_FILE)
    tables = Silicon(installation_of(systems))
    attention = tables.time(ATTENTION, H100)
    assert attention is not None and attention.how == "measured", "the system is known by its other tables"
    product = tables.time(PRODUCT, H100)
    named_otherwise = fault in (FAULTS["no device"], FAULTS["device as a number"])
    assert (product is not None) == named_otherwise, "only the rows matter for a time, not who they are of"
    if not named_otherwise:
        assert any(GEMM_FILE in problem for problem in tables.problems), tables.problems
    # Each fault is said once, and asking again says nothing more.
    text = list(tables.problems)
    tables.time(PRODUCT, H100, framework="vllm")
    tables.time(Gemm(1, 64, 64), H100)
    assert tables.problems == text and len(text) == len(set(text))


def test_a_system_of_damaged_tables_alone_is_left_out_and_the_others_work(systems: Path) -> None:
    write_table(
        systems,
        "l40s/gemm/vllm/0.24.0/gemm_perf.parquet",
        [{**row, "device": "NVIDIA L40S"} for row in gemm_grid()],
    )
    truncated(systems / "data" / GEMM_FILE)
    truncated(systems / "data" / ATTENTION_FILE)
    tables = Silicon(installation_of(systems))
    assert tables.time(PRODUCT, "NVIDIA L40S") is not None
    assert tables.time(PRODUCT, H100) is None
    assert any(mentions(problem, "h100_sxm") and ".parquet" not in problem for problem in tables.problems)


def test_some_rows_without_a_time_cost_themselves(systems: Path) -> None:
    times = (
        pl.when(pl.col("m") == 16)
        .then(math.nan)
        .when(pl.col("n") == 256)
        .then(0.0)
        .otherwise(pl.col("latency"))
    )
    changed(latency=times)(systems / "data" / GEMM_FILE)
    tables = Silicon(installation_of(systems))
    found = tables.time(PRODUCT, H100)
    assert found is not None and found.how == "measured"
    beyond = tables.time(Gemm(16, 64, 64), H100)
    assert beyond is None or beyond.how == "extrapolated"
    assert mentions(tables.problems[0], GEMM_FILE, "8", "12")


def installation_of(systems: Path):  # type: ignore[no-untyped-def]
    from llm_perf_opt.hardware.silicon.installation import Installation

    return Installation(systems, "0.12.0")
