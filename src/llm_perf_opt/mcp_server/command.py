"""``llm-perf-opt mcp``: the command line."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.core.console.command_line import verb_parser, whole_number
from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.mcp_server.access import Access
from llm_perf_opt.process.tools import has_package

_DEFAULT_PORT = 8741
_HOSTS = ("127.0.0.1", "::1")


def main(arguments: Sequence[str]) -> int:
    """Serve until the client leaves, or Ctrl-C."""
    options = _parser().parse_args(arguments)
    if (options.port is not None or options.host is not None) and not options.http:
        raise ConfigError("--host and --port are for --http", hint="add --http, or leave them out")
    access = Access.of(
        [Path(root) for root in options.root or ["."]],
        Path(options.output_root) if options.output_root else None,
        allow_run=options.allow_run,
    )
    if not has_package("mcp"):
        raise ToolError("the package mcp is not installed", hint="pip install 'llm-perf-opt[mcp]'")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)  # standard output is the protocol's

    from llm_perf_opt.mcp_server.server import build_server, serve_http

    server = build_server(access)
    if not options.http:
        server.run("stdio")
        return 0
    host, port = options.host or _HOSTS[0], options.port or _DEFAULT_PORT
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{port}/mcp serves {', '.join(map(str, access.roots))}", file=sys.stderr)
    serve_http(server, host, port)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser(
        "mcp",
        "Let agents read finished runs: a server of the Model Context Protocol, over stdio or (--http) on loopback.\n"
        "It reads below the root directories only and writes nothing, unless --output-root is given.",
    )
    parser.add_argument(
        "--root",
        action="append",
        metavar="DIR",
        help="directory of runs and captures that may be read (default: this one); repeatable",
    )
    parser.add_argument(
        "--output-root", metavar="DIR", help="offer ingest, which writes below this directory"
    )
    parser.add_argument(
        "--allow-run",
        action="store_true",
        help="offer run and improve, which run models on this machine; needs --output-root",
    )
    parser.add_argument("--http", action="store_true", help="streamable HTTP instead of stdio")
    parser.add_argument("--host", choices=_HOSTS, help=f"address of --http ({_HOSTS[0]})")
    parser.add_argument("--port", type=whole_number(1, 65535), help=f"port of --http ({_DEFAULT_PORT})")
    return parser
