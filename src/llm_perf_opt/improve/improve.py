"""One search from request to report: baseline, plan, experiments, files."""

from __future__ import annotations

import contextlib
import logging
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.roofline.expected_times import tables_of
from llm_perf_opt.core import units
from llm_perf_opt.core.artifacts import reserve_directory
from llm_perf_opt.core.console.signals import acknowledge_interruption
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.files import atomic_write_text, explain_os_errors
from llm_perf_opt.core.units import timestamp
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.hardware.silicon import open_silicon
from llm_perf_opt.improve import baseline, configurations
from llm_perf_opt.improve.optuna import DEFAULT_TRIALS, OptunaSearch, load_optuna
from llm_perf_opt.improve.plan import Planned, TablePredictor, plan, refuse_few_pairs, refuse_unmeasured
from llm_perf_opt.improve.search import LEAST_EXPERIMENT_S, Saved, Search, refuse_empty
from llm_perf_opt.remedies.base import (
    Machine,
    Situation,
    own_remedy,
    situation_facts,
    split_overrides,
    this_machine,
)
from llm_perf_opt.remedies.data import (
    FILE_NAME,
    TIME_IS_OVER,
    Answered,
    Baseline,
    Best,
    Improvement,
    Metric,
    NotTried,
    SearchSettings,
    load_improvement,
    save_improvement,
)
from llm_perf_opt.remedies.registry import load_remedies
from llm_perf_opt.remedies.track_record import keep_record
from llm_perf_opt.runs.lease import hold_for_measurement
from llm_perf_opt.runs.lock import hold
from llm_perf_opt.summary import Stat, Summary
from llm_perf_opt.workloads.memory_estimate import available_bytes

# The user's request, and the request of a resumed search.


_OPTIONS = {
    "only": "--only",
    "own": "--try",
    "least_gain_ratio": "--least-gain",
    "family_error_ratio": "--error",
    "most_samples": "--samples",
    "most_blocks": "--pairs",
    "processes": "--processes",
    "seed": "--seed",
    "search": "--search",
    "allow": "--allow",
}
"""Settings that a resumed search keeps, with the option of each."""


@dataclass(slots=True)
class Request:
    """The user's request."""

    overrides: list[str] = field(default_factory=list)
    run: Path | None = None
    metric: Metric = "total"
    budget_s: float = 600.0
    out: Path | None = None
    resume: Path | None = None
    settings: SearchSettings = field(default_factory=SearchSettings)
    trials: int = DEFAULT_TRIALS
    """Most proposals of a search by Optuna."""


def from_best(request: Request) -> Request:
    """Return a request that starts from the best result of an earlier search, if its directory was given instead of a run."""
    if request.run is None or not (request.run / FILE_NAME).is_file():
        return request
    if request.resume is not None:
        raise ConfigError("--resume goes on with its own configuration", hint="give --resume DIR alone")
    if load_improvement(request.run).baseline.engine is not None:
        raise ConfigError(
            f"{request.run} is a search over the options of a server",
            hint="resume it (--resume DIR), or begin another one: llm-perf-opt improve --engine NAME",
        )
    return replace(request, run=None, overrides=baseline.from_best(request.run, request.overrides))


def resumed(request: Request, earlier: Improvement) -> Request:
    """Return the request of the resumed search; only the time of the new request is used, anything else is rejected.

    Overrides are kept: they repeat settings that are not taken from a file (:func:`baseline.from_search` checks them).
    """
    if request.run is not None:
        raise ConfigError("--resume goes on with its own configuration", hint="give --resume DIR alone")
    method, usual = earlier.method, Request()
    trials = method.tests - 1 if method.search == "optuna" else request.trials
    _check_stored(method, trials)
    given = {
        "--metric": (request.metric, usual.metric, earlier.metric),
        "--trials": (request.trials, usual.trials, trials),
        **{
            option: tuple(getattr(each, name) for each in (request.settings, usual.settings, method))
            for name, option in _OPTIONS.items()
        },
    }
    for option, (value, default, stored) in given.items():
        if value not in (default, stored):
            raise ConfigError(
                f"{option}: a search is resumed with its original settings",
                hint="give --resume DIR, and --budget if you like; or begin another search with --out",
            )
    return replace(request, metric=earlier.metric, settings=method, trials=trials)


_STORED_RANGES: dict[str, tuple[float, float]] = {
    "least_gain_ratio": (0.0, 1.0),
    "family_error_ratio": (0.0, 1.0),
    "most_samples": (1, 10_000),
    "most_blocks": (6, 100_000),
    "seed": (0, 2**63 - 1),
    "trials": (1, 100_000),
}
"""What the options of the command line allow; a file may hold anything."""


def _check_stored(method: SearchSettings, trials: int) -> None:
    for name, (least, most) in _STORED_RANGES.items():
        value = trials if name == "trials" else getattr(method, name)
        if not least <= value <= most:
            raise InputError(
                f"{FILE_NAME}: {name} is {value}, and must be from {least} to {most}",
                hint="the file is damaged: begin another search with --out",
            )


