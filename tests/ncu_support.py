"""Shared by the Nsight Compute tests: installed tools, NVIDIA's example reports, a stand-in that profiles."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.config.compose import typed_config
from llm_perf_opt.config.hydra_bridge.compose import compose_raw
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.process.tools import find_tools
from llm_perf_opt.stages.base import StageContext
from tests.support import python_program, write_program

TOOLS = find_tools("ncu")


def context(root: Path, *overrides: str, say: list[str] | None = None) -> StageContext:
    raw = compose_raw(["pipeline.ncu.enable=true", *overrides])
    return StageContext(
        typed_config(raw, overrides), Artifacts.for_run(root), _Said(say if say is not None else [])
    )


class _Said:
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def task(self, title: str, total: int | None = None):  # type: ignore[no-untyped-def]
        import contextlib

        return contextlib.nullcontext(self)

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        self.lines.append(note or "")

    def say(self, message: str) -> None:
        self.lines.append(message)


def profiling_stand_in(
    folder: Path, real: Path, report: Path | None, *, only_unfiltered: bool = False
) -> Path:
    """Write an ``ncu`` that profiles by copying a real report, and is the real tool for everything else.

    ``only_unfiltered``: with a kernel filter it profiles nothing, as when no kernel matches.
    """
    program = f"""import os, shutil, sys
arguments = sys.argv[1:]
asked = ("--import", "--version", "--help", "--list-sections", "--list-sets", "--list-chips", "--query-metrics")
if any(word in arguments for word in asked):
    os.execv({str(real)!r}, [{str(real)!r}, *arguments])
log = arguments[arguments.index("--log-file") + 1]
matches = {report is not None} and not ({only_unfiltered} and "--kernel-name" in arguments)
with open(log, "w") as stream:
    if matches:
        stream.write('==PROF== Profiling "Sobel" - 0: 0%....50%....100% - 7 passes\\n')
    else:
        stream.write("==WARNING== No kernels were profiled.\\n")
if matches:
    shutil.copyfile({str(report)!r}, arguments[arguments.index("--export") + 1] + ".ncu-rep")
sys.exit(1)  # the exit code means nothing
"""
    return write_program(folder / "ncu", python_program(program))
