"""``llm-perf-opt improve --engine``: search over the options of a server.

The baseline is a run of the stage ``serve``; its findings choose and rank the options. Each experiment starts servers of both
sides (:mod:`llm_perf_opt.improve.server_blocks`); order, decisions, combination, confirmation and pages are those of every search.
"""

from __future__ import annotations

import logging
import os
import platform
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.config.hydra_bridge.stored_settings import (
    executing_settings,
    missing_settings,
    refuse_executing,
)
from llm_perf_opt.config.hydra_bridge.values import format_value
from llm_perf_opt.core import units
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.files import atomic_write_text, read_document
from llm_perf_opt.core.secrets import mask_arguments
from llm_perf_opt.core.units import timestamp
from llm_perf_opt.improve import baseline, improve
from llm_perf_opt.improve.configurations import refuse_run_directory
from llm_perf_opt.improve.experiment import Outcome
from llm_perf_opt.improve.improve import Done, Request
from llm_perf_opt.improve.measuring import Spec
from llm_perf_opt.improve.plan import Candidate, Planned, plan, refuse_few_pairs
from llm_perf_opt.improve.search import Search, refuse_empty
from llm_perf_opt.improve.server_blocks import (
    LEAST_STARTS,
    PAIRS_PER_START,
    KeptServers,
    ServerLoad,
    run_on_servers,
)
from llm_perf_opt.remedies.base import Machine, Situation, this_machine
from llm_perf_opt.remedies.data import (
    EXPERIMENTS,
    FILE_NAME,
    SERVING_METRICS,
    TIME_IS_OVER,
    Answered,
    Baseline,
    Best,
    Improvement,
    Metric,
    Role,
    Trial,
    load_improvement,
    save_improvement,
)
from llm_perf_opt.remedies.engine_options import engine_remedies, server_remedy
from llm_perf_opt.runs.lease import hold_for_measurement
from llm_perf_opt.runs.lock import hold
from llm_perf_opt.stages.serve.config import NAME, ClientName, EngineName, ServeConfig, key_of
from llm_perf_opt.stages.serve.engines import ServerSettings, make_engine, merge_options, read_options
from llm_perf_opt.stages.serve.load import load_levels, read_vocabulary
from llm_perf_opt.stages.serve.server import served_checkpoint, write_checkpoint
from llm_perf_opt.stages.serve.stage import server_settings
from llm_perf_opt.summary import Summary

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig

LOGGER = logging.getLogger("llm_perf_opt.improve")
COMMAND_NAME = "best.sh"
_ROOM = 2.5
"""Two servers run at the same time where the weights fit so many times over."""
_SERVER_BYTES = 2 << 30
"""Memory of a server's processes without weights and KV cache (vLLM 0.32 on a CPU: 1.8 GB); for several starts at the same time."""
_USUAL_PORT = 8000
_START_S, _BLOCK_S = 60.0, 5.0
"""Where no run says how long a start and a load point take."""
_LOG_BYTES = 4 << 20
_OUT_HINT = "give another --out"


def is_engine_search(folder: Path) -> bool:
    """Return whether a directory holds a search over the options of a server."""
    return (folder / FILE_NAME).is_file() and load_improvement(folder).baseline.engine is not None


@dataclass(slots=True)
class ServerPlan:
    """The composed baseline and what is tried on it."""

    app: AppConfig
    serve: ServeConfig
    planned: Planned
    metric: Metric


# The request.


def prepare_plan(request: Request, start: baseline.Start | None, overrides: Sequence[str]) -> ServerPlan:
    """Compose the baseline and choose the options; before the baseline has run, its findings are not known."""
    from llm_perf_opt.runs.app import prepare

    app = prepare(list(overrides), config_dir=None, config_name="config").config
    serve = app.pipeline[NAME]
    if not isinstance(serve, ServeConfig) or not serve.enable:
        raise ConfigError(
            "the run has no server under load", hint="give --engine and --model, or a run made by `serve`"
        )
    _refuse_unusable(serve)
    metric = _metric_of(request.metric, serve)
    planned = _choose(request, app, serve, metric, start)
    refuse_few_pairs(request.settings, planned.tests)
    return ServerPlan(app, serve, planned, metric)


