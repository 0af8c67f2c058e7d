"""A point of a counted model, and a device, as expected times ask for them: the one place where both are translated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from llm_perf_opt.analysis.expected.calls import At
from llm_perf_opt.analysis.expected.compose import Target
from llm_perf_opt.analysis.expected.estimate import Tables
from llm_perf_opt.analysis.roofline.demand import Point
from llm_perf_opt.model.summary import Peak, Static

_EIGHT_BITS = 1.0
"""Bytes per cached element that only a choice of its own gives."""
_TIMED_BLOCK = [128, 128]
"""The one size of blocks that tables have."""


class DeviceLimits(Protocol):
    """What is needed of a catalogue entry."""

    @property
    def name(self) -> str:
        """Name for the table."""
        ...

    @property
    def peaks(self) -> Mapping[str, Peak]:
        """Data type → dense peak."""
        ...

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Memory bandwidth."""
        ...

    @property
    def memory_bytes(self) -> float | None:
        """Memory size."""
        ...

    @property
    def link_bytes_per_s(self) -> float | None:
        """Bandwidth to other devices of the machine, one direction."""
        ...


def at_point(static: Static, point: Point, ranks: int | None = None) -> At:
    """Return where a time is asked for; ``ranks``: instead of the point's own devices."""
    return At(
        point.batch_size,
        point.prompt_tokens,
        point.context_tokens,
        _table_dtype(static, point),
        cache_dtype(static, point),
        ranks or point.tensor_parallel,
    )


def _table_dtype(static: Static, point: Point) -> str:
    """Return the type of weights as tables tell them apart: products with scales by block have kernels of their own."""
    own = static.quantisation
    if own is None or (own.dtype, own.compute_dtype) != ("float8", "float8") or point.dtype != "float8":
        return point.dtype
    return "fp8_block" if own.block == _TIMED_BLOCK else point.dtype


def cache_dtype(static: Static, point: Point) -> str:
    """Return the type keys and values are kept in: as floors take it."""
    own, scaling = static.quantisation, static.scaling
    if own is not None and point.dtype == own.dtype and own.cache_dtype is not None:
        return own.cache_dtype
    cached = scaling.cache_element_bytes if scaling is not None else None
    if cached is not None and cached <= _EIGHT_BITS:
        return "float8"
    is_own = own is not None and point.dtype == own.dtype
    return "float8" if point.dtype == "float8" and not is_own else "bfloat16"


def device_target(device: DeviceLimits, tables: Tables) -> Target:
    """Return a device of the catalogue as times are asked for it."""
    link = device.link_bytes_per_s
    return target_of(device.name, device.peaks, device.bandwidth_bytes_per_s, link, tables)


def target_of(
    name: str,
    peaks: Mapping[str, Peak],
    bandwidth_bytes_per_s: float | None,
    link_bytes_per_s: float | None,
    tables: Tables | None,
) -> Target:
    """Return a device as times are asked for it."""
    per_machine = tables.devices_per_machine(name) if tables is not None else None
    return Target(name, peaks, bandwidth_bytes_per_s, link_bytes_per_s, per_machine)
