"""How far answers may be off: data that ships, carried by answers, added up over a pass."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from llm_perf_opt.analysis.roofline.expected_times import Band, Part
from llm_perf_opt.hardware.silicon import AllReduce, Attention, Gemm, LatentBlock, MoeLayer, Operator, Silicon
from llm_perf_opt.hardware.silicon.installation import KNOWN_VERSIONS, PACKAGE
from llm_perf_opt.hardware.silicon.timing import (
    Region,
    Spread,
    content,
    find_spread,
    kind_of,
    select_spread,
    spread_of,
)
from tests.unit.hardware.silicon.tables import H100, gemm_grid, installation, write_table

OPERATORS: list[Operator] = [
    Gemm(1, 64, 64),
    Gemm(1, 64, 64, "float8"),
    Gemm(1, 64, 64, "int4_wo"),
    Attention("context", 1, 64, 8, 8, 64),
    Attention("generation", 1, 64, 8, 8, 64),
    Attention("encoder", 1, 64, 8, 8, 64),
    LatentBlock("context", 1, 64, 16, 7168, 1536, 512, 64, 128, 128),
    LatentBlock("generation", 1, 64, 16, 7168, 1536, 512, 64, 128, 128),
    MoeLayer(1, 64, 64, 1, 8),
    AllReduce(64, 8),
]


def test_the_file_names_its_subject() -> None:
    package, version = content()["package"].split()
    assert package == PACKAGE and version.startswith(KNOWN_VERSIONS) and content()["made"] is not None


def test_every_region_is_a_range_and_regions_cover_every_size() -> None:
    for how, kinds in content()["errors"].items():
        for kind, systems in kinds.items():
            assert "all" in systems, (how, kind)
            sizes = list(dict.fromkeys(up_to for up_to, *_ in systems["all"]))
            assert sizes[-1] is None and None not in sizes[:-1] and sizes[:-1] == sorted(sizes[:-1])
            for system, regions in systems.items():
                assert list(dict.fromkeys(up_to for up_to, *_ in regions)) == sizes, (how, kind, system)
                if how == "roofline":
                    for _, low, middle, high, shapes, *typical_us in regions:
                        assert low is None or (0 < low <= middle <= high and shapes >= 40 and typical_us)
                    continue
                for size in sizes:
                    _check_distances([region[1:] for region in regions if region[0] == size])


def _check_distances(by_distance: list[list[float | None]]) -> None:
    """An answer lies in its own range, and a larger distance never has a narrower one."""
    if by_distance[0][0] is None:
        assert by_distance == [[None, None, None]], "nothing was measured at this size"
        return
    distances = [octaves for octaves, *_ in by_distance if octaves is not None]
    assert len(distances) == len(by_distance) and distances == sorted(set(distances))
    known = [(low, high) for _, low, high in by_distance if low is not None and high is not None]
    assert all(0 < low <= 1 <= high for low, high in known)
    lows, highs = [low for low, _ in known], [high for _, high in known]
    assert lows == sorted(lows, reverse=True) and highs == sorted(highs)


def test_a_range_widens_with_the_distance_and_ends_where_none_was_measured() -> None:
    near = find_spread("gemm bfloat16", 8, "interpolated", "h100_sxm", 0.1)
    far = find_spread("gemm bfloat16", 8, "interpolated", "h100_sxm", 2.0)
    assert near is not None and far is not None
    assert far.low_ratio < near.low_ratio and near.high_ratio <= far.high_ratio
    assert find_spread("gemm bfloat16", 8, "interpolated", "h100_sxm", 5.0) is None


def test_a_distance_without_shapes_takes_the_next_larger_one() -> None:
    regions = [
        Region(16, Spread(0.9, 1.1), 0.0, 0.6),
        Region(16, Spread(0.8, 1.3), 0.0, 1.2),
        Region(64, None),
    ]
    assert select_spread(regions, 4, 0.1) == Spread(0.9, 1.1) == select_spread(regions, 16, 0.6)
    assert select_spread(regions, 16, 0.7) == Spread(0.8, 1.3)
    assert select_spread(regions, 16, 1.3) is None, "farther than any that was asked for"
    assert select_spread(regions, 17, 0.1) is None and select_spread(regions, 65, 0.1) is None


def test_a_region_that_was_not_measured_borrows_no_other() -> None:
    """Experts were left out at both ends of their tables only, and below 16 tokens all answers were far too long."""
    assert spread_of(MoeLayer(100, 64, 64, 1, 8), "extrapolated") is None
    assert spread_of(MoeLayer(4, 64, 64, 1, 8), "extrapolated") is None
    assert spread_of(MoeLayer(100_000, 64, 64, 1, 8), "extrapolated") is not None
    assert spread_of(AllReduce(1_000_000, 8), "extrapolated") is None
    of_all = find_spread("experts", 4, "interpolated")
    assert of_all is not None and find_spread("experts", 4, "interpolated", "a100_sxm") == of_all


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda one: kind_of(one)[0])
def test_every_kind_of_operator_has_a_measured_error(operator: Operator) -> None:
    found = spread_of(operator, "interpolated", "h100_sxm")
    assert found is not None and found.low_ratio < 1 < found.high_ratio
    exact = spread_of(operator, "measured")
    assert exact is not None and exact.low_ratio == exact.high_ratio == 1
    assert spread_of(operator, "interpolated", "a system of tomorrow") == spread_of(operator, "interpolated")


def test_what_nobody_measured_is_not_known() -> None:
    assert spread_of(AllReduce(64, 8), "roofline") is None
    assert find_spread("convolution", 1, "roofline") is None


def test_an_answer_carries_the_error_of_its_region(tmp_path: Path) -> None:
    place = installation(tmp_path)
    write_table(place.systems, "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", gemm_grid())
    tables = Silicon(place)
    between, exact = tables.time(Gemm(3, 64, 64), H100), tables.time(Gemm(4, 64, 64), H100)
    spread = find_spread("gemm bfloat16", 3, "interpolated", "h100_sxm", math.log2(4 / 3))
    assert between is not None and exact is not None and spread is not None
    assert between.low_s == pytest.approx(between.seconds * spread.low_ratio)
    assert between.high_s == pytest.approx(between.seconds * spread.high_ratio)
    assert exact.low_s == exact.high_s == exact.seconds


def test_interpolated_shapes_share_half_of_their_variance_and_rooflines_all() -> None:
    band = Band()
    for how in ("interpolated", "interpolated", "roofline", "roofline"):
        band.add(Part("a", 1.0, how, "", 1, 0.7, 1.4), 1.0)  # type: ignore[arg-type]
    ends, joint = band.ends(4.0), (0.5 * 4 + 0.5 * 2) ** 0.5
    assert ends == (pytest.approx(4 - 0.3 * joint - 0.6), pytest.approx(4 + 0.4 * joint + 0.8))
    twice = Band()
    twice.join(band)
    twice.join(band)
    assert twice.above.coarse == pytest.approx(1.6) and twice.below.summed == pytest.approx(1.2)


def test_a_part_of_which_half_is_hidden_adds_half_and_an_unknown_one_leaves_the_sum_open() -> None:
    band = Band()
    band.add(Part("a", 1.0, "roofline", "", 1, 0.5, 2.0), 0.5)
    assert band.ends(0.5) == (pytest.approx(0.25), pytest.approx(1.0))
    band.add(Part("b", 1.0, "roofline", "", 1), 1.0)
    assert band.ends(1.5) is None
