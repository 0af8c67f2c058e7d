"""The same model elsewhere: expected times and roofline floors on other devices, data types, batch sizes and contexts.

Pure arithmetic over the static model (``analysis.demand``): a floor costs microseconds, an expected time less than a
millisecond once the tables of its device were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.analysis.roofline.demand import Demand, Point, demand, own_point
from llm_perf_opt.analysis.roofline.expected_calls import reason_not_sharded
from llm_perf_opt.analysis.roofline.expected_times import (
    Expectation,
    Tables,
    Target,
    at_point,
    device_target,
    expect,
)
from llm_perf_opt.analysis.roofline.launches import Launches, Started, started_by
from llm_perf_opt.analysis.roofline.limits import FloorBound, binding_term
from llm_perf_opt.core import units
from llm_perf_opt.core.units import canonical_dtype
from llm_perf_opt.hardware.catalogue import Catalogue, Device
from llm_perf_opt.summary import Peak, Stat, Static, Summary, WhatIf
from llm_perf_opt.summary.static import OperatorShapes

# Devices a reader chooses between: the device of this run and a dozen common ones, at the point of this run.


_MOST = 12
_WANTED = (
    "RTX 5090",
    "RTX 4090",
    "RTX 3090",
    "L4",
    "L40S",
    "A100 SXM4 80GB",
    "H100 SXM5 80GB",
    "H200 SXM",
    "B200",
    "MI300X",
    "A10",
    "T4",
)
"""Ends of device names, in the order of how often they are asked for."""


@dataclass(frozen=True, slots=True)
class OtherDevices:
    """One device with its floors; this run's own also with its measurements."""

    device: str
    ttft_floor_s: float | None
    tpot_floor_s: float | None
    fits: bool | None
    is_own: bool = False
    ttft_measured_s: float | None = None
    tpot_measured_s: float | None = None
    row: int | None = None
    """Place in ``what_if``; ``None`` for a device that is not in the catalogue."""
    floor_term: str | None = None
    """``compute``, ``memory`` or ``launch``: what sets the floor of a step."""
    launch_eager_s: float | None = None
    """What launching the kernels of a step one by one takes."""
    ttft_expected_s: float | None = None
    tpot_expected_s: float | None = None
    """As measured operators add up to it; ``None`` without tables."""
    measured_share_ratio: float | None = None
    """How much of the expected step rests on measurements."""
    ttft_ends_s: tuple[float, float] | None = None
    """Where the expected time may lie, by measured errors."""
    tpot_ends_s: tuple[float, float] | None = None
    tpot_eager_s: float | None = None
    """Expected step with kernels launched one by one."""
    eager_is_bound: bool = False
    """Whether that is a lower bound."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Where the model fits."""

    needed_bytes: float
    fitting: Sequence[WhatIf]
    """Devices with enough memory, the smallest first."""
    known: int
    """Devices whose memory size is known."""


def _own_rows(summary: Summary) -> list[tuple[int, WhatIf]]:
    """Return the rows of ``what_if`` at the point of this run, with their places."""
    if not summary.what_if:
        return []
    first = summary.what_if[0]
    point = (first.dtype, first.batch_size, first.context_tokens)
    return [
        (place, row)
        for place, row in enumerate(summary.what_if)
        if (row.dtype, row.batch_size, row.context_tokens) == point and row.tensor_parallel == 1
    ]


def on_other_devices(summary: Summary, most: int = _MOST) -> list[OtherDevices]:
    """Return the devices to show, the fastest first; this run's own always is among them where its limits are known."""
    rows = [(place, row) for place, row in _own_rows(summary) if row.tpot_floor_s is not None]
    own = [(place, row) for place, row in rows if row.device == summary.hardware.name]
    wanted = [
        found
        for name in _WANTED
        for found in rows
        if found[1].device.endswith(f" {name}") and found[1].device != summary.hardware.name
    ]
    rest = [found for found in rows if found not in wanted and found not in own]
    chosen = [_of_row(summary, place, row) for place, row in [*own, *wanted, *rest]]
    if not own and (here := _here(summary)) is not None:
        chosen.insert(0, here)
    return sorted(
        chosen[:most],
        key=lambda each: (
            each.tpot_measured_s or each.tpot_expected_s or each.tpot_floor_s or 0.0,
            each.device,
        ),
    )


def devices_that_fit(summary: Summary) -> Fit | None:
    """Return the devices whose memory holds the model at this run's point; ``None`` when its size is not known."""
    needed = summary.static.resident_bytes.get("total") if summary.static is not None else None
    rows = [row for _, row in _own_rows(summary) if row.memory_bytes is not None and row.fits is not None]
    if not needed or not rows:
        return None
    fitting = sorted((row for row in rows if row.fits), key=lambda row: (row.memory_bytes or 0.0, row.device))
    return Fit(needed, fitting, len(rows))


def is_static_only(summary: Summary) -> bool:
    """Whether the model was counted and nothing was run."""
    ran = summary.wall_clock is not None or summary.kernels or summary.operators or summary.budget
    return summary.static is not None and not ran


