"""The events of one category as columns of numbers.

Taking ten attributes of millions of Python objects one by one costs more than parsing them. So the events of
one category are written as MessagePack in one call: every number is a float of nine bytes and the category
is the same, so all records have one size, and NumPy reads the columns in place. Where that does not hold
(thread ids that are text), the attributes are taken one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from llm_perf_opt.ingest.kineto.events import Args, Event

Column = npt.NDArray[Any]
Fields = Mapping[str, Column]

_ENCODER = msgspec.msgpack.Encoder()
_FLOAT64_TAG = 0xCB
_EVENT_FIELDS = ("name", "pid", "tid", "ts", "dur")


@functools.lru_cache(maxsize=256)
def _record_type(category: str) -> np.dtype[Any]:
    """Layout of one encoded event of a category: where each number lies, and the tags of those that may be text."""
    record = _ENCODER.encode(Event(cat=category, name=0.0))
    behind = {name: _ENCODER.encode(name) for name in _EVENT_FIELDS}
    args = {field.name: _ENCODER.encode(field.encode_name) for field in msgspec.structs.fields(Args)}
    start_of_args = record.index(_ENCODER.encode("args"))
    tags = {name: record.index(key) + len(key) for name, key in behind.items()}
    tags |= {name: record.index(key, start_of_args) + len(key) for name, key in args.items()}
    return np.dtype(
        {
            "names": ["pid_tag", "tid_tag", *tags],
            "formats": ["u1", "u1", *([">f8"] * len(tags))],
            "offsets": [tags["pid"], tags["tid"], *(tag + 1 for tag in tags.values())],
            "itemsize": len(record),
        }
    )


def packed_fields(events: list[Any]) -> Fields | None:
    """Read the columns of events of one category through MessagePack; ``None`` where records differ in size."""
    record = _record_type(events[0].cat)
    text = _ENCODER.encode(events)
    count = len(events)
    header = 1 if count < 1 << 4 else 3 if count < 1 << 16 else 5
    if len(text) != header + count * record.itemsize:
        return None
    rows = np.frombuffer(text, dtype=record, offset=header)
    if not all((rows[tag] == _FLOAT64_TAG).all() for tag in ("pid_tag", "tid_tag")):
        return None
    return {name: rows[name].astype(np.float64) for name in record.names or () if not name.endswith("_tag")}


def plucked_fields(events: list[Any]) -> Fields:
    """Read the same columns attribute by attribute; ids that are text stay text."""
    fields: dict[str, Column] = {}
    for name in _EVENT_FIELDS:
        values = [getattr(event, name) for event in events]
        numeric = name not in ("pid", "tid") or all(isinstance(value, float) for value in values)
        fields[name] = np.array(values, dtype=np.float64 if numeric else object)
    for name in Args.__struct_fields__:
        fields[name] = np.array([getattr(event.args, name) for event in events], dtype=np.float64)
    return fields
