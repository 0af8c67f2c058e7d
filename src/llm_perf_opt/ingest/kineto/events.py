"""The events of a Kineto trace as types.

Every number is a float (exact up to 2**53) and every default has the same size, because ``kineto_columns`` relies
on all events of a category being encoded to records of one size.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar

import msgspec

ABSENT = -1.0
NO_TIME = float("nan")
"""An event without a time stamp: it is left out, and said."""


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments of a complete event that are used."""

    correlation: float = ABSENT
    external: float = msgspec.field(default=ABSENT, name="External id")
    external_lower: float = msgspec.field(default=ABSENT, name="external id")
    """The same, as torch before 1.12 spells it on device events."""
    device: float = ABSENT
    stream: float = ABSENT
    bytes: float = ABSENT


class MemoryArgs(msgspec.Struct, gc=False, frozen=True):
    """The arguments of an allocator's report."""

    allocated: float = msgspec.field(default=ABSENT, name="Total Allocated")
    device_type: float = msgspec.field(default=ABSENT, name="Device Type")
    device_id: float = msgspec.field(default=ABSENT, name="Device Id")


class NameArgs(msgspec.Struct, gc=False, frozen=True):
    """The arguments of metadata that names a process or thread."""

    label: Any = msgspec.field(default=None, name="name")


class Event(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """Something with a beginning and a duration: all that is counted."""

    cat: str = ""
    name: float | str = ""
    """The text; ``kineto_columns`` puts the number of the name here."""
    pid: float | str = ABSENT
    tid: float | str = ABSENT
    ts: float = NO_TIME
    dur: float = ABSENT
    args: Args = Args()


class ExactEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """The same fields in the same order, with the time stamp as written."""

    cat: str = ""
    name: float | str = ""
    pid: float | str = ABSENT
    tid: float | str = ABSENT
    ts: Decimal = Decimal("NaN")
    dur: float = ABSENT
    args: Args = Args()


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """A point in time: what an allocator reports, markers."""

    cat: str = ""
    name: str = ""
    ts: float = NO_TIME
    args: MemoryArgs = MemoryArgs()


class ExactInstant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """The same with the time stamp as written."""

    cat: str = ""
    name: str = ""
    ts: Decimal = Decimal("NaN")
    args: MemoryArgs = MemoryArgs()


class Metadata(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """The name of a process or thread."""

    cat: ClassVar[str] = "metadata"
    name: str = ""
    pid: float | str = ABSENT
    tid: float | str = ABSENT
    args: NameArgs = NameArgs()


AnyEvent = Event | Instant | Metadata


def _ignored(tag: str, category: str) -> Any:
    """A type for events of one phase that are only counted; nothing of them is kept."""
    name = f"Ignored_{tag}"
    return msgspec.defstruct(name, [], tag_field="ph", tag=tag, gc=False, namespace={"cat": category})


# Kineto writes X, i, M and the arrows from launch to kernel (s, t, f); the rest of the Chrome format is here so
# that one foreign event does not send its whole piece down a slower path.
_IGNORED = tuple(_ignored(tag, "flow") for tag in "stf") + tuple(
    _ignored(tag, "other") for tag in "BECbenSTpFNODRcVvPI(),"
)
FAST_TYPES = (Event, Instant, Metadata, *_IGNORED)
EXACT_TYPES = (ExactEvent, ExactInstant, Metadata, *_IGNORED)