LOGGER = logging.getLogger("llm_perf_opt.improve")
_LEAST_BUDGET_S = 60.0
"""Time for the baseline of a small model and one experiment; larger models need more."""
MARKDOWN_NAME, HTML_NAME = "improve.md", "improve.html"


@dataclass(slots=True)
class Done:
    """A finished search and the page to open."""

    result: Improvement
    page: Path


def improve(request: Request, interrupted: Callable[[Done], None] | None = None) -> Done:
    """Search, and leave ``improve.json``, ``improve.md`` and ``improve.html``; also when interrupted.

    ``interrupted`` receives the partial result before an interruption is propagated.
    """
    request = from_best(request)
    _refuse_short_budget(request)
    if request.resume is None:
        _check(request)
    out = result_directory(request)
    # Acquire the lock before reading anything, so that no other search changes the earlier state meanwhile.
    with hold(out, elsewhere="--out DIR"):
        earlier = earlier_search(request, out)
        LOGGER.info("results go to %s", out)
        if earlier is not None:
            request = resumed(request, earlier)
        began = time.monotonic()
        found: list[Improvement] = []
        try:
            with finishing(found, out):
                _search_on(request, out, earlier, began, found)
        except KeyboardInterrupt:
            if found and interrupted is not None:
                interrupted(Done(found[0], out / HTML_NAME))
            raise
    return Done(found[0], out / HTML_NAME)


def _search_on(
    request: Request, out: Path, earlier: Improvement | None, began: float, finish: list[Improvement]
) -> None:
    """Make the baseline and the plan if missing, then search; ``finish`` gets the result immediately."""
    start = start_of(request, out, earlier)
    planned = make_plan(request, start, this_machine())
    refuse_empty(planned)
    result = earlier or _new_result(request, start, out)
    result.not_tried = list(planned.not_tried)
    # Trials cut by the budget may now be run.
    result.notes = [note for note in result.notes if TIME_IS_OVER not in note]
    used = result.seconds

    def save(found: Improvement) -> None:
        found.seconds = used + time.monotonic() - began
        if found.best.overrides:
            settings = configurations.merged(found.baseline.overrides, found.best.overrides)
            baseline.write_best(settings, out)
            found.best.command = baseline.command(out)
        else:
            baseline.remove_best(out)
        save_improvement(found, out)

    finish.append(result)
    # The baseline had its device lease like every run; experiments are not runs.
    with hold_for_measurement(configurations.checked(start.overrides), str(out)):
        budget_s = request.budget_s - (time.monotonic() - began)
        search = _search(request, planned, result, out, budget_s, save)
        result.method = replace(result.method, tests=search.tests)
        search.run()


def _search(
    request: Request, planned: Planned, result: Improvement, out: Path, budget_s: float, save: Saved
) -> Search:
    if result.method.search == "optuna":
        return OptunaSearch(planned, result, out, budget_s, save, trials=request.trials)
    return Search(planned, result, out, budget_s, save)


def result_directory(request: Request) -> Path:
    """Return where the result goes; it exists."""
    if request.resume is not None:
        out = request.resume.expanduser().absolute()
        load_improvement(out)  # report a directory without a search as such, not as one that cannot be locked
        return out
    if request.out is None:
        return reserve_directory(Path("tmp") / "improve" / datetime.now().strftime("%Y%m%d-%H%M%S"))
    out = request.out.expanduser().absolute()
    if out.exists() and not out.is_dir():
        raise ConfigError(
            f"--out {out} is not a directory", hint="give a directory; it is created when absent"
        )
    with explain_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    return out


def earlier_search(request: Request, out: Path) -> Improvement | None:
    """Return what an interrupted search left in the directory; raises :class:`ConfigError` if a new one would replace it."""
    if request.resume is not None:
        return load_improvement(out)
    if (out / FILE_NAME).exists():
        raise ConfigError(
            f"{out} already contains a search", hint=f"give another --out, or resume it: --resume {out}"
        )
    return None


def _refuse_short_budget(request: Request) -> None:
    """Reject a budget that is too short to measure anything, before anything runs."""
    known = request.run is not None or request.resume is not None
    least_s = LEAST_EXPERIMENT_S * 2 if known else _LEAST_BUDGET_S
    if request.budget_s < least_s:
        first = "" if known else "the baseline run and "
        raise ConfigError(
            f"--budget {units.seconds(request.budget_s)} is too short for {first}one experiment",
            hint=f"give at least --budget {least_s:.0f}s; llm-perf-opt improve --plan estimates the time of a whole search",
            key="--budget",
        )


def _check(request: Request) -> None:
    """Report mistakes before anything is written: not a run directory, a wrong key, an unknown remedy name."""
    configurations.refuse_run_directory(request.overrides)
    if request.settings.search == "optuna":
        load_optuna()
    start = baseline.from_run(request.run, request.overrides) if request.run is not None else None
    planned = make_plan(request, start, this_machine())
    tests = request.trials + 1 if request.settings.search == "optuna" else planned.tests
    refuse_few_pairs(request.settings, tests)


