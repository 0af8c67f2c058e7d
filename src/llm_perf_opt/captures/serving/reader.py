"""Read serving records: the format of a file is detected from its content."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from llm_perf_opt.captures.serving.clients import (
    CLIENT_FORMATS,
    ClientContent,
    is_inference_perf,
    read_inference_perf,
)
from llm_perf_opt.captures.serving.engines import (
    ENGINE_FORMATS,
    EngineContent,
    is_own_steps,
    is_prometheus,
    is_vllm_log,
    read_own_steps,
    read_prometheus,
    read_vllm_log,
    sample_table,
)
from llm_perf_opt.captures.serving.records import OK, LoadRecord, Requests, ServingRecords, join_requests
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import (
    DOCUMENT_VARIABLE,
    UNPACK_VARIABLE,
    most_document_bytes,
    most_unpacked,
    read_input,
)

_HINT = (
    "known: results of vllm bench, sglang bench_serving, aiperf, guidellm, inference-perf, OTLP spans, Mooncake traces, "
    "serve/requests.jsonl, serve/steps.jsonl, vLLM statistics and step logs, forward-pass metrics, /metrics"
)
_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".txt", ".log")
MOST_LOADS = 500
"""Load points of one command; each is compared with all requests and drawn by itself."""
_EMPTY_HINT = "record the load again: nothing was measured"
_HEAD_BYTES = 1 << 16
_OWN_STEP_KIND = "llm-perf-opt steps"


def read_serving(paths: Sequence[Path], *, optional: Sequence[Path] = ()) -> ServingRecords:
    """Read files, or the known files of folders, into one set of records; a damaged file of ``optional`` gives a note."""
    records = ServingRecords()
    tables: list[Requests] = []
    offsets: list[int] = []
    for path in (*paths, *optional):
        files = _files_of(path)
        for file in files:
            try:
                _read_one(file, records, tables, offsets)
            except InputError as error:
                if path in optional:
                    records.notes.append(f"{file.name} could not be read: {error.message}")
                    continue
                if file == path:
                    raise
                records.notes.append(f"{file.name} in {path.name} is not a serving record and was not read.")
        if path.is_dir() and not records.kinds:
            raise InputError(f"{path} contains no serving record", hint=_HINT, path=str(path))
    records.requests = join_requests(tables, offsets)
    _merge_server_metrics(records)
    _merge_aiperf(records)
    _note_duplicates(records)
    records.notes = list(dict.fromkeys(records.notes))
    return records


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(one for one in path.iterdir() if one.is_file() and one.name.endswith(_SUFFIXES))
    if not found:
        raise InputError(f"{path} contains no serving record", hint=_HINT, path=str(path))
    return found


def _read_one(path: Path, records: ServingRecords, tables: list[Requests], offsets: list[int]) -> None:
    found = _detect(path)
    if isinstance(found.content, EngineContent):
        engine = found.content
        found.read()
        if len(engine.rows):
            records.steps.append(engine.rows.table())
        if engine.samples:
            records.samples.append(sample_table(engine.samples))
        if not len(engine.rows) and not engine.samples:
            raise InputError(
                f"{path} ({found.kind}) contains no step and no sample", hint=_EMPTY_HINT, path=str(path)
            )
        records.engine, records.version = records.engine or engine.engine, records.version or engine.version
        records.notes += [f"{path.name}: {note}" for note in engine.notes]
    else:
        client = found.content
        found.read()
        if not client.loads:
            raise InputError(f"{path} ({found.kind}) contains no result", hint=_EMPTY_HINT, path=str(path))
        if len(client.rows):
            tables.append(client.rows.table())
            offsets.append(len(records.loads))
            if client.rows.bad_times:
                client.notes.append(f"{client.rows.bad_times} token times are impossible or out of order.")
        elif found.kind in _REQUEST_FORMATS:
            raise InputError(f"{path} ({found.kind}) contains no request", hint=_EMPTY_HINT, path=str(path))
        records.loads += client.loads
        if len(records.loads) > MOST_LOADS:
            raise InputError(
                f"{path} holds {len(client.loads):,} load points, which makes more than {MOST_LOADS:,}",
                hint="give the results of fewer load points at a time",
                path=str(path),
            )
        records.trace = records.trace or client.trace
        records.client_capacity_per_s = records.client_capacity_per_s or client.capacity_per_s
        records.slo |= client.slo
        records.definitions |= client.definitions
        records.disaggregated += client.disaggregated
        records.transfers_s += client.transfers_s
        records.engine, records.version = records.engine or client.engine, records.version or client.version
        records.notes += [f"{path.name}: {note}" for note in client.notes]
    records.kinds.append(found.kind)
    records.notes += [f"{path.name}: {note}" for note in found.lines.notes()]


_REQUEST_FORMATS = {
    "llm-perf-opt requests",
    "aiperf requests",
    "inference-perf requests",
    "chunk times",
    "OTLP spans",
}


@dataclass(slots=True)
class _Detected:
    kind: str
    content: ClientContent | EngineContent
    lines: _Objects
    stem: str = ""

    def read(self) -> None:
        """Read the whole file into its content."""
        if isinstance(self.content, EngineContent):
            if self.kind == "vLLM step log":
                read_vllm_log(self.lines.text_lines(), self.content)
            elif self.kind == _OWN_STEP_KIND:
                read_own_steps(self.lines.raw_lines(), self.content)
            elif self.kind == "Prometheus text":
                read_prometheus(self.lines.text_lines(), self.content)
            else:
                lists = self.kind == "forward-pass metrics"
                ENGINE_FORMATS[self.kind][1](self.lines.objects(any_value=lists), self.content)
        elif self.kind == "inference-perf":
            read_inference_perf(self.lines.objects(), self.content, self.stem)
        else:
            CLIENT_FORMATS[self.kind][1](self.lines.objects(), self.content)


def _detect(path: Path) -> _Detected:
    data = _content(path)
    lines = _Objects(path, data)
    head = data[:_HEAD_BYTES].lstrip()
    if not head:
        raise InputError(f"{path} is empty", hint=_EMPTY_HINT, path=str(path))
    # A line of a log may begin as JSON does: "[core.py:349] Iteration(…): …".
    if head[:1] not in (b"{", b"[") or is_vllm_log(head.decode("utf-8", errors="replace")):
        return _detect_text(path, data, lines)
    first = lines.first()
    if is_own_steps(first):
        return _Detected(_OWN_STEP_KIND, EngineContent(), lines)
    if is_inference_perf(first):
        return _Detected("inference-perf", ClientContent(), lines, path.name.split(".")[0])
    for kind, (matches, _) in CLIENT_FORMATS.items():
        if matches(first):
            return _Detected(kind, ClientContent(), lines)
    for kind, (known, _) in ENGINE_FORMATS.items():
        if known(first):
            return _Detected(kind, EngineContent(), lines)
    raise InputError(f"{path} is JSON, but not a serving record", hint=_HINT, path=str(path))


def _detect_text(path: Path, data: bytes, lines: _Objects) -> _Detected:
    if is_vllm_log(data.decode("utf-8", errors="replace")):
        return _Detected("vLLM step log", EngineContent(), lines)
    if is_prometheus(data[:_HEAD_BYTES].decode("utf-8", errors="replace")):
        return _Detected("Prometheus text", EngineContent(), lines)
    raise InputError(f"{path} is not a serving record", hint=_HINT, path=str(path))


def _content(path: Path) -> bytes:
    data = read_input(path)
    if data[:2] != b"\x1f\x8b":
        return data
    most = min(most_document_bytes(), len(data) * most_unpacked())
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            unpacked = stream.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path} is a damaged gzip file: {error}", hint="copy the whole file again", path=str(path)
        ) from error
    if len(unpacked) > most:
        raise InputError(
            f"{path} unpacks to more than {most} bytes",
            hint=f"if that is right, set {UNPACK_VARIABLE} or {DOCUMENT_VARIABLE} to more",
            path=str(path),
        )
    return unpacked


class _Objects:
    """The JSON values of a file: one document, a list, one value per line, or several concatenated values."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path = path
        self._data = data
        self._whole: list[Any] | None = None
        self._by_line = False
        self._bad_lines = 0
        self._cut_off = False
        self._not_objects = 0

    def text_lines(self) -> Iterator[str]:
        """Yield the lines of a text file."""
        return (line.decode("utf-8", errors="replace") for line in io.BytesIO(self._data))

    def raw_lines(self) -> Iterator[bytes]:
        """Yield the lines of a file whose reader decodes them itself."""
        return iter(io.BytesIO(self._data.lstrip()))

    def first(self) -> Any:
        """Return the first value, which identifies the format; for a list its first element."""
        try:
            self._set_whole(msgspec.json.decode(self._data))
        except RecursionError as error:
            raise self._damaged("nested too deeply") from error
        except ValueError:  # msgspec.DecodeError is one
            self._whole = None
        if self._whole is not None:
            return self._whole[0]
        for line in io.BytesIO(self._data):
            if not line.strip():
                continue
            value = _decode(line)
            if value is not None:
                self._by_line = True
                return value
            break
        self._whole = self._one_after_the_other()
        return self._whole[0]

    def _set_whole(self, value: Any) -> None:
        # A positional forward-pass record is a list by itself; lists of records hold objects or lists.
        is_list = isinstance(value, list) and all(isinstance(one, dict | list) for one in value[:8]) and value
        self._whole = value if is_list else [value]

    def _one_after_the_other(self) -> list[Any]:
        """Read ``{…}{…}`` and JSON with NaN, as written by Python; the last value may be truncated."""
        text = self._data.decode("utf-8", errors="replace")
        decoder = json.JSONDecoder(parse_constant=lambda _: None)
        values, place = [], 0
        try:
            while place < len(text):
                while place < len(text) and text[place].isspace():
                    place += 1
                if place == len(text):
                    break
                value, place = decoder.raw_decode(text, place)
                values.append(value)
        except RecursionError as error:
            raise self._damaged("nested too deeply") from error
        except ValueError as error:
            if not values:
                raise self._damaged(str(error)) from error
            self._cut_off = True
        if len(values) == 1 and isinstance(values[0], list) and values[0]:
            return list(values[0])
        if not values:
            raise self._damaged("no value")
        return values

    def _damaged(self, reason: str) -> InputError:
        return InputError(
            f"{self._path} is not valid JSON: {reason}",
            hint="the file may be cut off: read a whole one",
            path=str(self._path),
        )

    def objects(self, *, any_value: bool = False) -> Iterator[Any]:
        """Yield the values; those that are not objects are counted and left out, unless ``any_value``."""
        for value in self._values():
            if isinstance(value, dict) or (any_value and isinstance(value, list)):
                yield value
            else:
                self._not_objects += 1

    def _values(self) -> Iterator[Any]:
        if not self._by_line:
            yield from self._whole or ()
            return
        last_bad = False
        good = 0
        for line in io.BytesIO(self._data):
            if not line.strip():
                continue
            value = _decode(line)
            last_bad = value is None
            if value is None:
                self._bad_lines += 1
            else:
                good += 1
                yield value
        self._cut_off = last_bad
        self._bad_lines -= last_bad
        if self._bad_lines > good:
            raise self._damaged(f"{self._bad_lines} of {good + self._bad_lines} lines are not JSON")

    def notes(self) -> Iterable[str]:
        """Describe what was left out."""
        if self._cut_off:
            yield "the last record is cut off and is left out."
        if self._bad_lines:
            yield f"{self._bad_lines} lines are not valid JSON and are left out."
        if self._not_objects:
            yield f"{self._not_objects} values are not records and are left out."


