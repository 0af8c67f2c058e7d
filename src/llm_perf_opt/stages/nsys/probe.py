"""Capabilities of the installed Nsight Systems: version, report names, options."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.escape import one_line
from llm_perf_opt.process.isolate import isolated
from llm_perf_opt.process.launch import run_probe
from llm_perf_opt.process.tools import modified_ns
from llm_perf_opt.stages.nsys.config import NsysConfig

SUMMARIES: dict[str, tuple[str, ...]] = {
    "kernels": ("cuda_gpu_kern_sum", "gpukernsum"),
    "api": ("cuda_api_sum", "cudaapisum"),
    "memory_time": ("cuda_gpu_mem_time_sum", "gpumemtimesum"),
    "memory_size": ("cuda_gpu_mem_size_sum", "gpumemsizesum"),
    "ranges": ("nvtx_sum", "nvtxsum"),
    "os_runtime": ("osrt_sum", "osrtsum"),
}
"""What we ask ``nsys stats`` for → the report's names, new generation first (renamed in 2023)."""


@dataclass(frozen=True, slots=True)
class NsysCapabilities:
    """Capabilities of the installed nsys."""

    executable: str
    version: tuple[int, ...]
    """(2024, 2, 3, 38); empty when the text was not understood."""
    version_text: str
    reports: frozenset[str]
    """Names ``nsys stats --report`` takes."""
    flags: frozenset[str]
    """Long options of ``nsys profile``, without dashes."""

    def report_name(self, summary: str) -> str | None:
        """Return this version's name of one of :data:`SUMMARIES`; ``None``: it has none."""
        return next((name for name in SUMMARIES[summary] if name in self.reports), None)


def nsys_version(executable: Path | str) -> str:
    """Return the version the tool states, or the reason why it is not usable; cached per file and date."""
    return _version(str(executable), modified_ns(executable, "nsys"))


def probe_nsys(executable: Path | str) -> NsysCapabilities:
    """Query version, reports and options of the installed tool; cached per file and date."""
    return _probe(str(executable), modified_ns(executable, "nsys"))


@functools.lru_cache(maxsize=16)
def _version(executable: str, _stamp: int) -> str:
    version = run_probe([executable, "--version"])
    text = parse_version_text(version.text)
    if text is None:
        raise ToolError(
            f"{executable} does not answer as Nsight Systems: {one_line(version.tail(3))[:400] or version.ended}",
            hint="check that the file is Nsight Systems' nsys and that it runs by hand",
        )
    return text


@functools.lru_cache(maxsize=16)
def _probe(executable: str, stamp: int) -> NsysCapabilities:
    text = _version(executable, stamp)
    return NsysCapabilities(
        executable=executable,
        version=parse_version(text),
        version_text=text,
        reports=parse_reports(run_probe([executable, "stats", "--help-reports"]).text),
        flags=parse_flags(run_probe([executable, "profile", "--help"]).text),
    )


def parse_version_text(text: str) -> str | None:
    """Return ``2024.2.3.38-…`` of ``NVIDIA Nsight Systems version 2024.2.3.38-…``."""
    match = re.search(r"Nsight Systems version\s+(\S+)", text)
    return match.group(1) if match else None


def parse_version(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def parse_reports(text: str) -> frozenset[str]:
    """Return the report names of ``nsys stats --help-reports``."""
    return frozenset(re.findall(r"^\s+([a-z][a-z0-9_]+)(?:\[[^\s]*)? -- ", text, re.MULTILINE))


def parse_flags(text: str) -> frozenset[str]:
    """Return the long options of ``nsys profile --help``; ``--x-[a|b]=`` means two options."""
    flags: set[str] = set()
    for name in re.findall(r"^\s*(?:-\w, )?--([a-z][\w|\[\]-]*)", text, re.MULTILINE):
        alternatives = re.fullmatch(r"(.*)\[(.*)\]", name)
        flags |= {alternatives[1] + part for part in alternatives[2].split("|")} if alternatives else {name}
    return frozenset(flags)


# Whether nsys can be prevented from storing the environments of other programs.


SEES_ALL = (
    "nsys stores the environment of every process of this user in its report: do not pass it on before you have "
    "read docs/security.md (pipeline.nsys.isolate=true prevents it where the machine allows)"
)
SECRET_ARGUMENTS = (
    "an argument of the program looks like a secret, and nsys stores arguments in its report: hand it over in a file, "
    "or as a variable that the program reads from one"
)


@functools.cache
def can_isolate() -> bool:
    """Return whether programs can be run in a namespace of their own here (:mod:`llm_perf_opt.process.isolate`)."""
    return run_probe(isolated(["true"])).ok


def isolates(config: NsysConfig) -> bool:
    """Return whether a capture is isolated: as configured, else where possible and nothing is sampled system-wide."""
    if config.isolate is not None:
        return config.isolate
    return "system-wide" not in (config.sample, config.cpuctxsw) and can_isolate()
