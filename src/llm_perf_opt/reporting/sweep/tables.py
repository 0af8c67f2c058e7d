"""The tables of a sweep, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llm_perf_opt.analysis.sweep.effects import settings_of
from llm_perf_opt.analysis.sweep.metrics import METRICS
from llm_perf_opt.analysis.sweep.summarise import shown_metrics
from llm_perf_opt.core import units
from llm_perf_opt.model.sweep import BAD, Best, JobMetric, Sweep, SweepJob, SweptKey
from llm_perf_opt.reporting.content.tables import Cell, Column, Row, Table, code, columns, num, text

MOST_JOBS = 1000
"""Rows of the table of jobs; the rest are in ``sweep.json``."""
_MOST_LETTERS = 30
"""Of a reason in the table of all jobs; the whole unfolds, and stands in the table of those that did not finish."""
STATUS_NAMES = {
    "ok": "done",
    "failed": "failed",
    "interrupted": "interrupted",
    "killed": "killed",
    "running": "running",
    "pending": "not begun",
}


def formatter(metric: str) -> Callable[[float | None], str]:
    """Return how a metric's values are written."""
    return {
        "s": units.seconds,
        "bytes": units.size,
        "J": lambda value: units.number(value, "J"),
        "1/s": lambda value: units.number(value, "/s"),
    }[METRICS[metric].unit]


def value_text(metric: str, value: JobMetric | None) -> str:
    """``1.23 ms (1.20 to 1.26)``."""
    shown = formatter(metric)
    if value is None:
        return units.MISSING
    if value.low is None or value.high is None:
        return shown(value.value)
    return f"{shown(value.value)} ({shown(value.low)} to {shown(value.high)})"


def _brief(metric: str, value: JobMetric | None) -> str:
    """``1.23 ms ± 2.4 %``: half the interval, in a table with many columns; its ends unfold."""
    if value is None or value.low is None or value.high is None or not value.value:
        return value_text(metric, value)
    return (
        f"{formatter(metric)(value.value)} ± {(value.high - value.low) / 2 / abs(value.value):.1%}".replace(
            "%", " %"
        )
    )


def change_text(ratio: float | None) -> str:
    """``1.031`` → ``+3.1 %``."""
    return units.MISSING if ratio is None else f"{(ratio - 1) * 100:+.1f} %"


def job_name(sweep: Sweep, job: SweepJob, keys: Sequence[str] | None = None) -> str:
    """Name a job by what is different about it: the swept keys alone, without their sections."""
    settings = settings_of(job)
    chosen = [key for key in (sweep.keys if keys is None else keys) if key in settings]
    return ", ".join(f"{key.rpartition('.')[2]}={settings[key]}" for key in chosen) or f"job {job.number}"


def job_table(sweep: Sweep) -> Table:
    """All jobs, in their order; the settings of a row that are not shown, and long reasons, unfold."""
    metrics, keys = shown_metrics(sweep.jobs), list(sweep.keys)
    header = columns(
        "Job", "Status", *keys, *(Column(METRICS[name].title, True) for name in metrics), "Took#", "Reason"
    )
    rows = []
    for job in sweep.jobs[:MOST_JOBS]:
        settings = settings_of(job)
        cells = [_number(job), _status(job), *(_setting(settings, key) for key in keys)]
        for name in metrics:
            metric = job.metrics.get(name)
            cells.append(Cell(_brief(name, metric), None if metric is None else metric.value))
        cells += [num(job.seconds, units.seconds), text(_short(_reason(job)))]
        rows.append(Row(cells, group=STATUS_NAMES[job.status], details=_details(job)))
    return _jobs_table(header, rows, len(sweep.jobs))


def bad_table(sweep: Sweep) -> Table:
    """Jobs that did not finish: why, before anything else about them."""
    keys, listed = list(sweep.keys), bad_jobs(sweep)
    rows = []
    for job in listed[:MOST_JOBS]:
        settings = settings_of(job)
        cells = [_number(job), _status(job), text(_reason(job)), *(_setting(settings, key) for key in keys)]
        cells.append(num(job.seconds, units.seconds))
        rows.append(Row(cells, group=STATUS_NAMES[job.status], details=_details(job)))
    return _jobs_table(columns("Job", "Status", "Reason", *keys, "Took#"), rows, len(listed))


def _jobs_table(header: Sequence[Column], rows: Sequence[Row], jobs: int) -> Table:
    table = Table(header, rows, left_out=max(0, jobs - MOST_JOBS), grouped_by="Status", rest_in="sweep.json")
    return table.without_empty_columns()


