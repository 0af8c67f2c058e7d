"""One search from request to report: baseline, plan, experiments, files."""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.improve.sequential import BOUND
from llm_perf_opt.core import units
from llm_perf_opt.core.artifacts import reserve_directory
from llm_perf_opt.core.clock import now_text
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.files import atomic_write_text, explain_os_errors
from llm_perf_opt.model.improve import (
    FILE_NAME,
    Baseline,
    Best,
    Improvement,
    ImproveMethod,
    Metric,
    load_improvement,
    save_improvement,
)
from llm_perf_opt.model.summary import Stat, Summary
from llm_perf_opt.runs.improve import baseline, best_config, configurations
from llm_perf_opt.runs.improve.plan import Planned, plan, situation_facts
from llm_perf_opt.runs.improve.search import LEAST_EXPERIMENT_S, Limits, Search, refuse_empty
from llm_perf_opt.runs.remedies.base import Machine, Situation, own_remedy, this_machine
from llm_perf_opt.runs.remedies.registry import all_remedies
from llm_perf_opt.runs.track_record import keep_record

LOGGER = logging.getLogger("llm_perf_opt.improve")
MARKDOWN_NAME, HTML_NAME = "improve.md", "improve.html"
_TYPICAL_BLOCKS = 25
_START_S = 20.0
"""Loading and warming up two sides of a small model; more for a larger one, by what the baseline took."""


@dataclass(slots=True)
class Request:
    """What a user asked for."""

    overrides: list[str] = field(default_factory=list)
    run: Path | None = None
    metric: Metric = "total"
    budget_s: float = 600.0
    out: Path | None = None
    resume: Path | None = None
    only: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    least_gain_ratio: float = 0.02
    family_error_ratio: float = 0.05
    most_samples: int = 4
    most_blocks: int = 80
    seed: int = 20240229

    def limits(self, used_s: float = 0.0) -> Limits:
        """Return how long the experiments may take once the baseline is there."""
        return Limits(
            budget_s=max(LEAST_EXPERIMENT_S, self.budget_s - used_s),
            least_gain_ratio=self.least_gain_ratio,
            family_error_ratio=self.family_error_ratio,
            most_blocks=self.most_blocks,
            most_samples=self.most_samples,
            seed=self.seed,
        )


@dataclass(slots=True)
class Done:
    """A finished search and the page to open."""

    result: Improvement
    page: Path


def improve(request: Request) -> Done:
    """Search, and leave ``improve.json``, ``improve.md`` and ``improve.html``; an interruption leaves them, too."""
    if request.resume is None:
        _check(request)
    out, earlier = _directory(request)
    began = time.monotonic()
    with _finishing(out) as finish:
        start = _start(request, out, earlier)
        planned = _plan(request, start, this_machine())
        refuse_empty(planned)
        result = earlier or _new_result(request, start, out)
        result.not_tried = list(planned.not_tried)
        result.method.tests = planned.tests
        used = result.seconds

        def save(found: Improvement) -> None:
            found.seconds = used + time.monotonic() - began
            if found.best.overrides:
                best_config.write_best(
                    configurations.merged(found.baseline.overrides, found.best.overrides), out
                )
                found.best.command = best_config.command(out)
            save_improvement(found, out)

        finish.append(result)
        Search(planned, result, out, request.limits(time.monotonic() - began), save).run()
    return Done(result, out / HTML_NAME)


def show_plan(request: Request, *, as_json: bool) -> int:
    """Say what would be tried and about how long it takes; without a run, what its findings would rank is not known."""
    start = baseline.from_run(request.run, request.overrides) if request.run is not None else None
    planned = _plan(request, start, this_machine())
    seconds = _expected_s(planned, start.summary if start is not None else None)
    if as_json:
        print(json.dumps(_plan_document(planned, seconds, request), indent=2))
        return 0
    if start is None:
        print("baseline: one run with its diagnosis first; its findings decide the order\n")
    for number, candidate in enumerate(planned.candidates, 1):
        finding = candidate.finding
        bound = f", at most {units.seconds(finding.gain_upper_s)}" if finding and finding.gain_upper_s else ""
        why = f"answers {finding.id}{bound}" if finding is not None else "no finding asks for it"
        print(
            f"{number:3}  {candidate.name}   {candidate.remedy.title}; {why}; output: {candidate.remedy.effect}"
        )
    for item in planned.not_tried:
        print(f"  -  {item.remedy}: {item.reason}")
    known = f"about {units.number(seconds / 60)} min" if seconds is not None else "known after the baseline"
    print(
        f"\n{len(planned.candidates)} settings alone, then the kept ones together, then once more: {known} "
        f"(--budget {units.number(request.budget_s / 60)} min ends it earlier)"
    )
    return 0


def _plan_document(planned: Planned, seconds: float | None, request: Request) -> dict[str, Any]:
    return {
        "candidates": [
            {
                "remedy": candidate.remedy.name,
                "overrides": list(candidate.overrides),
                "finding": candidate.finding.id if candidate.finding else None,
                "predicted_gain_s": candidate.finding.gain_upper_s if candidate.finding else None,
                "effect": candidate.remedy.effect,
            }
            for candidate in planned.candidates
        ],
        "not_tried": [{"remedy": item.remedy, "reason": item.reason} for item in planned.not_tried],
        "expected_s": seconds,
        "budget_s": request.budget_s,
        "tests": planned.tests,
    }


