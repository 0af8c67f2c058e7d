"""The stage: start a server, wait until it is healthy, warm up, send every load point, stop it, and keep the records.

Files, under ``<run>/serve/``: ``requests.jsonl`` (a header, then a line per request with the time of every token),
``metrics.jsonl`` (samples of ``/metrics``), ``steps.jsonl`` or ``steps.log`` (steps of the engine, if available), ``server.json``
(how the server and the client were), ``server.stdout.log`` and ``server.stderr.log``. Checkpoints made from a preset lie in
``tmp/serve/``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.captures.serving import OWN_METRICS, OWN_REQUESTS
from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.core.files import atomic_path, atomic_write_json, atomic_write_text
from llm_perf_opt.core.secrets import MASK
from llm_perf_opt.core.stage import Problem, StageConfig, StageResult
from llm_perf_opt.process.tools import has_package
from llm_perf_opt.stages.base import Stage, StageContext
from llm_perf_opt.stages.serve.config import (
    NAME,
    ClientName,
    Endpoint,
    EngineName,
    ServeConfig,
    check_values,
    key_of,
    parsed_slo,
)
from llm_perf_opt.stages.serve.engines import ServerSettings, has_counted_model, make_engine
from llm_perf_opt.stages.serve.facts import METRICS, REQUESTS, ROUTING, SERVER, STEPS, STEPS_LOG, read_facts
from llm_perf_opt.stages.serve.forward_pass import PACKAGE, ForwardPassReceiver
from llm_perf_opt.stages.serve.load import (
    PlannedRequest,
    Vocabulary,
    image_url,
    load_levels,
    made_ahead,
    plan_loads,
    read_vocabulary,
    warm_up,
)
from llm_perf_opt.stages.serve.profile_window import (
    PROFILE,
    PROFILED_REQUESTS,
    PROFILED_STEPS,
    TRACES,
    Window,
    key_problems,
    profile_load,
    split_steps,
)
from llm_perf_opt.stages.serve.server import (
    CHECKPOINT_ADAPTERS,
    Prepared,
    Server,
    free_port,
    prepare,
    served_checkpoint,
    write_checkpoint,
)

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig
    from llm_perf_opt.core.console.progress import Task
    from llm_perf_opt.stages.serve.certify import Certificate
    from llm_perf_opt.stages.serve.client import LoadClient, LoadResult, MetricsSampler, RequestRecord

_FREED_S = 10.0
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_CLIENT_FIX = "pip install 'llm-perf-opt[load]'"


class ServeStage(Stage):
    """Put a server under load."""

    name: ClassVar[str] = NAME
    order: ClassVar[int] = 50
    title: ClassVar[str] = "server under load"
    config_type: ClassVar[type[StageConfig]] = ServeConfig

    def check(self, context: StageContext) -> list[Problem]:
        """Check the stage's keys, the engine, the client and the model."""
        config = context.stage_config(NAME, ServeConfig)
        check_values(config)
        found = [
            *make_engine(config).problems(),
            *_client_problems(config),
            *_model_problems(context.config, config),
        ]
        if config.routing and (config.engine is not EngineName.transformers or config.executable):
            found.append(
                Problem(
                    "error",
                    f"{key_of('routing')}: choices of routers are recorded from `transformers serve` of this environment only",
                    f"set {key_of('routing')}=false",
                    key_of("routing"),
                )
            )
        if config.step_urls and not has_package(PACKAGE):
            message = "forward-pass metrics need pyzmq, which is not installed"
            found.append(Problem("skip", message, _CLIENT_FIX, key_of("step_urls"), of_machine=True))
        if (reason := key_problems(config)) is not None:
            found.append(Problem("error", reason, f"set {key_of('profile')}=false", key_of("profile")))
        others = [name for name, stage in context.config.pipeline.items() if stage.enable and name != NAME]
        # Running alone, a skipped stage would be a run that does nothing.
        return (
            found
            if others
            else [replace(one, severity="error") if one.severity == "skip" else one for one in found]
        )

    def plan(self, context: StageContext) -> list[str]:
        """Return the server, the load and the files."""
        config = context.stage_config(NAME, ServeConfig)
        folder = context.artifacts.root / NAME
        engine = make_engine(config)
        lines = []
        if engine.is_started:
            named = served_checkpoint(context.config, config)
            settings = server_settings(
                context.config,
                config,
                named or str(_checkpoint_dir(context)),
                config.port or 0,
                folder / STEPS,
            )
            shown = prepare(engine, settings).shown()
            lines.append(f"run   {shown if config.port else shown.replace('--port 0', '--port FREE')}")
        for level in load_levels(config):
            count = (
                f"{config.requests} requests"
                if config.requests is not None
                else f"requests for {config.duration_s:g} s"
            )
            lines.append(f"load  {level.label}: {count} to {config.url or 'the server'}")
        return [*lines, *(f"write {folder / name}" for name in (REQUESTS, METRICS, STEPS, SERVER))]

    def run(self, context: StageContext) -> StageResult:
        """Measure every load point; measurements before a failure are kept."""
        return _Run(context).run()

    def facts(self, run_dir: Path) -> Facts:
        """Read requests, steps and metrics."""
        return read_facts(run_dir)


