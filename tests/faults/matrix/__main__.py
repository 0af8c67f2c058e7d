"""Run every case in a process of its own, and print the table: ``python -m tests.faults.matrix [GROUP …]``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from pathlib import Path

from tests.faults.matrix.all_cases import CASES
from tests.faults.matrix.case import Case
from tests.faults.matrix.judge import problems

_MARK = "FAULT_CASE"
_LIMIT_S = 180.0


def run_case(case: Case) -> list[str]:
    """Run one case; return what is wrong, processes left behind included."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="fault-") as scratch:
        folder = Path(scratch)
        command = [sys.executable, "-m", "llm_perf_opt", *case.arguments(folder)]
        env = {**os.environ, **case.env, _MARK: mark}
        try:
            done = subprocess.run(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=_LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return [f"still running after {_LIMIT_S:.0f} s"]
        printed = done.stdout.decode("utf-8", errors="replace")
        return [*problems(case, folder, done.returncode, printed), *_left_running(mark)]


def _left_running(mark: str) -> list[str]:
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in entry.read_bytes().split(b"\0"):
                found.append(f"process {entry.parent.name} is left")
        except OSError:
            continue
    return found


def main(groups: list[str]) -> int:
    """Print a line for each case that does not hold, then the table."""
    held: Counter[str] = Counter()
    all_of: Counter[str] = Counter()
    for case in CASES:
        if groups and case.group not in groups:
            continue
        wrong = run_case(case)
        all_of[case.group] += 1
        held[case.group] += not wrong
        if wrong:
            print(f"{case.id}: {'; '.join(wrong)}", flush=True)
    for group, count in all_of.items():
        print(f"{group:<15} {held[group]:>4} of {count}")
    print(f"{'all':<15} {sum(held.values()):>4} of {sum(all_of.values())}")
    return 0 if held == all_of else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
