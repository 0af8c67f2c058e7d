"""``report.md``: everything a performance engineer asks for, in the order they ask it."""

from __future__ import annotations

from llm_perf_opt import units
from llm_perf_opt.analysis.ledger import split_component
from llm_perf_opt.reporting.escape import md_cell, md_code, md_text
from llm_perf_opt.reporting.kernels_md import kernel_table
from llm_perf_opt.reporting.markdown import bullets, section, table
from llm_perf_opt.summary.model import Stat, Summary, Timings

_TOP_KERNELS = 10
_LEDGER_ROWS = 40
_WHAT_IF_ROWS = 14
_SHOWN_DEVICES = (
    "RTX 3090",
    "RTX 4090",
    "RTX 5090",
    "A100 SXM4 80GB",
    "L40S",
    "H100 SXM5",
    "H200 SXM",
    "B200",
    "MI300X",
)


def report_markdown(summary: Summary) -> str:
    """Render the full report."""
    return "".join(
        (
            f"# Performance report: {md_text(summary.workload.model or summary.run.id)}\n\n",
            _opening(summary),
            section("What limits each phase", _verdicts(summary)),
            section("What to change first", _findings(summary)),
            section("Time", _timings(summary), _budget(summary)),
            section("Against the hardware", _hardware(summary), _utilisation(summary), _predictions(summary)),
            section("The model on paper", _static(summary)),
            section("Module ledger", _ledger(summary)),
            section("Kernels", _kernels(summary)),
            section("Elsewhere", _what_if(summary)),
            section("Stages", _stages(summary)),
            section("Environment", _environment(summary)),
            section("How each number was made", _methods(summary)),
        )
    )


def _opening(summary: Summary) -> str:
    workload = summary.workload
    facts = [
        ("weights", workload.weights),
        ("device", workload.device or summary.hardware.name),
        ("data type", workload.dtype),
        ("batch size", workload.batch_size),
        ("samples", workload.samples),
        ("prompt tokens", units.number(workload.prompt_tokens) if workload.prompt_tokens else None),
        ("of which image tokens", units.number(workload.image_tokens) if workload.image_tokens else None),
        ("new tokens", units.number(workload.new_tokens) if workload.new_tokens else None),
    ]
    shown = ", ".join(f"{name} {md_text(value)}" for name, value in facts if value is not None)
    coverage = summary.coverage
    shares = [
        ("device time attributed to a phase", coverage.time_attributed_ratio),
        ("kernel time classified", coverage.kernel_time_classified_ratio),
        ("FLOPs counted", coverage.flops_counted_ratio),
    ]
    covered = ", ".join(f"{name} {units.percent(value)}" for name, value in shares if value is not None)
    lines = [f"Run {md_code(summary.run.id)}, status **{summary.run.status}**. {shown}."]
    if covered:
        lines.append(f"Coverage: {covered}.")
    notes = "".join(f"> **Note.** {md_text(note)}\n>\n" for note in summary.notes)
    return "\n\n".join(lines) + "\n\n" + (notes.rstrip(">\n") + "\n\n" if notes else "")


def _verdicts(summary: Summary) -> str:
    rows = [
        [phase, f"**{verdict.bound}**", md_cell(verdict.arithmetic), md_cell(verdict.lever or units.MISSING)]
        for phase, verdict in summary.verdicts.items()
    ]
    return table(["phase", "bound by", "why", "what would move it"], rows)


def _findings(summary: Summary) -> str:
    parts = []
    for index, finding in enumerate(summary.findings, 1):
        gain = (
            f"at most {units.seconds(finding.gain_upper_s)} per sample"
            if finding.gain_upper_s is not None
            else "gain not bounded"
        )
        parts.append(
            f"{index}. **{md_text(finding.title)}** ({finding.phase or 'whole run'}; {gain}; {finding.confidence} confidence)\n"
            + "".join(f"   - evidence: {md_text(item)}\n" for item in finding.evidence)
            + f"   - arithmetic: {md_text(finding.arithmetic)}\n   - advice: {md_text(finding.advice)}\n"
        )
    return "\n".join(parts)


