"""Two runs that differ in data type, batch size, ranks or device: predicted and measured change."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.origin import Difference, changed_keys, overrides_of
from llm_perf_opt.analysis.origin import Side as ComparedSide
from llm_perf_opt.analysis.roofline.expected_gains import (
    ExpectedGain,
    Limits,
    device_name,
    expected_gain,
    side_of,
)
from llm_perf_opt.analysis.roofline.expected_times import Tables
from llm_perf_opt.compare.data import ExpectedChange, ExpectedMetric, MetricChange
from llm_perf_opt.compare.measure import Letter, Plan, check_overrides
from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.summary import Summary

if TYPE_CHECKING:
    from llm_perf_opt.analysis.origin import Side
    from llm_perf_opt.summary import Static

_QUANTISED = "model.quantise_weights="
_KNOWN = ("model.dtype", "model.quantise_weights", "infer.batch_size", "run.ranks", "run.device")
"""Settings whose change expected times tell."""
_NOT_OF_THE_MODEL = (
    "artifacts",
    "hydra",
    "pipeline",
    "hardware",
    "run.repeats",
    "run.ranks_timeout_s",
    "model.path",
)
"""Settings, and sections of them, that say where a run lies and what is measured of it."""
_GRAPHS = "model.compile or model.cuda_graphs"


def expected_change(
    a: ComparedSide,
    b: ComparedSide,
    metrics: Sequence[MetricChange],
    tables: Tables | None,
    limits: Limits | None = None,
    common: Sequence[str] = (),
) -> ExpectedChange | None:
    """Return the predicted change with its reason where there is none; ``None``: nothing covered by tables differs.

    ``common``: settings of both sides in addition to their own.
    """
    stored = [_quantised(side, common) for side in (a, b)]
    changed = _changed(a.first, b.first, stored)
    if not changed:
        return None
    other = _unknown_setting(a, b)
    if other is not None:
        return ExpectedChange(changed, reason=f"no table knows what {other} changes")
    sides = []
    for letter, side, dtype in (("A", a, stored[0]), ("B", b, stored[1])):
        found, reason = side_of(side.first, tables, stored_dtype=dtype, limits=limits)
        if found is None:
            about = reason or ""
            return ExpectedChange(changed, reason=about if tables is None else f"{letter}: {about}")
        sides.append(found)
    if sides[0].step_graph != sides[1].step_graph:
        return ExpectedChange(changed, reason=f"no table knows what {_GRAPHS} changes")
    assert tables is not None
    gain = expected_gain(sides[0], sides[1], tables)
    if gain is None:
        reason = "neither tables nor limits reach the operators of both sides"
        return ExpectedChange(changed, reason=reason)
    return ExpectedChange(
        changed,
        _metrics(gain, {metric.name: metric for metric in metrics}),
        gain.basis,
        gain.measured_share_ratio,
        gain.source,
        gain.launched,
        gain.host_bound,
    )


def needs_expected_times(
    a: ComparedSide, b: ComparedSide, tables: Tables, common: Sequence[str] = ()
) -> bool:
    """Whether everything for a prediction is present except possibly the counted operators."""
    changed = _changed(a.first, b.first, [_quantised(side, common) for side in (a, b)])
    names = [device_name(side.first) for side in (a, b)]
    return (
        bool(changed)
        and _unknown_setting(a, b) is None
        and all(name is not None and tables.knows(name) for name in names)
    )


def _unknown_setting(a: ComparedSide, b: ComparedSide) -> str | None:
    """Return a setting that differs and that no table covers."""
    changed = changed_keys(overrides_of(a), overrides_of(b))
    return next((key for key in changed if not _is_reported(key)), None)


def _is_reported(key: str) -> bool:
    plain = key.replace("/", ".")
    return plain in _KNOWN or any(plain == one or plain.startswith(f"{one}.") for one in _NOT_OF_THE_MODEL)


def _quantised(side: ComparedSide, common: Sequence[str]) -> str | None:
    """Return what a side's weights were quantised to when they were loaded."""
    overrides = [word.lstrip("+") for word in (*common, *overrides_of(side))]
    found = [word[len(_QUANTISED) :] for word in overrides if word.startswith(_QUANTISED)]
    return found[-1] if found and found[-1] not in ("null", "None", "") else None


def _changed(a: Summary, b: Summary, stored: Sequence[str | None]) -> list[Difference]:
    pairs = (
        ("dtype", stored[0] or a.workload.dtype, stored[1] or b.workload.dtype),
        ("batch size", a.workload.batch_size, b.workload.batch_size),
        ("ranks", a.workload.ranks or 1, b.workload.ranks or 1),
        ("device", device_name(a), device_name(b)),
    )
    # A value missing on one side is not a difference.
    return [Difference(what, _text(x), _text(y)) for what, x, y in pairs if None not in (x, y) and x != y]


def _text(value: str | float | None) -> str | None:
    return None if value is None else f"{value:g}" if isinstance(value, int | float) else value


def _metrics(gain: ExpectedGain, measured: Mapping[str, MetricChange]) -> list[ExpectedMetric]:
    a, b = gain.before, gain.after
    rows = (
        ("ttft", "s", a.ttft_s, b.ttft_s),
        ("tpot", "s", a.tpot_s, b.tpot_s),
        ("tokens_per_s", "1/s", a.tokens_per_s, b.tokens_per_s),
    )
    return [_metric(name, unit, x, y, measured.get(name)) for name, unit, x, y in rows if x]


def _metric(name: str, unit: str, a: float, b: float, found: MetricChange | None) -> ExpectedMetric:
    if found is None:
        return ExpectedMetric(name, unit, a, b, b / a)
    return ExpectedMetric(name, unit, a, b, b / a, found.ratio, found.low_ratio, found.high_ratio)


# Operators of the sides that ``compare --run`` measured: its runs do nothing but time passes, so they are counted after them.


LOGGER = logging.getLogger("llm_perf_opt.compare")


def count_sides(plan: Plan, a: Side, b: Side) -> None:
    """Add the static model to the first run of each side, if the run did not count it."""
    sides: tuple[tuple[Letter, Side], ...] = (("a", a), ("b", b))
    for letter, side in sides:
        if side.first.static is None:
            side.first.static = _counted(plan, letter)


def _counted(plan: Plan, letter: Letter) -> Static | None:
    """Return the static model at the shapes of a side's samples; no weights are needed."""
    from llm_perf_opt.stages.static_analysis import analyse
    from llm_perf_opt.workloads.counting.shapes import NAME, StaticAnalysisConfig

    config = check_overrides(plan.overrides(letter))
    stage = config.pipeline.get(NAME)
    if not isinstance(stage, StaticAnalysisConfig):
        return None
    try:
        return analyse(config, replace(stage, use_synthetic_inputs=False)).static
    except LlmPerfError as error:
        LOGGER.warning("%s: not counted, so nothing is predicted: %s", letter.upper(), error.message)
        return None
