"""Run every case in a process of its own, and print the table: ``python -m tests.faults.matrix [GROUP …]``."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict

from tests.faults.matrix.all_cases import CASES
from tests.faults.matrix.run import run_in_scratch


def main(groups: list[str]) -> int:
    """Print a line for each case that does not hold, then the table."""
    unknown = set(groups) - {case.group for case in CASES}
    if unknown:
        print(f"no such group: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    held: Counter[str] = Counter()
    all_of: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    for case in CASES:
        if groups and case.group not in groups:
            continue
        began = time.monotonic()
        wrong = run_in_scratch(case)
        seconds[case.group] += time.monotonic() - began
        all_of[case.group] += 1
        held[case.group] += not wrong
        if wrong:
            print(f"{case.id}: {'; '.join(wrong)}", flush=True)
    print("| group | cases | held | failed | s |\n| --- | ---: | ---: | ---: | ---: |")
    for group, count in all_of.items():
        print(f"| {group} | {count} | {held[group]} | {count - held[group]} | {seconds[group]:.0f} |")
    count = all_of.total()
    print(f"| all | {count} | {held.total()} | {count - held.total()} | {sum(seconds.values()):.0f} |")
    return 0 if held == all_of else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