def _decode(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except RecursionError:
        return None
    except ValueError:
        pass
    try:
        return json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def _merge_server_metrics(records: ServingRecords) -> None:
    """Add the server's metrics of a stage to the load point of the same name; totals are dropped if there are stages."""
    used = set(np.unique(records.requests.load).tolist()) if records.requests is not None else set()
    by_label: dict[str | None, LoadRecord] = {}
    kept: list[LoadRecord] = []
    renumbered: dict[int, int] = {}
    stages = any(not one.is_total and one.point.requests for one in records.loads)
    for number, load in enumerate(records.loads):
        point = load.point
        server_only = bool(point.server) and point.requests is None and number not in used
        same = by_label.get(point.label) if point.tool == "inference-perf" else None
        if load.is_total and stages and number not in used:
            continue
        if same is not None and server_only:
            same.point.server |= point.server
            continue
        if same is not None and bool(same.point.server) and same.point.requests is None:
            same.point, point.server = point, {**same.point.server, **point.server}
            continue
        if point.tool == "inference-perf":
            by_label.setdefault(point.label, load)
        renumbered[number] = len(kept)
        kept.append(load)
    if records.requests is not None and renumbered != {k: k for k in range(len(records.loads))}:
        places = np.array([renumbered.get(k, 0) for k in range(len(records.loads))], np.int32)
        records.requests.load = places[records.requests.load]
    records.loads = kept


def _merge_aiperf(records: ServingRecords) -> None:
    """Merge aiperf's summary, which has the configured load, with the requests of the same run."""
    if records.requests is None:
        return
    counts = np.bincount(records.requests.load[records.requests.status == OK], minlength=len(records.loads))
    own = [
        k
        for k, load in enumerate(records.loads)
        if load.point.tool == "aiperf" and load.point.kind is None and counts[k]
    ]
    sums = [
        k
        for k, load in enumerate(records.loads)
        if load.point.tool == "aiperf" and load.point.completed and not counts[k]
    ]
    dropped = set()
    for k in sums:
        summary = records.loads[k]
        same = next((n for n in own if counts[n] == summary.point.completed), None)
        if same is None:
            continue
        own.remove(same)
        dropped.add(k)
        held = records.loads[same]
        for name in ("kind", "rate_per_s", "concurrency", "label"):
            setattr(held.point, name, getattr(summary.point, name))
        held.is_complete, held.incomplete_reason = summary.is_complete, summary.incomplete_reason
    if dropped:
        places = np.cumsum([k not in dropped for k in range(len(records.loads))]) - 1
        records.requests.load = places[records.requests.load].astype(np.int32)
        records.loads = [load for k, load in enumerate(records.loads) if k not in dropped]


def _note_duplicates(records: ServingRecords) -> None:
    if records.requests is None:
        return
    extra = len(records.requests.id) - len(set(records.requests.id))
    if extra:
        records.notes.append(
            f"{extra} request ids occur more than once; such requests are matched by time only."
        )
