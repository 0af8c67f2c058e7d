"""Columns of a SQLite table directly from its pages, decoded in batches with NumPy.

A cursor returns rows to Python one object at a time, which is four fifths of the time of reading a large
export. A table, however, is a B-tree whose leaf pages hold the rows in order, in a documented format
(https://www.sqlite.org/fileformat2.html), and that decodes well in bulk. The file is only ever read.

Whatever is unusual (another encoding, other page types, values of an unexpected type) raises
:class:`PagesUnsupported`, and the caller reads the same columns through a cursor instead; rows too long
for one page are reported to the caller one by one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llm_perf_opt.captures.nsys.text_pool import TextPool

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
NULL = int(np.iinfo(np.int64).min)
"""What an SQL NULL becomes in an integer column."""
_LEAF_TABLE, _INTERIOR_TABLE = 13, 5
_BATCH_BYTES = 4 << 20
_PADDING = 32
_REAL, _FIRST_TEXT, _EMPTY_TEXT = 7, 12, 13
_CONSTANTS = {0: NULL, 8: 0, 9: 1}
"""Types of integers that take no bytes → value."""


def _serial_sizes() -> Int64:
    """Bytes of a value by the one-byte serial type in its record header."""
    sizes = np.zeros(128, np.int64)
    sizes[1:8] = (1, 2, 3, 4, 6, 8, 8)
    types = np.arange(_FIRST_TEXT, 128)
    sizes[_FIRST_TEXT:] = (types - _FIRST_TEXT) // 2
    return sizes


_SIZES = _serial_sizes()
_SHIFTS = np.where(_SIZES[:10] > 0, 64 - 8 * _SIZES[:10], 0)


class PagesUnsupported(Exception):
    """The table cannot be decoded from pages; a cursor can still read it."""


class PagesDamaged(Exception):
    """The tree of a table uses a page twice: reading it would not end, or would repeat rows."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The decoded columns of one table, rows in rowid order."""

    columns: dict[str, Int64]
    """Integer columns; for the text column, indices into the pool (-1 for NULL)."""
    odd_rows: Int64
    """Positions of rows that were not decoded (their record spills over to other pages)."""
    odd_rowids: Int64


