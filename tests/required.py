"""Where CI has installed every tool, a test that is skipped is a test that fails: a missing tool must not look green."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import pytest

VARIABLE = "LLM_PERF_OPT_REQUIRE_TOOLS"
"""Environment variable that ``.ci/run`` sets to 1 where it could install the tools."""

MAY_SKIP = {
    "Optuna is not installed": "tests/integration/engines/test_optuna_improve.py runs them in .venv-optuna",
    "Optuna is installed": "of these very tests: the one about its absence runs in .venv",
    "MLflow is an extra": "tests/integration/engines/test_history_extras.py runs them in .venv-history",
    "real captures are not beside the checkout": "they are no part of the repository",
    "the traces with independent answers are not beside the checkout": "they are no part of the repository",
    "cannot mount a small file system here": "a right that a container may not have",
    "no right to unshare mounts here": "a right that a container may not have",
    "the tool is on another file system than the tests": "hard links between two are not possible",
}
"""How the reason of a skip begins → why it may be skipped in CI too."""

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def fail_if_required(report: Report, environment: Mapping[str, str]) -> Report:
    """Turn the report of a skipped test into that of a failed one where tools are required and no reason excuses it."""
    if environment.get(VARIABLE) != "1" or not report.skipped or hasattr(report, "wasxfail"):
        return report
    words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = words.removeprefix("Skipped: ")
    if not reason.startswith(tuple(MAY_SKIP)):
        report.outcome = "failed"
        report.longrepr = f"{VARIABLE}=1: skipped where every tool must be there: {reason}"
    return report
