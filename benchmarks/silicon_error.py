"""How wrong estimates between and beyond measured operators are: measured shapes are asked for with their neighbours left out.

Run: ``python -m benchmarks.silicon_error [--write]`` with the extra ``silicon``; ``--write`` puts the tables into
docs/expected-times-accuracy.md, and the ranges into hardware/silicon/errors.yaml. On a random choice of axes, the shape's own
value and those within a random factor around it are left out; errors are kept by size and by the distance to the nearest
shape that is left, so that a query gets the errors of its own distance. Tables hold pairs such as 32 and 33: without leaving out
neighbours, errors near them would look smaller than those of 40. Extrapolation: the outer part of an axis is left out. Rooflines:
every measured shape against its own. The three constants of that roofline are computed and printed too; they are kept in
analysis/roofline/expected_times.py.
"""

from __future__ import annotations

import argparse
import datetime
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import llm_perf_opt.hardware.silicon
from benchmarks.generated import DOCS, markdown_table, write_block
from llm_perf_opt.analysis.roofline.expected_times import Target, roofline_s
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.hardware.silicon import (
    AllReduce,
    Attention,
    Gemm,
    LatentBlock,
    MoeLayer,
    Silicon,
    open_silicon,
)
from llm_perf_opt.hardware.silicon.installation import PACKAGE
from llm_perf_opt.hardware.silicon.lookup import answer_of
from llm_perf_opt.hardware.silicon.operators import Layout, Operator
from llm_perf_opt.hardware.silicon.tables import Grid, Table
from llm_perf_opt.hardware.silicon.timing import EVERY_SYSTEM, FILE, Region, Spread, kind_of

SAMPLES = 400
"""Left-out shapes per table and region of sizes; twice as many per table at its ends."""
SEED = 20
LEAST_SHAPES = 40
"""No percentile is given for fewer."""
LEVELS = (0.04, 0.5, 0.96)
"""Percentiles of a range: shapes of one table resemble each other, so that the 5th and 95th of some enclose only 88 % of the others
(``benchmarks/silicon_ranges.py`` measures that)."""
HIDDEN_OCTAVES = (0.0, 0.12, 0.3, 0.5, 0.9)
"""How far around a shape values are left out on an axis."""
OCTAVES = {"interpolated": (0.3, 0.6, 1.2, 2.4), "extrapolated": (0.5, 1.0, 2.0)}
"""Distances at which errors are kept apart; farther shapes have no range."""
ROOFLINES_US = ((0.0, 5.0), (5.0, 20.0), (20.0, 100.0), (100.0, 1000.0), (1000.0, math.inf))
"""Rooflines fall into regions by their own time: short kernels lie farther above theirs, whichever size is small."""
ONE_SIDED = 0.05
"""A range that misses its own answer by more is none: what answers there is not off by chance."""
LONG_S, SMALLEST_SHARE = 50e-6, 0.01


@dataclass(frozen=True, slots=True)
class Asked:
    """A kind of operator, and how its shapes fall into regions."""

    name: str
    operator: Operator
    regions: tuple[tuple[str, float], ...]
    """Name and largest size (``timing.kind_of``)."""

    def region(self, size: float) -> str:
        """Name of the region of a size."""
        return next(name for name, up_to in self.regions if size <= up_to)


