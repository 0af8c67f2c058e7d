"""Distinct strings, each stored once; found in bulk where they lie in a byte buffer."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
# torch's emit_nvtx numbers every operator call: "aten::mm, seq = 7, op_id = 314, sizes = …". The operator is
# the name; the numbers would make every call a distinct name.
_NUMBERING = re.compile(r", (?:seq = |op_id )")
_MARKS = tuple(int.from_bytes(mark, "little") for mark in (b", seq = ", b", op_id "))
_TAIL_MASKS = np.array([(1 << 8 * kept) - 1 for kept in range(8)] + [(1 << 64) - 1], np.uint64)
_MIX = np.uint64(0x9E3779B97F4A7C15)


class HashCollision(Exception):
    """Two different strings of one batch share a 64-bit hash; the caller uses the slow path."""


def operator_name(text: str) -> str:
    """Drop the call numbering that ``emit_nvtx`` appends to an operator's name."""
    return _NUMBERING.split(text, maxsplit=1)[0] if ", " in text else text


class TextPool:
    """A growing list of distinct strings and the index of each."""

    def __init__(self) -> None:
        self.strings: list[str] = []
        self._index: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Return the index of ``text``, storing it when it is new."""
        found = self._index.get(text)
        if found is None:
            found = self._index[text] = len(self.strings)
            self.strings.append(text)
        return found

    def forget_after(self, count: int) -> None:
        """Keep only the first ``count`` strings."""
        for text in self.strings[count:]:
            del self._index[text]
        del self.strings[count:]

    def in_order_of_appearance(self, ids: Int64, known: int) -> Int64:
        """Renumber the strings after the first ``known`` in the order in which ``ids`` use them."""
        used, first = np.unique(ids, return_index=True)
        added = used[np.argsort(first, kind="stable")]
        added = added[added >= known]
        number = np.arange(len(self.strings))
        number[added] = np.arange(known, known + len(added))
        strings = [self.strings[one] for one in added.tolist()]
        self.forget_after(known)
        for text in strings:
            self.add(text)
        return np.where(ids >= 0, number[np.maximum(ids, 0)], ids)

    def add_many(self, data: Bytes, words: Int64, start: Int64, length: Int64) -> Int64:
        """Return indices of the UTF-8 strings at ``start`` in ``data``, call numbering dropped.

        ``words[i]`` must be the little-endian 64-bit word at byte ``i`` of ``data``.
        """
        length = _without_numbering(data, words, start, length)
        hashes = _hash(words, start, length)
        _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        if not _equal(words, start, length, first[inverse]):
            raise HashCollision
        # Indices are given in order of first appearance, so that they do not depend on the hash.
        ids = np.empty(len(first), np.int64)
        for group in np.argsort(first, kind="stable").tolist():
            row = int(first[group])
            begin = int(start[row])
            ids[group] = self.add(
                bytes(data[begin : begin + int(length[row])]).decode("utf-8", errors="replace")
            )
        return ids[inverse]


def _without_numbering(data: Bytes, words: Int64, start: Int64, length: Int64) -> Int64:
    begin, end = int(start.min()), int((start + length).max())
    commas = np.flatnonzero(data[begin:end] == ord(",")) + begin
    commas = commas[commas < len(words)]
    after = words[commas]
    hits = commas[(after == _MARKS[0]) | (after == _MARKS[1])]
    if not len(hits):
        return length
    cut = hits[np.minimum(np.searchsorted(hits, start), len(hits) - 1)]
    inside = (cut >= start) & (cut + 8 <= start + length)
    return np.where(inside, cut - start, length)


def _chunks(words: Int64, start: Int64, length: Int64, step: int) -> npt.NDArray[np.uint64]:
    """The ``step``-th eight bytes of every string, bytes beyond its end cleared."""
    word = words[np.minimum(start + 8 * step, len(words) - 1)].view(np.uint64)
    return word & _TAIL_MASKS[np.clip(length - 8 * step, 0, 8)]


def _hash(words: Int64, start: Int64, length: Int64) -> npt.NDArray[np.uint64]:
    hashes = length.astype(np.uint64) * _MIX
    rows = np.arange(len(start))
    for step in range((int(length.max(initial=0)) + 7) // 8):
        rows = rows[length[rows] > 8 * step]
        mixed = (hashes[rows] ^ _chunks(words, start[rows], length[rows], step)) * _MIX
        hashes[rows] = mixed ^ (mixed >> np.uint64(29))
    return hashes


def _equal(words: Int64, start: Int64, length: Int64, other: Int64) -> bool:
    """Whether every string equals the one in row ``other``."""
    if (length != length[other]).any():
        return False
    rows = np.arange(len(start))
    for step in range((int(length.max(initial=0)) + 7) // 8):
        rows = rows[length[rows] > 8 * step]
        twin = other[rows]
        mine = _chunks(words, start[rows], length[rows], step)
        if (mine != _chunks(words, start[twin], length[twin], step)).any():
            return False
    return True
