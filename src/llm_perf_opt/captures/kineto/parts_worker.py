"""One part of a large trace, read in a separate process: ``python -m …parts.worker FILE BEGIN END TALKS FOLDER``.

A part ends where the next one begins. That this is between two events is proven here: the text up to there decodes as
a whole array. Anything unusual ends this process with :data:`_UNUSUAL`; then the whole file is read in one go, by the
reader that mends and explains.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path

from llm_perf_opt.captures.kineto.collectives import CollectiveEvents
from llm_perf_opt.captures.kineto.columns import Columns, NeedsExactTimes
from llm_perf_opt.captures.kineto.decode import BETWEEN_EVENTS, AnyEvent, BadPiece, PieceDecoder, Window
from llm_perf_opt.captures.kineto.parts import write_part
from llm_perf_opt.captures.kineto.stream import GUESS_WINDOW_BYTES, PIECE_BYTES

_UNUSUAL = 3
"""Exit code: the part is not what a part of a sound trace is."""


def part_events(
    stream: BufferedIOBase, length: int, collectives: CollectiveEvents | None
) -> Iterator[list[AnyEvent]]:
    """Yield the events of the next ``length`` bytes, which must be whole events each followed by a comma."""
    decoder, left = PieceDecoder(), length
    window = Window(stream, PIECE_BYTES)
    while left > 0:
        size = min(PIECE_BYTES, left)
        window.fill(size)
        if len(window) < size:
            raise BadPiece("the file ends inside the part")
        if left <= PIECE_BYTES:
            end = len(window.text().rstrip().removesuffix(b","))
            begin_of_next = left
        else:
            boundary = window.last_match(BETWEEN_EVENTS, GUESS_WINDOW_BYTES)
            if boundary is None:
                raise BadPiece("one event takes more than a piece")
            end, begin_of_next = boundary[0] + 1, boundary[1] - 1
        if collectives is not None:
            collectives.look_into(window, end)
        yield window.as_array(end, decoder.decode)
        window.drop(begin_of_next)
        left -= begin_of_next


def _read_part_of(path: Path, begin: int, end: int, *, talks: bool, folder: Path) -> None:
    """Read the events between two offsets and write their columns to ``folder``."""
    columns, collectives = Columns(), CollectiveEvents()
    with path.open("rb") as stream:
        stream.seek(begin)
        for events in part_events(stream, end - begin, collectives if talks else None):
            columns.add(events)
    write_part(columns, collectives, folder)


def main(argv: Sequence[str]) -> int:
    """Read one part; see the module's docstring."""
    path, begin, end, talks, folder = argv
    try:
        _read_part_of(Path(path), int(begin), int(end), talks=talks == "1", folder=Path(folder))
    except (BadPiece, NeedsExactTimes, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return _UNUSUAL
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # skip freeing millions of objects one by one
