"""A query: every combination of devices, data types, sizes and numbers of devices, estimated row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llm_perf_opt.core.errors import ConfigError, InputError

if TYPE_CHECKING:
    from llm_perf_opt.analysis.roofline.demand import Point
    from llm_perf_opt.hardware.catalogue import Catalogue, Device
    from llm_perf_opt.hardware.silicon import Silicon
    from llm_perf_opt.summary import Static, Summary, WhatIf

MOST_ROWS = 2000
"""Rows of one answer: about a minute of work."""


@dataclass(frozen=True, slots=True)
class Query:
    """Every combination of the lists; an empty list means the run's own value."""

    devices: Sequence[str]
    dtypes: Sequence[str]
    batch_sizes: Sequence[int]
    prompts: Sequence[int]
    contexts: Sequence[int]
    tensor_parallel: Sequence[int]
    framework: str


def price_query(
    summary: Summary, query: Query, catalogue: Catalogue, silicon: Silicon | None
) -> list[WhatIf]:
    """Return one row per device and point of a query."""
    from llm_perf_opt.analysis.roofline.expected_times import tables_of
    from llm_perf_opt.analysis.roofline.launches import started_in
    from llm_perf_opt.analysis.roofline.what_if import price

    static = static_of(summary)
    tables = tables_of(silicon, query.framework)
    points = points_of(static, summary.workload.dtype, query)
    devices = find_devices(query.devices, catalogue, silicon)
    if len(points) * len(devices) > MOST_ROWS:
        raise ConfigError(
            f"{len(points)} points on {len(devices)} devices are {len(points) * len(devices)} rows; at most {MOST_ROWS}",
            hint="name fewer devices (--device), batch sizes, lengths or types",
        )
    return price(static, devices, points, started=started_in(summary, tables), tables=tables)


def static_of(summary: Summary) -> Static:
    """Return the counted model of a run."""
    if summary.static is None:
        raise InputError(
            f"run {summary.run.id} has no static model",
            hint="run it with pipeline.static_analysis.enable=true (no weights, no GPU needed)",
        )
    return summary.static


def points_of(static: Static, dtype: str | None, query: Query) -> list[Point]:
    """Return every combination of a query's data types, sizes and numbers of devices."""
    from llm_perf_opt.analysis.roofline.demand import own_point
    from llm_perf_opt.core.units import canonical_dtype, dtype_bytes, known_dtypes

    base = own_point(static, dtype)
    if base is None:
        raise InputError(
            "the static model has no decode step, or the run no data type",
            hint="count a model that generates",
        )
    moved = query.dtypes or query.batch_sizes or query.prompts or query.contexts
    if moved and static.scaling is None:
        raise InputError(
            "this model was not counted in a way that scales, so only its own point can be priced",
            hint="leave --dtype, --batch, --prompt and --context out",
        )
    for name in query.dtypes:
        if dtype_bytes(name) is None:
            raise ConfigError(f"--dtype {name}: not a data type", hint=f"one of: {', '.join(known_dtypes())}")
    kinds = [canonical_dtype(name) for name in query.dtypes] or [base.dtype]
    lengths = _lengths(base, query)
    return [
        replace(
            base,
            dtype=kind,
            compute_dtypes=base.compute_dtypes if kind == base.dtype else (),
            batch_size=batch,
            prompt_tokens=prompt,
            context_tokens=context,
            tensor_parallel=ranks,
        )
        for ranks in query.tensor_parallel or [1]
        for kind in kinds
        for prompt, context in lengths
        for batch in query.batch_sizes or [base.batch_size]
    ]


def _lengths(base: Point, query: Query) -> list[tuple[int, int]]:
    """Return (prompt, context): both as given, one following the other where only one is."""
    if query.prompts and query.contexts:
        return [(prompt, context) for prompt in query.prompts for context in query.contexts]
    if query.prompts or query.contexts:
        return [(length, length) for length in query.prompts or query.contexts]
    return [(base.prompt_tokens, base.context_tokens)]


def find_devices(names: Sequence[str], catalogue: Catalogue, silicon: Silicon | None) -> list[Device]:
    """Return the devices of the given names; without names those with measured tables."""
    from llm_perf_opt.analysis.roofline.what_if import FOCUS

    if not names:
        chosen = [one for one in catalogue.devices if silicon is not None and silicon.system(one.name)]
        return chosen or [one for one in catalogue.devices if one.name in FOCUS]
    found = []
    for name in names:
        try:
            found.append(catalogue.named(name))
        except ConfigError as error:
            hint = (error.hint or "").replace("hardware.catalogue=FILE", "--catalogue FILE")
            raise ConfigError(f"--device {name}: not in the catalogue", hint=hint) from error
    return found
