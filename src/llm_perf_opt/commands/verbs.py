"""The verbs of ``llm-perf-opt``, one table. A verb is imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: what help says of it, and the function that takes its arguments and returns an exit code."""

    summary: str
    module: str
    function: str = "main"

    def __call__(self, arguments: Sequence[str]) -> int:
        """Import the verb's module and run it."""
        module = importlib.import_module(f"llm_perf_opt.{self.module}")
        return int(getattr(module, self.function)(arguments))


VERBS = {
    "run": Verb("profile a model: one configuration, one run directory, one report", "commands.run"),
    "doctor": Verb("what this machine can do, and how to fix the rest", "commands.doctor"),
    "report": Verb("render the reports of a finished run again", "commands.report"),
    "ingest": Verb("analyse captures taken elsewhere", "commands.ingest"),
    "compare": Verb("compare two runs; gate a regression in CI", "compare.command"),
    "improve": Verb("try the advice: measure each remedy, keep what helps", "improve.command"),
    "serve": Verb(
        "put a server under load: latency, goodput, and where the time of requests went", "serving.command"
    ),
    "what-if": Verb(
        "expected times and floors of a run's model on other devices, sizes and types", "what_if.command"
    ),
    "sweep-report": Verb("tell of a sweep from the files of its jobs, also while they run", "sweep.command"),
    "index": Verb("flatten the summaries below a directory into Parquet", "history.index_command"),
    "history": Verb("trends of all runs, and what came with each change", "history.command"),
    "schema": Verb(
        "print the JSON Schema of summary.json, improve.json or the configuration", "commands.schema"
    ),
    "plugins": Verb("list every interface for plug-ins and what is installed for it", "commands.plugins"),
    "mcp": Verb("let agents read runs: an MCP server over stdio or HTTP", "mcp_server.command"),
    "migrate": Verb("flatten run directories of earlier releases", "commands.migrate"),
    "completion": Verb("make the shell complete verbs, keys, values and presets", "commands.completion"),
    "ncu-profile": Verb(
        "profile chosen kernels of any program with Nsight Compute", "commands.ncu_profile", "profile_main"
    ),
    "top-kernels": Verb(
        "list the top kernels of an nsys summary for ncu-profile", "commands.top_kernels", "extract_main"
    ),
}