def _number(job: SweepJob) -> Cell:
    return Cell(str(job.number), float(job.number), code=True)


def _status(job: SweepJob) -> Cell:
    return text(STATUS_NAMES[job.status], strong=job.status in BAD)


def _setting(settings: Mapping[str, str], key: str) -> Cell:
    return code(settings[key]) if key in settings else text(None)


def _reason(job: SweepJob) -> str | None:
    return job.reason or (f"device shared: {job.shared}" if job.shared else None)


def _short(reason: str | None) -> str | None:
    return (
        reason
        if reason is None or len(reason) <= _MOST_LETTERS
        else f"{reason[: _MOST_LETTERS - 1].rstrip()}…"
    )


def _details(job: SweepJob) -> list[tuple[str, str]]:
    where = f"process {job.pid} on {job.host}" if job.host else None
    pairs = [
        ("reason", reason if (reason := _reason(job)) is not None and len(reason) > _MOST_LETTERS else None),
        ("settings", " ".join(job.overrides)),
        ("directory", job.run_dir),
        ("process", where),
        ("began", job.started),
        ("device", f"shared: {job.shared}" if job.shared else None),
        *((METRICS[name].title, value_text(name, value)) for name, value in job.metrics.items()),
    ]
    return [(label, value) for label, value in pairs if value]


def effect_table(key: str, swept: SweptKey) -> Table:
    """What each value of a key does to each metric."""
    header = columns(
        "Metric",
        key,
        Column("Jobs", True),
        Column("Median", True),
        Column("Change", True, "against the first value, between jobs that are equal in every other key"),
        Column("95 % interval", True),
        Column("Pairs", True),
    )
    rows = []
    for metric, effects in swept.effects.items():
        shown = formatter(metric)
        for effect in effects:
            span = (
                f"{change_text(effect.low)} to {change_text(effect.high)}" if effect.low is not None else None
            )
            rows.append(
                Row(
                    [
                        text(METRICS[metric].title),
                        code(effect.value),
                        num(float(effect.jobs), lambda value: f"{value:.0f}"),
                        num(effect.median, shown),
                        Cell(change_text(effect.change_ratio), effect.change_ratio),
                        text(span),
                        num(
                            float(effect.pairs) if effect.pairs else None,
                            lambda v: units.MISSING if v is None else f"{v:.0f}",
                        ),
                    ],
                    group=METRICS[metric].title,
                )
            )
    return Table(header, rows, grouped_by="Metric", rest_in="sweep.json")


def best_table(sweep: Sweep) -> Table:
    """The best job by each metric."""
    by_number = jobs_by_number(sweep)
    rows = [
        Row(
            [
                text(METRICS[best.metric].title),
                num(float(best.job), lambda value: f"{value:.0f}"),
                text(job_name(sweep, by_number[best.job])),
                text(value_text(best.metric, by_number[best.job].metrics[best.metric])),
                text(_tied(best)),
            ]
        )
        for best in sweep.best
    ]
    return Table(
        columns("Best by", "Job#", "Settings", "Value", "Not told apart from"), rows, rest_in="sweep.json"
    )


def _tied(best: Best) -> str:
    numbers = ", ".join(map(str, best.tied[:12]))
    return f"job {numbers}{' …' if len(best.tied) > 12 else ''}" if best.tied else ""


def front_table(sweep: Sweep, x: str, y: str, numbers: Sequence[int]) -> Table:
    """The jobs of a front, along its first metric."""
    by_number = jobs_by_number(sweep)
    rows = [
        Row(
            [
                num(float(number), lambda value: f"{value:.0f}"),
                text(job_name(sweep, by_number[number])),
                text(value_text(x, by_number[number].metrics[x])),
                text(value_text(y, by_number[number].metrics[y])),
            ]
        )
        for number in numbers
    ]
    return Table(columns("Job#", "Settings", METRICS[x].title, METRICS[y].title), rows, rest_in="sweep.json")


def bad_jobs(sweep: Sweep) -> list[SweepJob]:
    """Jobs that failed, were interrupted or killed."""
    return [job for job in sweep.jobs if job.status in BAD]


def jobs_by_number(sweep: Sweep) -> Mapping[int, SweepJob]:
    """Return the jobs by their number."""
    return {job.number: job for job in sweep.jobs}


def counts_text(sweep: Sweep) -> str:
    """``12 jobs: 10 done, 1 failed, 1 killed``."""
    parts = ", ".join(f"{count} {STATUS_NAMES[status]}" for status, count in sweep.counts.items())
    return f"{len(sweep.jobs)} jobs: {parts}" if parts else "no jobs"
