"""How wrong interpolation between measured operators is: every value of an axis left out in turn, and asked for.

Run: ``python -m benchmarks.silicon_error [--write]`` with the extra ``silicon``; ``--write`` puts the tables into
docs/expected-times.md. A left-out value doubles the gap it lies in, so the errors are those of a grid twice as wide as the
one that is used: upper estimates.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.generated import DOCS, markdown_table, write_block
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.hardware.silicon import AllReduce, Attention, Gemm, MoeLayer, Silicon, open_silicon
from llm_perf_opt.hardware.silicon.grid import Grid
from llm_perf_opt.hardware.silicon.operators import Operator

SAMPLES = 400
"""Left-out shapes per table, axis and region."""
SEED = 20


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
    Asked("experts (128 × 2048 × 768, top 8)", MoeLayer(1, 2048, 768, 8, 128), 0, POSITIONS),
    Asked(
        "all-reduce of 8",
        AllReduce(4096, 8),
        0,
        (("≤ 64 Ki elements", 0, 65_536), ("to 4 Mi", 65_536, 4_194_304), ("> 4 Mi", 4_194_304, np.inf)),
    ),
)


def left_out_errors(grid: Grid, keep: Callable[[Sequence[int]], bool], chance: random.Random) -> list[float]:
    """|interpolated ÷ measured − 1| of shapes whose value on one axis was left out."""
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
                    errors.append(abs(found.seconds / true.seconds - 1))
    return errors


def errors_of(silicon: Silicon, asked: Asked, device: str) -> dict[str, list[float]]:
    """Region → errors over all tables of a device."""
    chance = random.Random(SEED)
    found: dict[str, list[float]] = {}
    newest: dict[str, Grid] = {}
    for _layout, table in silicon.tables_of(asked.operator, device):
        newest.setdefault(table.source.framework, table.grid)
    for grid in newest.values():
        for name, low, high in asked.regions:

            def inside(point: Sequence[int], low: float = low, high: float = high) -> bool:
                return low < point[asked.axis] <= high

            found.setdefault(name, []).extend(left_out_errors(grid, inside, chance))
    return found


def tables(silicon: Silicon) -> str:
    """Every operator as a table of devices × regions."""
    catalogue = load_catalogue()
    parts = []
    for asked in KINDS:
        rows, everything = [], {name: [] for name, *_ in asked.regions}
        for system in silicon.systems:
            found = errors_of(silicon, asked, system.driver_names[0])
            if not any(found.values()):
                continue
            entry = catalogue.look_up(system.driver_names[0])[0]
            rows.append([entry.name if entry else system.driver_names[0], *map(_cell, found.values())])
            for name, errors in found.items():
                everything[name] += errors
        rows.append(["all", *map(_cell, everything.values())])
        parts.append(
            f"**{asked.name}**\n\n{markdown_table(['device', *(name for name, *_ in asked.regions)], rows)}"
        )
    return "\n\n".join(parts)


def _cell(errors: Sequence[float]) -> str:
    if not errors:
        return "–"
    return f"{np.median(errors):.1%} / {np.quantile(errors, 0.95):.0%}".replace("%", " %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/expected-times.md")
    options = parser.parse_args()
    silicon = open_silicon()
    if silicon is None:
        raise SystemExit("the extra is not installed: pip install 'llm-perf-opt[silicon]'")
    begin = time.perf_counter()
    text = tables(silicon)
    print(f"Errors of left-out shapes, median / 95th percentile, {silicon.version}\n\n{text}")
    print(f"\n{time.perf_counter() - begin:.0f} s")
    if options.write:
        write_block(DOCS / "expected-times.md", "silicon_error", text)


if __name__ == "__main__":
    main()
