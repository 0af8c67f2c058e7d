"""Options of the command line that stand for keys of ``pipeline.serve``; used by ``serve`` and ``improve --engine``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.config.hydra_bridge.values import format_value
from llm_perf_opt.config.keys import CONF_DIR
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.stages.serve.config import VARIABLE, Arrival, ClientName, Endpoint, EngineName, key_of

_LISTS = ("rate", "concurrency", "slo")
"""Options that are lists with commas."""
_VALUES = (
    "url", "requests", "duration_s", "prompt_tokens", "prompt_tokens_max", "new_tokens", "new_tokens_max", "prefix_tokens", "prefixes",
    "turns", "arrival", "endpoint", "trace", "trace_speed", "prompts_file", "warmup_requests", "api_key_env", "client", "port",
    "start_timeout_s", "request_timeout_s", "seed",
)  # fmt: skip
"""Options that are handed on as they are, spelt with dashes."""


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of server and load."""
    names = [one.value for one in EngineName]
    parser.add_argument(
        "--engine",
        choices=names,
        metavar="NAME",
        help=f"{', '.join(names)} (default: transformers; attach with --url)",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="checkpoint directory, preset (llama_tiny), or the model name of a running server",
    )
    parser.add_argument("--url", help="URL of a running server, for example http://127.0.0.1:8000")
    parser.add_argument("--allow-remote", action="store_true", help="allow a URL on another machine")
    parser.add_argument("--rate", metavar="R,R", help="open loop: requests per second, a load point for each")
    parser.add_argument(
        "--arrival",
        choices=[one.value for one in Arrival],
        help="arrival process of an open loop (default: poisson)",
    )
    parser.add_argument(
        "--concurrency", metavar="N,N", help="closed loop: requests in flight, a load point for each"
    )
    parser.add_argument("--requests", metavar="N", help="requests per load point (default: 32)")
    parser.add_argument("--duration-s", metavar="S", help="longest time in which a load point sends requests")
    parser.add_argument("--prompt-tokens", metavar="N", help="tokens per prompt (default: 64)")
    parser.add_argument("--prompt-tokens-max", metavar="N", help="draw prompt lengths up to this value")
    parser.add_argument("--new-tokens", metavar="N", help="tokens per answer (default: 16)")
    parser.add_argument("--new-tokens-max", metavar="N", help="draw answer lengths up to this value")
    parser.add_argument("--prefix-tokens", metavar="N", help="length of a shared prefix in tokens")
    parser.add_argument("--prefixes", metavar="N", help="number of different shared prefixes")
    parser.add_argument("--turns", metavar="N", help="requests per conversation (chat, closed loop)")
    parser.add_argument("--prompts-file", metavar="FILE", help="prompts to send, one per line")
    parser.add_argument("--trace", metavar="FILE", help="replay a Mooncake trace")
    parser.add_argument("--trace-speed", metavar="X", help="replay speed factor")
    parser.add_argument(
        "--endpoint", choices=[one.value for one in Endpoint], help="completions (default) or chat"
    )
    parser.add_argument("--slo", metavar="LIMITS", help="limits for goodput: ttft:500ms,tpot:50ms")
    parser.add_argument("--warmup-requests", metavar="N", help="requests before the load (default: 4)")
    parser.add_argument("--api-key-env", metavar="NAME", help="environment variable with the API key")
    parser.add_argument(
        "--client", choices=[one.value for one in ClientName], help="which client sends the load"
    )
    parser.add_argument(
        "--port", metavar="N", help="port of the server that is started (default: a free one)"
    )
    parser.add_argument("--start-timeout-s", metavar="S", help="start-up timeout (default: 600)")
    parser.add_argument("--request-timeout-s", metavar="S", help="request timeout (default: 300)")
    parser.add_argument("--seed", metavar="N", help="seed of arrival times, lengths and words")
    parser.add_argument(
        "--executable", metavar="PROGRAM", help="executable of the engine, if it is not on PATH"
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable of the server (repeatable)",
    )


def split_server_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return our own arguments, and the override for those after ``--``, which are the server's."""
    words = list(arguments)
    if "--" not in words:
        return words, []
    place = words.index("--")
    own, server = words[:place], words[place + 1 :]
    return own, [f"{key_of('args')}={format_value(server)}"] if server else []


def serve_overrides(options: argparse.Namespace) -> list[str]:
    """Return the configuration that the options stand for: this stage alone."""
    from llm_perf_opt.core.stage import stage_types

    overrides = [f"pipeline.{name}.enable={'true' if name == 'serve' else 'false'}" for name in stage_types()]
    engine = options.engine or ("attach" if options.url is not None else None)
    if options.url is not None and engine != EngineName.attach.value:
        raise ConfigError(
            f"--url is a server that already runs, --engine {engine} would start one", hint="give one of them"
        )
    if engine is not None:
        overrides.append(f"{key_of('engine')}={engine}")
    if options.model is None and options.url is not None:
        overrides.append(f"model.name={format_value(f'model at {options.url}')}")
    if options.model is not None:
        overrides += _model_overrides(options.model, attached=engine == EngineName.attach.value)
    if getattr(options, "profile", False):
        overrides.append(f"{key_of('profile')}=true")
    overrides += _lists(options) + _values(options)
    return overrides


def _lists(options: argparse.Namespace) -> list[str]:
    given = {name: getattr(options, name) for name in _LISTS}
    return [
        f"{key_of(name)}=[{','.join(format_value(part.strip()) for part in value.split(','))}]"
        for name, value in given.items()
        if value is not None
    ]


def _values(options: argparse.Namespace) -> list[str]:
    found = [
        f"{key_of(name)}={format_value(value)}"
        for name in _VALUES
        if (value := getattr(options, name)) is not None
    ]
    if options.executable is not None:
        found.append(f"{key_of('executable')}=[{format_value(options.executable)}]")
    found += [_variable(item) for item in options.env]
    return [*found, *([f"{key_of('allow_remote')}=true"] if options.allow_remote else [])]


def _variable(item: str) -> str:
    """Return the override of ``--env NAME=VALUE``."""
    name, sign, value = item.partition("=")
    if not sign or not VARIABLE.fullmatch(name):
        raise ConfigError(f"--env {name!r} is not NAME=VALUE", hint="for example --env OMP_NUM_THREADS=1")
    return f"+{key_of('env')}.{name}={format_value(value)}"


def _model_overrides(model: str, *, attached: bool) -> list[str]:
    """A directory is a checkpoint, a name without a slash that we have is a preset, everything else is the server's own name."""
    if attached:
        return [f"{key_of('model')}={format_value(model)}", f"model.name={format_value(model)}"]
    if Path(model).expanduser().is_dir():
        return ["model=hf_causal_lm", f"model.path={format_value(str(Path(model).expanduser().absolute()))}"]
    if (CONF_DIR / "model" / f"{model}.yaml").is_file():
        return [f"model={model}"]
    return [f"{key_of('model')}={format_value(model)}"]