def _refuse_unusable(serve: ServeConfig) -> None:
    if serve.engine is EngineName.attach:
        raise ConfigError(
            "a server that runs already cannot be started with other options",
            hint="give --engine vllm and its --model instead of --url",
            key=key_of("engine"),
        )
    if serve.client is not ClientName.builtin:
        raise ConfigError(
            f"{key_of('client')}={serve.client.value}: load blocks are sent by the built-in client",
            hint=f"leave {key_of('client')} out",
            key=key_of("client"),
        )
    if serve.turns > 1 or serve.image_side is not None:
        raise ConfigError(
            "conversations and images are not supported by improve --engine",
            hint=f"leave {key_of('turns')} and {key_of('image_side')} out",
            key=key_of("turns"),
        )


def _metric_of(asked: Metric, serve: ServeConfig) -> Metric:
    """Return the metric; without one: goodput with limits, else throughput of a closed loop, else TTFT of an open one."""
    if asked == "total":
        if serve.slo:
            return "goodput"
        return "tokens_per_s" if load_levels(serve)[-1].kind == "closed" else "ttft_p90"
    if asked not in SERVING_METRICS:
        raise ConfigError(
            f"--metric {asked} is not a metric of a server", hint=f"one of: {', '.join(SERVING_METRICS)}"
        )
    if asked == "goodput" and not serve.slo:
        raise ConfigError("--metric goodput needs limits", hint="for example --slo ttft:500ms,tpot:50ms")
    return asked


def _choose(
    request: Request, app: AppConfig, serve: ServeConfig, metric: Metric, start: baseline.Start | None
) -> Planned:
    own = [server_remedy(text) for text in request.settings.own]
    remedies = engine_remedies(serve.engine)
    chosen = own if own and not request.settings.only else [*own, *remedies]
    only = [*request.settings.only, *(remedy.name for remedy in own)] if request.settings.only else ()
    situation = Situation(
        config=app,
        metric=metric,
        machine=this_machine(),
        findings=list(start.summary.findings) if start is not None else [],
        serving=start.summary.serving if start is not None else None,
        server_options=_server_options(app, serve, start),
    )
    return plan(chosen, situation, only, allow=request.settings.allow)


def _server_options(app: AppConfig, serve: ServeConfig, start: baseline.Start | None) -> dict[str, str]:
    """Return the options of the baseline's server: those it was started with, else those its log names."""
    engine = make_engine(serve)
    settings = ServerSettings("MODEL", _USUAL_PORT, device=app.resolved_device)
    found: dict[str, str] = {}
    if start is not None:
        for name in ("server.stdout.log", "server.stderr.log"):
            path = start.run / NAME / name
            if path.is_file():
                text = read_document(path)[:_LOG_BYTES].decode("utf-8", errors="replace")
                found |= engine.logged_options(text)
    return found | read_options(engine.arguments(settings)) | read_options(serve.args)


# The search.


class ServerSearch(Search):
    """A search whose experiments start servers."""

    load: ServerLoad
    servers: KeptServers

    def _limit(self, left_s: float) -> float:
        ahead = max(1, self.tests - len(self.result.tried))
        return max(self.least_s, min(left_s, 2 * left_s / ahead))

    def _measure(self, candidate: Candidate, on_top_of: list[str], role: Role, left_s: float) -> Trial | None:
        args = merge_options(self.load.serve.args, on_top_of)
        trial = candidate.trial(on_top_of, role)
        settings = self.result.method
        spec = Spec(
            a=args,
            b=merge_options(args, candidate.overrides),
            metric=self.result.metric,
            settings=replace(settings, seed=settings.seed + len(self.result.tried)),
            alpha=settings.family_error_ratio / max(1, self.tests),
            limit_s=(limit_s := self._limit(left_s)),
            more_s=max(0.0, min(limit_s, left_s - limit_s)),
            total_s=self._most_s(left_s, role),
        )
        folder = self.out / EXPERIMENTS / f"{len(self.result.tried) + 1:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        spec.save(folder)
        if role == "confirmation":  # in new starts of both sides
            self.servers.close()
        kept = None if role == "confirmation" else self.servers
        outcome: Outcome = run_on_servers(spec, folder, self.load, kept=kept)
        if outcome.check is not None and not self.result.baseline.samples:
            self.result.baseline.samples = [f"answer-{place}" for place in range(settings.most_samples)]
        if outcome.out_of_budget:
            return None
        trial = self._concluded(trial, outcome)
        if trial.decision == "drop" and outcome.note is not None:
            trial.reason = outcome.note
        return trial


