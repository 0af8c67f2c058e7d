"""What silicon was seen to reach: the best measured rate of a device, beside its data sheet's peak.

The figures ship as data (``reached.yaml``), taken from public tables of measured operators, so that nobody needs those
tables to read them. ``docs/hardware.md`` says how they are made and checked.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.core.packaged import packaged_yaml
from llm_perf_opt.hardware.frameworks import framework_name
from llm_perf_opt.model.summary import Peak

_BANDWIDTH = "bandwidth"


@dataclass(frozen=True, slots=True)
class Reached:
    """Best measured rates of one device; what no table holds is absent."""

    flops_per_s: Mapping[str, Peak] = field(default_factory=dict)
    bandwidth_bytes_per_s: float | None = None
    bandwidth_source: str | None = None


def reached_by(device: str, peaks: Mapping[str, Peak]) -> Reached:
    """Return what a device of the catalogue was measured to reach; empty for a device no table knows.

    Tables measure sixteen bits as bfloat16. Where the data sheet gives float16 the same peak, the same was reached.
    """
    content = _content()
    rows: dict[str, dict[str, Any]] = content["devices"].get(device, {})
    package = content["package"]
    found = {
        dtype: Peak(row["rate"] * 1e12, _source(row, package))
        for dtype, row in rows.items()
        if dtype != _BANDWIDTH
    }
    if "bfloat16" in found and _same_peak(peaks, "bfloat16", "float16"):
        found.setdefault("float16", found["bfloat16"])
    streamed = rows.get(_BANDWIDTH)
    if streamed is None:
        return Reached(found)
    return Reached(found, streamed["rate"] * 1e9, _source(streamed, package))


def _same_peak(peaks: Mapping[str, Peak], first: str, second: str) -> bool:
    return first in peaks and second in peaks and peaks[first].dense == peaks[second].dense


def _source(row: Mapping[str, Any], package: str) -> str:
    framework, _, rest = row["by"].partition(" ")
    return f"best measured: {framework_name(framework)} {rest}, {row['shape']} ({package})"


@functools.cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = packaged_yaml("llm_perf_opt.hardware", "reached.yaml")
    return content
