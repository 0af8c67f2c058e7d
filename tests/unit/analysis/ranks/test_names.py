"""Ranks as files are named for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.analysis.ranks.names import rank_in_name


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.json", 0),
        ("rank-7.json.gz", 7),
        ("trace_rank_12.json", 12),
        ("rank3_1718000000.pt.trace.json.gz", 3),
        ("dp0_pp0_tp1_dcp0_ep0_rank1.1718000000.pt.trace.json.gz", 1),  # vLLM
        ("rank5_tp8.json", 5),  # eight ranks in parallel, this is the fifth
        ("1718000000-TP-3.trace.json.gz", 3),  # SGLang
        ("worker2.sqlite", 2),
        ("profile.gpu1.sqlite", 1),
        ("RANK4.json", 4),
        ("two-ranks-rank1.json.gz", 1),
        ("trace.json", None),
        ("step5.json", None),
        ("frank7.json", None),
        ("h100_2gpu_1s.sqlite", None),  # two devices, one second
        ("8gpu.sqlite", None),
        ("rank123456.json", None),
    ],
)
def test_the_rank_in_a_files_name(name: str, rank: int | None) -> None:
    assert rank_in_name(Path("runs/rank9") / name) == rank