def _of_row(summary: Summary, place: int, row: WhatIf) -> OtherDevices:
    own = row.device == summary.hardware.name
    return OtherDevices(
        row.device,
        row.ttft_floor_s,
        row.tpot_floor_s,
        row.fits,
        own,
        _median(summary.timings.ttft_s) if own else None,
        _median(summary.timings.tpot_s) if own else None,
        place,
        row.floor_term,
        row.launch_eager_s,
        row.ttft_expected_s,
        row.tpot_expected_s,
        row.measured_share_ratio,
        _ends(row.ttft_expected_low_s, row.ttft_expected_high_s),
        _ends(row.tpot_expected_low_s, row.tpot_expected_high_s),
        row.tpot_expected_eager_s,
        bool(row.eager_is_bound),
    )


def _ends(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)


def _here(summary: Summary) -> OtherDevices | None:
    """Return the device of this run by its own floors, if it is not in the catalogue (a probed CPU)."""
    tpot, ttft = summary.predictions.get("tpot"), summary.predictions.get("ttft")
    if tpot is None:
        return None
    there = summary.hardware.memory_bytes
    needed = summary.static.resident_bytes.get("total") if summary.static is not None else None
    return OtherDevices(
        summary.hardware.name or "this device",
        ttft.floor_s if ttft is not None else None,
        tpot.floor_s,
        needed <= there if needed and there else None,
        True,
        _median(summary.timings.ttft_s),
        _median(summary.timings.tpot_s),
        floor_term=tpot.bound,
    )


def _median(stat: Stat | None) -> float | None:
    return stat.shown if stat is not None else None


# Expected times next to the floors of a row, or the reason why there is no estimate.


_OTHER_SPLIT = "the floor is of transformers' split, which leaves more whole on every device than the engines that were timed"


def _add_expected(
    row: WhatIf, static: Static, device: Device, point: Point, started: Started, tables: Tables
) -> None:
    """Put the expected times of a point next to its floors, where the model's operators are known by shape."""
    if static.operators is None:
        return
    passes = [name for name in ("vision", "prefill") if name in static.phases]
    at, target = at_point(static, point), device_target(device, tables)
    found = expect(static.operators, passes, at, target, tables)
    if found is not None:
        _fill(row, found, started, tables.power_w(device.name))
        if (mixed := found.mixed_frameworks()) is not None:
            row.note = f"{row.note}, expected by kernels of {mixed}"
        if _is_below_floor(row):
            row.note = f"{row.note}, {_OTHER_SPLIT}"
        return
    reason = _reason_not_expected(static.operators, at.tensor_parallel, target)
    if reason is not None:
        row.note = f"{row.note}, no expected time: {reason}"


def _reason_not_expected(shapes: OperatorShapes, ranks: int, target: Target) -> str | None:
    """Return why there is no estimate for so many devices; ``None``: their number is not the reason."""
    unshared = reason_not_sharded(shapes, ranks)
    if unshared is None and ranks > target.linked:
        return (
            f"no measured all-reduce over {ranks} devices, and the links of one machine join {target.linked}"
        )
    return unshared


def _fill(row: WhatIf, found: Expectation, started: Started, power_w: float | None) -> None:
    row.ttft_expected_s, row.tpot_expected_s = found.ttft_s, found.tpot_s
    launched = [launches.eager_s for launches in started.before(len(found.passes))] if found.passes else []
    row.ttft_expected_eager_s = found.ttft_eager_s(launched)
    row.tpot_expected_eager_s = found.tpot_eager_s(started.step.eager_s)
    row.ttft_expected_low_s, row.ttft_expected_high_s = _above(
        row.ttft_floor_s, found.ttft_s, found.ttft_ends_s
    )
    row.tpot_expected_low_s, row.tpot_expected_high_s = _above(
        row.tpot_floor_s, found.tpot_s, found.tpot_ends_s
    )
    row.eager_host_s, row.eager_is_bound = started.step.cost.seconds, started.step.cost.is_bound
    row.eager_host_source = started.step.cost.source
    row.measured_share_ratio = found.measured_share
    row.expected_source = found.source()
    if found.tpot_s:
        row.tokens_per_s_expected = row.batch_size / found.tpot_s
        if power_w:
            row.tokens_per_s_per_w = row.tokens_per_s_expected / (power_w * row.tensor_parallel)


def _above(
    floor_s: float | None, expected_s: float | None, ends: tuple[float, float] | None
) -> tuple[float | None, float | None]:
    """Return the ends of an expected time; clipped at the floor unless the time itself is below it."""
    if ends is None:
        return None, None
    low, high = ends
    if floor_s is None or expected_s is None or floor_s > expected_s:
        return low, high
    return max(low, floor_s), high


def _is_below_floor(row: WhatIf) -> bool:
    """Whether several devices are expected to beat a floor: the floor then assumes another split than engines use."""
    pairs = ((row.ttft_expected_s, row.ttft_floor_s), (row.tpot_expected_s, row.tpot_floor_s))
    return row.tensor_parallel > 1 and any(
        expected is not None and floor is not None and expected < floor for expected, floor in pairs
    )


