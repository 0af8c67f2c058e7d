"""Expected times beside the floors of a row: what to expect of a device, or why nothing can be said."""

from __future__ import annotations

from llm_perf_opt.analysis.expected.compose import Target
from llm_perf_opt.analysis.expected.estimate import Expectation, Tables, expect
from llm_perf_opt.analysis.expected.sharing import why_not_shared
from llm_perf_opt.analysis.roofline.asked import DeviceLimits, at_point, device_target
from llm_perf_opt.analysis.roofline.demand import Point
from llm_perf_opt.analysis.roofline.started import Started
from llm_perf_opt.model.static.operators import OperatorShapes
from llm_perf_opt.model.summary import Static, WhatIf

_OTHER_SPLIT = "the floor is of transformers' split, which leaves more whole on every device than the engines that were timed"


def add_expected(
    row: WhatIf, static: Static, device: DeviceLimits, point: Point, started: Started, tables: Tables
) -> None:
    """Put the expected times of a point beside its floors, where the model's operators are known by shape."""
    if static.operators is None:
        return
    passes = [name for name in ("vision", "prefill") if name in static.phases]
    at, target = at_point(static, point), device_target(device, tables)
    found = expect(static.operators, passes, at, target, tables)
    if found is not None:
        _fill(row, found, started, tables.power_w(device.name))
        if _is_below_floor(row):
            row.note = f"{row.note}, {_OTHER_SPLIT}"
        return
    reason = _why_not_expected(static.operators, at.tensor_parallel, target)
    if reason is not None:
        row.note = f"{row.note}, no expected time: {reason}"


def _why_not_expected(shapes: OperatorShapes, ranks: int, target: Target) -> str | None:
    """Say why nothing is expected of so many devices; ``None``: their number is not the reason."""
    unshared = why_not_shared(shapes, ranks)
    if unshared is None and ranks > target.linked:
        return f"nobody timed sums over {ranks} devices, and the links of one machine join {target.linked}"
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
    """Return the ends of an expected time; no error takes it below the floor, unless it is below the floor itself."""
    if ends is None:
        return None, None
    low, high = ends
    if floor_s is None or expected_s is None or floor_s > expected_s:
        return low, high
    return max(low, floor_s), high


def _is_below_floor(row: WhatIf) -> bool:
    """Whether several devices are expected to beat a floor: then it is the floor of another split than engines make."""
    pairs = ((row.ttft_expected_s, row.ttft_floor_s), (row.tpot_expected_s, row.tpot_floor_s))
    return row.tensor_parallel > 1 and any(
        expected is not None and floor is not None and expected < floor for expected, floor in pairs
    )
