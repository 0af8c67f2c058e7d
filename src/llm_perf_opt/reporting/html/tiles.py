"""The few numbers at the top of ``report.html``, and the answer of a report that only counted."""

from __future__ import annotations

from llm_perf_opt.analysis.roofline.elsewhere import Elsewhere, elsewhere, is_static_only, where_it_fits
from llm_perf_opt.analysis.samples import Span, span_over_samples
from llm_perf_opt.core import units
from llm_perf_opt.model.summary import Stat, Summary
from llm_perf_opt.reporting.wording import fit_text, phase_name, phase_rank

_MOST_COLUMNS = 6


def tile_columns(count: int) -> int:
    """Return how many tiles stand in a row, so that the last row is never a single one."""
    rows = -(-count // _MOST_COLUMNS) or 1
    return max(1, -(-count // rows))


def headline_numbers(summary: Summary) -> list[dict[str, str]]:
    """Return the few numbers at the top: times where they were measured, else what the captures hold."""
    if is_static_only(summary):
        return _static_numbers(summary)
    timings = summary.timings
    numbers = [
        *_number("time to first token", timings.ttft_s, span_over_samples(summary.samples, "ttft_s")),
        *_number("time per output token", timings.tpot_s, span_over_samples(summary.samples, "tpot_s")),
        *_number("tokens per second", timings.tokens_per_s, rate=True),
    ]
    if summary.wall_clock is not None:
        numbers.append(_tile("per sample", units.seconds(summary.wall_clock.span_s), "sum of the phases"))
    program = _number("wall-clock of the program", timings.program_s)
    return program + (numbers or _capture_numbers(summary)) + _utilisation_numbers(summary)


def static_answer(summary: Summary) -> list[str]:
    """Return what a report that only counted has to say, as sentences; nothing where something ran."""
    if not is_static_only(summary):
        return []
    fit = where_it_fits(summary)
    sentences = [fit_text(fit)] if fit is not None else []
    devices = [each for each in elsewhere(summary) if each.fits is not False]
    if devices:
        best = devices[0]
        sentences.append(_fastest_text(best))
    return sentences


def _fastest_text(best: Elsewhere) -> str:
    """Say what the fastest device shown that holds the model takes: to be expected where that is known, and at least."""
    least = f"{units.seconds(best.ttft_floor_s)} to the first token and {units.seconds(best.tpot_floor_s)} for each further one"
    if best.ttft_expected_s is None or best.tpot_expected_s is None:
        return f"Even the fastest device shown that holds it, {best.device}, needs at least {least}."
    return (
        f"On the fastest device shown that holds it, {best.device}, expect {units.seconds(best.ttft_expected_s)} to the first "
        f"token and {units.seconds(best.tpot_expected_s)} for each further one (at least {least})."
    )


def _tile(label: str, value: str, note: str = "") -> dict[str, str]:
    return {"label": label, "value": value, "note": note}


def _static_numbers(summary: Summary) -> list[dict[str, str]]:
    static, fit = summary.static, where_it_fits(summary)
    if static is None:
        return []
    active = static.params.active_per_token
    numbers = [
        _tile(
            "parameters",
            units.count(static.params.total),
            f"{units.count(active)} active per token" if active else "",
        )
    ]
    needed = static.resident_bytes.get("total")
    if needed:
        weights = static.resident_bytes.get("weights")
        numbers.append(
            _tile(
                "memory it needs",
                units.size(needed),
                f"{units.size(weights)} of it weights" if weights else "",
            )
        )
    if fit is not None:
        smallest = f"smallest: {fit.fitting[0].device}" if fit.fitting else "it needs several"
        numbers.append(_tile("fits", f"{len(fit.fitting)} of {fit.known} devices", smallest))
    floors = [
        _tile(
            label,
            units.seconds(summary.predictions[name].floor_s),
            f"floor on {summary.hardware.name or 'this device'}",
        )
        for name, label in (("ttft", "least time to first token"), ("tpot", "least time per output token"))
        if name in summary.predictions
    ]
    return numbers + (floors or _best_floors(summary))


def _best_floors(summary: Summary) -> list[dict[str, str]]:
    """Without limits of its own: the floors on the fastest device shown that holds the model."""
    devices = [each for each in elsewhere(summary) if each.fits is not False] or elsewhere(summary)
    if not devices:
        return []
    best = devices[0]
    if best.ttft_expected_s is not None and best.tpot_expected_s is not None:
        return [
            _tile(label, units.seconds(expected), f"on {best.device}; at least {units.seconds(floor)}")
            for label, expected, floor in (
                ("expected time to first token", best.ttft_expected_s, best.ttft_floor_s),
                ("expected time per output token", best.tpot_expected_s, best.tpot_floor_s),
            )
        ]
    return [
        _tile(label, units.seconds(value), f"floor on {best.device}")
        for label, value in (
            ("least time to first token", best.ttft_floor_s),
            ("least time per output token", best.tpot_floor_s),
        )
        if value is not None
    ]


def _capture_numbers(summary: Summary) -> list[dict[str, str]]:
    kernels, launches = summary.metrics.get("kernel_time_s"), summary.metrics.get("kernel_launches")
    numbers = [
        _tile(f"captured time, {phase_name(phase)}", units.seconds(summary.budget[phase].span_s))
        for phase in sorted(summary.budget, key=phase_rank)
    ]
    for phase, label in (("ttft", "least time to first token"), ("tpot", "least time per output token")):
        if phase in summary.predictions:
            numbers.append(
                _tile(label, units.seconds(summary.predictions[phase].floor_s), "floor, not measured")
            )
    if kernels is not None:
        numbers.append(_tile("kernel time", units.seconds(kernels), "summed over streams"))
    if launches is not None:
        numbers.append(_tile("kernel launches", units.count(launches), f"of {len(summary.kernels)} kernels"))
    return numbers


def _utilisation_numbers(summary: Summary) -> list[dict[str, str]]:
    numbers = [
        _tile(
            f"device busy, {phase_name(phase)}", units.percent(summary.utilisation[phase].device_busy_ratio)
        )
        for phase in sorted(summary.utilisation, key=phase_rank)
        if summary.utilisation[phase].device_busy_ratio is not None
    ]
    prefill, decode = summary.utilisation.get("prefill"), summary.utilisation.get("decode")
    if prefill is not None and prefill.mfu_ratio is not None:
        numbers.append(
            _tile("arithmetic used, prefill", units.percent(prefill.mfu_ratio), "MFU: share of the peak")
        )
    if decode is not None and decode.mbu_ratio is not None:
        numbers.append(
            _tile("bandwidth used, decode", units.percent(decode.mbu_ratio), "MBU: share of the peak")
        )
    return numbers


def _number(
    label: str, stat: Stat | None, by_sample: Span | None = None, *, rate: bool = False
) -> list[dict[str, str]]:
    if stat is None:
        return []
    show = units.number if rate else units.seconds
    spread = f"median of {stat.n}, {show(stat.p5)} to {show(stat.p95)}" if stat.n > 1 else "one value"
    if by_sample is not None:
        spread = f"median of {stat.n}; by sample {show(by_sample.low)} to {show(by_sample.high)}"
    return [_tile(label, show(stat.median), spread)]
