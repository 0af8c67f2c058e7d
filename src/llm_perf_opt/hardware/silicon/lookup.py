"""Look-up in the tables: from an operator and a device to a time and its origin."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.hardware.catalogue import Catalogue, load_catalogue
from llm_perf_opt.hardware.silicon.installation import AUTO, KNOWN_VERSIONS, OFF, Installation, in_use
from llm_perf_opt.hardware.silicon.operators import Layout, Operator, layouts_of
from llm_perf_opt.hardware.silicon.timing import RESTS_ON_TABLES, TableTime, Timing, spread_of

if TYPE_CHECKING:
    from llm_perf_opt.hardware.silicon.tables import System, Table

# Tables with wrong labels, which must not be used as labelled.


MISLABELLED: Mapping[str, str] = {
    "a100_sxm/attention/trtllm/1.0.0/generation_attention_perf.parquet": (
        "its caches of 16 bits were read at 1.7 times the memory's bandwidth: they are of eight bits"
    ),
}
"""Path below the data directory → what is wrong (``benchmarks/catalogue_floors.py`` holds every table against the memory)."""
_MOST_BEYOND = 4.0
"""A time is carried beyond the outermost measured shape by this factor at most, over all its sizes together."""
_DEFAULT_FRAMEWORK = "vllm"
"""Its products are torch's own (cuBLAS), and it has tables for every system."""
_RANK = {"measured": 0, "interpolated": 1, "extrapolated": 2, "roofline": 3}


class Silicon:
    """Tables of one installation; each is read on first use and cached."""

    def __init__(
        self,
        installation: Installation,
        catalogue: Catalogue | None = None,
        framework: str = _DEFAULT_FRAMEWORK,
    ) -> None:
        self.version = installation.version
        self.installation = installation
        self.framework = framework
        """Whose kernels expected times take first."""
        self._systems_folder = installation.systems
        self._data = installation.systems / "data"
        self._catalogue = catalogue or load_catalogue()
        self._tables: dict[tuple[object, ...], Table | None] = {}
        self._by_device: dict[str, System | None] = {}
        self._answers: dict[tuple[Operator, str, str | None], Timing | None] = {}
        self.problems: list[str] = []
        """What was left out so far, and why."""
        if not installation.is_known:
            self.problems.append(
                f"tables of version {installation.version} were not checked (known: {', '.join(KNOWN_VERSIONS)})"
            )

    @cached_property
    def systems(self) -> list[System]:
        """Every system with tables."""
        from llm_perf_opt.hardware.silicon.tables import read_system

        found = []
        folders = sorted(path.name for path in self._data.iterdir() if path.is_dir())
        for key in folders:
            system, problems = read_system(self._systems_folder, key)
            for problem in problems:
                self.note(problem)
            if system is not None:
                found.append(system)
        return found

    def system(self, device: str) -> System | None:
        """Return the system of a device, by driver or catalogue name; ``None``: no tables."""
        from llm_perf_opt.hardware.silicon.tables import find_system

        if device not in self._by_device:
            self._by_device[device] = find_system(self.systems, device, self._catalogue)
        return self._by_device[device]

    def time(self, operator: Operator, device: str, *, framework: str | None = None) -> Timing | None:
        """Return the time of an operator; ``None`` if no table covers it.

        With a ``framework`` the time is that of its newest table that reaches the shape, whether the shape was measured or lies
        between measured ones; other frameworks are used only if none does. Without, it is the median of all tables, measured
        shapes first.
        """
        key = (operator, device, framework)
        if key not in self._answers:
            found = self._time(operator, device, framework)
            self._answers[key] = None if found is None else self._with_error(found, operator, device)
        return self._answers[key]

    def _with_error(self, found: Timing, operator: Operator, device: str) -> Timing:
        system = self.system(device)
        spread = (
            None if system is None else spread_of(operator, found.how, system.key, found.distance_octaves)
        )
        if spread is None:
            return found
        return replace(
            found, low_s=found.seconds * spread.low_ratio, high_s=found.seconds * spread.high_ratio
        )

    def _time(self, operator: Operator, device: str, framework: str | None) -> Timing | None:
        system = self.system(device)
        if system is None:
            return None
        paths = self._paths(system, operator)
        if framework is not None:
            own = self._query(operator, [item for item in paths if item[1].parts[-3] == framework])
            newest = next((answer for answer in own if answer.how in RESTS_ON_TABLES), None)
            if newest is not None:
                # One version for all sizes: mixing versions could make a larger size faster.
                return _timing(newest.seconds, newest, (newest,))
            others = self._query(operator, [item for item in paths if item[1].parts[-3] != framework])
            return _median([*own, *others])
        return _median(self._query(operator, paths))

    def _paths(self, system: System, operator: Operator) -> list[tuple[Layout, Path]]:
        """Return every table that may apply, newest version first; those with a wrong label are left out and recorded."""
        found = []
        for layout in layouts_of(operator):
            for path in (self._data / system.key / layout.family).glob(f"*/*/{layout.file}"):
                place = path.relative_to(self._data).as_posix()
                if place in MISLABELLED:
                    self.note(f"{place} is left out: {MISLABELLED[place]}")
                else:
                    found.append((layout, path))
        return sorted(found, key=lambda item: (_version_key(item[1].parts[-2]), item[1].parts), reverse=True)

    def _query(self, operator: Operator, paths: Sequence[tuple[Layout, Path]]) -> list[TableTime]:
        answers = []
        for layout, path in paths:
            table = self.table(layout, path, operator)
            answer = None if table is None else answer_of(table, layout, operator)
            if answer is not None:
                answers.append(answer)
        return answers

    def table(self, layout: Layout, path: Path, operator: Operator) -> Table | None:
        """Return the rows of a table for an operator, cached."""
        exact = layout.exact(operator)
        key = (path, *exact.items())
        if key not in self._tables:
            from llm_perf_opt.hardware.silicon.tables import read_table

            read = read_table(self._data, path, layout, exact)
            if read.problem is not None:
                self.note(read.problem)
            self._tables[key] = read.table
        return self._tables[key]

    def tables_of(self, operator: Operator, device: str) -> list[tuple[Layout, Table]]:
        """Return the tables that hold rows of an operator's kind: for errors of interpolation."""
        system = self.system(device)
        paths = [] if system is None else self._paths(system, operator)
        found = ((layout, self.table(layout, path, operator)) for layout, path in paths)
        return [(layout, table) for layout, table in found if table is not None]

    def note(self, problem: str) -> None:
        """Record what was left out, once."""
        if problem not in self.problems:
            self.problems.append(problem)