FOCUS = ("NVIDIA GeForce RTX 5090", "NVIDIA A100 SXM4 80GB", "NVIDIA H100 SXM5 80GB")
"""Devices that get the variations of batch, context and data type when the caller names none."""
_BATCHES = (1, 8, 32)
_CONTEXT_FACTORS = (1, 4)
_TENSOR_PARALLEL = (2, 4, 8)
_NAMED_FROM = 1 / 3


def what_if(
    static: Static,
    catalogue: Catalogue,
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
    ``focus``, are also listed with two, four and eight devices.
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
    devices: Sequence[Device],
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
                _add_expected(row, static, device, point, started or Started(), tables)
            rows.append(row)
    return rows


def _peak(device: Device, point: Point) -> Peak | None:
    """Return the fastest peak of the types a point's products may run in; ``None``: none is known."""
    known = [device.peaks[name] for name in point.compute_dtypes or (point.dtype,) if name in device.peaks]
    return max(known, key=lambda peak: peak.dense, default=None)


def _row(device: Device, point: Point, needed: Demand, started: Started) -> WhatIf:
    peak, bandwidth = _peak(device, point), device.bandwidth_bytes_per_s
    fits = None if device.memory_bytes is None else needed.resident_bytes <= device.memory_bytes
    notes = []
    ttft = tpot = None
    term: FloorBound | None = None
    talk_s = _talk_s(device, needed.step_link_bytes)
    if peak is not None and bandwidth is not None:
        if needed.first_token is not None:
            link_bytes = [None] * (len(needed.first_token) - 1) + [needed.prefill_link_bytes]
            passes = [
                _terms(work, peak.dense, bandwidth, launches, _talk_s(device, sent) or 0.0)
                for work, launches, sent in zip(
                    needed.first_token, started.before(len(needed.first_token)), link_bytes, strict=True
                )
            ]
            ttft = sum(max(terms) for terms in passes)
            term = binding_term(*max(passes, key=max))
        if needed.step is not None:
            terms = _terms(needed.step, peak.dense, bandwidth, started.step, talk_s or 0.0)
            tpot, term = max(terms), binding_term(*terms)
            notes.append(_describe_bound(term, needed, started.step, tpot))
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
        notes.append(_describe_communication(device, needed.step_link_bytes, talk_s))
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
    """Return the times of computing, moving data, launching and communication."""
    return work[0] / peak, work[1] / bandwidth, launches.graph_s, talk_s


def _talk_s(device: Device, link_bytes: float | None) -> float | None:
    """Return the minimum time of a device's links; ``None``: bytes or bandwidth are unknown."""
    if link_bytes is None or device.link_bytes_per_s is None:
        return None
    return link_bytes / device.link_bytes_per_s


def _describe_communication(device: Device, link_bytes: float | None, talk_s: float | None) -> str:
    if link_bytes is None:
        return "their communication is not known and not in the floor"
    sent = f"{units.size(link_bytes)} a step over each one's links"
    if talk_s is None or device.link_bytes_per_s is None:
        return f"{sent}, whose bandwidth is not known and not in the floor"
    return f"{sent} at {units.bytes_per_s(device.link_bytes_per_s)}: {units.seconds(talk_s)}"


def _describe_bound(term: FloorBound, needed: Demand, launches: Launches, floor_s: float) -> str:
    """Describe what bounds a step, and the time of launching one by one where that is longer."""
    text = {
        "compute": "compute-bound",
        "memory": f"memory-bound: {_read(needed)}",
        "launch": f"launch-bound: {units.count(launches.least)} kernels in a graph",
        "communication": "bound by the links between the devices",
    }[term]
    eager = launches.eager_s
    if eager is not None and eager > floor_s:
        text += f" (launched one by one about {units.seconds(eager)})"
    return text


def note_beaten_floors(
    rows: Sequence[WhatIf], device: str | None, ttft_s: float | None, tpot_s: float | None
) -> None:
    """Add a note to the rows of the run's own device if it beat the floor: then a limit or the count is wrong."""
    own = [row for row in rows if row.device == device]
    if not own:
        return
    for floor, measured, name in (
        (own[0].ttft_floor_s, ttft_s, "TTFT"),
        (own[0].tpot_floor_s, tpot_s, "TPOT"),
    ):
        if floor is not None and measured is not None and measured < floor:
            text = f"measured {name} {units.seconds(measured)} is below this floor: a limit of the device or the work counted is wrong"
            own[0].note = f"{own[0].note}, {text}" if own[0].note else text


def _read(needed: Demand) -> str:
    """Describe what a memory-bound step spends its time reading; parts below a third are not named."""
    cache = needed.step_cache_bytes / needed.step[1] if needed.step is not None and needed.step[1] else 0.0
    if cache > 1 - _NAMED_FROM:
        return "reading the KV cache"
    return "reading weights and KV cache" if cache >= _NAMED_FROM else "reading weights"
