"""``static_compute.json``: written by static analysis, read by the summary and by ``ingest --static``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.core.limits import Bytes, Count, Rate, Ratio, SummedSeconds
from llm_perf_opt.summary import MemoryCounts, Operator, Static
from llm_perf_opt.summary.codec import decode_file, from_plain, to_plain
from llm_perf_opt.summary.static import StaticDocument

_HINT = "give a static_compute.json written by the static_analysis stage"


def save_document(path: Path, document: StaticDocument) -> Path:
    """Write the document: the keys of ``summary.static`` at the top level, the document's own next to them."""
    plain = to_plain(document)
    static = plain.pop("static")
    static["source"] = path.name
    head = {"document_version": plain.pop("document_version"), "model": plain.pop("model")}
    return atomic_write_json(path, {**head, **static, **plain})


def load_static(path: Path) -> Static:
    """Read the static model of the summary from a document."""
    static = decode_file(_file(path), Static, hint=_HINT)
    _check_cache(static, path)
    static.source = static.source or path.name
    return static


def _check_cache(static: Static, path: Path) -> None:
    """Reject a cache of less than a byte per position, which would give unlimited positions."""
    per_token = static.kv_bytes_per_token
    if per_token is not None and 0 < per_token < 1:
        raise InputError(
            f"{path}: kv_bytes_per_token: expected 0 or at least 1, got {per_token}",
            hint=_HINT,
            path=str(path),
        )


def load_model_facts(path: Path) -> dict[str, str]:
    """Return model facts of the document: ``name``, ``architecture``, ``dtype``, where known."""
    facts = decode_file(_file(path), dict[str, Any], hint=_HINT).get("model")
    return (
        {key: value for key, value in facts.items() if isinstance(value, str)}
        if isinstance(facts, dict)
        else {}
    )


def load_document(path: Path) -> StaticDocument:
    """Read the whole document, to render its report again."""
    path = _file(path)
    data = decode_file(path, dict[str, Any], hint=_HINT)
    return from_plain(StaticDocument, {**data, "static": data}, str(path), hint=_HINT, path=path)


def _file(path: Path) -> Path:
    return path / layout.STATIC if path.is_dir() else path


# ``telemetry/telemetry.json``: what a device reported during the measured passes, as recorded.


SCHEMA = 1
_TELEMETRY_HINT = "run the telemetry stage again"


@dataclass(slots=True)
class TelemetryColumns:
    """One entry per sample in every column; ``None``: not reported."""

    time_s: list[float]
    """Since the first measured pass began; what is earlier is warm-up."""
    clock_hz: list[Ratio | None]
    power_w: list[Ratio | None]
    temperature_c: list[Ratio | None]
    energy_j: list[Ratio | None]
    """Since some moment: only differences mean something."""
    memory_bytes: list[Bytes | None]
    throttled: list[list[str] | None]


@dataclass(slots=True)
class PhasePeak:
    """Peak memory of one phase."""

    peak_bytes: Bytes
    reserved_bytes: Bytes


@dataclass(slots=True)
class TelemetryDocument:
    """The whole file."""

    schema: int
    device: str
    """Of the run: ``cpu``, ``cuda:0``."""
    columns: TelemetryColumns
    span_s: SummedSeconds
    """Of the measured passes."""
    new_tokens: Count
    """Generated in them, all sequences of a batch."""
    samples: Count
    """Requests answered in them."""
    interval_s: SummedSeconds | None = None
    cost_s: SummedSeconds | None = None
    elapsed_s: SummedSeconds | None = None
    reader: str | None = None
    device_name: str | None = None
    clock_max_hz: Rate | None = None
    power_limit_w: Rate | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """Quantity → why it is not reported; ``all``: nothing is."""
    memory: dict[str, PhasePeak] = field(default_factory=dict)
    memory_counts: MemoryCounts | None = None


def read_telemetry(path: Path) -> TelemetryDocument:
    """Read ``telemetry.json``; :class:`InputError` when it is not one."""
    document = decode_file(path, TelemetryDocument, hint=_TELEMETRY_HINT)
    columns = document.columns
    others = (
        columns.clock_hz,
        columns.power_w,
        columns.temperature_c,
        columns.energy_j,
        columns.memory_bytes,
        columns.throttled,
    )
    if any(len(column) != len(columns.time_s) for column in others):
        raise InputError(f"{path}: columns of different length", hint=_TELEMETRY_HINT)
    if any(later < earlier for earlier, later in zip(columns.time_s, columns.time_s[1:], strict=False)):
        raise InputError(f"{path}: time runs backwards", hint=_TELEMETRY_HINT)
    return document


# ``torch_profiler/profile.json``: what was profiled, and its operators as they were ranked.


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """How the pass was profiled, as far as readers need it."""

    active_passes: Count | None = None


@dataclass(frozen=True, slots=True)
class TorchProfile:
    """The profiled pass of a run."""

    operators: list[Operator]
    """By phase, ranked by ``rank_by``, at most ``max_operators`` of each phase."""
    rank_by: Literal["auto", "self_device", "total_device", "self_cpu", "total_cpu", "calls"]
    max_operators: Count | None
    sample_ids: list[str]
    prompt_tokens: Count
    new_tokens: Count
    profiled_s: SummedSeconds
    """Wall-clock under the profiler; not a measurement of speed."""
    notes: list[str]
    flops_by_operator: dict[str, Count]
    """torch's own count, when it was asked for."""
    trace: str | None
    """Name of the trace next to this file, when it was kept; else ``operators`` has what it said."""
    device: str | None = None
    options: ProfileOptions | None = None

    @property
    def active_passes(self) -> int:
        """Number of recorded passes."""
        return (self.options.active_passes if self.options is not None else None) or 1


def read_profile(path: Path) -> TorchProfile:
    """Read ``profile.json``; :class:`InputError` when it is not one."""
    return decode_file(
        path, TorchProfile, hint="give the profile.json of a run, or run the torch profiler stage again"
    )