POSITIONS = (("≤ 4 positions", 4), ("to 16", 16), ("to 64", 64), ("to 512", 512), ("> 512", math.inf))
CONTEXTS = (("≤ 1,024 positions", 1024), ("to 8,192", 8192), ("> 8,192", math.inf))
CACHED = (
    ("≤ 4 Ki keys", 4096),
    ("to 32 Ki", 32_768),
    ("to 256 Ki", 262_144),
    ("to 2 Mi", 2_097_152),
    ("> 2 Mi", math.inf),
)
MESSAGES = (("≤ 64 Ki elements", 65_536), ("to 4 Mi", 4_194_304), ("> 4 Mi", math.inf))
KINDS = (
    Asked("gemm bfloat16", Gemm(1, 4096, 4096), POSITIONS),
    Asked("gemm float8", Gemm(1, 4096, 4096, "float8"), POSITIONS),
    Asked("gemm float4", Gemm(1, 4096, 4096, "float4"), POSITIONS),
    Asked("context attention", Attention("context", 1, 512, 32, 8, 128), CONTEXTS),
    Asked("generation attention", Attention("generation", 1, 512, 32, 8, 128), CACHED),
    Asked("encoder attention", Attention("encoder", 1, 577, 16, 16, 64), CONTEXTS),
    Asked(
        "context latent attention",
        LatentBlock("context", 1, 512, 16, 7168, 1536, 512, 64, 128, 128),
        CONTEXTS,
    ),
    Asked(
        "generation latent attention",
        LatentBlock("generation", 1, 512, 16, 7168, 1536, 512, 64, 128, 128),
        CACHED,
    ),
    Asked("experts (128 × 2048 × 768, top 8)", MoeLayer(1, 2048, 768, 8, 128), POSITIONS),
    Asked("all-reduce of 8", AllReduce(4096, 8), MESSAGES),
)


@dataclass(frozen=True, slots=True)
class Miss:
    """One measured shape that was estimated without its neighbours."""

    octaves: float
    """Distance to the nearest shape left."""
    ratio: float
    """Answered ÷ measured."""


Misses = dict[str, dict[str, list[Miss]]]
"""How → region of sizes → shapes."""
Rooflines = dict[str, list[tuple[float, float]]]
"""Operator as it is asked → (roofline ÷ measured, roofline in µs), all systems together."""
Keep = Callable[[tuple[int, ...]], bool]
"""Which shapes are asked for."""


def hide(chance: random.Random, axes: int) -> dict[int, float]:
    """Choose the axes on which values around a shape are left out, and how far."""
    chosen = [axis for axis in range(axes) if chance.random() < 0.5] or [chance.randrange(axes)]
    return {axis: chance.choice(HIDDEN_OCTAVES) for axis in chosen}


def inner_misses(grid: Grid, points: Sequence[tuple[int, ...]], chance: random.Random) -> list[Miss]:
    """Interpolated ÷ measured, of shapes whose neighbourhood was left out on some axes."""
    found = {}  # small tables give the same answer several times
    for _ in range(SAMPLES):
        point = chance.choice(points)
        answer, true = grid.at(point, hide(chance, len(point))), grid.at(point)
        if answer is not None and true is not None:
            found[point, answer.seconds] = Miss(answer.distance_octaves, answer.seconds / true.seconds)
    return list(found.values())