class PageReader:
    """The page level of one database file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        header = os.pread(self._file, 100, 0)
        if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
            os.close(self._file)
            raise PagesUnsupported("no SQLite header")
        size = int.from_bytes(header[16:18], "big")
        self.page_size = 65536 if size == 1 else size
        self.usable = self.page_size - header[20]
        self.page_count = os.fstat(self._file).st_size // self.page_size
        if int.from_bytes(header[56:60], "big") not in (0, 1):
            os.close(self._file)
            raise PagesUnsupported("text is not UTF-8")

    def __enter__(self) -> PageReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def _page(self, number: int) -> bytes:
        if not 1 < number <= self.page_count:
            raise PagesUnsupported(f"page {number} outside the file")
        return os.pread(self._file, self.page_size, (number - 1) * self.page_size)

    def leaves(self, root: int) -> Int64:
        """Return the numbers of a table's leaf pages, in rowid order."""
        level = np.array([root], np.int64)
        seen = np.zeros(self.page_count + 1, bool)
        for _ in range(20):
            self._mark(level, seen)
            kind = self._page(int(level[0]))[0]
            if kind == _LEAF_TABLE:
                return level
            if kind != _INTERIOR_TABLE:
                raise PagesUnsupported(f"page type {kind}")
            level = np.concatenate([self._children(int(number)) for number in level])
        raise PagesUnsupported("the tree is too deep")

    def _mark(self, level: Int64, seen: npt.NDArray[np.bool_]) -> None:
        """Note the pages of a level of a tree; each page may be used only once."""
        if int(level.min()) < 1 or int(level.max()) > self.page_count:
            raise PagesUnsupported("page outside the file")
        if seen[level].any() or len(np.unique(level)) < len(level):
            raise PagesDamaged("a page is used twice")
        seen[level] = True

    def _children(self, number: int) -> Int64:
        page = self._page(number)
        if page[0] != _INTERIOR_TABLE:
            raise PagesUnsupported(f"page type {page[0]} between interior pages")
        count = int.from_bytes(page[3:5], "big")
        cells = np.frombuffer(page, ">u2", count, 12).astype(np.int64)
        raw = np.frombuffer(page, np.uint8)
        if count and int(cells.max()) + 4 > len(raw):
            raise PagesUnsupported("cell outside its page")
        parts = [raw[cells + shift].astype(np.int64) << (24 - 8 * shift) for shift in range(4)]
        last = int.from_bytes(page[8:12], "big")
        return np.append(parts[0] | parts[1] | parts[2] | parts[3], last)

    def batches(self, pages: Int64) -> Iterator[tuple[Bytes, int]]:
        """Yield (buffer, pages in it); the buffer is reused and has some spare bytes at its end."""
        per_batch = max(1, _BATCH_BYTES // self.page_size)
        buffer = np.zeros(per_batch * self.page_size + _PADDING, np.uint8)
        view = buffer.data
        for first in range(0, len(pages), per_batch):
            chunk = pages[first : first + per_batch]
            breaks = np.flatnonzero(np.diff(chunk) != 1) + 1
            starts = [0, *breaks.tolist(), len(chunk)]
            for begin, end in pairwise(starts):
                target = view[begin * self.page_size : end * self.page_size]
                offset = (int(chunk[begin]) - 1) * self.page_size
                if offset < 0 or os.preadv(self._file, [target], offset) != len(target):
                    raise PagesUnsupported("the file ends inside a table")
            yield buffer, len(chunk)

    def read(
        self, root: int, columns: Sequence[tuple[str, int]], text: str | None, pool: TextPool
    ) -> Decoded:
        """Decode ``columns`` (name, position in the record; ascending) of the table at page ``root``."""
        gathered = {name: _Column() for name, _ in columns}
        odd_rows = [np.empty(0, np.int64)]
        odd_rowids = [np.empty(0, np.int64)]
        total = done = 0
        leaves = self.leaves(root)
        for buffer, pages in self.batches(leaves):
            done += pages
            try:
                batch = _Batch(buffer, pages, self.page_size, self.usable)
                expected = (total + len(batch.cell)) * len(leaves) // done
                for name, values in batch.decode(columns, text, pool):
                    gathered[name].append(values, expected)
            except IndexError as error:
                raise PagesUnsupported("a value outside its page") from error
            odd = np.flatnonzero(batch.odd)
            odd_rows.append(odd + total)
            odd_rowids.append(batch.rowids(odd))
            total += len(batch.cell)
        whole = {name: column.values() for name, column in gathered.items()}
        return Decoded(whole, np.concatenate(odd_rows), np.concatenate(odd_rowids))


class _Column:
    """A column that grows in place: pieces joined at the end would touch all its memory twice."""

    def __init__(self) -> None:
        self._room = np.empty(0, np.int64)
        self._rows = 0

    def append(self, values: Int64, expected: int) -> None:
        """Add rows; ``expected`` is the estimated total."""
        rows = self._rows + len(values)
        if rows > len(self._room):
            room = np.empty(max(rows, expected + expected // 32), np.int64)  # untouched memory is free
            room[: self._rows] = self._room[: self._rows]
            self._room = room
        self._room[self._rows : rows] = values
        self._rows = rows

    def values(self) -> Int64:
        return self._room[: self._rows]


class _Batch:
    """All rows of a few consecutive leaf pages."""

    def __init__(self, buffer: Bytes, pages: int, page_size: int, usable: int) -> None:
        self.bytes = buffer
        # Any byte position as the start of a 64-bit word: one gather fetches a whole value.
        self.words: Int64 = np.ndarray((len(buffer) - 7,), "<i8", buffer, strides=(1,))
        base = np.arange(pages, dtype=np.int64) * page_size
        if (buffer[base] != _LEAF_TABLE).any():
            raise PagesUnsupported("a leaf page of another type")
        counts = buffer[base + 3].astype(np.int64) << 8 | buffer[base + 4]
        if int(counts.max(initial=0)) * 2 + 8 > page_size:
            raise PagesUnsupported("cell count outside its page")
        first = np.repeat(np.cumsum(counts) - counts, counts)
        page = np.repeat(base, counts)
        pointer = page + 8 + 2 * (np.arange(len(page)) - first)
        self.cell = page + (buffer[pointer].astype(np.int64) << 8 | buffer[pointer + 1])
        payload, position = self._short_varint(self.cell)
        self.rowid_at = position
        header, self.types_at = self._short_varint(position + self._rowid_size(position))
        self.header_end = self.types_at + header - 1
        self.odd = payload > usable - 35
        self.any_odd = bool(self.odd.any())
        outside = self.header_end - 1 + payload - header - page > page_size
        if (outside & ~self.odd).any() or (header > payload).any() or (header > 127).any():
            raise PagesUnsupported("record outside its page")

    def rowids(self, rows: Int64) -> Int64:
        """Return the row ids of some rows."""
        return self._varint(self.rowid_at[rows])[0]

    def _rowid_size(self, position: Int64) -> Int64 | int:
        """Length of the row ids; they ascend, so the first and the last are sufficient."""
        if not len(position):
            return 0
        ends = position[[0, -1]]
        sizes = self._varint(ends)[1] - ends
        return int(sizes[0]) if sizes[0] == sizes[1] else self._varint(position)[1] - position

    def _short_varint(self, position: Int64) -> tuple[Int64, Int64]:
        """As ``_varint``, quicker for values of one or two bytes."""
        first = self.bytes[position].astype(np.int64)
        long = first >= 128
        if not long.any():
            return first, position + 1
        second = self.bytes[position + 1].astype(np.int64)
        if (long & (second >= 128)).any():
            return self._varint(position)
        return np.where(long, (first & 127) << 7 | second, first), position + 1 + long

    def _varint(self, position: Int64) -> tuple[Int64, Int64]:
        """Return (value, position after it) of big-endian base-128 integers."""
        byte = self.bytes[position]
        value = (byte & 127).astype(np.int64)
        position = position + 1
        more = np.flatnonzero(byte >= 128)
        for count in range(2, 10):
            if not len(more):
                break
            byte = self.bytes[np.minimum(position[more], len(self.bytes) - 1)]
            if count == 9:
                value[more] = value[more] << 8 | byte
            else:
                value[more] = value[more] << 7 | (byte & 127)
            position[more] += 1
            more = more[byte >= 128]
        return value, position

    def _word(self, position: Int64) -> Int64:
        """The eight bytes at each position, the first one most significant."""
        if self.any_odd:
            position = np.minimum(position, len(self.words) - 1)
        return self.words[position].byteswap(inplace=True)

    def decode(
        self, columns: Sequence[tuple[str, int]], text: str | None, pool: TextPool
    ) -> Iterator[tuple[str, Int64]]:
        """Yield each wanted column, in order."""
        wanted = {position: name for name, position in columns}
        text_at = dict(columns).get(text) if text is not None else None
        value_at = self.header_end.copy()
        types_at = self.types_at.copy()
        types_word, used = self._word(types_at), 0
        for column in range(max(wanted) + 1):
            if used == 8:
                types_at += 8
                types_word, used = self._word(types_at), 0
            serial = types_word >> (56 - 8 * used) & 255
            used += 1
            largest = int(serial.max(initial=0))
            if largest >= 128:
                serial, types_at = self._long_types(serial, types_at + (used - 1))
                types_word, used = self._word(types_at), 0
            elif not self.any_odd and column != text_at and int(serial.min(initial=127)) == largest:
                # Most columns have one type in all rows of a batch: no look-up by row.
                if column in wanted:
                    yield wanted[column], self._integers_of_type(largest, value_at)
                value_at += _SIZES[largest]
                continue
            size = self._sizes(serial)
            if column in wanted:
                if wanted[column] == text:
                    yield wanted[column], self._text(serial, value_at, size, pool)
                else:
                    yield wanted[column], self._integers(serial, value_at)
            value_at += size
        if ((types_at + used > self.header_end) & ~self.odd).any():
            raise PagesUnsupported("a record with fewer columns than its table")

    def _long_types(self, serial: Int64, position: Int64) -> tuple[Int64, Int64]:
        """Serial types of two bytes (text of 58 bytes and more); longer ones make the row odd."""
        second = self.bytes[np.minimum(position + 1, len(self.bytes) - 1)].astype(np.int64)
        two = serial >= 128
        longer = two & (second >= 128)
        self.odd |= longer
        self.any_odd = bool(self.odd.any())
        value = np.where(longer, 0, np.where(two, (serial & 127) << 7 | second, serial))
        return value, position + np.where(two, 2, 1)

    @staticmethod
    def _sizes(serial: Int64) -> Int64:
        if int(serial.max(initial=0)) < 128:
            return _SIZES[serial]
        return np.where(serial >= _FIRST_TEXT, (serial - _FIRST_TEXT) >> 1, _SIZES[np.minimum(serial, 127)])

    def _integers_of_type(self, serial: int, position: Int64) -> Int64:
        """As ``_integers``, if all rows have the same type."""
        if serial >= len(_SHIFTS) or serial == _REAL:
            raise PagesUnsupported("an integer column contains something else")
        if serial in _CONSTANTS:
            return np.full(len(position), _CONSTANTS[serial], np.int64)
        values = self._word(position)
        values >>= _SHIFTS[serial]
        return values

    def _integers(self, serial: Int64, position: Int64) -> Int64:
        serial = np.where(self.odd, 0, serial) if self.any_odd else serial
        kinds = np.bincount(serial, minlength=10)
        if kinds[10:].any() or kinds[_REAL]:
            raise PagesUnsupported("an integer column contains something else")
        values = self._word(position)
        values >>= _SHIFTS[serial]
        for constant, meaning in _CONSTANTS.items():
            if kinds[constant]:
                values[serial == constant] = meaning
        return values

    def _text(self, serial: Int64, position: Int64, size: Int64, pool: TextPool) -> Int64:
        present = (serial > _EMPTY_TEXT) & (serial & 1 == 1) & ~self.odd
        if ((serial != 0) & (serial != _EMPTY_TEXT) & ~present & ~self.odd).any():
            raise PagesUnsupported("a text column contains something else")
        ids = np.full(len(serial), -1, np.int64)
        rows = np.flatnonzero(present)
        if len(rows):
            ids[rows] = pool.add_many(self.bytes, self.words, position[rows], size[rows])
        return ids
