"""Many inputs on demand: ``python -m tests.faults.fuzz --inputs 20000 [--reader kineto] [--first 0] [--keep DIR]``.

Input N of a reader is always the same, so a failure is repeated with ``--reader NAME --first N --inputs 1``.
"""

from __future__ import annotations

import argparse
import logging
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from types import FrameType

from tests.faults.fuzz.readers import READERS, Reader, input_folder
from tests.faults.fuzz.verdict import Verdict, judge

HANG_S = 20.0
LARGE_BYTES = 1 << 30


class Hang(BaseException):
    """An input took too long."""


def _alarm(number: int, frame: FrameType | None) -> None:
    raise Hang


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_one(reader: Reader, number: int, root: Path) -> Verdict:
    """Make input ``number`` of a reader and judge it; a hang and a large one have verdicts of their own."""
    folder = input_folder(root, number)
    read = reader.make(random.Random(f"{reader.name}/{number}"), folder)
    before = _peak_bytes()
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        verdict = judge(read)
    except Hang:
        verdict = Verdict("hang")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if _peak_bytes() - before > LARGE_BYTES:
        verdict = Verdict("large")
    if verdict.kind in ("accepted", "refused"):
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


def _print_verdict(reader: Reader, number: int, verdict: Verdict, seen: Counter[str]) -> None:
    error = verdict.error
    last = traceback.extract_tb(error.__traceback__)[-1] if error is not None else None
    place = f"{Path(last.filename).name}:{last.lineno}" if last is not None else ""
    what = f"{verdict.kind}: {type(error).__name__}: {str(error)[:160]} ({place})" if error else verdict.kind
    seen[f"{reader.name} {place} {type(error).__name__}"] += 1
    if seen[f"{reader.name} {place} {type(error).__name__}"] <= 3:
        print(f"{reader.name} {number}: {what}", file=sys.stderr, flush=True)


def main() -> int:
    """Fuzz, and print a table; 1 when anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="in total, over all readers")
    parser.add_argument("--reader", help="only this one")
    parser.add_argument("--first", type=int, default=0, help="number of the first input of each reader")
    parser.add_argument("--keep", type=Path, help="folder for the inputs that failed")
    options = parser.parse_args()
    readers = [reader for reader in READERS if options.reader in (None, reader.name)]
    signal.signal(signal.SIGALRM, _alarm)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    root = options.keep or Path(tempfile.mkdtemp(prefix="llm-perf-opt-fuzz-"))
    kinds = ("accepted", "refused", "traceback", "hang", "large", "bad summary")
    failed = False
    seen: Counter[str] = Counter()
    print(f"| reader | inputs | {' | '.join(kinds)} | s |\n| --- |{' ---: |' * (len(kinds) + 2)}")
    for reader in readers:
        began, counts = time.monotonic(), Counter[str]()
        for number in range(options.first, options.first + max(1, options.inputs // len(readers))):
            verdict = run_one(reader, number, root / reader.name.replace(" ", "-"))
            counts[verdict.kind] += 1
            if verdict.kind not in ("accepted", "refused"):
                failed = True
                _print_verdict(reader, number, verdict, seen)
        cells = " | ".join(str(counts[kind]) for kind in kinds)
        seconds = time.monotonic() - began
        print(f"| {reader.name} | {counts.total()} | {cells} | {seconds:.0f} |", flush=True)
    if options.keep is None:
        shutil.rmtree(root, ignore_errors=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
