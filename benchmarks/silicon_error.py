"""How wrong interpolation between measured operators is: every value of an axis left out in turn, and asked for.

Run: ``python -m benchmarks.silicon_error [--write]`` with the extra ``silicon``; ``--write`` puts the tables into
docs/expected-times-accuracy.md, and what answers carry as their error into hardware/silicon/errors.yaml. A left-out value doubles the gap
it lies in, so the errors are those of a grid twice as wide as the one that is used: upper estimates. Beside them: the outermost
value left out (extrapolation), and every measured shape against its roofline. The three constants of that roofline are computed
and printed too; they are kept in analysis/roofline/expected_times.py.
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
from llm_perf_opt.hardware.silicon.timing import EVERY_SYSTEM, FILE, kind_of

SAMPLES = 400
"""Left-out shapes per table, axis and region."""
SEED = 20
LEAST_SHAPES = 20
"""Of fewer no percentile is told."""
HOWS = ("interpolated", "extrapolated")
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
    axis: int
    """The axis regions are made of."""
    regions: tuple[tuple[str, float, float], ...]


POSITIONS = (("≤ 16 positions", 0, 16), ("17 to 512", 16, 512), ("> 512", 512, np.inf))
CONTEXTS = (("≤ 1,024 positions", 0, 1024), ("to 8,192", 1024, 8192), ("> 8,192", 8192, np.inf))
KINDS = (
    Asked("gemm bfloat16", Gemm(1, 4096, 4096), 0, POSITIONS),
    Asked("gemm float8", Gemm(1, 4096, 4096, "float8"), 0, POSITIONS),
    Asked("gemm float4", Gemm(1, 4096, 4096, "float4"), 0, POSITIONS),
    Asked("context attention", Attention("context", 1, 512, 32, 8, 128), 1, CONTEXTS),
    Asked("generation attention", Attention("generation", 1, 512, 32, 8, 128), 1, CONTEXTS),
    Asked("encoder attention", Attention("encoder", 1, 577, 16, 16, 64), 1, CONTEXTS),
    Asked(
        "context latent attention",
        LatentBlock("context", 1, 512, 16, 7168, 1536, 512, 64, 128, 128),
        1,
        CONTEXTS,
    ),
    Asked(
        "generation latent attention",
        LatentBlock("generation", 1, 512, 16, 7168, 1536, 512, 64, 128, 128),
        1,
        CONTEXTS,
    ),
    Asked("experts (128 × 2048 × 768, top 8)", MoeLayer(1, 2048, 768, 8, 128), 0, POSITIONS),
    Asked(
        "all-reduce of 8",
        AllReduce(4096, 8),
        0,
        (("≤ 64 Ki elements", 0, 65_536), ("to 4 Mi", 65_536, 4_194_304), ("> 4 Mi", 4_194_304, np.inf)),
    ),
)


Ratios = dict[str, dict[str, list[float]]]
"""How → region → answered ÷ measured."""
Rooflines = dict[str, list[tuple[float, float]]]
"""Operator as it is asked → (roofline ÷ measured, roofline in µs), all systems together."""


def left_out_ratios(grid: Grid, keep: Callable[[Sequence[int]], bool], chance: random.Random) -> list[float]:
    """Interpolated ÷ measured, of shapes whose value on one axis was left out."""
    points = [tuple(int(v) for v in row) for row in grid.points()]
    wanted = [point for point in points if keep(point)]
    errors = []
    for axis, values in enumerate(grid.axes):
        for value in values[1:-1]:  # the ends have nothing beyond them to lie between
            here = [point for point in wanted if point[axis] == value]
            if not here:
                continue
            less = grid.without(axis, int(value))
            share = max(1, SAMPLES // max(len(values) - 2, 1))
            for point in chance.sample(here, min(share, len(here))):
                found, true = less.at(point), grid.at(point)
                if found is not None and true is not None:
                    errors.append(found.seconds / true.seconds)
    return errors


def edge_ratios(
    table: Table, layout: Layout, asked: Asked, keep: Callable[[Sequence[int]], bool], chance: random.Random
) -> list[float]:
    """Extrapolated ÷ measured, of shapes whose outermost value on one axis was left out."""
    grid = table.grid
    wanted = [point for row in grid.points() if keep(point := tuple(int(v) for v in row))]
    found = []
    for axis, values in enumerate(grid.axes):
        for value in {int(values[0]), int(values[-1])} if len(values) > 2 else ():
            here = [point for point in wanted if point[axis] == value]
            less = Table(grid.without(axis, value), table.source)
            for point in chance.sample(here, min(SAMPLES // (2 * len(grid.axes)), len(here))):
                answer, true = answer_of(less, layout, layout.moved_to(asked.operator, point)), grid.at(point)
                if answer is not None and answer.how == "extrapolated" and true is not None:
                    found.append(answer.seconds / true.seconds)
    return found


def roofline_ratios(table: Table, layout: Layout, asked: Asked, target: Target) -> list[tuple[float, float]]:
    """(Roofline ÷ measured, roofline in µs) of measured shapes."""
    points, measured_s = table.grid.points(), table.grid.seconds()
    found = []
    for place in random.Random(SEED).sample(range(len(points)), min(3 * SAMPLES, len(points))):
        point = tuple(int(value) for value in points[place])
        seconds = roofline_s(layout.moved_to(asked.operator, point), target)
        if seconds is not None:
            found.append((seconds / float(measured_s[place]), seconds * 1e6))
    return found


def ratios_of(silicon: Silicon, asked: Asked, device: str) -> Ratios:
    """Answered ÷ measured over the newest table of each framework of a device."""
    chance = random.Random(SEED)
    found: Ratios = {how: {} for how in HOWS}
    for layout, table in newest_tables(silicon, asked.operator, device):
        for name, low, high in asked.regions:

            def inside(point: Sequence[int], low: float = low, high: float = high) -> bool:
                return low < point[asked.axis] <= high

            inner = left_out_ratios(table.grid, inside, chance)
            found["interpolated"].setdefault(name, []).extend(inner)
            outer = edge_ratios(table, layout, asked, inside, random.Random(SEED))
            found["extrapolated"].setdefault(name, []).extend(outer)
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

    def words(self) -> str:
        """One sentence."""
        return (
            f"Products in bfloat16 of more than {LONG_S * 1e6:.0f} µs reach {self.compute_share:.2f} of the peak where computing bounds "
            f"them and {self.memory_share:.2f} of the bandwidth where moving their operands does (medians); the smallest hundredth "
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


def all_ratios(silicon: Silicon) -> dict[str, dict[str, Ratios]]:
    """Operator as it is asked → system → ratios; of all systems together under their common name."""
    found: dict[str, dict[str, Ratios]] = {}
    for asked in KINDS:
        every: Ratios = {how: {} for how in HOWS}
        of_kind = found.setdefault(asked.name, {})
        for system in silicon.systems:
            of_kind[system.key] = ratios_of(silicon, asked, system.driver_names[0])
            for how, regions in of_kind[system.key].items():
                for region, values in regions.items():
                    every[how].setdefault(region, []).extend(values)
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
        "measured ÷ roofline, 5th percentile … median … 95th",
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


def tables(silicon: Silicon, found: Mapping[str, Mapping[str, Ratios]]) -> str:
    """Every operator as a table of devices × regions, and the coarser answers of all devices together."""
    catalogue = load_catalogue()
    names = {system.key: system.driver_names[0] for system in silicon.systems}
    parts, coarse = [], []
    for asked in KINDS:
        rows = []
        for key, ratios in found[asked.name].items():
            inner = ratios["interpolated"]
            if not any(inner.values()):
                continue
            entry = catalogue.look_up(names.get(key, ""))[0]
            shown = entry.name if entry else names.get(key, key)
            rows.append([shown, *(_cell(inner.get(name, [])) for name, *_ in asked.regions)])
        parts.append(
            f"**{asked.name}**\n\n{markdown_table(['device', *(name for name, *_ in asked.regions)], rows)}"
        )
        every = found[asked.name][EVERY_SYSTEM]
        coarse += [
            [f"{asked.name}, {name}", *(_range(every[how].get(name, [])) for how in HOWS)]
            for name, *_ in asked.regions
        ]
    header = ["measured ÷ answered, 5th percentile … median … 95th, all devices", *HOWS]
    return "\n\n".join([*parts, f"**all ways of answering**\n\n{markdown_table(header, coarse)}"])


def errors_file(silicon: Silicon, measured: Mapping[str, Mapping[str, Ratios]], rooflines: Rooflines) -> str:
    """The ranges as the package ships them: YAML, one line per operator and system."""
    lines = [
        "# How far answers lay from measurements: made by python -m benchmarks.silicon_error --write; do not edit.",
        "# Regions: [largest size, 5th percentile, median and 95th percentile of measured / answered, shapes asked for]; null: fewer than",
        f"# {LEAST_SHAPES} shapes, or all answers off to one side. Rooflines: by their own time in µs; last the typical one, at which the three hold.",
        f"package: {PACKAGE} {silicon.version}",
        f"made: {datetime.date.today().isoformat()}",
        "errors:",
    ]
    for how in HOWS:
        lines.append(f"  {how}:")
        for asked in KINDS:
            rows = []
            for system, ratios in measured[asked.name].items():
                found_here = [ratios[how].get(name, []) for name, *_ in asked.regions]
                if any(len(values) >= LEAST_SHAPES for values in found_here):
                    regions = [
                        _region(values, high)
                        for values, (_name, _low, high) in zip(found_here, asked.regions, strict=True)
                    ]
                    rows.append(f"      {system}: [{', '.join(regions)}]")
            if rows:
                lines += [f"    {kind_of(asked.operator)[0]}:", *rows]
    lines.append("  roofline:")
    for asked in KINDS:
        if asked.name in rooflines:
            regions = [_roofline_region(part, high) for part, high in _by_length(rooflines[asked.name])]
            lines += [f"    {kind_of(asked.operator)[0]}:", f"      {EVERY_SYSTEM}: [{', '.join(regions)}]"]
    return "\n".join(lines) + "\n"


def _region(ratios: Sequence[float], up_to: float) -> str:
    low, middle, high = _percentiles(ratios) if len(ratios) >= LEAST_SHAPES else (math.inf,) * 3
    if low > 1 + ONE_SIDED or high < 1 - ONE_SIDED:
        return f"[{_end(up_to)}, null, null, null, {len(ratios)}]"
    return f"[{_end(up_to)}, {min(low, 1.0):.4g}, {middle:.4g}, {max(high, 1.0):.4g}, {len(ratios)}]"


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
    """5th percentile, median and 95th of measured ÷ answered."""
    high, middle, low = (1 / float(np.quantile(ratios, share)) for share in (0.05, 0.5, 0.95))
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
    found, rooflines = all_ratios(silicon), all_rooflines(silicon)
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
