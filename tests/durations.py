"""How long each file of tests takes: the longest begin first, so that no test process waits for another at the end.

``make test TEST_ARGS="-n 2 --dist loadfile --junitxml=times.xml"``, then ``python -m tests.durations times.xml`` stores anew.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

import pytest

STORED = Path(__file__).with_suffix(".json")
"""File of tests → seconds, of those that take more than one."""


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by the time of their files; those of a file stay together and in order."""
    seconds: dict[str, float] = json.loads(STORED.read_text(encoding="utf-8"))
    items.sort(key=lambda item: -seconds.get(item.location[0], 0.0))


def read_times(*reports: Path) -> dict[str, int]:
    """Return the times of files in reports of pytest (JUnit XML), the longest of several."""
    found: dict[str, int] = {}
    for report in reports:
        times: dict[str, float] = defaultdict(float)
        for case in ElementTree.parse(report).iter("testcase"):
            parts = [part for part in case.get("classname", "").split(".") if not part.startswith("Test")]
            times["/".join(parts) + ".py"] += float(case.get("time", 0))
        found |= {name: max(round(time), found.get(name, 0)) for name, time in times.items() if time > 1}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit("usage: python -m tests.durations REPORT.xml …")
    STORED.write_text(json.dumps(read_times(*map(Path, sys.argv[1:])), indent=0) + "\n", encoding="utf-8")
