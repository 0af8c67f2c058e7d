"""``summary.json`` on disk."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.limits import SummedSeconds
from llm_perf_opt.summary import SCHEMA_VERSION, Summary
from llm_perf_opt.summary.codec import decode_file, from_plain, save_json, to_plain

# The schema version is ``major.minor``. A minor version adds keys (with defaults, so that older files are still read)
# or changes the meaning of a value; a major version changes the shape and is read by its own releases only.


OLDER_MEANINGS = {
    "1.1": (
        "decode rows of the module ledger are of a whole capture",
        "the batch size is the configured one, which the data may not have filled",
        "communication counts as compute, and several devices as one",
    ),
}
"""Version → what values of a file written before it mean instead. Keys that were only added are not listed."""


def parse_version(version: object) -> tuple[int, int] | None:
    """Return (major, minor); ``None`` for what is no version."""
    parts = [*version.split("."), "0"][:2] if isinstance(version, str) else []
    if not parts or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return None
    return int(parts[0]), int(parts[1])


def is_readable(version: object) -> bool:
    """Say whether a summary of this version can be read: one of our major version, whatever its minor."""
    found, ours = parse_version(version), parse_version(SCHEMA_VERSION)
    return found is not None and ours is not None and found[0] == ours[0]


def older_note(version: str) -> str | None:
    """Return what the reader of an older summary must know; ``None`` when its values mean what ours do."""
    found = parse_version(version)
    if found is None:
        return None
    changed = [
        meaning
        for changed_in, meanings in OLDER_MEANINGS.items()
        if found < (parse_version(changed_in) or found)
        for meaning in meanings
    ]
    return f"Written with schema {version}: {'; '.join(changed)}." if changed else None


def older_notes(summaries: Iterable[Summary]) -> list[str]:
    """Return the notes on those summaries that are older, each once."""
    return sorted({note for summary in summaries if (note := older_note(summary.schema_version)) is not None})


_NEVER_NEGATIVE = ("_s", "_bytes", "_flops", "launches", "_per_token")
_HINT = "give the directory of a finished run"


@dataclass(slots=True)
class _Head:
    """What must be known before the rest can be understood."""

    schema_version: Any = None


@dataclass(slots=True)
class _Event:
    """One event of the drawn step."""

    name: str
    start_s: SummedSeconds
    end_s: SummedSeconds
    family: str | None = None


@dataclass(slots=True)
class _Lane:
    """One lane of it."""

    name: str
    events: list[_Event] = field(default_factory=list)


@dataclass(slots=True)
class _Drawing:
    """``Summary.timeline``: open for further keys, but what is drawn must be drawable."""

    phase: str | None = None
    span_s: SummedSeconds | None = None
    lanes: list[_Lane] = field(default_factory=list)


def save_summary(summary: Summary, folder: Path) -> Path:
    """Write ``summary.json`` into a folder; one with an impossible value is refused, not written."""
    check_summary(summary)
    return save_json(folder / layout.SUMMARY, summary)


def check_summary(summary: Summary) -> None:
    """Raise :class:`InputError` for a value that nothing can have measured, by its place in the summary."""
    try:
        plain = to_plain(summary)
        from_plain(Summary, plain, "summary")
        _check_open_parts(plain["timeline"], plain["metrics"], "summary")
    except (InputError, ValueError) as error:
        message = error.message if isinstance(error, InputError) else str(error)
        raise InputError(
            f"the input contains an impossible value: {message}",
            hint="one of the captures is damaged; leave them out one by one to find it",
        ) from error


def _check_open_parts(drawing: dict[str, Any], metrics: Mapping[str, float | None], where: str) -> None:
    """Check what the types leave open: the drawing, and metrics whose name says that they cannot be negative."""
    from_plain(_Drawing, drawing, f"{where}.timeline", hint=_HINT)
    for name, value in metrics.items():
        if value is not None and value < 0 and name.endswith(_NEVER_NEGATIVE):
            raise InputError(f"{where}.metrics.{name}: expected at least 0, found {value:g}", hint=_HINT)


def load_summary(path: Path) -> Summary:
    """Read ``summary.json`` of a run directory (or the file itself); one of an older schema says so in its notes."""
    path = path / layout.SUMMARY if path.is_dir() else path
    version = decode_file(path, _Head, hint=_HINT).schema_version
    if not is_readable(version):
        shown = version if isinstance(version, str) else reprlib.repr(version)
        raise InputError(
            f"{path} has schema version {shown}, this program reads {SCHEMA_VERSION}",
            hint="render it with the release that wrote it, or run `llm-perf-opt report RUN --reanalyse`",
            path=str(path),
        )
    summary = decode_file(path, Summary, hint=_HINT)
    _check_open_parts(summary.timeline, summary.metrics, str(path))
    note = older_note(summary.schema_version)
    # A summary that was rendered again has been saved with the note.
    if note is not None and note not in summary.notes:
        summary.notes.insert(0, note)
    return summary
