"""``llm-perf-opt serve``: the stage ``serve`` in the words of load tools; every option is a key of ``pipeline.serve``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.config.hydra_bridge.values import format_value
from llm_perf_opt.config.keys import CONF_DIR
from llm_perf_opt.core.console.command_line import verb_parser
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.files import hint_other_directory
from llm_perf_opt.stages.serve.config import Arrival, ClientName, Endpoint, EngineName, key_of

_LISTS = ("rate", "concurrency", "slo")
"""Options that are lists with commas."""
_VALUES = (
    "url", "requests", "duration_s", "prompt_tokens", "prompt_tokens_max", "new_tokens", "new_tokens_max", "prefix_tokens", "prefixes",
    "turns", "arrival", "endpoint", "trace", "trace_speed", "prompts_file", "warmup_requests", "api_key_env", "client", "port",
    "start_timeout_s", "request_timeout_s", "seed",
)  # fmt: skip
"""Options that are handed on as they are, spelt with dashes."""


def main(arguments: Sequence[str]) -> int:
    """Measure a server; return the exit code."""
    from llm_perf_opt.commands import run

    options, further = _parser().parse_known_args(arguments)
    overrides = serve_overrides(options)
    if options.out is not None:
        overrides.append(f"artifacts.runs_dir={format_value(str(options.out.expanduser().absolute()))}")
    switches = [
        name
        for name, wanted in (("--plan", options.plan), ("--json", options.json), ("--quiet", options.quiet))
        if wanted
    ]
    with hint_other_directory("another directory: --out DIR"):
        return run.main([*switches, *overrides, *further])


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser(
        "serve",
        "Start a server, put it under load, stop it, and report where the time of its requests went.\n"
        "Each option stands for a key of pipeline.serve; other keys can be given as key=value. See docs/serving-load.md.",
        one="a load point failed",
    )
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
        help="checkpoint directory, preset (llama_tiny), or the name that a running server knows",
    )
    parser.add_argument("--url", help="a server that already runs, for example http://127.0.0.1:8000")
    parser.add_argument("--allow-remote", action="store_true", help="the URL may be another machine's")
    parser.add_argument("--rate", metavar="R,R", help="open loop: requests per second, a load point for each")
    parser.add_argument(
        "--arrival",
        choices=[one.value for one in Arrival],
        help="distances of an open loop (default: poisson)",
    )
    parser.add_argument(
        "--concurrency", metavar="N,N", help="closed loop: requests in flight, a load point for each"
    )
    parser.add_argument("--requests", metavar="N", help="requests of each load point (default: 32)")
    parser.add_argument("--duration-s", metavar="S", help="longest time in which a load point sends requests")
    parser.add_argument("--prompt-tokens", metavar="N", help="tokens of a prompt (default: 64)")
    parser.add_argument("--prompt-tokens-max", metavar="N", help="draw lengths of prompts up to this")
    parser.add_argument("--new-tokens", metavar="N", help="tokens of an answer (default: 16)")
    parser.add_argument("--new-tokens-max", metavar="N", help="draw lengths of answers up to this")
    parser.add_argument("--prefix-tokens", metavar="N", help="tokens at the begin of prompts that are shared")
    parser.add_argument("--prefixes", metavar="N", help="how many different shared prefixes")
    parser.add_argument("--turns", metavar="N", help="requests of a conversation (chat, closed loop)")
    parser.add_argument("--prompts-file", metavar="FILE", help="prompts to send, one per line")
    parser.add_argument("--trace", metavar="FILE", help="replay a Mooncake trace")
    parser.add_argument("--trace-speed", metavar="X", help="replay it so many times faster")
    parser.add_argument(
        "--endpoint", choices=[one.value for one in Endpoint], help="completions (default) or chat"
    )
    parser.add_argument("--slo", metavar="LIMITS", help="limits for goodput: ttft:500ms,tpot:50ms")
    parser.add_argument("--warmup-requests", metavar="N", help="requests before the load (default: 4)")
    parser.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the API key")
    parser.add_argument(
        "--client", choices=[one.value for one in ClientName], help="which client sends the load"
    )
    parser.add_argument(
        "--port", metavar="N", help="port of the server that is started (default: a free one)"
    )
    parser.add_argument(
        "--start-timeout-s", metavar="S", help="time until the server must be healthy (default: 600)"
    )
    parser.add_argument("--request-timeout-s", metavar="S", help="time of one request (default: 300)")
    parser.add_argument("--seed", metavar="N", help="of arrival times, lengths and words")
    parser.add_argument(
        "--executable", metavar="PROGRAM", help="program of the engine, where it is not on PATH"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: tmp/runs/TIME)")
    parser.add_argument("--plan", action="store_true", help="show what would run; start nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="only warnings and the path of the report")
    return parser


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
    return [*found, *([f"{key_of('allow_remote')}=true"] if options.allow_remote else [])]


def _model_overrides(model: str, *, attached: bool) -> list[str]:
    """A directory is a checkpoint, a name without a slash that we have is a preset, everything else is the server's own name."""
    if attached:
        return [f"{key_of('model')}={format_value(model)}", f"model.name={format_value(model)}"]
    if Path(model).expanduser().is_dir():
        return ["model=hf_causal_lm", f"model.path={format_value(str(Path(model).expanduser().absolute()))}"]
    if (CONF_DIR / "model" / f"{model}.yaml").is_file():
        return [f"model={model}"]
    return [f"{key_of('model')}={format_value(model)}"]
