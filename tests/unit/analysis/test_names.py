"""Ranks as files are named for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.analysis.ranks import rank_in_name, ranks_in_names


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


def test_replicas_that_count_from_zero_are_distinguished() -> None:
    names = ["1-TP-0-DP-0.json", "1-TP-1-DP-0.json", "1-TP-0-DP-1.json", "1-TP-1-DP-1.json"]
    paths = [Path(name) for name in names]

    assert ranks_in_names(paths) == dict(zip(paths, (0, 2, 1, 3), strict=True))


def test_names_that_distinguish_ranks_are_left_as_they_are() -> None:
    paths = [Path("1-TP-0-DP-3.json"), Path("1-TP-1-DP-5.json"), Path("trace.json")]

    assert list(ranks_in_names(paths).values()) == [3, 5, None]


def test_a_rank_given_twice_stays_one_rank() -> None:
    paths = [Path("a-TP-0.json"), Path("b-TP-0.json"), Path("a-TP-1.json")]

    assert list(ranks_in_names(paths).values()) == [0, 0, 1]
