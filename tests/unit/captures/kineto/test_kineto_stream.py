"""The streaming reader gives what a whole-file parse gives, wherever the pieces happen to end."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.captures.kineto.columns import packed_fields, plucked_fields
from llm_perf_opt.captures.kineto.decode import Args, Event, PieceDecoder, microseconds_to_ns, repair
from llm_perf_opt.captures.kineto.stream import EventStream, outline
from tests.unit.kineto_traces import LAYOUTS, write

# Names that look like structure: what a reader that splits on text would trip over.
TRICKY = st.sampled_from(
    ["},{", '"},{"', "]}", "\\", '\\"', "},\n  {", "[{", '"traceEvents": [', "é", "\u2028", "{lambda()#1}"]
)
NAMES = st.lists(TRICKY | st.text(max_size=8), max_size=4).map("".join)
NESTED = st.recursive(
    st.none() | st.integers(-(2**40), 2**40) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "ph": st.just("X"),
            "cat": st.sampled_from(["kernel", "cpu_op", "other"]),
            "name": NAMES,
            "ts": st.integers(0, 2**40),
        },
        optional={"args": st.dictionaries(NAMES, NESTED, max_size=3), "extra": NESTED},
    ),
    max_size=12,
)


@given(
    events=EVENTS,
    layout=st.sampled_from(sorted(LAYOUTS)),
    piece=st.integers(16, 400),
    tail=NESTED,
    bare=st.booleans(),
)
def test_pieces_join_to_the_whole(
    events: list[dict[str, Any]], layout: str, piece: int, tail: Any, bare: bool
) -> None:
    value = {"head": tail, "traceEvents": events, "tail": tail}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        if bare:
            path.write_text(json.dumps(events), encoding="utf-8")
        elif layout == "torch":
            write(path, {"head": tail, "traceEvents": events}, layout)
        else:
            write(path, value, layout)
        stream = EventStream(path, piece_bytes=piece)
        read = [(event.cat, event.name, event.ts) for part in stream for event in part]
    assert read == [(event["cat"], event["name"], float(event["ts"])) for event in events]
    assert stream.warnings == []
    if not bare and layout != "torch":
        assert stream.metadata == {"head": tail, "tail": tail}


@settings(max_examples=2 * settings.default.max_examples)
@given(events=st.lists(NESTED, min_size=1, max_size=5), layout=st.sampled_from([None, 1, "\t"]))
def test_the_outline_finds_the_end_and_the_last_comma(events: list[Any], layout: Any) -> None:
    text = json.dumps(events, indent=layout, ensure_ascii=False).encode("utf-8", errors="surrogatepass")
    behind = b', "deviceProperties": [{"id": 0}, {"id": 1}]}'
    shape = outline(np.frombuffer(text[1:] + behind, dtype=np.uint8))
    assert shape.array_end == len(text) - 2
    if len(events) > 1:
        assert shape.last_comma is not None
        assert len(json.loads(text[: shape.last_comma + 1] + b"]")) == len(events) - 1


@given(st.integers(0, 2**43 * 1000 - 1))
def test_microseconds_become_exact_nanoseconds(nanoseconds: int) -> None:
    text = f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
    assert microseconds_to_ns(np.array([float(text)])).tolist() == [nanoseconds]


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=5))
def test_decimal_times_are_exact_at_any_size(nanoseconds: list[int]) -> None:
    base = min(nanoseconds)
    close = [base + value % (2**43) for value in nanoseconds]
    text = ",".join(f'{{"ph":"X","ts":{ns // 1000}.{ns % 1000:03d}}}' for ns in close)
    decoder = PieceDecoder(exact=True)
    events = decoder.decode(f"[{text}]".encode())
    found = microseconds_to_ns(np.array([event.ts for event in events])) + decoder.origin_us * 1000
    assert found.tolist() == close


@given(
    st.lists(
        st.builds(
            Event,
            cat=st.just("kernel"),
            name=st.floats(0, 1e6),
            pid=st.floats(0, 1e6) | st.text(min_size=8, max_size=8),
            tid=st.floats(0, 1e6),
            ts=st.floats(0, 1e12),
            dur=st.floats(0, 1e6),
            args=st.builds(Args, correlation=st.floats(0, 2**52), bytes=st.floats(0, 2**52)),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_packed_columns_equal_the_attributes(events: list[Event]) -> None:
    packed, plucked = packed_fields(events), plucked_fields(events)
    numeric = all(isinstance(event.pid, float) for event in events)
    assert (packed is not None) == numeric
    if packed is not None:
        assert {name: column.tolist() for name, column in packed.items()} == {
            name: column.tolist() for name, column in plucked.items()
        }


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_mending_does_not_change_what_is_valid(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=True).encode()
    assert json.loads(repair(text)) == value
