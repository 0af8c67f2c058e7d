"""Equal things beside each other: samples by phase, devices by their floors."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.analysis.roofline.elsewhere import Elsewhere
from llm_perf_opt.core import units
from llm_perf_opt.core.phases import REQUEST_PHASES
from llm_perf_opt.model.summary import SampleTimes
from llm_perf_opt.reporting.charts.bars import Segment, StackedRow, stacked_bars
from llm_perf_opt.reporting.charts.colours import PHASE_COLOURS
from llm_perf_opt.reporting.charts.dots import Dot, DotRow, dot_chart
from llm_perf_opt.reporting.charts.markers import Kind

_MOST_SAMPLES = 40


def sample_chart(samples: Sequence[SampleTimes], title: str = "Every sample, by phase") -> str:
    """Draw the wall-clock of each sample, one colour per phase; lengths compare between samples."""
    rows = [
        StackedRow(
            sample.id,
            [
                Segment(phase, getattr(sample, f"{phase}_s") or 0.0)
                for phase in ("preprocess", *REQUEST_PHASES)
            ],
        )
        for sample in samples[:_MOST_SAMPLES]
    ]
    left_out = len(samples) - len(rows)
    suffix = f" (the first {len(rows)} of {len(samples)})" if left_out else ""
    return stacked_bars(title + suffix, rows, as_share=False, colours=PHASE_COLOURS)


def elsewhere_chart(devices: Sequence[Elsewhere], *, first_token: bool = False) -> str:
    """Draw expected and least time per token (or to the first one) by device, and what was measured on this run's own."""
    expects = any(each.tpot_expected_s is not None for each in devices)
    what = "time to first token" if first_token else "time per output token"
    what = f"Expected and least {what}" if expects else f"Least {what}"
    rows = []
    for each in devices:
        floor = each.ttft_floor_s if first_token else each.tpot_floor_s
        measured = each.ttft_measured_s if first_token else each.tpot_measured_s
        if floor is None:
            continue
        expected = each.ttft_expected_s if first_token else each.tpot_expected_s
        dots = [Dot(floor, _FLOOR if each.fits is not False else _TOO_SMALL)]
        low, high = (each.ttft_ends_s if first_token else each.tpot_ends_s) or (None, None)
        dots += [Dot(expected, _EXPECTED, low, high)] if expected is not None else []
        eager = None if first_token else each.tpot_eager_s or each.launch_eager_s
        # Only where it is more than the floor does launching one by one keep a step from it.
        one_by_one = _AT_LEAST if each.eager_is_bound else _ONE_BY_ONE
        dots += [Dot(eager, one_by_one)] if eager is not None and eager > floor else []
        dots += [Dot(measured, _MEASURED)] if measured is not None else []
        label = _short_device(each.device) + (" (this run)" if each.is_own else "")
        term = f", {each.floor_term}" if each.floor_term is not None and not first_token else ""
        said = units.seconds(floor if expected is None else expected)
        rows.append(DotRow(label, dots, f"{said}{term}", each.is_own))
    return dot_chart(f"{what}, by device", rows, x_label="Time (logarithmic)", log=True)


_FLOOR = Kind("floor: no run can be faster", "circle", 0)
_TOO_SMALL = Kind("floor, but the model does not fit", "hollow", 0)
_EXPECTED = Kind("expected, with where nine in ten lie: measured operators added up", "triangle", 2)
_ONE_BY_ONE = Kind("with every kernel launched by itself", "square", 3)
_AT_LEAST = Kind("with every kernel launched by itself, at least", "square", 3)
_MEASURED = Kind("measured in this run", "diamond", 5)


def _short_device(name: str) -> str:
    """Drop the maker, which every reader knows, to leave room for what tells devices apart."""
    return name.removeprefix("NVIDIA ").removeprefix("AMD ")