def _client_problems(config: ServeConfig) -> list[Problem]:
    problems = []
    if config.client is ClientName.builtin and not has_package("aiohttp"):
        problems.append(
            Problem(
                "skip",
                "the load client needs aiohttp, which is not installed",
                _CLIENT_FIX,
                key_of("client"),
                of_machine=True,
            )
        )
    if config.client is not ClientName.builtin:
        from llm_perf_opt.stages.serve.external import client_problems

        problems += client_problems(config)
    if config.api_key_env is not None and not os.environ.get(config.api_key_env):
        message = f"{key_of('api_key_env')}: the variable {config.api_key_env} is not set"
        problems.append(
            Problem("error", message, "export the API key in it", key_of("api_key_env"), of_machine=True)
        )
    return problems


def _model_problems(config: AppConfig, serve: ServeConfig) -> list[Problem]:
    if serve.engine is EngineName.attach or served_checkpoint(config, serve) is not None:
        return []
    if config.model.adapter in CHECKPOINT_ADAPTERS:
        return []
    message = (
        f"no checkpoint is given, and none can be written for {config.model.name} ({config.model.adapter})"
    )
    fix = f"use a text model (model=llama_tiny), or name a checkpoint: {key_of('model')}=DIR"
    return [Problem("error", message, fix, key_of("model"))]


def _checkpoint_dir(context: StageContext) -> Path:
    return context.artifacts.root / "tmp" / NAME / "checkpoint"


def server_settings(
    config: AppConfig,
    serve: ServeConfig,
    checkpoint: str,
    port: int,
    steps: Path,
    published: int | None = None,
) -> ServerSettings:
    """Return the settings of a server that this load needs."""
    longest = (serve.prompt_tokens_max or serve.prompt_tokens) + (serve.new_tokens_max or serve.new_tokens)
    return ServerSettings(
        checkpoint=checkpoint,
        port=port,
        device=config.resolved_device,
        dtype=config.model.dtype.value,
        # Text of unknown words may be slightly longer than requested; a chat template adds to it.
        max_tokens=max(2048, 2 * longest * serve.turns + 64),
        most_in_flight=max(serve.concurrency, default=4),
        steps_file=steps if serve.step_records else None,
        profile_dir=steps.parent / TRACES if serve.profile else None,
        profile_steps=serve.profile_steps,
        routing_file=steps.parent / ROUTING if serve.routing else None,
        forward_pass_port=published,
    )


def _knows_lengths(config: ServeConfig, vocabulary: Vocabulary) -> bool:
    """Whether the words of a chat message are its tokens, so that those of the chat template can be distinguished."""
    made_up = config.prompts_file is None and config.trace is None and config.image_side is None
    return vocabulary.is_exact and config.endpoint is Endpoint.chat and config.turns <= 1 and made_up