def _stat_row(name: str, stat: Stat | None, *, rate: bool = False) -> list[list[str]]:
    if stat is None:
        return []
    show = (lambda v: units.number(v, "1/s")) if rate else units.seconds
    spread = f"{show(stat.mean)} ± {show(stat.std)}" if stat.std is not None else show(stat.mean)
    return [[name, show(stat.median), show(stat.p5), show(stat.p95), spread, str(stat.n)]]


def _components(timings: Timings, phase: str) -> list[list[str]]:
    rows = []
    for name, stat in timings.components.items():
        label, where = split_component(name)
        if where == phase:
            rows.extend(_stat_row(f"&nbsp;&nbsp;{md_cell(label)}", stat))
    return rows


def _timings(summary: Summary) -> str:
    timings = summary.timings
    rows = [
        *_stat_row("preprocess", timings.preprocess_s),
        *_stat_row("vision", timings.vision_s),
        *_components(timings, "vision"),
        *_stat_row("prefill", timings.prefill_s),
        *_components(timings, "prefill"),
        *_stat_row("time to first token", timings.ttft_s),
        *_stat_row("decode", timings.decode_s),
        *_components(timings, "decode"),
        *_stat_row("time per output token", timings.tpot_s),
        *_stat_row("tokens per second", timings.tokens_per_s, rate=True),
    ]
    return table(["per sample", "median", "p5", "p95", "mean ± std", "n"], rows, numbers=range(1, 6))


def _budget(summary: Summary) -> str:
    rows = [
        [
            md_cell(phase),
            units.seconds(budget.span_s),
            ", ".join(f"{md_cell(p.name)} {units.percent(p.share_ratio)}" for p in budget.parts),
        ]
        for phase, budget in summary.budget.items()
    ]
    text = table(["phase", "span", "parts (sum to the span)"], rows, numbers=(1,))
    return f"Wall-clock budget of the captured timeline:\n\n{text}" if text else ""


def _hardware(summary: Summary) -> str:
    hardware = summary.hardware
    if hardware.source == "none":
        return f"No limits are known for {md_text(hardware.name or 'this device')}: {md_text(hardware.reason or 'unknown device')}.\n"
    peaks = ", ".join(
        f"{md_text(name)} {units.flops_per_s(peak.dense)}" for name, peak in hardware.peak_flops_per_s.items()
    )
    return f"{md_text(hardware.name or 'device')} ({hardware.source}): dense peaks {peaks}; memory {units.bytes_per_s(hardware.bandwidth_bytes_per_s)}.\n"


def _utilisation(summary: Summary) -> str:
    rows = [
        [
            md_cell(phase),
            units.percent(use.mfu_ratio),
            units.percent(use.mbu_ratio),
            units.percent(use.device_busy_ratio),
            md_cell(use.arithmetic or units.MISSING),
        ]
        for phase, use in summary.utilisation.items()
    ]
    return table(["phase", "MFU", "MBU", "device busy", "arithmetic"], rows, numbers=(1, 2, 3))


def _predictions(summary: Summary) -> str:
    rows = [
        [
            md_cell(phase),
            units.seconds(p.floor_s),
            p.bound,
            f"{units.number(p.error_ratio)} ×" if p.error_ratio is not None else units.MISSING,
            md_cell(p.arithmetic),
        ]
        for phase, p in summary.predictions.items()
    ]
    return table(["phase", "floor", "floor set by", "measured ÷ floor", "arithmetic"], rows, numbers=(1, 3))


def _static(summary: Summary) -> str:
    static = summary.static
    if static is None:
        return ""
    rows = [
        [
            md_cell(name),
            units.flops(p.flops),
            units.size(p.weight_bytes),
            units.size(p.kv_bytes),
            units.size(p.activation_bytes),
            units.number(p.intensity, "FLOP/B"),
        ]
        for name, p in static.phases.items()
    ]
    params = ", ".join(
        f"{md_text(name)} {units.count(value)}" for name, value in static.params.components.items()
    )
    uncounted = ", ".join(md_code(op) for op in static.coverage.uncounted_ops[:12]) or "none"
    return "\n".join(
        (
            f"{units.count(static.params.total)} parameters ({units.count(static.params.active_per_token)} active per token): {params}. "
            f"KV cache {units.size(static.kv_bytes_per_token)} per token.\n",
            table(
                ["phase", "FLOPs", "weights read", "KV cache", "activations", "intensity"],
                rows,
                numbers=range(1, 6),
            ),
            f"Counted {units.percent(static.coverage.counted_ratio)} of the arithmetic; without a formula: {uncounted}.\n",
            "Conventions: "
            + "; ".join(f"{md_text(k)}: {md_text(v)}" for k, v in static.conventions.items())
            + ".",
        )
    )