def _expected_s(planned: Planned, summary: Summary | None) -> float | None:
    total = _total_s(summary) if summary is not None else None
    if total is None:
        return None
    return planned.tests * (_START_S + 2 * _TYPICAL_BLOCKS * total)


def _directory(request: Request) -> tuple[Path, Improvement | None]:
    """Return where the result goes, and what an interrupted search left there."""
    if request.resume is not None:
        out = request.resume.expanduser().absolute()
        earlier = load_improvement(out)
        if request.run is not None or request.overrides:
            raise ConfigError("--resume goes on with its own configuration", hint="give --resume DIR alone")
        return out, earlier
    if request.out is None:
        return reserve_directory(Path("tmp") / "improve" / datetime.now().strftime("%Y%m%d-%H%M%S")), None
    out = request.out.expanduser().absolute()
    if out.exists() and not out.is_dir():
        raise ConfigError(
            f"--out {out} is not a directory", hint="give a directory; it is created when absent"
        )
    if (out / FILE_NAME).exists():
        raise ConfigError(
            f"{out} holds a search already", hint=f"give another --out, or go on: --resume {out}"
        )
    with explain_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    return out, None


def _check(request: Request) -> None:
    """Tell a mistake before anything is written: a run that is none, a wrong key, a name that no remedy has."""
    configurations.refuse_run_directory(request.overrides)
    start = baseline.from_run(request.run, request.overrides) if request.run is not None else None
    _plan(request, start, this_machine())


def _start(request: Request, out: Path, earlier: Improvement | None) -> baseline.Start:
    if earlier is not None:
        run = out / (earlier.baseline.run or baseline.FOLDER)
        request.metric = earlier.metric
        start = baseline.from_run(run)
        start.overrides = list(earlier.baseline.overrides)
        return start
    if request.run is not None:
        return baseline.from_run(request.run, request.overrides)
    LOGGER.info("baseline: one run with its diagnosis …")
    return baseline.run_first(request.overrides, out)


def _plan(request: Request, start: baseline.Start | None, machine: Machine) -> Planned:
    overrides = start.overrides if start is not None else request.overrides
    config = configurations.checked(overrides)
    facts: dict[str, Any] = situation_facts(start.summary) if start is not None else {}
    situation = Situation(config=config, metric=request.metric, machine=machine, **facts)
    own = [own_remedy(text) for text in request.own]
    remedies = all_remedies()
    # Somebody who names a remedy of their own and nothing else wants that one.
    chosen = own if own and not request.only else [*own, *remedies]
    return plan(chosen, situation, [*request.only, *(remedy.name for remedy in own)] if request.only else ())


def _new_result(request: Request, start: baseline.Start, out: Path) -> Improvement:
    summary = start.summary
    times = summary.timings
    values = {
        "total": _total_s(summary),
        "ttft": _median(times.ttft_s or times.prefill_s),
        "tpot": _median(times.tpot_s),
        "tokens_per_s": _median(times.tokens_per_s),
        "energy": None,
    }
    run = start.run
    return Improvement(
        metric=request.metric,
        baseline=Baseline(
            overrides=list(start.overrides),
            metric_value=values[request.metric],
            ttft_s=values["ttft"],
            tpot_s=values["tpot"],
            total_s=values["total"],
            tokens_per_s=values["tokens_per_s"],
            run=str(run.relative_to(out)) if run.is_relative_to(out) else str(run),
            model=summary.workload.model,
            device=summary.hardware.name or summary.workload.device,
        ),
        method=ImproveMethod(
            family_error_ratio=request.family_error_ratio,
            tests=0,
            least_gain_ratio=request.least_gain_ratio,
            most_blocks=request.most_blocks,
            seed=request.seed,
            bound=BOUND,
        ),
        best=Best([], None, None, None),
        started=now_text(),
        budget_s=request.budget_s,
        machine=platform.node() or None,
    )


def _total_s(summary: Summary) -> float | None:
    first, decode = (
        _median(summary.timings.ttft_s or summary.timings.prefill_s),
        _median(summary.timings.decode_s),
    )
    return None if first is None else first + (decode or 0.0)


def _median(stat: Stat | None) -> float | None:
    return None if stat is None else stat.median


@contextlib.contextmanager
def _finishing(out: Path) -> Iterator[list[Improvement]]:
    """Render whatever is there when the block is left, also by Ctrl-C."""
    found: list[Improvement] = []
    try:
        yield found
    finally:
        for result in found:
            write_pages(result, out)
            keep_record(result, out)


def write_pages(result: Improvement, out: Path) -> None:
    """Write the pages of a result."""
    from llm_perf_opt.reporting.improve.html import improve_html
    from llm_perf_opt.reporting.improve.markdown import improve_markdown

    save_improvement(result, out)
    atomic_write_text(out / HTML_NAME, improve_html(result))
    atomic_write_text(out / MARKDOWN_NAME, improve_markdown(result))
