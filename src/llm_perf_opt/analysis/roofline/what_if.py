"""The same model elsewhere: expected times and roofline floors on other devices, data types, batch sizes and contexts.

Pure arithmetic over the static model (``analysis.demand``): a floor costs microseconds, an expected time less than a
millisecond once the tables of its device were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from llm_perf_opt.analysis.expected.estimate import Tables
from llm_perf_opt.analysis.roofline.asked import DeviceLimits
from llm_perf_opt.analysis.roofline.demand import Demand, Point, demand, own_point
from llm_perf_opt.analysis.roofline.expected_rows import add_expected
from llm_perf_opt.analysis.roofline.launches import Launches
from llm_perf_opt.analysis.roofline.limits import FloorBound, binding_term
from llm_perf_opt.analysis.roofline.started import Started, started_by
from llm_perf_opt.core import units
from llm_perf_opt.core.dtypes import canonical_dtype
from llm_perf_opt.model.summary import Peak, Static, WhatIf

FOCUS = ("NVIDIA GeForce RTX 5090", "NVIDIA A100 SXM4 80GB", "NVIDIA H100 SXM5 80GB")
"""Devices that get the variations of batch, context and data type when the caller names none."""

_BATCHES = (1, 8, 32)
_CONTEXT_FACTORS = (1, 4)
_TENSOR_PARALLEL = (2, 4, 8)
_NAMED_FROM = 1 / 3


class Devices(Protocol):
    """A catalogue."""

    @property
    def devices(self) -> Sequence[DeviceLimits]:
        """Its entries."""
        ...


def what_if(
    static: Static,
    catalogue: Devices,
    *,
    dtype: str | None,
    focus: Iterable[str] | None = None,
    batch_sizes: Sequence[int] = _BATCHES,
    dtypes: Sequence[str] = ("bfloat16", "float8", "float4"),
    context_factors: Sequence[int] = _CONTEXT_FACTORS,
    started: Started | None = None,
    tables: Tables | None = None,
) -> list[WhatIf]:
    """Return the run's own point on every device, and variations of it on the devices in ``focus``.

    ``started`` is what the run's host starts, and at which cost; ``None``: as counted, at the usual cost. With ``tables`` of
    measured operators rows have expected times. Devices with tables, and where it is known how the model is split those in
    ``focus``, stand there two, four and eight at a time too.
    """
    base = own_point(static, dtype)
    if base is None or (static.quantisation is not None and static.quantisation.reason is not None):
        return []
    started = started or started_by(static)
    rows = price(static, catalogue.devices, [base], started=started, tables=tables)
    wanted = set(FOCUS if focus is None else focus)
    chosen = [device for device in catalogue.devices if device.name in wanted]
    varied = _variations(base, batch_sizes, dtypes, context_factors) if static.scaling is not None else []
    rows += [
        row
        for device in chosen
        for row in price(static, [device], varied, only_known=True, started=started, tables=tables)
    ]
    split = chosen if any(one.shares for one in static.splits) else []
    several = [
        device
        for device in catalogue.devices
        if device in split or (tables is not None and tables.knows(device.name))
    ]
    shared = [replace(base, tensor_parallel=ranks) for ranks in _TENSOR_PARALLEL]
    return rows + price(static, several, shared, only_known=True, started=started, tables=tables)


def _variations(
    base: Point, batch_sizes: Sequence[int], dtypes: Sequence[str], factors: Sequence[int]
) -> list[Point]:
    types = dict.fromkeys((base.dtype, *(canonical_dtype(name) for name in dtypes)))
    points = [
        Point(
            kind,
            batch,
            base.context_tokens * factor,
            base.prompt_tokens * factor,
            base.compute_dtypes if kind == base.dtype else (),
        )
        for kind in types
        for factor in factors
        for batch in dict.fromkeys((base.batch_size, *batch_sizes))
    ]
    return [point for point in points if point != base]


def price(
    static: Static,
    devices: Sequence[DeviceLimits],
    points: Sequence[Point],
    *,
    only_known: bool = False,
    started: Started | None = None,
    tables: Tables | None = None,
) -> list[WhatIf]:
    """Return one row per device and point; ``only_known`` leaves out types a device has no peak for."""
    demands = [(point, demand(static, point)) for point in points]
    rows = []
    for device in devices:
        for point, needed in demands:
            if only_known and _peak(device, point) is None:
                continue
            row = _row(device, point, needed, started or Started())
            if tables is not None and (_peak(device, point) is not None or tables.knows(device.name)):
                add_expected(row, static, device, point, started or Started(), tables)
            rows.append(row)
    return rows


def _peak(device: DeviceLimits, point: Point) -> Peak | None:
    """Return the fastest peak of the types a point's products may run in; ``None``: none is known."""
    known = [device.peaks[name] for name in point.compute_dtypes or (point.dtype,) if name in device.peaks]
    return max(known, key=lambda peak: peak.dense, default=None)