def improve_engine(request: Request, interrupted: Callable[[Done], None] | None = None) -> Done:
    """Search, and leave the files of every search and ``best.sh``; also when interrupted."""
    refuse_run_directory(request.overrides)
    if request.resume is None:
        given = baseline.from_run(request.run, request.overrides) if request.run is not None else None
        prepare_plan(request, given, given.overrides if given is not None else request.overrides)
    out = improve.result_directory(request)
    with hold(out, elsewhere="--out DIR"):
        earlier = improve.earlier_search(request, out)
        LOGGER.info("results go to %s", out)
        began = time.monotonic()
        found: list[Improvement] = []
        try:
            with improve.finishing(found, out):
                _search(request, out, earlier, began, found)
        except KeyboardInterrupt:
            if found and interrupted is not None:
                interrupted(Done(found[0], out / improve.HTML_NAME))
            raise
    return Done(found[0], out / improve.HTML_NAME)


def _search(
    request: Request, out: Path, earlier: Improvement | None, began: float, finish: list[Improvement]
) -> None:
    if earlier is not None:
        request = improve.resumed(replace(request, metric=_stored_metric(request, earlier)), earlier)
        start = _resumed_start(out, earlier, request.overrides)
    elif request.run is not None:
        start = baseline.from_run(request.run, request.overrides)
    else:
        LOGGER.info("baseline: one load test …")
        start = baseline.run_first(request.overrides, out, timeout_s=request.budget_s)
    held = prepare_plan(request, start, start.overrides)
    refuse_empty(held.planned)
    if earlier is not None:
        _refuse_foreign_trials(earlier, held.planned, out)
    result = earlier or _new_result(request, start, held, out)
    result.not_tried = list(held.planned.not_tried)
    result.notes = [note for note in result.notes if TIME_IS_OVER not in note]
    load = _server_load(held, start, out)
    used = result.seconds

    def save(found: Improvement) -> None:
        found.seconds = used + time.monotonic() - began
        _write_best(found, held, load, start, out)
        save_improvement(found, out)

    finish.append(result)
    with hold_for_measurement(held.app, str(out)), KeptServers() as servers:
        budget_s = request.budget_s - (time.monotonic() - began)
        search = ServerSearch(held.planned, result, out, budget_s, save)
        search.load, search.servers = load, servers
        search.least_s = least_experiment_s(start.summary)
        result.method = replace(result.method, tests=search.tests)
        search.run()


def _stored_metric(request: Request, earlier: Improvement) -> Metric:
    return earlier.metric if request.metric == "total" else request.metric


