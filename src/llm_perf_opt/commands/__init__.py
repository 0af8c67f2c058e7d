"""The table of all verbs, and the modules of those that belong to no feature package. A verb is imported when it is used."""

from __future__ import annotations

import gc
import importlib
import sys
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
        name = f"llm_perf_opt.{self.module}"
        if name not in sys.modules and gc.isenabled():
            # What imports create lives on, so looking for cycles among it, now or later, is time lost. Once per module:
            # in a process that runs many commands, freezing again would keep their garbage.
            gc.disable()
            try:
                importlib.import_module(name)
            finally:
                gc.freeze()
                gc.enable()
        return int(getattr(importlib.import_module(name), self.function)(arguments))


VERBS = {
    "run": Verb("profile a model: one configuration, one run directory, one report", "commands.run"),
    "doctor": Verb("show what this machine can do, and how to fix the rest", "commands.doctor"),
    "self-test-report": Verb(
        "show which claims about devices a self-test bundle confirms or refutes", "self_test.report"
    ),
    "report": Verb("render the reports of a finished run again", "commands.report"),
    "ingest": Verb("analyse captures from other machines or tools", "commands.ingest"),
    "compare": Verb("compare two runs; gate a regression in CI", "compare.command"),
    "improve": Verb("measure each remedy of a run's findings and keep what helps", "improve.command"),
    "serve": Verb(
        "measure a server under load: latency, goodput, and where request time goes", "serving.command"
    ),
    "what-if": Verb("estimate a run's model on other devices, sizes and data types", "what_if.command"),
    "sweep-report": Verb(
        "summarise a sweep from its job files, also while jobs are running", "sweep.command"
    ),
    "index": Verb(
        "collect the summaries below a directory into Parquet tables", "history.command", "index_main"
    ),
    "history": Verb("show trends of all runs, and what changed with each step change", "history.command"),
    "schema": Verb(
        "print the JSON Schema of summary.json, improve.json or the configuration", "commands.schema"
    ),
    "plugins": Verb("list every interface for plug-ins and what is installed for it", "commands.plugins"),
    "mcp": Verb("let agents read runs: an MCP server over stdio or HTTP", "mcp_server.command"),
    "migrate": Verb("flatten run directories of earlier releases", "commands.migrate"),
    "completion": Verb("print shell completion for verbs, keys, values and presets", "commands.completion"),
    "ncu-profile": Verb(
        "profile chosen kernels of any program with Nsight Compute", "commands.ncu_profile", "profile_main"
    ),
    "top-kernels": Verb(
        "list the top kernels of an nsys summary for ncu-profile", "commands.top_kernels", "extract_main"
    ),
}