def outer_misses(
    table: Table, layout: Layout, asked: Asked, chance: random.Random
) -> list[tuple[tuple[int, ...], Miss]]:
    """Extrapolated ÷ measured, of shapes beyond a table whose outer one or two values of one axis were left out."""
    grid, found = table.grid, []
    points = grid.points()
    for axis, values in enumerate(grid.axes):
        cuts = [cut for cut in (1, 2) if len(values) > cut + 1]
        ends = [(float(values[cut]), math.inf) for cut in cuts]
        ends += [(-math.inf, float(values[-1 - cut])) for cut in cuts]
        for low, high in ends:
            less = Table(grid.within(axis, low, high), table.source)
            outside = points[(points[:, axis] < low) | (points[:, axis] > high)]
            for row in chance.sample(range(len(outside)), min(SAMPLES // (2 * len(grid.axes)), len(outside))):
                point = tuple(int(value) for value in outside[row])
                answer, true = answer_of(less, layout, layout.moved_to(asked.operator, point)), grid.at(point)
                if answer is not None and answer.how == "extrapolated" and true is not None:
                    found.append((point, Miss(answer.distance_octaves, answer.seconds / true.seconds)))
    return found


def roofline_ratios(table: Table, layout: Layout, asked: Asked, target: Target) -> list[tuple[float, float]]:
    """(Roofline ÷ measured, roofline in µs) of measured shapes."""
    points, measured_s = table.grid.points(), table.grid.seconds()
    found = []
    for place in random.Random(SEED).sample(range(len(points)), min(SAMPLES, len(points))):
        point = tuple(int(value) for value in points[place])
        seconds = roofline_s(layout.moved_to(asked.operator, point), target)
        if seconds is not None:
            found.append((seconds / float(measured_s[place]), seconds * 1e6))
    return found


def misses_of(silicon: Silicon, asked: Asked, device: str, keep: Keep | None = None) -> Misses:
    """Estimated ÷ measured over the newest table of each framework of a device."""
    chance = random.Random(SEED)
    found: Misses = {how: {name: [] for name, _ in asked.regions} for how in OCTAVES}
    for layout, table in newest_tables(silicon, asked.operator, device):

        def region(point: tuple[int, ...], layout: Layout = layout) -> str:
            return asked.region(kind_of(layout.moved_to(asked.operator, point))[1])

        rows = table.grid.points()
        by_region: dict[str, list[tuple[int, ...]]] = {}
        for row in chance.sample(range(len(rows)), min(len(rows), 4 * SAMPLES * len(asked.regions))):
            point = tuple(int(value) for value in rows[row])
            if keep is None or keep(point):
                by_region.setdefault(region(point), []).append(point)
        for name, points in by_region.items():
            found["interpolated"][name] += inner_misses(table.grid, points, chance)
        for point, miss in outer_misses(table, layout, asked, chance) if keep is None else ():
            found["extrapolated"][region(point)].append(miss)
    return found


def newest_tables(silicon: Silicon, operator: Operator, device: str) -> list[tuple[Layout, Table]]:
    """Of each framework the newest table."""
    newest: dict[str, tuple[Layout, Table]] = {}
    for layout, table in silicon.tables_of(operator, device):
        newest.setdefault(table.source.framework, (layout, table))
    return list(newest.values())


@dataclass(frozen=True, slots=True)
class Constants:
    """What the roofline of operators without a table rests on."""

    compute_share: float
    memory_share: float
    kernel_s: float

    def describe(self) -> str:
        """One sentence."""
        return (
            f"Matrix products in bfloat16 of more than {LONG_S * 1e6:.0f} µs reach {self.compute_share:.2f} of the peak where they are "
            f"compute-bound and {self.memory_share:.2f} of the bandwidth where they are memory-bound (medians); the smallest hundredth "
            f"of a table's products takes {self.kernel_s * 1e6:.1f} µs (median over the tables)."
        )


def constants(silicon: Silicon) -> Constants:
    """Medians over the newest bfloat16 tables of every framework and system."""
    catalogue = load_catalogue()
    computing: list[float] = []
    moving: list[float] = []
    small: list[float] = []
    for system in silicon.systems:
        entry = catalogue.look_up(system.driver_names[0])[0]
        peak = entry.peaks.get("bfloat16") if entry is not None else None
        bandwidth = entry.bandwidth_bytes_per_s if entry is not None else None
        if peak is None or bandwidth is None:
            continue
        for _, table in newest_tables(silicon, Gemm(1, 4096, 4096), system.driver_names[0]):
            m, n, k = table.grid.points().T.astype(float)
            seconds = table.grid.seconds()
            compute_s = 2 * m * n * k / peak.dense
            memory_s = 2 * (m * k + n * k + m * n) / bandwidth
            long, bound = seconds > LONG_S, compute_s > memory_s
            computing += (compute_s / seconds)[long & bound].tolist()
            moving += (memory_s / seconds)[long & ~bound].tolist()
            work = m * n * k
            small.append(float(np.median(seconds[work <= np.quantile(work, SMALLEST_SHARE)])))
    return Constants(*(float(np.median(one)) for one in (computing, moving, small)))


def all_misses(silicon: Silicon) -> dict[str, dict[str, Misses]]:
    """Operator as it is asked → system → shapes; of all systems together under their common name."""
    found: dict[str, dict[str, Misses]] = {}
    for asked in KINDS:
        every: Misses = {how: {name: [] for name, _ in asked.regions} for how in OCTAVES}
        of_kind = found.setdefault(asked.name, {})
        for system in silicon.systems:
            of_kind[system.key] = misses_of(silicon, asked, system.driver_names[0])
            for how, regions in of_kind[system.key].items():
                for region, values in regions.items():
                    every[how][region] += values
        of_kind[EVERY_SYSTEM] = every
    return found


def all_rooflines(silicon: Silicon) -> Rooflines:
    """Rooflines of measured shapes of every system."""
    catalogue = load_catalogue()
    found: Rooflines = {}
    for asked in KINDS:
        for system in silicon.systems:
            entry = catalogue.look_up(system.driver_names[0])[0]
            if entry is not None:
                target = Target(entry.name, entry.peaks, entry.bandwidth_bytes_per_s)
                for layout, table in newest_tables(silicon, asked.operator, system.driver_names[0]):
                    found.setdefault(asked.name, []).extend(roofline_ratios(table, layout, asked, target))
    return {name: pairs for name, pairs in found.items() if pairs}


def roofline_table(rooflines: Rooflines) -> str:
    """Operators × lengths of rooflines."""
    header = [
        "measured ÷ roofline, 4th percentile … median … 96th",
        "roofline ≤ 5 µs",
        "to 20 µs",
        "to 100 µs",
        "to 1 ms",
        "longer",
    ]
    rows = [
        [name, *(_range([ratio for ratio, _ in part]) for part, _ in _by_length(pairs))]
        for name, pairs in rooflines.items()
    ]
    return f"**rooflines, all devices**\n\n{markdown_table(header, rows)}"


def _by_length(pairs: Sequence[tuple[float, float]]) -> list[tuple[list[tuple[float, float]], float]]:
    return [([one for one in pairs if low < one[1] <= high], high) for low, high in ROOFLINES_US]


def tables(silicon: Silicon, found: Mapping[str, Mapping[str, Misses]]) -> str:
    """Every operator as a table of devices × regions, and the coarser answers of all devices together."""
    catalogue = load_catalogue()
    names = {system.key: system.driver_names[0] for system in silicon.systems}
    parts, coarse = [], []
    for asked in KINDS:
        rows = []
        for key, misses in found[asked.name].items():
            inner = misses["interpolated"]
            if not any(inner.values()):
                continue
            entry = catalogue.look_up(names.get(key, ""))[0]
            shown = entry.name if entry else names.get(key, key)
            rows.append([shown, *(_cell([one.ratio for one in inner[name]]) for name, _ in asked.regions)])
        parts.append(
            f"**{asked.name}**\n\n{markdown_table(['device', *(name for name, _ in asked.regions)], rows)}"
        )
        every = found[asked.name][EVERY_SYSTEM]
        coarse += [
            [f"{asked.name}, {how}", *(_range(_at_distance(every[how], *ends)) for ends in _DISTANCE_CLASSES)]
            for how in OCTAVES
        ]
    header = ["measured ÷ answered, all devices, by distance in octaves", *_DISTANCE_NAMES]
    return "\n\n".join(
        [*parts, f"**by distance to the nearest measured shape**\n\n{markdown_table(header, coarse)}"]
    )


_DISTANCE_CLASSES = ((0.0, 0.3), (0.3, 0.6), (0.6, 1.2), (1.2, 2.4))
_DISTANCE_NAMES = ("≤ 0.3", "to 0.6", "to 1.2", "to 2.4")


def _at_distance(regions: Mapping[str, Sequence[Miss]], low: float, high: float) -> list[float]:
    return [one.ratio for misses in regions.values() for one in misses if low < one.octaves <= high]


def regions_of(misses: Sequence[Miss], how: str, up_to: float) -> list[Region]:
    """Ranges by distance in one region of sizes: a larger distance never has a narrower one.

    A distance with too few shapes is left out: the next larger one answers. Where answers lie off to one side, there is no range.
    """
    found, inner, low, high = [], 0.0, 1.0, 1.0
    for octaves in OCTAVES[how]:
        ratios = [one.ratio for one in misses if inner < one.octaves <= octaves]
        inner = octaves
        if len(ratios) < LEAST_SHAPES:
            continue
        least, _, most = _percentiles(ratios)
        low, high = min(low, least), max(high, most)
        one_sided = least > 1 + ONE_SIDED or most < 1 - ONE_SIDED
        spread = None if one_sided else Spread(low, high)
        found.append(Region(up_to, spread, 0.0, octaves))
    return found or [Region(up_to, None)]


def errors_file(silicon: Silicon, measured: Mapping[str, Mapping[str, Misses]], rooflines: Rooflines) -> str:
    """The ranges as the package ships them: YAML, one line per operator and system."""
    lines = [
        "# Errors of estimates, measured on left-out shapes: made by python -m benchmarks.silicon_error --write; do not edit.",
        f"# Regions: [largest size, largest distance in octaves, {LEVELS[0] * 100:.0f}th and {LEVELS[-1] * 100:.0f}th percentile of measured / answered];",
        f"# null: fewer than {LEAST_SHAPES} shapes, or answers off to one side. Rooflines: [largest roofline in µs, percentiles and median between",
        "# them, shapes, typical roofline in µs, at which the three hold].",
        f"package: {PACKAGE} {silicon.version}",
        f"made: {datetime.date.today().isoformat()}",
        "errors:",
    ]
    for how in OCTAVES:
        lines.append(f"  {how}:")
        for asked in KINDS:
            rows = []
            for system, misses in measured[asked.name].items():
                parts = [
                    _written(region)
                    for name, up_to in asked.regions
                    for region in regions_of(misses[how][name], how, up_to)
                ]
                if any(len(values) >= LEAST_SHAPES for values in misses[how].values()):
                    rows.append(f"      {system}: [{', '.join(parts)}]")
            if rows:
                lines += [f"    {kind_of(asked.operator)[0]}:", *rows]
    lines.append("  roofline:")
    for asked in KINDS:
        if asked.name in rooflines:
            regions = [_roofline_region(part, high) for part, high in _by_length(rooflines[asked.name])]
            lines += [f"    {kind_of(asked.operator)[0]}:", f"      {EVERY_SYSTEM}: [{', '.join(regions)}]"]
    return "\n".join(lines) + "\n"


def _written(region: Region) -> str:
    ends, one = f"{_end(region.up_to)}, {_end(region.up_to_octaves)}", region.spread
    return f"[{ends}, {'null, null' if one is None else f'{one.low_ratio:.3g}, {one.high_ratio:.4g}'}]"


def _roofline_region(pairs: Sequence[tuple[float, float]], up_to: float) -> str:
    """A region of rooflines, which are corrected by their median and so may lie to one side."""
    if len(pairs) < LEAST_SHAPES:
        return f"[{_end(up_to)}, null, null, null, {len(pairs)}]"
    low, middle, high = _percentiles([ratio for ratio, _ in pairs])
    typical_us = math.exp(float(np.mean(np.log([us for _, us in pairs]))))
    return f"[{_end(up_to)}, {low:.4g}, {middle:.4g}, {high:.4g}, {len(pairs)}, {typical_us:.3f}]"


def _end(up_to: float) -> str:
    return "null" if math.isinf(up_to) else f"{up_to:g}" if up_to < 1e5 else str(int(up_to))


def _percentiles(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Lower end, median and upper end of measured ÷ answered."""
    high, middle, low = (1 / float(np.quantile(ratios, share)) for share in LEVELS)
    return low, middle, high


def _range(ratios: Sequence[float]) -> str:
    if len(ratios) < LEAST_SHAPES:
        return "–"
    return " … ".join(f"{one:.2f}" for one in _percentiles(ratios))


def _cell(ratios: Sequence[float]) -> str:
    if not ratios:
        return "–"
    errors = np.abs(np.asarray(ratios) - 1)
    return f"{np.median(errors):.1%} / {np.quantile(errors, 0.95):.0%}".replace("%", " %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/expected-times-accuracy.md"
    )
    options = parser.parse_args()
    silicon = open_silicon()
    if silicon is None:
        raise SystemExit("the extra is not installed: pip install 'llm-perf-opt[silicon]'")
    begin = time.perf_counter()
    found, rooflines = all_misses(silicon), all_rooflines(silicon)
    text = "\n\n".join([tables(silicon, found), roofline_table(rooflines), constants(silicon).describe()])
    print(f"Errors of left-out shapes, median / 95th percentile, {silicon.version}\n\n{text}")
    print(f"\n{time.perf_counter() - begin:.0f} s")
    if options.write:
        write_block(DOCS / "expected-times-accuracy.md", "silicon_error", text)
        path = Path(llm_perf_opt.hardware.silicon.__file__).parent / FILE
        path.write_text(errors_file(silicon, found, rooflines), encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
