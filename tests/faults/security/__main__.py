"""Run every check and print the table: ``python -m tests.faults.security [GROUP …]``."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.faults.security.all_checks import CHECKS
from tests.faults.security.check import Check


def _problem(check: Check) -> str | None:
    with tempfile.TemporaryDirectory(prefix="security-") as folder:
        try:
            check.run(Path(folder))
        except Exception as error:  # noqa: BLE001 - whatever it is, the check does not hold
            return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return None


def main(groups: list[str]) -> int:
    """Print a line for each check, then the table by group; 1 when one does not hold."""
    logging.disable(logging.WARNING)
    held: Counter[str] = Counter()
    all_of: Counter[str] = Counter()
    for check in CHECKS:
        if groups and check.group not in groups:
            continue
        problem = _problem(check)
        all_of[check.group] += 1
        held[check.group] += problem is None
        print(
            f"{'pass' if problem is None else 'FAIL'}  {check.id}{f': {problem}' if problem else ''}",
            flush=True,
        )
    print("\n| group | checks | pass | fail |\n| --- | ---: | ---: | ---: |")
    for group, count in all_of.items():
        print(f"| {group} | {count} | {held[group]} | {count - held[group]} |")
    print(f"| all | {all_of.total()} | {held.total()} | {all_of.total() - held.total()} |")
    return 0 if held == all_of else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
