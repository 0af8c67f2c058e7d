"""Whether the ranges of expected times hold: passes of products whose number of positions was left out of the tables.

Run: ``python -m benchmarks.silicon_ranges [--write]`` with the extra ``silicon``; ``--write`` puts the table into
docs/expected-times-accuracy.md. A pass is several products of measured shapes, as layers of a model have, at one number of positions; its
true time is the sum of their measurements, its expected time that of tables without this number. The ranges of single shapes come
from the same tables, so this tests how they are added up, not whether another machine would lie in them. Below the table: what share of
the errors' variance shapes at one number of positions have in common.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from dataclasses import dataclass

from benchmarks.generated import DOCS, markdown_table, write_block
from llm_perf_opt.analysis.roofline.expected_calls import Call
from llm_perf_opt.analysis.roofline.expected_times import Target, pass_time
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.hardware.silicon import Attention, Gemm, Operator, Silicon, Timing, open_silicon
from llm_perf_opt.hardware.silicon.tables import Grid, System
from llm_perf_opt.hardware.silicon.timing import spread_of

PASSES, SEED = 400, 20
SHAPES = (1, 4, 8)
"""Products of a pass: a dense decoder has four in a layer and a head."""
KINDS = (
    ("products", Gemm(1, 4096, 4096), 0),
    ("products in eight bits", Gemm(1, 4096, 4096, "float8"), 0),
    ("attention over a prompt", Attention("context", 1, 512, 32, 8, 128), 1),
    ("over a cache", Attention("generation", 1, 512, 32, 8, 128), 1),
)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Times of products from a grid that lacks their number of positions."""

    grid: Grid
    system: str

    def time(self, operator: Operator, device: str, *, framework: str | None = None) -> Timing | None:
        """Return the interpolated time with its range."""
        assert isinstance(operator, Gemm)
        found, spread = (
            self.grid.at((operator.m, operator.n, operator.k)),
            spread_of(operator, "interpolated", self.system),
        )
        if found is None or spread is None:
            return None
        ends = found.seconds * spread.low_ratio, found.seconds * spread.high_ratio
        return Timing(found.seconds, "interpolated", None, (), *ends)


def held(silicon: Silicon, system: System, products: int) -> tuple[float, float] | None:
    """Share of passes whose true time lies in the range, and the median width of ranges ÷ expected time."""
    tables = silicon.tables_of(Gemm(1, 4096, 4096), system.driver_names[0])
    grid = next((table.grid for _, table in tables if table.source.framework == silicon.framework), None)
    if grid is None:
        return None
    chance = random.Random(SEED)
    inner = [int(value) for value in grid.axes[0][1:-1]]
    less = {m: LeftOut(grid.without(0, m), system.key) for m in inner}
    by_rows: dict[int, list[Gemm]] = {}
    for m, n, k in (tuple(int(value) for value in row) for row in grid.points()):
        by_rows.setdefault(m, []).append(Gemm(m, n, k))
    inside, widths = [], []
    nothing = Target(system.key, {}, None)
    for _ in range(PASSES):
        m = chance.choice(inner)
        shapes = chance.sample(by_rows[m], min(products, len(by_rows[m])))
        timed = pass_time([Call("product", shape, 1) for shape in shapes], nothing, less[m], None)
        ends = timed.band.ends(timed.seconds) if timed is not None else None
        if timed is None or ends is None:
            continue
        true = sum(found.seconds for one in shapes if (found := grid.at((one.m, one.n, one.k))) is not None)
        inside.append(ends[0] <= true <= ends[1])
        widths.append((ends[1] - ends[0]) / timed.seconds)
    return (sum(inside) / len(inside), statistics.median(widths)) if inside else None


def table(silicon: Silicon) -> str:
    """Devices × products of a pass."""
    catalogue = load_catalogue()
    rows = []
    for system in silicon.systems:
        entry = catalogue.look_up(system.driver_names[0])[0]
        found = [held(silicon, system, products) for products in SHAPES]
        if any(found):
            cells = [f"{one[0]:.0%}, {one[1]:.0%} wide".replace("%", " %") if one else "–" for one in found]
            rows.append([entry.name if entry else system.driver_names[0], *cells])
    return markdown_table(
        ["passes in their range", *(f"{count} product{'s' * (count > 1)}" for count in SHAPES)], rows
    )


def common_share(grid: Grid, axis: int) -> float | None:
    """Share of the variance of interpolation errors (logarithms) that shapes of one left-out value have in common."""
    chance = random.Random(SEED)
    by_value: dict[int, list[tuple[int, ...]]] = {}
    for row in grid.points():
        point = tuple(int(value) for value in row)
        by_value.setdefault(point[axis], []).append(point)
    groups = []
    for value in (int(one) for one in grid.axes[axis][1:-1]):
        less = grid.without(axis, value)
        pairs = [
            (less.at(p), grid.at(p)) for p in chance.sample(by_value[value], min(60, len(by_value[value])))
        ]
        # One shape that is ten times off must not stand for all others.
        errors = [
            max(-0.5, min(0.5, math.log(true.seconds / found.seconds)))
            for found, true in pairs
            if found and true
        ]
        if len(errors) > 5:
            groups.append(errors)
    if len(groups) < 3:
        return None
    means = [statistics.fmean(group) for group in groups]
    within = statistics.fmean(statistics.variance(group) for group in groups)
    size = statistics.fmean(map(len, groups))
    between = max(0.0, statistics.variance(means) - within / size) + statistics.fmean(means) ** 2
    return between / (between + within)


def shares(silicon: Silicon) -> str:
    """The least, median and largest share over devices, by operator."""
    lines = []
    for name, operator, axis in KINDS:
        found = []
        for system in silicon.systems:
            tables = silicon.tables_of(operator, system.driver_names[0])
            own = next((t.grid for _, t in tables if t.source.framework == silicon.framework), None)
            share = common_share(own, axis) if own is not None else None
            found += [share] if share is not None else []
        lines.append(f"{name} {min(found):.2f} … {statistics.median(found):.2f} … {max(found):.2f}")
    return "In common of the errors' variance, over devices: " + "; ".join(lines) + "."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/expected-times-accuracy.md"
    )
    options = parser.parse_args()
    silicon = open_silicon()
    if silicon is None:
        raise SystemExit("the extra is not installed: pip install 'llm-perf-opt[silicon]'")
    text = f"{table(silicon)}\n\n{shares(silicon)}"
    print(text)
    if options.write:
        write_block(DOCS / "expected-times-accuracy.md", "silicon_ranges", text)


if __name__ == "__main__":
    main()