def _row(device: DeviceLimits, point: Point, needed: Demand, started: Started) -> WhatIf:
    peak, bandwidth = _peak(device, point), device.bandwidth_bytes_per_s
    fits = None if device.memory_bytes is None else needed.resident_bytes <= device.memory_bytes
    notes = []
    ttft = tpot = None
    term: FloorBound | None = None
    talk_s = _talk_s(device, needed.step_link_bytes)
    if peak is not None and bandwidth is not None:
        if needed.first_token is not None:
            said = [None] * (len(needed.first_token) - 1) + [needed.prefill_link_bytes]
            passes = [
                _terms(work, peak.dense, bandwidth, launches, _talk_s(device, sent) or 0.0)
                for work, launches, sent in zip(
                    needed.first_token, started.before(len(needed.first_token)), said, strict=True
                )
            ]
            ttft = sum(max(terms) for terms in passes)
            term = binding_term(*max(passes, key=max))
        if needed.step is not None:
            terms = _terms(needed.step, peak.dense, bandwidth, started.step, talk_s or 0.0)
            tpot, term = max(terms), binding_term(*terms)
            notes.append(_bound_words(term, needed, started.step, tpot))
        if ttft is None:
            notes.append("a pass before the first token was not counted")
    else:
        wanted = " or ".join(point.compute_dtypes or (point.dtype,))
        notes.append(f"no {wanted} peak is known" if peak is None else "no bandwidth is known")
    notes.append(f"needs {units.size(needed.resident_bytes)}")
    if device.memory_bytes is not None:
        notes[-1] += f" of {units.size(device.memory_bytes)}"
    if point.tensor_parallel > 1:
        notes[-1] += f" on each of {point.tensor_parallel} devices"
        notes.append(_talk_words(device, needed.step_link_bytes, talk_s))
    return WhatIf(
        device=device.name,
        dtype=point.dtype,
        batch_size=point.batch_size,
        context_tokens=point.context_tokens,
        ttft_floor_s=ttft,
        tpot_floor_s=tpot,
        tokens_per_s=point.batch_size / tpot if tpot else None,
        fits=fits,
        note=", ".join(notes),
        memory_bytes=device.memory_bytes,
        floor_term=term,
        launch_graph_s=started.step.graph_s if started.step.least is not None else None,
        launch_eager_s=started.step.eager_s,
        prompt_tokens=point.prompt_tokens,
        tensor_parallel=point.tensor_parallel,
        link_bytes=needed.step_link_bytes,
        communication_s=talk_s,
    )


def _terms(
    work: tuple[float, float], peak: float, bandwidth: float, launches: Launches, talk_s: float
) -> tuple[float, float, float, float]:
    """Return the times of computing, of moving, of launching and of talking to other devices."""
    return work[0] / peak, work[1] / bandwidth, launches.graph_s, talk_s


def _talk_s(device: DeviceLimits, link_bytes: float | None) -> float | None:
    """Return how long the links of a device take at least; ``None``: bytes or bandwidth are not known."""
    if link_bytes is None or device.link_bytes_per_s is None:
        return None
    return link_bytes / device.link_bytes_per_s


def _talk_words(device: DeviceLimits, link_bytes: float | None, talk_s: float | None) -> str:
    if link_bytes is None:
        return "what they say to one another is not known and not in the floor"
    sent = f"{units.size(link_bytes)} a step over each one's links"
    if talk_s is None or device.link_bytes_per_s is None:
        return f"{sent}, whose bandwidth is not known and not in the floor"
    return f"{sent} at {units.bytes_per_s(device.link_bytes_per_s)}: {units.seconds(talk_s)}"


def _bound_words(term: FloorBound, needed: Demand, launches: Launches, floor_s: float) -> str:
    """Say what bounds a step, and what launching one by one would make of it where that is longer."""
    words = {
        "compute": "compute-bound",
        "memory": f"memory-bound: {_read(needed)}",
        "launch": f"launch-bound: {units.count(launches.least)} kernels in a graph",
        "communication": "bound by the links between the devices",
    }[term]
    eager = launches.eager_s
    if eager is not None and eager > floor_s:
        words += f" (launched one by one about {units.seconds(eager)})"
    return words


def note_beaten_floors(
    rows: Sequence[WhatIf], device: str | None, ttft_s: float | None, tpot_s: float | None
) -> None:
    """Say so in the rows of the run's own device where it was faster than the floor: then a limit or the count is wrong."""
    own = [row for row in rows if row.device == device]
    if not own:
        return
    for floor, measured, name in (
        (own[0].ttft_floor_s, ttft_s, "TTFT"),
        (own[0].tpot_floor_s, tpot_s, "TPOT"),
    ):
        if floor is not None and measured is not None and measured < floor:
            words = f"measured {name} {units.seconds(measured)} is below this floor: a limit of the device or the work counted is wrong"
            own[0].note = f"{own[0].note}, {words}" if own[0].note else words


def _read(needed: Demand) -> str:
    """Say what a memory-bound step spends its time reading: what is less than a third is not named."""
    cache = needed.step_cache_bytes / needed.step[1] if needed.step is not None and needed.step[1] else 0.0
    if cache > 1 - _NAMED_FROM:
        return "reading the KV cache"
    return "reading weights and KV cache" if cache >= _NAMED_FROM else "reading weights"