def start_of(request: Request, out: Path, earlier: Improvement | None) -> baseline.Start:
    """Return the run whose findings are tried: that of an earlier search, the given one, or a new one."""
    if earlier is not None:
        return baseline.from_search(out, earlier, request.overrides)
    if request.run is not None:
        return baseline.from_run(request.run, request.overrides)
    LOGGER.info("baseline: one run with its diagnosis …")
    return baseline.run_first(request.overrides, out, timeout_s=request.budget_s)


def make_plan(request: Request, start: baseline.Start | None, machine: Machine) -> Planned:
    """Choose and rank the remedies of a request; before the baseline has run, its findings are unknown."""
    overrides = start.overrides if start is not None else request.overrides
    config = configurations.checked(overrides)
    if config.workload_command.command is not None:
        raise ConfigError(
            "a program of your own has no settings that could be tried (pipeline.workload.command)",
            hint="compare it with a changed one: llm-perf-opt compare RUN_A RUN_B",
            key="pipeline.workload.command",
        )
    if config.run.ranks > 1:
        raise ConfigError(
            f"run.ranks={config.run.ranks}: experiments run in one process",
            hint="leave run.ranks out, or compare runs of several ranks: llm-perf-opt compare RUN_A RUN_B",
            key="run.ranks",
        )
    refuse_unmeasured(request.metric, config.resolved_device)
    facts: dict[str, Any] = situation_facts(start.summary) if start is not None else {}
    if not config.resolved_device.startswith("cpu"):
        machine = replace(machine, memory_bytes=available_bytes(config.resolved_device))
    situation = Situation(config=config, metric=request.metric, machine=machine, **facts)
    if situation.samples is not None:
        # Batches larger than the number of samples cannot be measured.
        situation.samples = min(situation.samples, request.settings.most_samples)
    own = [own_remedy(text) for text in request.settings.own]
    for text in request.settings.own:
        configurations.checked(
            configurations.merged(overrides, split_overrides(text))
        )  # raises for an unknown key
    remedies, unusable = load_remedies()
    # If only an own remedy is named, try only that one.
    chosen = own if own and not request.settings.only else [*own, *remedies]
    only = [*request.settings.only, *(remedy.name for remedy in own)] if request.settings.only else ()
    predictor = None if start is None else _predictor(start, request.metric, config.hardware.silicon.value)
    planned = plan(chosen, situation, only, predictor, allow=request.settings.allow)
    planned.not_tried += [NotTried(item.name, item.reason) for item in unusable]
    return planned


def _predictor(start: baseline.Start, metric: Metric, choice: str) -> TablePredictor:
    """Return the predictor for changes of type, batch and ranks."""
    silicon = open_silicon(load_catalogue(), choice)
    return TablePredictor(start.summary, start.overrides, metric, tables_of(silicon))


def _new_result(request: Request, start: baseline.Start, out: Path) -> Improvement:
    summary = start.summary
    times = summary.timings
    values = {
        "total": total_s(summary),
        "ttft": _median(times.ttft_s or times.prefill_s),
        "tpot": _median(times.tpot_s),
        "tokens_per_s": _median(times.tokens_per_s),
        "energy": None,
    }
    # A run's tokens per second cover decode only; with further overrides the run has another configuration.
    other = request.metric == "tokens_per_s" or (request.run is not None and request.overrides)
    run = start.run
    return Improvement(
        metric=request.metric,
        baseline=Baseline(
            overrides=list(start.overrides),
            metric_value=None if other else values[request.metric],  # None: A's of the first experiment
            ttft_s=values["ttft"],
            tpot_s=values["tpot"],
            total_s=values["total"],
            tokens_per_s=values["tokens_per_s"],
            run=str(run.relative_to(out)) if run.is_relative_to(out) else str(run),
            model=summary.workload.model,
            device=summary.hardware.name or summary.workload.device,
            first_finding=_first_finding(summary),
        ),
        method=request.settings,
        best=Best([], None, None, None),
        started=timestamp(),
        budget_s=request.budget_s,
        machine=platform.node() or None,
    )


def _first_finding(summary: Summary) -> Answered | None:
    first = next(iter(summary.findings), None)
    return None if first is None else Answered(first.id, first.phase, first.gain_upper_s)


def total_s(summary: Summary) -> float | None:
    """Return the time of one answer."""
    first, decode = (
        _median(summary.timings.ttft_s or summary.timings.prefill_s),
        _median(summary.timings.decode_s),
    )
    return None if first is None else first + (decode or 0.0)


def _median(stat: Stat | None) -> float | None:
    return None if stat is None else stat.shown


@contextlib.contextmanager
def finishing(found: list[Improvement], out: Path) -> Iterator[None]:
    """Render the current result when the block is left, also by Ctrl-C."""
    try:
        yield
    finally:
        acknowledge_interruption()  # an interruption must leave the pages
        for result in found:
            write_pages(result, out)
            keep_record(result, out)


def write_pages(result: Improvement, out: Path) -> None:
    """Write the pages of a result."""
    from llm_perf_opt.improve.page import improve_html, improve_markdown

    save_improvement(result, out)
    atomic_write_text(out / HTML_NAME, improve_html(result, str(out)))
    atomic_write_text(out / MARKDOWN_NAME, improve_markdown(result, str(out)))
