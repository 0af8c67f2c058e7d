"""A trace read by several processes gives what reading it in one go gives, or is read in one go."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_perf_opt.captures.kineto import reader
from llm_perf_opt.captures.kineto.columns import Columns, NeedsExactTimes
from llm_perf_opt.captures.kineto.decode import BadPiece
from llm_perf_opt.captures.kineto.parts import read_in_parts
from llm_perf_opt.captures.kineto.parts_worker import part_events
from llm_perf_opt.captures.kineto.stream import EventStream
from llm_perf_opt.core.errors import InputError

EVENTS = 1500


def event(number: int, **more: Any) -> dict[str, Any]:
    """One of a mix: operators, calls, kernels, ranges, memory; names that begin late in the file too."""
    kind = number % 5
    begin = 10.0 * number
    if kind == 4:
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": begin,
                "args": {"Total Allocated": number, "Device Type": 1, "Device Id": 0}} | more  # fmt: skip
    cat, name, args = [
        ("cpu_op", f"aten::op{number // 400}", {"External id": number}),
        ("cuda_runtime", "cudaLaunchKernel", {"correlation": number}),
        ("kernel", f"kernel {number // 300}", {"correlation": number - 1, "device": 0, "stream": 7}),
        ("user_annotation", f"range {number // 500}", {}),
    ][kind]
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1 + number // 700, "ts": begin, "dur": 5.5,
            "args": args} | more  # fmt: skip


def write(path: Path, events: list[dict[str, Any]], *, indent: int | None = 2, world: int = 2) -> Path:
    names = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1 + n, "args": {"name": f"thread {n}"}}
        for n in range(3)
    ]
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 0, "world_size": world},
        "traceEvents": [*events[:700], *names, *events[700:]],
        "traceName": "trace.json",
    }
    path.write_text(json.dumps(document, indent=indent))
    return path


def in_one_go(path: Path) -> tuple[EventStream, Columns]:
    stream, columns = EventStream(path), Columns()
    for events in stream:
        columns.add(events)
    return stream, columns


def named(columns: Columns, name: str, values: Any) -> Any:
    """Numbers of names and threads stand for them; in what order they were met does not matter."""
    keys = {"name": columns.names, "thread": columns.threads, "rank": columns.ranks}.get(name)
    return values if keys is None else np.array([str(key) for key in keys] or [""])[values]


def same(left: tuple[EventStream, Columns], right: tuple[EventStream, Columns]) -> None:
    for name, table in left[1].tables().items():
        other = right[1].tables()[name]
        for column in table.names():
            ours, theirs = (
                named(one[1], column, its.take(column)) for one, its in ((left, table), (right, other))
            )
            np.testing.assert_array_equal(ours, theirs, err_msg=f"{name}.{column}")
    for fact in ("thread_names", "counts", "overhead_ns", "impossible", "timed"):
        assert getattr(left[1], fact) == getattr(right[1], fact), fact
    for ids in ("names", "threads", "ranks"):
        assert sorted(map(str, getattr(left[1], ids))) == sorted(map(str, getattr(right[1], ids)))
    assert left[0].metadata == right[0].metadata
    assert left[0].text_bytes == right[0].text_bytes
    described = [sorted(map(str, one[0].collectives.found)) for one in (left, right)]
    assert described[0] == described[1]


@pytest.mark.parametrize("indent", [None, 2])
def test_parts_give_what_one_go_gives(tmp_path: Path, indent: int | None) -> None:
    path = write(tmp_path / "trace.json", [event(number) for number in range(EVENTS)], indent=indent)

    found = read_in_parts(path, 3)

    assert found is not None
    same(found, in_one_go(path))


def test_collectives_of_all_parts_are_kept(tmp_path: Path) -> None:
    described = {
        "args": {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float", "Group size": 2}
    }
    path = write(tmp_path / "t.json", [event(n, **(described if n % 5 == 2 else {})) for n in range(EVENTS)])

    found = read_in_parts(path, 2)

    assert found is not None
    assert len(found[0].collectives.found) == EVENTS // 5
    same(found, in_one_go(path))


def rows(capture: reader.KinetoCapture) -> list[tuple[Any, ...]]:
    table, names = capture.operators, capture.timeline.names
    columns = [getattr(table, field.name).tolist() for field in dataclasses.fields(table)]
    assert dataclasses.fields(table)[0].name == "name"
    return sorted((names[row[0]], *row[1:]) for row in zip(*columns, strict=True))


def test_a_capture_is_the_same_when_its_file_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "trace.json", [event(number) for number in range(EVENTS)])
    whole = reader.read_kineto(path)
    monkeypatch.setattr(reader, "read_in_parts", lambda path: read_in_parts(path, 2))

    parts = reader.read_kineto(path)

    assert parts.facts == whole.facts
    assert rows(parts) == rows(whole)


def test_a_cut_inside_a_name_is_noticed(tmp_path: Path) -> None:
    """The guess finds ``},{`` inside a string; the process before it cannot end there, so the file is read in one go."""
    sly = "},{" * 3000
    path = write(tmp_path / "t.json", [event(n, name=sly) for n in range(60)], indent=None)

    assert read_in_parts(path, 2) is None
    assert reader.read_kineto(path).facts["events"] == 63


def test_a_cut_inside_a_nested_list_is_noticed(tmp_path: Path) -> None:
    nested = {"args": {"inner": [{"a": 1}] * 5000}}
    path = write(tmp_path / "t.json", [event(n, **nested) for n in range(20)], indent=None)

    assert read_in_parts(path, 2) is None


@pytest.mark.parametrize("place", [0.2, 0.8])
def test_damage_is_reported_as_before(tmp_path: Path, place: float) -> None:
    path = write(tmp_path / "t.json", [event(n) for n in range(EVENTS)])
    text = path.read_bytes()
    at = text.index(b'"cat"', int(len(text) * place))
    path.write_bytes(text[:at] + b'"cat" "cat"' + text[at + 5 :])

    assert read_in_parts(path, 2) is None
    with pytest.raises(InputError, match=r"byte \d+") as caught:
        reader.read_kineto(path)
    assert caught.value.data["path"] == str(path)


def test_what_was_cut_off_is_reported_as_before(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [event(n) for n in range(EVENTS)])
    path.write_bytes(path.read_bytes()[:-3000])

    assert read_in_parts(path, 2) is None
    with pytest.raises(InputError, match="cut off"):
        reader.read_kineto(path)


def test_times_since_1970_are_read_exactly(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [event(n) | {"ts": 1.7e15 + n} for n in range(EVENTS)])

    with pytest.raises(NeedsExactTimes):
        read_in_parts(path, 2)
    assert reader.read_kineto(path).facts["events"] == EVENTS + 3


def test_small_packed_and_bare_files_are_read_in_one_go(tmp_path: Path) -> None:
    small = write(tmp_path / "t.json", [event(n) for n in range(20)])
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps([event(n) for n in range(EVENTS)]))

    assert read_in_parts(small) is None
    assert read_in_parts(tmp_path / "absent.json") is None
    assert read_in_parts(bare, 2) is None


def test_a_part_that_ends_inside_an_event_is_refused(tmp_path: Path) -> None:
    text = b'{"ph":"X","cat":"kernel"},{"ph":"X","cat":"kernel"},'
    path = tmp_path / "part"
    path.write_bytes(text)
    with path.open("rb") as stream:
        assert len(next(part_events(stream, len(text), None))) == 2
    for length in (len(text) - 3, len(text) + 1):
        with path.open("rb") as stream, pytest.raises(BadPiece):
            list(part_events(stream, length, None))
