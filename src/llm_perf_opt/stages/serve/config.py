"""``pipeline.serve.*``: the keys of the stage, and what they may be."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.stage import StageConfig

NAME = "serve"
MOST_REQUESTS = 1_000_000
_MOST_CONCURRENCY = 100_000
MOST_PER_S = 1_000_000.0
_MOST_TOKENS = 10_000_000
_MOST_S = 30 * 86_400.0
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EngineName(StrEnum):
    """Which server is measured."""

    transformers = "transformers"
    """``transformers serve`` with continuous batching (extra ``serve``)."""
    vllm = "vllm"
    sglang = "sglang"
    trtllm = "trtllm"
    """``trtllm-serve`` of TensorRT-LLM."""
    attach = "attach"
    """A server that already runs: ``pipeline.serve.url``."""


class Endpoint(StrEnum):
    """Which route of the OpenAI API is used."""

    completions = "completions"
    chat = "chat"


class Arrival(StrEnum):
    """Time between two requests of an open loop."""

    poisson = "poisson"
    constant = "constant"


class ClientName(StrEnum):
    """Which program sends the requests."""

    builtin = "builtin"
    aiperf = "aiperf"
    guidellm = "guidellm"
    vllm_bench = "vllm_bench"
    """``vllm bench serve``."""


@dataclass
class ServeConfig(StageConfig):
    """``pipeline.serve.*``: a server under load."""

    engine: EngineName = EngineName.transformers
    """``transformers``, ``vllm``, ``sglang`` or ``trtllm``: started and stopped by the stage; ``attach``: a server that already
    runs at ``pipeline.serve.url``."""
    executable: list[str] | None = None
    """Program of the engine with its first arguments, for an engine in another environment
    (``[/opt/vllm/bin/vllm]``); null: ``transformers``, ``vllm``, … on ``PATH``."""
    args: list[str] = field(default_factory=list)
    """Further arguments of the server, in the engine's own words."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of the server."""
    url: str | None = None
    """Base URL of a running server (``http://127.0.0.1:8000``) for ``engine=attach``."""
    allow_remote: bool = False
    """Send load to a server that is not on this machine."""
    metrics_urls: list[str] = field(default_factory=list)
    """Pages of Prometheus metrics to sample during the load, one per worker; empty: ``/metrics`` of the server."""
    metrics_interval_s: float = 0.5
    """Seconds between two samples of the metrics; 0: none."""
    model: str | None = None
    """Model name in requests, and the checkpoint that a started server loads; null: ``model.path``, or a checkpoint that is
    written from the preset with random weights."""
    port: int | None = None
    """Port of a started server; null: a free one."""
    endpoint: Endpoint = Endpoint.completions
    """``completions`` or ``chat``."""
    rate: list[float] = field(default_factory=list)
    """Open loop: requests per second, one load point for each."""
    arrival: Arrival = Arrival.poisson
    """Open loop: ``poisson`` or ``constant`` distances between requests."""
    concurrency: list[int] = field(default_factory=list)
    """Closed loop: requests in flight, one load point for each. Without rates, levels or a trace: 1 and 4."""
    requests: int | None = 32
    """Requests of each load point; null: as many as ``pipeline.serve.duration_s`` allows."""
    duration_s: float | None = None
    """Longest time in which a load point sends requests; null: until all are sent."""
    warmup_requests: int = 4
    """Requests before the first load point; their times are not kept."""
    prompt_tokens: int = 64
    """Tokens of a prompt."""
    prompt_tokens_max: int | None = None
    """With it, lengths are drawn uniformly from ``prompt_tokens`` up to this."""
    new_tokens: int = 16
    """Tokens of an answer. The end-of-sequence token is ignored where the engine can."""
    new_tokens_max: int | None = None
    """With it, lengths are drawn uniformly from ``new_tokens`` up to this."""
    prefix_tokens: int = 0
    """Tokens at the begin of a prompt that are shared."""
    prefixes: int = 1
    """How many different shared prefixes there are."""
    turns: int = 1
    """Requests of a conversation (chat): each has the history before it; closed loop only."""
    prompts_file: str | None = None
    """Prompts to send, one per line or JSON lines with a ``prompt`` key; null: made-up words of the length asked for."""
    trace: str | None = None
    """Mooncake trace (JSON lines) to replay: arrival times, lengths and shared prefixes."""
    trace_speed: float = 1.0
    """How many times faster than recorded the trace is replayed."""
    image_side: int | None = None
    """Put a made-up image of so many pixels a side into every request (chat, vision-language models); null: text alone."""
    cancel_ratio: float = 0.0
    """Share of the requests that the client cancels after half of their tokens."""
    reset_prefix_cache: bool = True
    """Empty the prefix cache between load points where the engine offers it."""
    slo: list[str] = field(default_factory=list)
    """Limits for goodput: ``[ttft:500ms,tpot:50ms]`` (also ``itl``, ``e2e``)."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key."""
    client: ClientName = ClientName.builtin
    """Which client sends the load: ``builtin``, or ``aiperf``, ``guidellm``, ``vllm_bench`` where installed."""
    client_executable: list[str] | None = None
    """Program of another client, for one in another environment (``[/opt/aiperf/bin/aiperf]``); null: on ``PATH``, ``vllm_bench`` the
    program of the engine ``vllm``."""
    client_args: list[str] = field(default_factory=list)
    """Further arguments of another client, in its own words (``[--tokenizer,/models/X]`` where the server's model name is not one)."""
    certify: bool = True
    """Measure the capacity of the client against a stub server before the load."""
    step_records: bool = True
    """Record the steps of a started engine where it can without a profiler (vLLM: a statistics plug-in)."""
    routing: bool = False
    """Record which experts are chosen under load (``transformers``, mixture-of-experts models); costs some time per step."""
    step_urls: list[str] = field(default_factory=list)
    """ZeroMQ addresses at which a running server publishes forward-pass metrics, one per data-parallel rank
    (``[tcp://127.0.0.1:20380]``; SGLang, Dynamo)."""
    profile: bool = False
    """After the load, repeat its last point under the engine's profiler: kernels of steps and requests (vLLM)."""
    profile_requests: int = 8
    """Requests of the profiled window."""
    profile_steps: int = 64
    """Engine steps after which the profiler ends by itself."""
    profile_timeout_s: float = 600.0
    """Longest time of the profiled load, and of stopping the profiler and writing its traces."""
    seed: int = 0
    """Seed of arrival times, lengths and words."""
    start_timeout_s: float = 600.0
    """Longest time until a started server is healthy."""
    request_timeout_s: float = 300.0
    """Longest time of one request."""
    stop_timeout_s: float = 30.0
    """Time a server has to end by itself before it is killed."""

    @property
    def needs_model(self) -> bool:
        """Whether the configured model is used: a server that already runs has its own."""
        return self.engine is not EngineName.attach


