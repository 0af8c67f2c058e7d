"""Tables about phases: times, budgets, utilisation, floors, static work."""

from __future__ import annotations

from collections.abc import Iterable

from llm_perf_opt.analysis.ledger import split_component
from llm_perf_opt.core import units
from llm_perf_opt.reporting.tables import Cell, Column, Row, Table, code, columns, num, simple, text
from llm_perf_opt.reporting.wording import phase_name, phase_rank
from llm_perf_opt.summary import Stat, Summary, Timings

_TYPICAL_HELP = (
    "the value every page shows: each sample's median over its repeats, averaged over the samples; "
    "TPOT: decode time ÷ tokens after the first"
)


def _rate(value: float | None) -> str:
    return units.number(value, "per s")


def _stat(name: str, stat: Stat | None, *, rate: bool = False, indent: int = 0) -> list[list[Cell]]:
    if stat is None:
        return []
    show = _rate if rate else units.seconds
    spread = f"{show(stat.mean)} ± {show(stat.std)}" if stat.std is not None else show(stat.mean)
    several = stat.n > 1
    return [
        [
            Cell(name, indent=indent),
            Cell(show(stat.shown), stat.shown, strong=True),
            num(stat.p5 if several else None, show),
            num(stat.median if several else None, show),
            num(stat.p95 if several else None, show),
            Cell(spread, stat.mean),
            num(stat.n, units.count),
        ]
    ]


def _components(timings: Timings, phase: str) -> Iterable[list[Cell]]:
    for name, stat in timings.components.items():
        label, where = split_component(name)
        if where == phase:
            yield from _stat(label, stat, indent=1)


def _before_prefill(timings: Timings) -> str:
    """Describe what the time to first token includes besides the prefill."""
    timed = [name for name, stat in (("vision", timings.vision_s), ("encode", timings.encode_s)) if stat]
    return f": {' + '.join([*timed, 'prefill'])}" if timed else ""


def time_table(summary: Summary) -> Table:
    """Return every repeated measurement: value, spread and number of repeats."""
    timings = summary.timings
    rows = [
        *_stat("preprocess", timings.preprocess_s),
        *_stat("vision", timings.vision_s),
        *_components(timings, "vision"),
        *_stat("encode", timings.encode_s),
        *_components(timings, "encode"),
        *_stat("prefill", timings.prefill_s),
        *_components(timings, "prefill"),
        *_stat(f"time to first token (TTFT{_before_prefill(timings)})", timings.ttft_s),
        *_stat("decode", timings.decode_s),
        *_components(timings, "decode"),
        *_stat("time per output token (TPOT)", timings.tpot_s),
        *_stat("tokens per second", timings.tokens_per_s, rate=True),
    ]
    header = columns(
        "per sample",
        Column("typical", True, _TYPICAL_HELP),
        Column("p5", True, "of all repeats of all samples; TPOT: of all tokens"),
        Column("median", True, "of all repeats of all samples; TPOT: of all tokens"),
        Column("p95", True, "of all repeats of all samples; TPOT: of all tokens"),
        "mean ± std#",
        "n#",
    )
    return simple(header, rows).without_empty_columns()


def sample_table(summary: Summary) -> Table:
    """Return one row per sample: its size and the medians of its repeats."""
    rows = [
        Row(
            [
                code(sample.id),
                num(sample.prompt_tokens, units.count),
                num(sample.image_tokens, units.count),
                num(sample.new_tokens, units.count),
                *(
                    num(value, units.seconds)
                    for value in (
                        sample.preprocess_s,
                        sample.vision_s,
                        sample.encode_s,
                        sample.prefill_s,
                        sample.decode_s,
                        sample.ttft_s,
                        sample.tpot_s,
                    )
                ),
                num(sample.n, units.count),
            ]
        )
        for sample in summary.samples
    ]
    header = columns(
        "sample",
        Column("prompt", True, "prompt positions, image tokens included"),
        Column("image", True, "image positions"),
        Column("new", True, "generated tokens"),
        "preprocess#",
        "vision#",
        "encode#",
        "prefill#",
        "decode#",
        Column("TTFT", True, "time to first token: vision or encode, and prefill"),
        Column("TPOT", True, "time per output token: decode ÷ tokens after the first"),
        Column("n", True, "repeats the medians are of"),
    )
    return Table(header, rows).without_empty_columns()


def budget_table(summary: Summary) -> Table:
    """Return the captured time of each phase, one column per part; the parts of a row sum to its span."""
    names = list(dict.fromkeys(part.name for budget in summary.budget.values() for part in budget.parts))
    rows = []
    for phase in sorted(summary.budget, key=phase_rank):
        budget = summary.budget[phase]
        parts = {part.name: part for part in budget.parts}
        cells = [text(phase_name(phase)), num(budget.span_s, units.seconds)]
        cells.extend(num(parts[name].share_ratio if name in parts else None, units.percent) for name in names)
        rows.append(cells)
    return simple(columns("phase", "span#", *(f"{name}#" for name in names)), rows)


def utilisation_table(summary: Summary) -> Table:
    """Return how much of the hardware each phase used; the arithmetic is folded."""
    header = [
        Column("phase"),
        Column("MFU", True, "model FLOPs utilisation: counted FLOPs ÷ (wall-clock × dense peak)"),
        Column("MBU", True, "memory bandwidth utilisation: weights and KV cache ÷ (wall-clock × bandwidth)"),
        Column("MFU of reached", True, "the same against the best rate measured on such a device"),
        Column("MBU of reached", True, "the same against the best bandwidth measured on such a device"),
        Column("device busy", True, "union of device activity ÷ wall-clock"),
        Column("floor", True, "no machine with these limits can be faster"),
        Column("floor set by"),
        Column("measured ÷ floor", True),
    ]
    rows = []
    phases = dict.fromkeys([*summary.utilisation, *summary.predictions])
    for phase in sorted(phases, key=phase_rank):
        use, floor = summary.utilisation.get(phase), summary.predictions.get(phase)
        details = [
            (label, value)
            for label, value in (
                ("utilisation", use.arithmetic if use is not None else None),
                ("floor", floor.arithmetic if floor is not None else None),
            )
            if value
        ]
        cells = [
            text(phase_name(phase)),
            num(use.mfu_ratio if use is not None else None, units.percent),
            num(use.mbu_ratio if use is not None else None, units.percent),
            num(use.mfu_reached_ratio if use is not None else None, units.percent),
            num(use.mbu_reached_ratio if use is not None else None, units.percent),
            num(use.device_busy_ratio if use is not None else None, units.percent),
            num(floor.floor_s if floor is not None else None, units.seconds),
            text(floor.bound if floor is not None else None),
            num(floor.error_ratio if floor is not None else None, _times),
        ]
        rows.append(Row(cells, key=phase, details=details))
    return Table(header, rows).without_empty_columns()


def _times(value: float | None) -> str:
    return units.MISSING if value is None else f"{units.number(value)} ×"


def static_table(summary: Summary) -> Table:
    """Return what each phase must compute and move."""
    phases = summary.static.phases if summary.static is not None else {}
    rows = [
        [
            text(name),
            num(p.flops, units.flops),
            num(p.weight_bytes, units.size),
            num(p.kv_bytes, units.size),
            num(p.activation_bytes, units.size),
            num(p.intensity, lambda value: units.number(value, "FLOP/B")),
        ]
        for name, p in phases.items()
    ]
    return simple(
        [
            *columns("phase", "FLOPs#", "weights read#", "KV cache#", "activations#"),
            Column("intensity", True, "FLOPs per byte of weights, KV cache and activations"),
        ],
        rows,
    )
