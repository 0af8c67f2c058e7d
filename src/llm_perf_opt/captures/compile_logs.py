"""What ``torch.compile`` did, from its own logs: ``TORCH_LOGS`` text, ``TORCH_TRACE`` files, and folders that tlparse wrote.

A compilation has an id ``frame/version``: version 0 is the first of a function, higher ones are recompilations. Every source
has another part (a log the cause, a trace the time), so events are joined by id later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from llm_perf_opt.core.errors import InputError

Kind = Literal["compilation", "graph break", "limit reached"]
MOST_BYTES = 1 << 30
_MOST_EVENTS = 20_000
_MOST_CAUSE = 400
_PREFIX = re.compile(
    r"^(?:\[rank\d+\]:?\s?)?(?:[VDIWEC]\d{4} (?P<time>\d\d:\d\d:\d\d[.]\d+) \d+ \S+:\d+\] ?"
    r"|\[\d{4}-\d\d-\d\d (?P<old>\d\d:\d\d:\d\d,\d+)\] (?=\[|torch))(?P<rest>.*)$"
)
_ID = re.compile(r"^\[(?:!\d+/)?(\d+/\d+)(?:_\d+)?\] ?")
_TAG = re.compile(r"^(?:\[__\w+\] ?|torch[\w.]*: \[\w+\] )")
_BREAK = re.compile(r"^Graph break(?: \([^()]*\))? in user code at (?P<place>\S.*:\d+)")
_OLD_BREAK = re.compile(
    r"^Graph break: (?P<cause>.+?) from user code at:?(?:\s+File \"(?P<file>[^\"]+)\", line (?P<line>\d+))?"
)
_RECOMPILE = re.compile(r"^Recompiling function (?P<name>\S+) in (?P<place>\S.*:\d+)")
_GUARD = re.compile(r"^\s*- (?:\d+/\d+: )?(?P<cause>\S.*)$")
_REASON = re.compile(r"^\s*(?:Graph Break Reason|Reason|Explanation): (?P<cause>.+)$")
_LIMIT = re.compile(r"hit config\.(?:accumulated_)?(?:recompile_limit|cache_size_limit) \((?P<limit>\d+)\)")
_FUNCTION = re.compile(r"^\s*function: '(?P<name>[^']+)' \((?P<place>[^()]+)\)")
_LAST = re.compile(r"^\s*last reason: (?:\d+/\d+: )?(?P<cause>.+)$")
_FOLDER = re.compile(r"(?:^|_)(\d+)_(\d+)(?:_\d+)?$")


@dataclass(frozen=True, slots=True)
class CompileEvent:
    """One event of ``torch.compile``."""

    kind: Kind
    compile_id: str | None = None
    """``frame/version``."""
    place: str | None = None
    """``function (file:line)``."""
    cause: str | None = None
    at_s: float | None = None
    """Since the first line of the log, or the first event of the trace."""
    seconds: float | None = None
    steady: bool | None = None
    """Whether the function had run compiled before, more than once; ``None``: the source does not tell."""

    @property
    def version(self) -> int | None:
        """Return how often its function had been compiled before; ``None``: not known."""
        return int(self.compile_id.rpartition("/")[2]) if self.compile_id else None

    @property
    def is_recompilation(self) -> bool:
        """Whether a function is compiled again."""
        return self.kind == "compilation" and bool(self.version)


def read_compile_log(path: Path) -> list[CompileEvent]:
    """Read a log, a structured trace, or a folder of them; reject input without events of ``torch.compile``."""
    if path.is_dir():
        logs = sorted(path.glob("dedicated_log_torch_trace*.log")) or sorted(path.glob("raw.log"))
        found = [event for log in logs for event in _read_file(log)]
        if not any(event.cause for event in found):
            found += _artefacts(path)
    else:
        found = list(_read_file(path))
    if not found:
        raise InputError(
            f"{path} contains no graph break, recompilation or compilation",
            hint="give the output of a program run with TORCH_LOGS=graph_breaks,recompiles, a file of TORCH_TRACE=DIR, or the "
            "folder that tlparse wrote",
            path=str(path),
        )
    return join_events(found)


def join_events(events: Iterable[CompileEvent]) -> list[CompileEvent]:
    """Merge events from several sources: compilations by id, breaks by id and place."""
    found: dict[object, CompileEvent] = {}
    for number, event in enumerate(events):
        if event.compile_id is None:
            key: object = number
        elif event.kind == "compilation":
            key = (event.kind, event.compile_id)
        else:
            key = (event.kind, event.compile_id, event.place)
        known = found.get(key)
        found[key] = event if known is None else _joined(known, event)
    return list(found.values())


def _joined(one: CompileEvent, other: CompileEvent) -> CompileEvent:
    def first(name: str) -> Any:
        value = getattr(one, name)
        return getattr(other, name) if value is None else value

    return CompileEvent(
        one.kind, one.compile_id, *(first(name) for name in ("place", "cause", "at_s", "seconds", "steady"))
    )


def _read_file(path: Path) -> Iterator[CompileEvent]:
    if path.stat().st_size > MOST_BYTES:
        raise InputError(
            f"{path} is larger than {MOST_BYTES >> 30} GiB",
            hint="record fewer logs: TORCH_LOGS=graph_breaks,recompiles",
            path=str(path),
        )
    with path.open(encoding="utf-8", errors="replace") as lines:
        parser = _Parser()
        for count, event in enumerate(parser.events(lines)):
            if count >= _MOST_EVENTS:
                raise InputError(
                    f"{path} holds more than {_MOST_EVENTS:,} events of torch.compile",
                    hint="give the log of a shorter run",
                    path=str(path),
                )
            yield event


@dataclass(slots=True)
class _Parser:
    """Parses a log line by line; an event is complete when the next one begins."""

    origin_s: float | None = None
    open: CompileEvent | None = None
    structured: dict[str, Any] | None = None
    payload: list[str] = field(default_factory=list)

    def events(self, lines: Iterable[str]) -> Iterator[CompileEvent]:
        for line in lines:
            if line.startswith("\t"):
                if self.structured is not None and len(self.payload) < 64:
                    self.payload.append(line[1:].rstrip("\n")[:4096])
                continue
            yield from self._close_structured()
            matched = _PREFIX.match(line.rstrip("\n"))
            if matched is None:
                continue  # output of the program itself
            at_s = self._time(matched["time"] or matched["old"].replace(",", "."))
            rest = matched["rest"]
            if rest.startswith("{"):
                yield from self._begin_structured(rest, at_s)
                continue
            yield from self._text(rest, at_s)
        yield from self._close_structured()
        if self.open is not None:
            yield self.open

    def _time(self, text: str) -> float:
        hours, minutes, seconds = text.split(":")
        clock = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
        if self.origin_s is None:
            self.origin_s = clock
        return (clock - self.origin_s) % 86_400

    def _text(self, rest: str, at_s: float) -> Iterator[CompileEvent]:
        compile_id = None
        if matched := _ID.match(rest):
            compile_id, rest = matched[1], rest[matched.end() :]
        if matched := _TAG.match(rest):
            rest = rest[matched.end() :]
        begun = _begins(rest, compile_id, at_s)
        if begun is not None:
            if self.open is not None:
                yield self.open
            self.open = begun
        elif self.open is not None:
            self.open = _more(self.open, rest)

    def _begin_structured(self, text: str, at_s: float) -> Iterator[CompileEvent]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return
        metrics = found.get("compilation_metrics") if isinstance(found, dict) else None
        if isinstance(metrics, dict):
            yield _by_metrics(metrics, at_s)
            return
        artefact = found.get("artifact") if isinstance(found, dict) else None
        name = artefact.get("name") if isinstance(artefact, dict) else None
        if name in ("dynamo_graph_break_reason", "recompile_reasons"):
            self.structured = {"name": name, "id": _id_of(found), "at": at_s}

    def _close_structured(self) -> Iterator[CompileEvent]:
        if self.structured is not None:
            yield _by_payload(
                self.structured["name"], self.structured["id"], self.payload, self.structured["at"]
            )
            self.structured, self.payload = None, []


def _begins(rest: str, compile_id: str | None, at_s: float) -> CompileEvent | None:
    if matched := _BREAK.match(rest):
        return CompileEvent("graph break", compile_id, matched["place"], at_s=at_s)
    if matched := _OLD_BREAK.match(rest):
        place = f"{matched['file']}:{matched['line']}" if matched["file"] else None
        return CompileEvent("graph break", compile_id, place, _short(matched["cause"]), at_s)
    if matched := _RECOMPILE.match(rest):
        return CompileEvent("compilation", compile_id, _place(matched["name"], matched["place"]), at_s=at_s)
    if matched := _LIMIT.search(rest):
        return CompileEvent("limit reached", compile_id, cause=None, at_s=at_s)
    return None


def _more(event: CompileEvent, rest: str) -> CompileEvent:
    """Take the cause from the lines that follow; an explanation replaces the preceding reason."""
    if event.kind == "limit reached":
        if matched := _FUNCTION.match(rest):
            return replace(event, place=_place(matched["name"], matched["place"]))
        matched = _LAST.match(rest)
        return replace(event, cause=_short(matched["cause"])) if matched else event
    if event.kind == "graph break":
        if matched := _REASON.match(rest):
            explains = rest.lstrip().startswith("Explanation")
            return (
                replace(event, cause=_short(matched["cause"])) if explains or event.cause is None else event
            )
        return event
    if event.cause is None and (matched := _GUARD.match(rest)) and "User stack trace" not in rest:
        return replace(event, cause=_short(matched["cause"]))
    return event


def _by_metrics(metrics: dict[str, Any], at_s: float) -> CompileEvent:
    seconds = metrics.get("entire_frame_compile_time_s")
    name, file, line = (metrics.get(key) for key in ("co_name", "co_filename", "co_firstlineno"))
    began = at_s - seconds if isinstance(seconds, float) else at_s
    return CompileEvent(
        "compilation",
        _valid_id(metrics.get("compile_id")),
        _place(name, f"{file}:{line}") if name and file else None,
        at_s=max(0.0, began),
        seconds=float(seconds) if isinstance(seconds, (int, float)) else None,
    )


def _by_payload(name: str, compile_id: str | None, payload: list[str], at_s: float | None) -> CompileEvent:
    if name == "recompile_reasons":
        lines = [line.strip().strip('[]",') for line in payload if line.strip().strip('[]",')]
        cause = re.sub(r"^\d+/\d+: ", "", lines[0]) if lines else None
        return CompileEvent("compilation", compile_id, None, _short(cause) if cause else None, at_s)
    event = CompileEvent("graph break", compile_id, at_s=at_s)
    for line in payload:
        matched = _BREAK.match(line)
        event = replace(event, place=matched["place"]) if matched else _more(event, line)
    return event


def _artefacts(folder: Path) -> Iterator[CompileEvent]:
    """Read the files that tlparse wrote for each compilation: ``…_<frame>_<version>_<attempt>/<artefact>``."""
    for name in ("dynamo_graph_break_reason", "recompile_reasons"):
        for count, path in enumerate(sorted(folder.glob(f"**/{name}*"))):
            matched = _FOLDER.search(path.parent.name)
            if matched is None or not path.is_file() or count >= _MOST_EVENTS or path.suffix == ".html":
                continue
            with path.open(encoding="utf-8", errors="replace") as text:
                lines = text.read(1 << 16).splitlines()
            yield _by_payload(name, f"{matched[1]}/{matched[2]}", lines, None)


def _id_of(found: dict[str, Any]) -> str | None:
    frame, version = found.get("frame_id"), found.get("frame_compile_id")
    return f"{frame}/{version}" if isinstance(frame, int) and isinstance(version, int) else None


def _valid_id(text: object) -> str | None:
    matched = re.match(r"(?:!\d+/)?(\d+/\d+)", text) if isinstance(text, str) else None
    return matched[1] if matched else None


def _place(name: str, where: str) -> str:
    return f"{name} ({where})"


def _short(text: str) -> str:
    text = re.sub(r"\s{2,}#.*$", "", text).strip()  # guards contain the line of source that created them
    return text if len(text) <= _MOST_CAUSE else f"{text[:_MOST_CAUSE]}…"