@dataclass(frozen=True, slots=True)
class _Range:
    key: str
    least: float
    most: float
    open_below: bool = False

    def describe(self) -> str:
        return f"{'more than' if self.open_below else 'at least'} {self.least:g} and at most {self.most:g}"

    def holds(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        return (self.least < value if self.open_below else self.least <= value) and value <= self.most


_RANGES = (
    _Range("rate", 0, MOST_PER_S, open_below=True),
    _Range("concurrency", 1, _MOST_CONCURRENCY),
    _Range("requests", 1, MOST_REQUESTS),
    _Range("duration_s", 0, _MOST_S, open_below=True),
    _Range("warmup_requests", 0, MOST_REQUESTS),
    _Range("prompt_tokens", 1, _MOST_TOKENS),
    _Range("prompt_tokens_max", 1, _MOST_TOKENS),
    _Range("new_tokens", 1, _MOST_TOKENS),
    _Range("new_tokens_max", 1, _MOST_TOKENS),
    _Range("prefix_tokens", 0, _MOST_TOKENS),
    _Range("prefixes", 1, MOST_REQUESTS),
    _Range("turns", 1, 1000),
    _Range("trace_speed", 0, 1e6, open_below=True),
    _Range("image_side", 16, 8192),
    _Range("cancel_ratio", 0, 1),
    _Range("metrics_interval_s", 0, 3600),
    _Range("port", 1, 65535),
    _Range("start_timeout_s", 0, _MOST_S, open_below=True),
    _Range("request_timeout_s", 0, _MOST_S, open_below=True),
    _Range("stop_timeout_s", 0, 3600, open_below=True),
    _Range("profile_requests", 1, MOST_REQUESTS),
    _Range("profile_steps", 1, 100_000),
    _Range("profile_timeout_s", 0, 86_400, open_below=True),
    _Range("seed", 0, 2**63 - 1),
)


def key_of(name: str) -> str:
    """Return the full key of a setting."""
    return f"pipeline.{NAME}.{name}"


def _refuse(name: str, message: str, hint: str) -> ConfigError:
    return ConfigError(f"{key_of(name)}: {message}", hint=hint, key=key_of(name))


def check_values(config: ServeConfig) -> None:
    """Raise :class:`ConfigError` for the first value or combination that is invalid."""
    for rule in _RANGES:
        value = getattr(config, rule.key)
        for one in value if isinstance(value, list) else [value]:
            if one is not None and not rule.holds(one):
                raise _refuse(rule.key, f"{one} is out of range", f"use a value of {rule.describe()}")
    for name in ("prompt_tokens", "new_tokens"):
        most = getattr(config, f"{name}_max")
        if most is not None and most < getattr(config, name):
            raise _refuse(
                f"{name}_max", f"{most} is less than {key_of(name)}", "make it larger, or leave it out"
            )
    if config.prefix_tokens >= config.prompt_tokens and config.prefix_tokens:
        raise _refuse(
            "prefix_tokens",
            f"{config.prefix_tokens} leaves no token for the rest of the prompt",
            "make it shorter than prompt_tokens",
        )
    _check_load(config)
    _check_names(config)
    parsed_slo(config)
    _check_address(config)


def _check_load(config: ServeConfig) -> None:
    if config.requests is None and config.duration_s is None and config.trace is None:
        raise _refuse("requests", "null, and no duration_s is given", "set one of them: the load must end")
    if config.trace is not None and (config.rate or config.concurrency):
        raise _refuse("trace", "a trace has its own arrival times", "leave rate and concurrency out")
    if config.turns > 1 and (config.endpoint is not Endpoint.chat or config.rate or config.trace):
        raise _refuse(
            "turns", "conversations need the chat endpoint and a closed loop",
            f"set {key_of('endpoint')}=chat and {key_of('concurrency')}",
        )  # fmt: skip
    if config.image_side is not None and config.endpoint is not Endpoint.chat:
        raise _refuse("image_side", "images need the chat endpoint", f"set {key_of('endpoint')}=chat")
    for name in ("prompts_file", "trace"):
        path = getattr(config, name)
        if path is not None and not Path(path).expanduser().is_file():
            raise _refuse(name, f"{path} is not a file", "give the path of a file")


def _check_names(config: ServeConfig) -> None:
    for name in (*config.env, *([config.api_key_env] if config.api_key_env is not None else [])):
        if not VARIABLE.fullmatch(name):
            where = "api_key_env" if name == config.api_key_env else "env"
            raise _refuse(
                where, f"'{name if where == 'env' else 'its value'}' is not the name of a variable",
                "give the name of the variable, not its value",
            )  # fmt: skip
    if config.executable is not None and not [part for part in config.executable if part]:
        raise _refuse("executable", "empty", "give the program as a list: [/opt/vllm/bin/vllm]")


def parse_url(text: str, name: str = "url") -> SplitResult:
    """Return a base URL; :class:`ConfigError` if invalid."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise _refuse(name, f"not a URL ({error})", "for example http://127.0.0.1:8000") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise _refuse(name, "not an http or https URL", "for example http://127.0.0.1:8000")
    if parts.username or parts.password:
        raise _refuse(
            name,
            "contains a user name or password",
            f"put the key into a variable and name it: {key_of('api_key_env')}",
        )
    if name == "url" and (parts.query or parts.fragment):
        raise _refuse(name, "holds a query", "give the base URL only: http://127.0.0.1:8000")
    return parts


def _zmq_host(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme == "tcp" and bool(parts.hostname) and bool(parts.port)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise _refuse("step_urls", f"{text} is not a ZeroMQ address", "for example [tcp://127.0.0.1:20380]")
    return parts.hostname or ""


def is_local(host: str) -> bool:
    """Return whether a host name is this machine, without a DNS query."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _check_address(config: ServeConfig) -> None:
    attached = config.engine is EngineName.attach
    if attached and config.url is None:
        raise _refuse("url", "missing for engine=attach", "give the URL of the server: http://127.0.0.1:8000")
    if not attached and config.url is not None:
        raise _refuse(
            "url",
            f"the engine {config.engine.value} is started by the stage",
            "use engine=attach for a running server",
        )
    if attached and config.executable is not None:
        raise _refuse("executable", "nothing is started with engine=attach", "leave it out")
    urls = [("url", config.url)] if config.url is not None else []
    urls += [("metrics_urls", one) for one in config.metrics_urls] + [
        ("step_urls", one) for one in config.step_urls
    ]
    for name, url in urls:
        host = (_zmq_host(url) if name == "step_urls" else parse_url(url, name).hostname) or ""
        if not config.allow_remote and not is_local(host):
            raise _refuse(
                name, f"{host} is not this machine (127.0.0.1, ::1 or localhost)",
                f"set {key_of('allow_remote')}=true if that server may be put under load",
            )  # fmt: skip


def parsed_slo(config: ServeConfig) -> Mapping[str, float]:
    """Return the limits in seconds; empty without any."""
    if not config.slo:
        return {}
    from llm_perf_opt.analysis.serving.latency import (
        parse_slo,
    )  # imported late: completion needs the keys, not NumPy

    return parse_slo(",".join(config.slo))