def open_silicon(catalogue: Catalogue | None = None, choice: str = AUTO) -> Silicon | None:
    """Return the tables of the extra; ``None`` where it is not installed or switched off (``installation.describe_absence``).

    ``choice``: a value of ``hardware.silicon``.
    """
    found = in_use() if choice != OFF else None
    if found is None:
        return None
    return Silicon(found, catalogue, _DEFAULT_FRAMEWORK if choice == AUTO else choice)


def answer_of(table: Table, layout: Layout, operator: Operator) -> TableTime | None:
    """Return the time from one table; ``None``: the operator is too far outside."""
    point = layout.point(operator)
    found = table.grid.at(point)
    if found is not None:
        source = replace(table.source, kernel=found.kernel)
        return TableTime(found.seconds, found.how, source, found.distance_octaves)
    inside = table.grid.nearest_inside(point)
    beyond = math.inf if inside is None else _factor(point, inside)
    if inside is None or beyond > _MOST_BEYOND:
        return None
    edge = table.grid.at(inside)
    if edge is None:
        return None
    grown = _growth(operator, layout.moved_to(operator, inside))
    source = replace(table.source, kernel=edge.kernel)
    return TableTime(edge.seconds * grown, "extrapolated", source, math.log2(beyond))


def _growth(operator: Operator, edge: Operator) -> float:
    """Return the ratio of work to the edge of the grid, at least 1."""
    ratios = [
        mine / theirs
        for mine, theirs in ((operator.flops, edge.flops), (operator.moved_bytes, edge.moved_bytes))
        if theirs > 0
    ]
    return max(1.0, *ratios) if ratios else 1.0


def _factor(point: Iterable[int], inside: Iterable[int]) -> float:
    factor = 1.0
    for here, there in zip(point, inside, strict=True):
        factor *= max(here / there, there / here) if here > 0 else float("inf")
    return factor


def _median(answers: Sequence[TableTime]) -> Timing | None:
    """Return the median timing; only results of the best kind are compared."""
    if not answers:
        return None
    rank = min(_RANK[answer.how] for answer in answers)
    comparable = [answer for answer in answers if _RANK[answer.how] == rank]
    median_s = statistics.median(answer.seconds for answer in comparable)
    nearest = min(comparable, key=lambda answer: abs(answer.seconds - median_s))
    return _timing(median_s, nearest, tuple(comparable))


def _timing(seconds: float, of: TableTime, tables: tuple[TableTime, ...]) -> Timing:
    return Timing(seconds, of.how, of.source, tables, distance_octaves=of.distance_octaves)


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)) or (0,)