def least_experiment_s(summary: Summary | None) -> float:
    """Return about how long the shortest experiment takes: the starts of both sides, and the pairs for a verdict."""
    serving = summary.serving if summary is not None else None
    start = serving.cold_start.total_s if serving is not None and serving.cold_start is not None else _START_S
    block = serving.load[-1].seconds if serving is not None and serving.load else None
    return LEAST_STARTS * (start + 2 * (PAIRS_PER_START // 2 + 1) * (block or _BLOCK_S))


def _server_load(held: ServerPlan, start: baseline.Start, out: Path) -> ServerLoad:
    app, serve = held.app, held.serve
    checkpoint = served_checkpoint(app, serve)
    if checkpoint is None:
        made = start.run / "tmp" / NAME / "checkpoint"
        folder = made if (made / "config.json").is_file() else out / "checkpoint"
        checkpoint = str(folder if (folder / "config.json").is_file() else write_checkpoint(app, folder))
    local = Path(checkpoint) if Path(checkpoint).is_dir() else None
    on_cpu = app.resolved_device == "cpu"
    pairs = pairs_that_fit(local, make_engine(serve).cache_bytes, this_machine()) if on_cpu else 0
    key = os.environ.get(serve.api_key_env) if serve.api_key_env is not None else None
    return ServerLoad(app, serve, checkpoint, read_vocabulary(local), pairs > 0, key, max(pairs, 1))


def pairs_that_fit(checkpoint: Path | None, cache_bytes: int, machine: Machine) -> int:
    """Return how often both sides can run at the same time in the memory of the host, up to the number of starts."""
    if checkpoint is None or machine.memory_bytes is None:
        return 0
    weights = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    if not 0 < _ROOM * weights < machine.memory_bytes:
        return 0
    several = 2 * LEAST_STARTS * (_ROOM / 2 * weights + cache_bytes + _SERVER_BYTES)
    return LEAST_STARTS if several < machine.memory_bytes else 1


def _new_result(request: Request, start: baseline.Start, held: ServerPlan, out: Path) -> Improvement:
    summary = start.summary
    load = summary.serving.load[-1] if summary.serving is not None and summary.serving.load else None
    if load is None or not load.completed:
        raise InputError(
            f"{start.run} has no load point with completed requests",
            hint="see its report, and give a load that the server answers",
            path=str(start.run),
        )
    first = next(iter(summary.findings), None)
    return Improvement(
        metric=held.metric,
        baseline=Baseline(
            overrides=list(start.overrides),
            metric_value=None,  # of the first experiment: without step records
            ttft_s=load.ttft_s.p50 if load.ttft_s else None,
            tpot_s=load.tpot_s.p50 if load.tpot_s else None,
            total_s=load.e2e_s.mean if load.e2e_s else None,
            tokens_per_s=load.tokens_per_s,
            run=str(start.run.relative_to(out)) if start.run.is_relative_to(out) else str(start.run),
            model=summary.workload.model,
            device=summary.hardware.name or summary.workload.device,
            first_finding=None if first is None else Answered(first.id, first.phase, first.gain_upper_s),
            engine=held.serve.engine.value,
            load=load_levels(held.serve)[-1].label,
        ),
        method=request.settings,
        best=Best([], None, None, None),
        started=timestamp(),
        budget_s=request.budget_s,
        machine=platform.node() or None,
    )


# Resuming: a file may come from somebody else, and its settings start programs.


def _resumed_start(out: Path, earlier: Improvement, repeated: Sequence[str]) -> baseline.Start:
    stored = earlier.baseline.overrides
    for item in repeated:
        if item not in stored and not executing_settings([item]):
            raise ConfigError(
                f"--resume goes on with its own configuration: {item.partition('=')[0]} cannot be changed",
                hint="give --resume DIR; only settings that can execute code are repeated, unchanged",
            )
    missing = missing_settings(stored, repeated, applied=False)
    command = ["llm-perf-opt", "improve", "--resume", str(out), *mask_arguments(repeated)]
    refuse_executing(missing, stored, source=out / FILE_NAME, command=command)
    start = baseline.read_run(out / (earlier.baseline.run or baseline.FOLDER))
    return baseline.Start(start.run, start.summary, list(stored))


def _refuse_foreign_trials(earlier: Improvement, planned: Planned, out: Path) -> None:
    """Arguments of a server in the file must be ones that this search would try by itself."""
    known = {word for candidate in planned.candidates for word in candidate.overrides}
    for trial in earlier.tried:
        strange = [word for word in (*trial.on_top_of, *trial.overrides) if word not in known]
        if strange:
            raise ConfigError(
                f"{out / FILE_NAME} contains arguments of a server that this search does not try: {strange[0]}",
                hint=_OUT_HINT,
                path=str(out / FILE_NAME),
            )


# What is written.


def _write_best(
    found: Improvement, held: ServerPlan, load: ServerLoad, start: baseline.Start, out: Path
) -> None:
    if not found.best.overrides:
        baseline.remove_best(out)
        (out / COMMAND_NAME).unlink(missing_ok=True)
        return
    args = merge_options(held.serve.args, found.best.overrides)
    kept = [item for item in start.overrides if item.partition("=")[0].lstrip("+") != key_of("args")]
    baseline.write_best([*kept, f"{key_of('args')}={format_value(args)}"], out)
    found.best.command = server_command(held, load.checkpoint, args)
    atomic_write_text(out / COMMAND_NAME, f"#!/bin/sh\n{found.best.command}\n")


def server_command(held: ServerPlan, checkpoint: str, args: Sequence[str]) -> str:
    """Return the command line of a server, without what only measurements need; secrets are masked."""
    serve = replace(held.serve, args=list(args), step_records=False, profile=False)
    settings = server_settings(held.app, serve, checkpoint, serve.port or _USUAL_PORT, Path())
    variables = [f"{name}={value}" for name, value in sorted(serve.env.items())]
    command = make_engine(serve).command(settings)
    return shlex.join([*(["env"] if variables else []), *mask_arguments([*variables, *command])])


# ``--plan``.


def engine_plan(request: Request) -> dict[str, Any]:
    """Return what would be tried and about how long that takes; starts nothing."""
    start = None
    if request.resume is not None:
        out = request.resume.expanduser().absolute()
        earlier = load_improvement(out)
        request = improve.resumed(replace(request, metric=_stored_metric(request, earlier)), earlier)
        start = _resumed_start(out, earlier, request.overrides)
    elif request.run is not None:
        start = baseline.from_run(request.run, request.overrides)
    held = prepare_plan(request, start, start.overrides if start is not None else request.overrides)
    planned = held.planned
    each = least_experiment_s(start.summary if start is not None else None)
    return {
        "engine": held.serve.engine.value,
        "load": load_levels(held.serve)[-1].label,
        "metric": held.metric,
        "findings_known": start is not None,
        "candidates": [
            {
                "remedy": candidate.remedy.name,
                "title": candidate.remedy.title,
                "overrides": list(candidate.overrides),
                "finding": candidate.finding.id if candidate.finding else None,
                "bound_gain_s": candidate.bound_s,
                "effect": candidate.remedy.effect,
            }
            for candidate in planned.candidates
        ],
        "not_tried": [{"remedy": item.remedy, "reason": item.reason} for item in planned.not_tried],
        "tests": planned.tests,
        "expected_s": each * (len(planned.candidates) + 1),
        "budget_s": request.budget_s,
    }


def describe_plan(found: dict[str, Any]) -> list[str]:
    """Return the plan as lines."""
    lines = [f"server: {found['engine']}; load: {found['load']}; metric: {found['metric']}"]
    if not found["findings_known"]:
        lines.append("baseline: one load test first; its findings decide what is tried, and in which order")
    for number, one in enumerate(found["candidates"], 1):
        why = f"addresses {one['finding']}" if one["finding"] else "no finding asks for it"
        bound = f", at most {units.seconds(one['bound_gain_s'])}" if one["bound_gain_s"] else ""
        lines.append(
            f"{number:3}  {' '.join(one['overrides'])}   {one['title']}; {why}{bound}; output: {one['effect']}"
        )
    lines += [f"  -  {one['remedy']}: {one['reason']}" for one in found["not_tried"]]
    minutes, budget = units.number(found["expected_s"] / 60), units.number(found["budget_s"] / 60)
    lines.append(
        f"about {minutes} min or more: {LEAST_STARTS} starts of each side per experiment (--budget {budget} min)"
    )
    return lines
