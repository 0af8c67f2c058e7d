"""Whether the 90 % ranges of expected times hold: whole passes of measured shapes, estimated with their neighbours left out.

Run: ``python -m benchmarks.silicon_ranges [--write]`` with the extra ``silicon``; ``--write`` puts the tables into
docs/expected-times-accuracy.md. A pass is a made-up decoder of measured shapes: four products and one attention per layer, 32 layers,
and a head. Its true time is the sum of their measurements; its expected time and range are those of ``pass_time`` from tables in which
the batch size, the context and sizes of products are left out at random together with their neighbours. The ranges of single
shapes are measured on one half of the shapes, and the passes are made of the other half, so no shape vouches for itself. This tests
ranges of one version of one framework on the device it was measured on, not whether another machine or version lies in them.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.generated import DOCS, markdown_table, write_block
from benchmarks.silicon_error import HIDDEN_OCTAVES, KINDS, Asked, misses_of, newest_tables, regions_of
from llm_perf_opt.analysis.roofline.expected_calls import Call
from llm_perf_opt.analysis.roofline.expected_times import COMMON_SHARE, Errors, PassTime, Target, pass_time
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.hardware.silicon import Attention, Gemm, Operator, Silicon, Timing, open_silicon
from llm_perf_opt.hardware.silicon.tables import Grid, System
from llm_perf_opt.hardware.silicon.timing import Region, kind_of, select_spread

PASSES, SEED = 40, 20
"""Passes per device, phase and batch size."""
BATCHES = ((1,), (2, 4), (8, 16), (32, 64), (128, 256))
PHASES = ("decode", "prefill")
LAYERS, PRODUCTS = 32, 4
LEAST_SIZE, LEAST_TOKENS, HEAD = 512, 128, 16_384
"""Smallest sides of a product, shortest context; a head has at least so many outputs."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_NO_LIMITS = Target("", {}, None)


def half_of(point: Sequence[int]) -> int:
    """Return the half of the shapes, 0 or 1, that a shape belongs to; the batch size does not matter."""
    return zlib.crc32(repr(tuple(point[1:])).encode()) % 2


@dataclass(slots=True)
class LeftOut:
    """Times of shapes from tables that lack them, with the ranges of the other half of the shapes."""

    grids: Mapping[str, Grid]
    regions: Mapping[str, Sequence[Region]]
    half: int = 1
    """The half of the shapes that passes are made of."""
    hidden: dict[Operator, dict[int, float]] = field(default_factory=dict)

    def time(self, operator: Operator, device: str, *, framework: str | None = None) -> Timing | None:
        """Return the estimate with its range; a measured one where nothing of it is left out."""
        grid, point = self.grids[kind_of(operator)[0]], _point(operator)
        hidden = self.hidden.get(operator, {})
        # At the end of an axis there is nothing to lie between: the value stays.
        found = (
            grid.at(point, hidden)
            or grid.at(point, {a: r for a, r in hidden.items() if a > 0})
            or grid.at(point)
        )
        if found is None:
            return None
        ends = (found.seconds, found.seconds)
        if found.how == "interpolated":
            kind, size = kind_of(operator)
            spread = select_spread(self.regions[kind], size, found.distance_octaves)
            if spread is None:
                return Timing(found.seconds, found.how, None)
            ends = found.seconds * spread.low_ratio, found.seconds * spread.high_ratio
        return Timing(found.seconds, found.how, None, (), *ends)


def _point(operator: Operator) -> tuple[int, ...]:
    if isinstance(operator, Gemm):
        return operator.m, operator.n, operator.k
    assert isinstance(operator, Attention)
    return operator.batch, operator.tokens, operator.heads, operator.kv_heads


@dataclass(frozen=True, slots=True)
class Outcome:
    """A pass: its range for several shares of common errors, and its true time."""

    batch: int
    phase: str
    true_s: float
    timed: PassTime

    def ends(self, share: float) -> tuple[float, float]:
        """Ends of the range if errors have this share of their variance in common."""
        band = self.timed.band
        return self.timed.seconds - _joint(band.below, share), self.timed.seconds + _joint(band.above, share)

    def is_inside(self, share: float = COMMON_SHARE) -> bool:
        """Whether the true time lies in the range."""
        low, high = self.ends(share)
        return low <= self.true_s <= high

    @property
    def width(self) -> float:
        """Of the range ÷ expected time."""
        low, high = self.ends(COMMON_SHARE)
        return (high - low) / self.timed.seconds


def _joint(errors: Errors, share: float) -> float:
    return math.sqrt(share * errors.summed**2 + (1 - share) * errors.squared)


def _asked(kind: str) -> Asked:
    return next(one for one in KINDS if kind_of(one.operator)[0] == kind)


def left_out(silicon: Silicon, system: System, half: int) -> LeftOut | None:
    """Return the newest tables of the default framework, with the ranges of the shapes that are not asked for."""
    device, grids, regions = system.driver_names[0], {}, {}
    for kind in ("gemm bfloat16", "context attention", "generation attention"):
        asked = _asked(kind)
        tables = [table for _, table in newest_tables(silicon, asked.operator, device)]
        own = [table.grid for table in tables if table.source.framework == silicon.framework]
        if not own:
            return None
        grids[kind] = own[0]
        misses = misses_of(silicon, asked, device, lambda point: half_of(point) != half)["interpolated"]
        regions[kind] = [
            region
            for name, up_to in asked.regions
            for region in regions_of(misses[name], "interpolated", up_to)
        ]
    return LeftOut(grids, regions, half)