def _noting_lengths(requests: Iterator[PlannedRequest], lengths: list[int]) -> Iterator[PlannedRequest]:
    for one in requests:
        lengths.append(one.prompt.count(" ") + 1)
        yield one


class _Counter:
    """Updates progress in five steps, to keep the client's overhead low."""

    def __init__(self, task: Task, total: int | None) -> None:
        self._task, self._step, self._done = task, max(1, (total or 50) // 5), 0

    def count(self, _: RequestRecord) -> None:
        """Count one request."""
        self._done += 1
        if self._done % self._step == 0:
            self._task.advance(self._step)


async def _ended_meanwhile(server: Server) -> str | None:
    """Check, after broken connections, whether the server has ended, which is known with a delay."""
    for _ in range(30):
        if not server.is_alive:
            return "the server ended during the load"
        if server.get("/health", timeout_s=1.0)[0] is not None:
            return None
        await asyncio.sleep(0.1)
    return None


@dataclass(slots=True)
class _Run:
    """One run of the stage."""

    context: StageContext
    config: ServeConfig = field(init=False)
    folder: Path = field(init=False)
    api_key: str | None = field(init=False, default=None)
    certificate: Certificate | None = None
    results: list[LoadResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    model: str = ""
    prepared: Prepared | None = None
    server: Server | None = None
    sampler: MetricsSampler | None = None
    resets: int = 0
    identity: tuple[str | None, str | None] = (None, None)
    """Engine and version of a server that somebody else started."""
    step_urls: list[str] = field(default_factory=list)
    """Where the engine publishes forward-pass metrics."""
    receiver: ForwardPassReceiver | None = None
    others: list[Path] = field(default_factory=list)
    """Results of other clients."""
    window: Window | None = None
    """Of the engine's profiler."""
    profiled: LoadResult | None = None

    def __post_init__(self) -> None:
        self.config = self.context.stage_config(NAME, ServeConfig)
        self.folder = self.context.artifacts.out_dir(NAME)
        if self.config.api_key_env is not None:
            self.api_key = os.environ.get(self.config.api_key_env)

    def run(self) -> StageResult:
        """Run all steps; the files are written even if a later load point fails."""
        vocabulary = self._prepare()
        if self.config.client is ClientName.builtin and self.config.certify:
            self._certify()
        failure: ToolError | None = None
        try:
            with self._server() as server, self._receiving():
                self._find_model(server)
                if self.config.client is ClientName.builtin:
                    asyncio.run(self._load(server, vocabulary))
                else:
                    self._load_with_other(server)
        except ToolError as error:
            if not self.others and not any(result.records for result in self.results):
                self._write()
                raise
            failure = error
        return self._result(self._write(), failure)

    # Before the load.

    def _prepare(self) -> Vocabulary:
        """Find or write the checkpoint; return words of its tokenizer."""
        app, config = self.context.config, self.config
        checkpoint = served_checkpoint(app, config)
        if config.engine is EngineName.attach:
            self.model = checkpoint if checkpoint is not None and config.model is not None else ""
            return read_vocabulary(
                Path(app.model.path) if app.model.path and Path(app.model.path).is_dir() else None
            )
        if checkpoint is None:
            with self.context.progress.task("writing a checkpoint with random weights"):
                folder = self.context.artifacts.tmp_dir(NAME) / "checkpoint"
                checkpoint = str(write_checkpoint(app, folder))
        engine = make_engine(config)
        published = None
        if engine.publishes_steps and config.step_records and has_package(PACKAGE):
            published = free_port(None)
            self.step_urls = [f"tcp://127.0.0.1:{published}"]
        settings = server_settings(
            app, config, checkpoint, free_port(config.port), self.folder / STEPS, published
        )
        self.prepared = prepare(engine, settings)
        self.model = engine.model_name(checkpoint)
        return read_vocabulary(Path(checkpoint) if Path(checkpoint).is_dir() else None)

    def _certify(self) -> None:
        from llm_perf_opt.stages.serve.certify import certify_client

        with self.context.progress.task("measuring the load client against a stub server"):
            try:
                self.certificate = certify_client(self.folder)
            except ToolError as error:
                self.notes.append(f"The capacity of the load client was not measured: {error.message}")

    @contextlib.contextmanager
    def _server(self) -> Iterator[Server]:
        engine = make_engine(self.config)
        if self.prepared is None:
            self.server = Server(engine, self.config.url or "", api_key=self.api_key)
            self.server.wait_until_healthy(min(self.config.start_timeout_s, 30.0))
            yield self.server
            return
        port = self.prepared.settings.port
        self.server = Server(engine, f"http://127.0.0.1:{port}", api_key=self.api_key)
        for name in (STEPS, ROUTING):
            (self.folder / name).unlink(missing_ok=True)
        with contextlib.ExitStack() as stack:
            with self.context.progress.task(f"starting {self.config.engine.value}"):
                stack.enter_context(
                    self.server.running(
                        self.prepared.argv,
                        self.prepared.env,
                        self.folder,
                        self.config,
                        self.context.artifacts.tmp_dir(NAME),
                    )
                )
            yield self.server

    @contextlib.contextmanager
    def _receiving(self) -> Iterator[None]:
        """Receive the steps that the engine publishes."""
        urls = self.config.step_urls or self.step_urls
        if not urls:
            yield
            return
        with ForwardPassReceiver(urls, self.folder / STEPS) as self.receiver:
            yield

    def _find_model(self, server: Server) -> None:
        """Use the only model of a running server, or check the given name."""
        if self.config.engine is not EngineName.attach:
            return
        self.identity = server.identify()
        listed = [str(one["id"]) for one in server.models()]
        if not self.model:
            if not listed:
                raise ConfigError(
                    "the server lists no model", hint=f"name it: {key_of('model')}=NAME", key=key_of("model")
                )
            self.model = listed[0]
        elif listed and self.model not in listed:
            raise ConfigError(
                f"the server at {server.url} has no model {self.model!r}; it lists: {', '.join(listed[:5])}",
                hint=f"set {key_of('model')} to one of them",
                key=key_of("model"),
            )

    # The load.

    async def _load(self, server: Server, vocabulary: Vocabulary) -> None:
        from llm_perf_opt.stages.serve.client import LoadClient, MetricsSampler, Target

        config = self.config
        target = Target(
            server.url, self.model, config.endpoint, server.engine.request_fields(), self.api_key, config.request_timeout_s,
            image_url(config.image_side, config.seed) if config.image_side is not None else None,
        )  # fmt: skip
        async with LoadClient(target) as client:
            await self._warm_up(client, server, vocabulary)
            self.sampler = MetricsSampler(
                client.session, client.clock, self._metrics_urls(server), config.metrics_interval_s, target
            )
            for number, planned in enumerate(plan_loads(config, vocabulary)):
                if config.reset_prefix_cache and server.reset_prefix_cache():
                    self.resets += 1
                with self.context.progress.task(f"load: {planned.level.label}", total=planned.count) as task:
                    counter, lengths = _Counter(task, planned.count), list[int]()
                    requests = _noting_lengths(made_ahead(planned, config), lengths)
                    async with self.sampler.sampling():
                        result = await client.run(
                            planned.level, requests, number, duration_s=config.duration_s,
                            is_alive=lambda: server.is_alive, on_done=counter.count,
                        )  # fmt: skip
                if lengths and _knows_lengths(config, vocabulary):
                    result.planned_prompt_tokens = sum(lengths) / len(lengths) + vocabulary.extra_tokens
                self.results.append(result)
                if result.stopped is None and any(one.status == "disconnected" for one in result.records):
                    result.stopped = await _ended_meanwhile(server)
                await self._watch_cancelled(result)
                self._write_requests()
                if result.stopped is not None:
                    raise ToolError(
                        f"{result.stopped} (at {planned.level.label}):\n{server.last_lines()}",
                        hint=f"see {NAME}/server.stderr.log",
                    )
            if config.profile:
                await self._profile(client, server, vocabulary)

    async def _profile(self, client: LoadClient, server: Server, vocabulary: Vocabulary) -> None:
        """Repeat the last load point, shortened, under the engine's profiler; failures give a note."""
        config = replace(self.config, requests=self.config.profile_requests, seed=self.config.seed + 1)
        number = len(self.results)
        planned = list(plan_loads(config, vocabulary))[-1]
        first = itertools.islice(planned.requests, config.profile_requests)
        requests = [replace(one, id=f"profiled-{place}") for place, one in enumerate(first)]

        async def send() -> int:
            self.profiled = await client.run(
                planned.level, iter(requests), number, is_alive=lambda: server.is_alive
            )
            return sum(one.status == "ok" for one in self.profiled.records)

        with self.context.progress.task(f"profiled window: {planned.level.label}"):
            self.window = await profile_load(server, config, self.folder, planned.level.label, send)
        if self.window.problem is not None:
            self.notes.append(f"Profiled window: {self.window.problem}.")

    async def _warm_up(self, client: LoadClient, server: Server, vocabulary: Vocabulary) -> None:
        from llm_perf_opt.stages.serve.load import LoadLevel

        requests = warm_up(self.config, vocabulary)
        if not requests:
            return
        with self.context.progress.task("warm-up", total=len(requests)):
            level = LoadLevel("closed", concurrency=min(len(requests), 4))
            result = await client.run(level, iter(requests), is_alive=lambda: server.is_alive)
            if server.engine.name is EngineName.attach and all(
                one.http_status in (400, 422) for one in result.records
            ):
                # Not every server accepts fields outside the OpenAI API.
                client.target = replace(client.target, fields={"stream_options": {"include_usage": True}})
                result = await client.run(level, iter(requests), is_alive=lambda: server.is_alive)
                self.notes.append("The server refuses ignore_eos: answers may be shorter than requested.")
        failed = [one for one in result.records if one.status != "ok"]
        if len(failed) == len(result.records):
            output = server.last_lines()
            raise ToolError(
                f"no request of the warm-up was answered: {failed[0].reason}"
                + (f"\n{output}" if output else ""),
                hint=f"check {key_of('model')}, {key_of('endpoint')} and the server's log",
            )
        short = [
            one
            for one in result.records
            if one.status == "ok" and (one.output_tokens or 0) < one.requested_tokens
        ]
        if short:
            self.notes.append(
                f"The server ended answers early ({short[0].output_tokens} of {short[0].requested_tokens} tokens): lengths are not fixed."
            )

    def _metrics_urls(self, server: Server) -> list[str]:
        if self.config.metrics_urls or not self.config.metrics_interval_s:
            return list(self.config.metrics_urls)
        path = server.engine.metrics_path
        if path is None:
            return []
        if not server.has_metrics(f"{server.url}{path}"):
            self.notes.append(f"The server has no {path}: no samples of its metrics.")
            return []
        return [f"{server.url}{path}"]

    async def _watch_cancelled(self, result: LoadResult) -> None:
        """After cancellations: measure the time until the engine is idle."""
        if self.sampler is None or not any(one.status == "cancelled" for one in result.records):
            return
        began = self.sampler.clock.now()
        last = max(one.end_s or 0.0 for one in result.records)
        while self.sampler.clock.now() - began < _FREED_S:
            values = await self.sampler.sample()
            running = next((values[name] for name in _RUNNING if name in values), None)
            if running is None:
                return
            if running == 0:
                result.slots_freed_s = max(self.sampler.clock.now() - last, 0.0)
                return
            await asyncio.sleep(0.05)
        self.notes.append(
            f"{_FREED_S:g} s after the last cancellation the server still had running requests."
        )

    def _load_with_other(self, server: Server) -> None:
        from llm_perf_opt.stages.serve.external import run_client

        scratch = self.context.artifacts.tmp_dir(NAME)
        for number, level in enumerate(load_levels(self.config)):
            with self.context.progress.task(f"load by {self.config.client.value}: {level.label}"):
                folder = scratch / f"{self.config.client.value}-{number}"
                self.others.extend(
                    run_client(self.config, level, server.url, self.model, folder, self.folder, number)
                )

    # Files.

    def _header(self, results: Sequence[LoadResult] | None = None) -> dict[str, Any]:
        capacity = self.certificate.capacity_per_s if self.certificate is not None else None
        loads = []
        for result in self.results if results is None else results:
            bound = result.bound_by_client(capacity)
            loads.append(
                {
                    "kind": result.level.kind,
                    "rate_per_s": result.level.rate_per_s,
                    "concurrency": result.level.concurrency,
                    "label": result.level.label,
                    "seconds": result.seconds,
                    "events": result.events,
                    "lag_p99_s": result.lag_p99_s,
                    "event_s": result.cpu_s / result.events if result.events else None,
                    "client_bound": bound is not None,
                    "client_reason": bound,
                    "planned_prompt_tokens": result.planned_prompt_tokens,
                    "slots_freed_s": result.slots_freed_s,
                    "stopped": result.stopped,
                }
            )
        return {
            "format": OWN_REQUESTS,
            "version": 1,
            "engine": self.config.engine.value
            if self.config.engine is not EngineName.attach
            else self.identity[0],
            "engine_version": self._engine_version(),
            "model": self._masked(self.model),
            "client_capacity_per_s": capacity,
            "slo": dict(parsed_slo(self.config)),
            "loads": loads,
        }

    def _masked(self, text: str) -> str:
        """Return a server's text without the API key."""
        return text.replace(self.api_key, MASK) if self.api_key else text

    def _engine_version(self) -> str | None:
        if self.server is None or self.server.engine.name is EngineName.attach:
            return self._masked(self.identity[1]) if self.identity[1] is not None else None
        if self.server.engine.name is EngineName.transformers and not self.config.executable:
            from importlib.metadata import version

            return version("transformers")
        return self.server.engine.version(self.server.log_text())

    def _write_requests(self) -> Path:
        path = self.folder / REQUESTS
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
            stream.write(json.dumps(self._header()) + "\n")
            for result in self.results:
                for record in result.records:
                    stream.write(json.dumps(record.to_json()) + "\n")
        return path

    def _write_window(self) -> list[Path]:
        if self.window is None:
            return []
        written = [atomic_write_json(self.folder / PROFILE, self.window.document())]
        written += [self.folder / TRACES / name for name in self.window.traces]
        if self.profiled is not None:
            path = self.folder / PROFILED_REQUESTS
            lines = [json.dumps(self._header([self.profiled]))]
            lines += [json.dumps({**one.to_json(), "load": 0}) for one in self.profiled.records]
            written.append(atomic_write_text(path, "\n".join(lines) + "\n"))
        return written

    def _write(self) -> list[Path]:
        written = list(self.others)
        if self.results:
            written.append(self._write_requests())
        written += self._write_window()
        if self.sampler is not None and self.sampler.samples:
            header = json.dumps({"format": OWN_METRICS, "urls": list(self.sampler.urls)})
            lines = [header, *(self._masked(json.dumps(one)) for one in self.sampler.samples)]
            written.append(atomic_write_text(self.folder / METRICS, "\n".join(lines) + "\n"))
        if self.sampler is not None:
            self.notes += [f"{url}: {reason}" for url, reason in self.sampler.failures.items()]
        written += self._steps()
        if self.config.routing and (self.folder / ROUTING).is_file():
            written.append(self.folder / ROUTING)
        written.append(atomic_write_json(self.folder / SERVER, self._server_document()))
        logs = [
            self.folder / f"{name}.log"
            for name in ("server.stdout", "server.stderr", "client-stub.stdout", "client-stub.stderr")
        ]
        return written + [path for path in logs if path.is_file()]

    def _steps(self) -> list[Path]:
        """Keep the engine's step records; without the plug-in, the step lines of the log."""
        path = self.folder / STEPS
        if self.receiver is not None:
            self.notes += self.receiver.notes()
            return [path] if self.receiver.received else []
        if self.server is None or self.prepared is None or not self.config.step_records:
            return []
        fault = Path(f"{path}.log")
        if fault.is_file():
            self.notes.append(
                f"The step recorder stopped: {fault.read_text(errors='replace').strip().splitlines()[-1][:300]}"
            )
        if path.is_file() and path.stat().st_size:
            target = self.folder / PROFILED_STEPS
            if self.window is not None and split_steps(path, self.window, target):
                return [path, target]
            return [path]
        lines = [f"{at:.6f} {self.server.masked(line)}\n" for at, line in self.server.step_lines]
        return [atomic_write_text(self.folder / STEPS_LOG, "".join(lines))] if lines else []

    def _has_counted_model(self) -> bool:
        if self.prepared is None:
            return False
        own = served_checkpoint(self.context.config, self.config) is None
        return has_counted_model(self.config, self.prepared.settings, own_checkpoint=own)

    def _server_document(self) -> dict[str, Any]:
        server = self.server
        ended = server.result if server is not None else None
        return {
            "schema": 1,
            "engine": self.config.engine.value,
            "version": self._engine_version(),
            "url": server.url if server is not None else self.config.url,
            "model": self._masked(self.model),
            "has_counted_model": self._has_counted_model(),
            "command": self.prepared.shown() if self.prepared is not None else None,
            "ready_s": server.ready_s if server is not None else None,
            "cold_start": self._cold_start(),
            "stop_s": server.stop_s if server is not None else None,
            "killed_processes": ended.killed if ended is not None else None,
            "prefix_cache_resets": self.resets,
            "client": self.config.client.value,
            "certificate": asdict(self.certificate) if self.certificate is not None else None,
            "notes": [server.masked(note) if server is not None else note for note in self.notes],
        }

    def _cold_start(self) -> dict[str, Any] | None:
        server = self.server
        if server is None or server.ready_s is None:
            return None
        from llm_perf_opt.captures.serving.engines import read_cold_start

        return asdict(read_cold_start(server.log_text(), server.ready_s, server.imports_s))

    def _result(self, written: list[Path], failure: ToolError | None) -> StageResult:
        result = StageResult("ok", artifacts=written)
        ended = self.server.result if self.server is not None else None
        if ended is not None:
            result.exit_codes = {"server": ended.returncode}
        if failure is not None:
            result.status, result.reason, result.fix = "failed", failure.message, failure.hint
            return result
        records = [record for one in self.results for record in one.records]
        if records:
            result.inputs = {"source": f"{NAME}/{REQUESTS}", "count": len(records), "samples": []}
        counts = Counter(record.status for record in records)
        bad = sum(count for status, count in counts.items() if status not in ("ok", "cancelled"))
        if bad:
            kinds = ", ".join(
                f"{count} {status}"
                for status, count in counts.most_common()
                if status not in ("ok", "cancelled")
            )
            first = next(record for record in records if record.status not in ("ok", "cancelled"))
            result.status = "failed" if bad == len(records) else "degraded"
            result.reason = f"{bad} of {len(records)} requests failed ({kinds}); the first: {first.reason}"
            result.fix = f"see {NAME}/{REQUESTS} and {NAME}/server.stderr.log"
        elif self._was_killed():
            result.status = "degraded"
            result.reason = f"the server did not end within {self.config.stop_timeout_s:g} s and was killed"
            result.fix = f"more time: {key_of('stop_timeout_s')}"
        return result

    def _was_killed(self) -> bool:
        """Whether the server had to be killed; helpers of an engine that end slightly later do not count."""
        server = self.server
        if server is None or server.result is None or server.stop_s is None:
            return False
        return server.result.killed > 0 and server.stop_s >= self.config.stop_timeout_s
