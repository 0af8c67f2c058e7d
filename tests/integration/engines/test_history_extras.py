"""Tests of DuckDB and MLflow, which the environment of the checkout does not have: run in one that has them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.engines.support import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CASES = (
    "tests/unit/history/test_history_command.py::test_sql",
    "tests/unit/runs/test_sinks.py::TestMlflow",
)


def test_the_extras_of_the_history(history_python: Path, tmp_path: Path) -> None:
    found = subprocess.run([history_python, "-c", "import duckdb, mlflow"], capture_output=True, check=False)
    assert found.returncode == 0, found.stderr
    done = subprocess.run(
        [
            history_python,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            f"--basetemp={tmp_path / 'tests'}",
            *CASES,
        ],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\.{5}\s", done.stdout), done.stdout  # five passed, none skipped
