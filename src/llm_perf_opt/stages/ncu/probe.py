"""Capabilities of the installed Nsight Compute: version, sections, sets, metrics, filter modes."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.escape import one_line
from llm_perf_opt.process.launch import run_probe
from llm_perf_opt.process.tools import modified_ns

_QUERY_TIMEOUT_S = 60.0


_OLDER_CHIPS = {"gk", "gm", "gp"}
"""Generations before Volta, which ncu does not profile."""


@dataclass(frozen=True, slots=True)
class NcuCapabilities:
    """Capabilities of the installed ncu."""

    executable: str
    version: tuple[int, ...]
    version_text: str
    sections: frozenset[str]
    sets: frozenset[str]
    chips: frozenset[str]
    """Chips whose metrics can be listed without a GPU."""
    per_launch_config: bool
    """Whether launches can be counted per launch configuration (2023 and later)."""
    flags: frozenset[str]

    @property
    def default_chips(self) -> tuple[str, ...]:
        """One chip of each architecture supported by this ncu; for later generations the newest name."""
        wanted = (
            "gv100",
            "tu102",
            "ga100",
            "ga102",
            "ad102",
            "gh100",
            "gb100",
            "gb110",
            "gb10b",
            "gb202",
            "gb20b",
        )
        known = [chip for chip in wanted if chip in self.chips]
        prefixes = {chip[:2] for chip in wanted} | _OLDER_CHIPS
        later: dict[str, str] = {}
        for chip in sorted(self.chips):
            if chip[:2] not in prefixes:
                later.setdefault(chip[:2], chip)
        return (*known, *later.values())


def ncu_version(executable: Path | str) -> str:
    """Return the version the tool states, or the reason why it is not usable; cached per file and date."""
    return _version(str(executable), modified_ns(executable, "ncu"))


def probe_ncu(executable: Path | str) -> NcuCapabilities:
    """Query the capabilities of the installed tool; cached per file and date."""
    return _probe(str(executable), modified_ns(executable, "ncu"))


def assumed_ncu(executable: str | None = None) -> NcuCapabilities:
    """Return the assumed capabilities of a missing ncu: a recent version with unknown sections and metrics."""
    everything = frozenset[str]()
    return NcuCapabilities(
        executable=executable or "ncu",
        version=(),
        version_text="unknown",
        sections=everything,
        sets=everything,
        chips=everything,
        per_launch_config=True,
        flags=everything,
    )


@functools.lru_cache(maxsize=16)
def _version(executable: str, _stamp: int) -> str:
    answer = run_probe([executable, "--version"])
    text = parse_version_text(answer.text)
    if text is None:
        raise ToolError(
            f"{executable} does not answer as Nsight Compute: {one_line(answer.tail(3))[:400] or answer.ended}",
            hint="check that the file is Nsight Compute's ncu and that it runs by hand",
        )
    return text


@functools.lru_cache(maxsize=16)
def _probe(executable: str, stamp: int) -> NcuCapabilities:
    text = _version(executable, stamp)
    usage = run_probe([executable, "--help"]).text
    return NcuCapabilities(
        executable=executable,
        version=tuple(int(part) for part in text.split(".") if part.isdigit()),
        version_text=text,
        sections=parse_table(run_probe([executable, "--list-sections"]).text),
        sets=parse_table(run_probe([executable, "--list-sets"]).text),
        chips=parse_chips(run_probe([executable, "--list-chips"]).text),
        per_launch_config="per-launch-config" in usage,
        flags=frozenset(re.findall(r"--([a-z][a-z0-9-]+)", usage)),
    )


def device_metrics(executable: Path | str) -> frozenset[str]:
    """Return the base names of the metrics of the GPU in this machine; empty without one."""
    return _metrics(str(executable), ())


def known_metrics(executable: Path | str, chips: tuple[str, ...]) -> frozenset[str]:
    """Return the base names of all metrics of these chips; empty if ncu cannot list them. Needs no GPU."""
    if not chips:
        return frozenset()
    return _metrics(str(executable), chips)


@functools.lru_cache(maxsize=32)
def _metrics(executable: str, chips: tuple[str, ...]) -> frozenset[str]:
    argv = [executable, "--query-metrics", *(["--chips", ",".join(chips)] if chips else [])]
    return parse_metrics(run_probe(argv, timeout_s=_QUERY_TIMEOUT_S).text)


def parse_version_text(text: str) -> str | None:
    """Return ``2024.2.0.0`` of ncu's version banner."""
    match = re.search(r"Nsight Compute[\s\S]*?Version\s+(\d[\d.]*)", text)
    return match.group(1) if match else None


def parse_table(text: str) -> frozenset[str]:
    """Return the identifiers (first column) of ``--list-sections`` and ``--list-sets``."""
    lines = re.findall(r"^([A-Za-z]\w*)\s{2,}\S|^([A-Za-z]\w*)\s+\S+.*\b(?:yes|no)\b", text, re.MULTILINE)
    names = {first or second for first, second in lines}
    return frozenset(names - {"Identifier"})


def parse_chips(text: str) -> frozenset[str]:
    """Return the names of ``--list-chips``."""
    return frozenset(re.findall(r"\b[a-z]{2}\d[0-9a-z]{2}\b", text))


def parse_metrics(text: str) -> frozenset[str]:
    """Return the metric names of ``--query-metrics``."""
    return frozenset(re.findall(r"^([A-Za-z]\w*__\w+)\s", text, re.MULTILINE))