def _ledger(summary: Summary) -> str:
    rows = [
        [
            "&nbsp;" * 2 * row.depth + md_code(row.module or "(whole model)", cell=True),
            md_cell(row.phase),
            units.flops(row.flops),
            units.size(row.bytes),
            units.seconds(row.floor_s),
            units.seconds(row.measured_s),
            md_cell(row.measured_source or units.MISSING),
            units.percent(row.mfu_ratio),
            units.percent(row.mbu_ratio),
            units.count(row.launches),
            md_cell(row.disagreement or ""),
        ]
        for row in summary.ledger[:_LEDGER_ROWS]
    ]
    more = (
        f"\n{len(summary.ledger) - _LEDGER_ROWS} more rows in summary.json and report.html.\n"
        if len(summary.ledger) > _LEDGER_ROWS
        else ""
    )
    return (
        table(
            [
                "module",
                "phase",
                "FLOPs",
                "bytes",
                "floor",
                "measured",
                "source",
                "MFU",
                "MBU",
                "launches",
                "disagreement",
            ],
            rows,
            numbers=(2, 3, 4, 5, 7, 8, 9),
        )
        + more
    )


def _kernels(summary: Summary) -> str:
    if not summary.kernels:
        return ""
    return (
        f"The {min(_TOP_KERNELS, len(summary.kernels))} longest of {len(summary.kernels)}; all in [kernels.md](kernels.md).\n\n"
        + kernel_table(summary.kernels[:_TOP_KERNELS])
    )


def _what_if(summary: Summary) -> str:
    """Show the devices people choose between; the whole table is in report.html and summary.json."""
    shown = [w for w in summary.what_if if any(word in w.device for word in _SHOWN_DEVICES)][:_WHAT_IF_ROWS]
    rows = [
        [
            md_cell(w.device),
            md_cell(w.dtype),
            str(w.batch_size),
            str(w.context_tokens),
            units.seconds(w.ttft_floor_s),
            units.seconds(w.tpot_floor_s),
            units.number(w.tokens_per_s),
            {True: "yes", False: "no", None: units.MISSING}[w.fits],
        ]
        for w in shown
    ]
    text = table(
        ["device", "data type", "batch", "context", "TTFT floor", "TPOT floor", "tokens/s at most", "fits"],
        rows,
        numbers=(2, 3, 4, 5, 6),
    )
    rest = len(summary.what_if) - len(shown)
    more = (
        f"\n{rest} more rows (devices, data types, batch sizes, contexts) in summary.json.\n" if rest else ""
    )
    return f"Roofline floors of the same model; real runs are slower.\n\n{text}{more}" if text else ""


def _stages(summary: Summary) -> str:
    rows = [
        [
            md_code(name, cell=True),
            stage.status,
            units.seconds(stage.seconds),
            md_cell(stage.reason or ""),
            str(len(stage.artifacts)),
        ]
        for name, stage in summary.stages.items()
    ]
    return table(["stage", "status", "time", "reason and fix", "files"], rows, numbers=(2, 4))


def _environment(summary: Summary) -> str:
    rows = []
    for key, value in summary.environment.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        if shown not in (None, "", []):
            rows.append([md_cell(key), md_cell(shown)])
    return table(["what", "value"], rows)


def _methods(summary: Summary) -> str:
    lines = [
        "Timings: warmed up, device-synchronised at phase edges, without a profiler attached; median over all samples and repeats.",
        "MFU = FLOPs of the static model ÷ (wall-clock × dense peak). MBU = weights read once and KV cache ÷ (wall-clock × bandwidth).",
        "Floors assume perfect overlap of computing and moving; gains are upper bounds.",
    ]
    lines.extend(f"{md_text(kind)}: {md_code(path)}" for kind, path in summary.sources.items())
    return bullets(lines)