def outcomes(times: LeftOut) -> tuple[list[Outcome], int]:
    """Return passes with a range, and how many had none."""
    chance = random.Random(SEED + times.half)
    half = times.half
    products = _by_first(
        times.grids["gemm bfloat16"], lambda p: half_of(p) == half and min(p[1:]) >= LEAST_SIZE
    )
    found, without = [], 0
    for phase in PHASES:
        kind = "generation" if phase == "decode" else "context"
        attention = _by_first(
            times.grids[f"{kind} attention"], lambda p: half_of(p) == half and p[1] >= LEAST_TOKENS
        )
        for batch in (size for group in BATCHES for size in group):
            for _ in range(PASSES):
                drawn = _draw(chance, phase, batch, attention.get(batch, []), products)
                if drawn is None:
                    continue
                times.hidden = drawn[1]
                timed = pass_time(drawn[0], _NO_LIMITS, times, None)  # type: ignore[arg-type]
                times.hidden = {}
                true = pass_time(drawn[0], _NO_LIMITS, times, None)  # type: ignore[arg-type]
                if timed is None or true is None or timed.by_how.get("interpolated") is None:
                    continue
                if timed.band.is_known:
                    found.append(Outcome(batch, phase, true.seconds, timed))
                else:
                    without += 1
    return found, without


def _by_first(grid: Grid, keep: Callable[[tuple[int, ...]], bool]) -> dict[int, list[tuple[int, ...]]]:
    found: dict[int, list[tuple[int, ...]]] = {}
    for row in grid.points():
        point = tuple(int(value) for value in row)
        if keep(point):
            found.setdefault(point[0], []).append(point)
    return found


def _draw(
    chance: random.Random,
    phase: str,
    batch: int,
    attention: Sequence[tuple[int, ...]],
    products: Mapping[int, Sequence[tuple[int, ...]]],
) -> tuple[list[Call], dict[Operator, dict[int, float]]] | None:
    """A decoder of measured shapes, and what is left out of the tables; one batch size for all its operators."""
    fitting = (
        attention if phase == "decode" else [point for point in attention if batch * point[1] in products]
    )
    if not fitting:
        return None
    at = chance.choice(fitting)
    positions = batch if phase == "decode" else batch * at[1]
    layer = chance.sample(products[positions], min(PRODUCTS, len(products[positions])))
    heads = [point for point in products.get(batch, ()) if point[1] >= HEAD]
    attended = Attention("generation" if phase == "decode" else "context", *at, 128)
    calls = [Call("attention", attended, LAYERS), *(Call("product", Gemm(*shape), LAYERS) for shape in layer)]
    calls += [Call("head", Gemm(*chance.choice(heads)), 1)] if heads else []
    around = chance.choice((None, *HIDDEN_OCTAVES))
    hidden: dict[Operator, dict[int, float]] = {}
    for call in calls:
        others = (1,) if call.operator == attended else (1, 2)
        chosen = {axis: chance.choice(HIDDEN_OCTAVES) for axis in others if chance.random() < 0.5}
        hidden[call.operator] = chosen if around is None or batch == 1 else {0: around, **chosen}  # type: ignore[index]
    return calls, hidden


def tables(silicon: Silicon, half: int) -> str:
    """Devices × batch sizes for each phase, and what other shares of common errors would give."""
    catalogue = load_catalogue()
    by_device: dict[str, list[Outcome]] = {}
    without = 0
    for system in silicon.systems:
        times = left_out(silicon, system, half)
        if times is not None:
            entry = catalogue.look_up(system.driver_names[0])[0]
            name = entry.name if entry else system.driver_names[0]
            by_device[name], missing = outcomes(times)
            without += missing
    every = [one for found in by_device.values() for one in found]
    parts = [_coverage(phase, {**by_device, "all": every}) for phase in PHASES]
    shares = "; ".join(f"{share:g}: {_share_inside(every, share):.1%}".replace("%", " %") for share in SHARES)
    parts.append(
        f"{len(every):,} passes, {without} without a range. True times in the range, by the share of their variance that "
        f"errors are taken to have in common ({COMMON_SHARE:g} is used): {shares}."
    )
    return "\n\n".join(parts)


def _coverage(phase: str, by_device: Mapping[str, Sequence[Outcome]]) -> str:
    rows = []
    for name, found in by_device.items():
        own = [one for one in found if one.phase == phase]
        cells = [_cell([one for one in own if one.batch in group]) for group in BATCHES]
        rows.append([name, *cells, _cell(own)])
    header = [f"{phase}: inside, width", *(f"batch {_name(group)}" for group in BATCHES), "all"]
    return markdown_table(header, rows)


def _name(group: Iterable[int]) -> str:
    return " and ".join(map(str, group))


def _cell(found: Sequence[Outcome]) -> str:
    if len(found) < 20:
        return "–"
    width = statistics.median(one.width for one in found)
    return f"{_share_inside(found):.0%}, {width:.0%}".replace("%", " %")


def _share_inside(found: Sequence[Outcome], share: float = COMMON_SHARE) -> float:
    return sum(one.is_inside(share) for one in found) / len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/expected-times-accuracy.md"
    )
    parser.add_argument("--half", type=int, choices=(0, 1), default=1, help="shapes that passes are made of")
    parser.add_argument("--framework", default="vllm", help="whose tables passes are made of")
    options = parser.parse_args()
    silicon = open_silicon(choice=options.framework)
    if silicon is None:
        raise SystemExit("the extra is not installed: pip install 'llm-perf-opt[silicon]'")
    text = tables(silicon, options.half)
    print(text)
    if options.write:
        write_block(DOCS / "expected-times-accuracy.md", "silicon_ranges", text)


if __name__ == "__main__":
    main()
