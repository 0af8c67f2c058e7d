"""How wrong interpolation between measured operators is: every value of an axis left out in turn, and asked for.

Run: ``python -m benchmarks.silicon_error [--write]`` with the extra ``silicon``; ``--write`` puts the tables into
docs/expected-times.md, and what answers carry as their error into hardware/silicon/errors.yaml. A left-out value doubles the gap
it lies in, so the errors are those of a grid twice as wide as the one that is used: upper estimates. Beside them: the outermost
value left out (extrapolation), and every measured shape against its roofline.
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
from llm_perf_opt.analysis.expected.compose import Target, roofline_s
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
from llm_perf_opt.hardware.silicon.errors import EVERY_SYSTEM, FILE, kind_of
from llm_perf_opt.hardware.silicon.grid import Grid
from llm_perf_opt.hardware.silicon.layouts import Layout
from llm_perf_opt.hardware.silicon.locate import PACKAGE
from llm_perf_opt.hardware.silicon.lookup import answer_of
from llm_perf_opt.hardware.silicon.operators import Operator
from llm_perf_opt.hardware.silicon.tables import Table

SAMPLES = 400
"""Left-out shapes per table, axis and region."""
SEED = 20
LEAST_SHAPES = 20
"""Of fewer no percentile is told."""
HOWS = ("interpolated", "extrapolated", "roofline")


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


def roofline_ratios(
    table: Table,
    layout: Layout,
    asked: Asked,
    target: Target,
    keep: Callable[[Sequence[int]], bool],
    chance: random.Random,
) -> list[float]:
    """Roofline ÷ measured, of measured shapes."""
    points = [point for row in table.grid.points() if keep(point := tuple(int(v) for v in row))]
    found = []
    for point in chance.sample(points, min(SAMPLES, len(points))):
        seconds, true = roofline_s(layout.moved_to(asked.operator, point), target), table.grid.at(point)
        if seconds is not None and true is not None:
            found.append(seconds / true.seconds)
    return found


def ratios_of(silicon: Silicon, asked: Asked, device: str, target: Target | None) -> Ratios:
    """Answered ÷ measured over the newest table of each framework of a device."""
    chance = random.Random(SEED)
    found: Ratios = {how: {} for how in HOWS}
    newest: dict[str, tuple[Layout, Table]] = {}
    for layout, table in silicon.tables_of(asked.operator, device):
        newest.setdefault(table.source.framework, (layout, table))
    for layout, table in newest.values():
        for name, low, high in asked.regions:

            def inside(point: Sequence[int], low: float = low, high: float = high) -> bool:
                return low < point[asked.axis] <= high

            inner = left_out_ratios(table.grid, inside, chance)
            found["interpolated"].setdefault(name, []).extend(inner)
            outer = edge_ratios(table, layout, asked, inside, random.Random(SEED))
            found["extrapolated"].setdefault(name, []).extend(outer)
            if target is not None:
                limits = roofline_ratios(table, layout, asked, target, inside, random.Random(SEED))
                found["roofline"].setdefault(name, []).extend(limits)
    return found


def all_ratios(silicon: Silicon) -> dict[str, dict[str, Ratios]]:
    """Operator as it is asked → system → ratios; of all systems together under their common name."""
    catalogue = load_catalogue()
    found: dict[str, dict[str, Ratios]] = {}
    for asked in KINDS:
        every: Ratios = {how: {} for how in HOWS}
        of_kind = found.setdefault(asked.name, {})
        for system in silicon.systems:
            entry = catalogue.look_up(system.driver_names[0])[0]
            target = Target(entry.name, entry.peaks, entry.bandwidth_bytes_per_s) if entry else None
            of_kind[system.key] = ratios_of(silicon, asked, system.driver_names[0], target)
            for how, regions in of_kind[system.key].items():
                for region, values in regions.items():
                    every[how].setdefault(region, []).extend(values)
        of_kind[EVERY_SYSTEM] = every
    return found


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
    header = ["measured ÷ answered, 5th to 95th percentile, all devices", *HOWS]
    return "\n\n".join([*parts, f"**all ways of answering**\n\n{markdown_table(header, coarse)}"])


def errors_file(silicon: Silicon, found: Mapping[str, Mapping[str, Ratios]]) -> str:
    """The ranges as the package ships them: YAML, one line per operator and system."""
    lines = [
        "# How far answers lay from measurements: made by python -m benchmarks.silicon_error --write; do not edit.",
        "# Regions: [largest size, 5th and 95th percentile of measured / answered, shapes asked for].",
        f"package: {PACKAGE} {silicon.version}",
        f"made: {datetime.date.today().isoformat()}",
        "errors:",
    ]
    for how in HOWS:
        lines.append(f"  {how}:")
        for asked in KINDS:
            rows = []
            for system, ratios in found[asked.name].items():
                regions = [
                    _region(ratios[how][name], high)
                    for name, _low, high in asked.regions
                    if len(ratios[how].get(name, [])) >= LEAST_SHAPES
                ]
                if regions and (how != "roofline" or system == EVERY_SYSTEM):
                    rows.append(f"      {system}: [{', '.join(regions)}]")
            if rows:
                lines += [f"    {kind_of(asked.operator)[0]}:", *rows]
    return "\n".join(lines) + "\n"


def _region(ratios: Sequence[float], up_to: float) -> str:
    low, high = 1 / np.quantile(ratios, 0.95), 1 / np.quantile(ratios, 0.05)
    size = "null" if math.isinf(up_to) else f"{up_to:g}" if up_to < 1e5 else str(int(up_to))
    return f"[{size}, {low:.4g}, {high:.4g}, {len(ratios)}]"


def _range(ratios: Sequence[float]) -> str:
    if len(ratios) < LEAST_SHAPES:
        return "–"
    return f"{1 / np.quantile(ratios, 0.95):.2f} … {1 / np.quantile(ratios, 0.05):.2f}"


def _cell(ratios: Sequence[float]) -> str:
    if not ratios:
        return "–"
    errors = np.abs(np.asarray(ratios) - 1)
    return f"{np.median(errors):.1%} / {np.quantile(errors, 0.95):.0%}".replace("%", " %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/expected-times.md")
    options = parser.parse_args()
    silicon = open_silicon()
    if silicon is None:
        raise SystemExit("the extra is not installed: pip install 'llm-perf-opt[silicon]'")
    begin = time.perf_counter()
    found = all_ratios(silicon)
    text = tables(silicon, found)
    print(f"Errors of left-out shapes, median / 95th percentile, {silicon.version}\n\n{text}")
    print(f"\n{time.perf_counter() - begin:.0f} s")
    if options.write:
        write_block(DOCS / "expected-times.md", "silicon_error", text)
        path = Path(llm_perf_opt.hardware.silicon.__file__).parent / FILE
        path.write_text(errors_file(silicon, found), encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
