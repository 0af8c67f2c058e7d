"""Measurement conditions of ncu: clocks, caches and ranges, from its own command line.

A report keeps the command line in its session details (``extras/FileFormat/ProfilerReport.proto`` of Nsight Compute
describes the file); a folder may hold it in ``cmd.txt``. CSV pages have neither, so their conditions are unknown.
"""

from __future__ import annotations

import shlex
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from llm_perf_opt.captures.ncu.launches import NcuSettings

_COMMAND_FILES = ("cmd-rerun.txt", "cmd.txt")
"""The run that wrote the report comes first: a rerun replaces what the first run did not give."""
_DEFAULT_CLOCKS, _DEFAULT_CACHES = "base", "all"
"""What ncu does unless configured otherwise: clocks locked to base, caches flushed before every replay."""
_WITHOUT_VALUE = frozenset(
    {
        "--nvtx",
        "--csv",
        "--force-overwrite",
        "-f",
        "--quiet",
        "--verbose",
        "--disable-extra-suffixes",
        "--open-in-ui",
        "--kill-on-exit",
    }
)
_MOST_COMMAND_BYTES = 1 << 20
_MAGIC = b"NVR\0"
_SESSION_DETAILS, _PAYLOAD_SIZE, _COMMAND_LINE = 3, 5, 11


def settings_of_arguments(arguments: Sequence[str], source: str) -> NcuSettings:
    """Read ncu's own options; the profiled program's arguments are ignored."""
    clocks, caches, ranges = _DEFAULT_CLOCKS, _DEFAULT_CACHES, list[str]()
    for option, value in _options(arguments):
        if option == "--clock-control":
            clocks = value
        elif option == "--cache-control":
            caches = value
        elif option == "--nvtx-include":
            ranges.append(value)
    return NcuSettings(clocks, caches, tuple(ranges), source)


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield options with their values up to the first word that is neither: the program."""
    rest = iter(arguments)
    for word in rest:
        if not word.startswith("-"):
            return
        option, equals, value = word.partition("=")
        if equals or option in _WITHOUT_VALUE:
            yield option, value
        else:
            yield option, next(rest, "")


def settings_near(folder: Path) -> NcuSettings | None:
    """Return the settings of the command next to a capture; ``None`` without one."""
    for place in (folder / name for name in _COMMAND_FILES):
        if not place.is_file() or place.stat().st_size > _MOST_COMMAND_BYTES:
            continue
        found = settings_of_text(place.read_text(encoding="utf-8", errors="replace"), place.name)
        if found is not None:
            return found
    return None


def settings_of_text(text: str, source: str) -> NcuSettings | None:
    """Find the ncu command in the text of a shell file; ``None`` when it has none, or several that differ."""
    found = set()
    for line in text.replace("\\\n", " ").splitlines():
        try:
            arguments = shlex.split(line, comments=True)
        except ValueError:  # an open quote: not a command line
            continue
        start = next((place for place, word in enumerate(arguments) if PurePath(word).name == "ncu"), None)
        if start is not None and "--import" not in arguments:
            found.add(settings_of_arguments(arguments[start + 1 :], source))
    return found.pop() if len(found) == 1 else None


def settings_of_report(path: Path) -> NcuSettings | None:
    """Return the settings recorded in a ``.ncu-rep``; ``None`` if absent (2022 and before)."""
    line = _command_line(path)
    if not line:
        return None
    try:
        arguments = shlex.split(line)
    except ValueError:
        arguments = line.split()
    return settings_of_arguments(arguments[1:], path.name)


def _command_line(path: Path) -> str | None:
    """Walk the blocks of a report; payloads are skipped."""
    found = None
    try:
        with path.open("rb") as stream:
            if stream.read(4) != _MAGIC:
                return None
            stream.seek(_size(stream.read(4)), 1)
            while head := stream.read(4):
                block = dict(_fields(stream.read(_size(head))))
                details = block.get(_SESSION_DETAILS)
                line = dict(_fields(details)).get(_COMMAND_LINE) if isinstance(details, bytes) else None
                if isinstance(line, bytes):
                    found = line.decode("utf-8", errors="replace")
                payload = block.get(_PAYLOAD_SIZE, 0)
                stream.seek(payload if isinstance(payload, int) else 0, 1)
    except (IndexError, ValueError, struct.error):
        return None  # truncated, or an unknown layout; errors are reported by the reader of the counters
    return found


def _size(head: bytes) -> int:
    return int(struct.unpack("<I", head)[0])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of every field of a protocol buffer; a repeated field comes several times."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == 0:
            number, place = _varint(message, place)
            yield key >> 3, number
            continue
        if kind == 2:
            size, place = _varint(message, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"field of kind {kind}")
        if place + size > len(message):
            raise ValueError("a field longer than its message")
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
