"""The last lines of a run: where the time went, three numbers, where the report is."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt import units
from llm_perf_opt.summary.model import Summary

_BAR_WIDTH = 24


def console_summary(summary: Summary, report: Path) -> str:
    """Lay the summary out in at most a screenful of plain text."""
    lines = [
        _headline(summary),
        *_stage_lines(summary),
        *_time_lines(summary),
        *_numbers(summary),
        *_first_finding(summary),
    ]
    lines.extend(f"note: {note}" for note in summary.notes[:3])
    lines.append(f"report: {report}")
    return "\n".join(line for line in lines if line)


def _headline(summary: Summary) -> str:
    workload = summary.workload
    parts = [
        workload.model,
        f"{workload.weights} weights" if workload.weights else None,
        workload.device,
        workload.dtype,
    ]
    samples = f"{workload.samples} samples" if workload.samples else None
    return f"{summary.run.status}: " + ", ".join(part for part in (*parts, samples) if part)


def _stage_lines(summary: Summary) -> list[str]:
    return [
        f"  {name} {stage.status}: {stage.reason}"
        for name, stage in summary.stages.items()
        if stage.status != "ok"
    ]


def _time_lines(summary: Summary) -> list[str]:
    timings = summary.timings
    rows = [
        ("preprocess", timings.preprocess_s),
        ("vision", timings.vision_s),
        ("prefill", timings.prefill_s),
        ("decode", timings.decode_s),
    ]
    known = [(name, stat.median) for name, stat in rows if stat is not None]
    total = sum(value for _, value in known)
    if not total:
        return []
    lines = ["where the time went (median per sample)"]
    for name, value in known:
        bar = "█" * max(1, round(_BAR_WIDTH * value / total))
        lines.append(f"  {name:<11} {units.seconds(value):>9}  {units.percent(value / total):>7}  {bar}")
    return lines


def _numbers(summary: Summary) -> list[str]:
    timings = summary.timings
    numbers = [
        ("time to first token", units.seconds(timings.ttft_s.median) if timings.ttft_s else None),
        ("time per output token", units.seconds(timings.tpot_s.median) if timings.tpot_s else None),
        ("tokens per second", units.number(timings.tokens_per_s.median) if timings.tokens_per_s else None),
    ]
    if not any(value for _, value in numbers):
        kernels = sum(kernel.total_s or 0.0 for kernel in summary.kernels)
        numbers = [
            ("kernel time", units.seconds(kernels) if kernels else None),
            ("kernels", str(len(summary.kernels)) if summary.kernels else None),
        ]
    return [f"  {name}: {value}" for name, value in numbers if value]


def _first_finding(summary: Summary) -> list[str]:
    if not summary.findings:
        return []
    finding = summary.findings[0]
    gain = f" (at most {units.seconds(finding.gain_upper_s)} per sample)" if finding.gain_upper_s else ""
    return [f"first thing to change: {finding.title}{gain}"]
