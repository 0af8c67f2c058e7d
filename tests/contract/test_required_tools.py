"""A tool that CI must have and has not: its tests fail there, and are skipped elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.required import VARIABLE, fail_if_required
from tests.support import REPOSITORY


def _skipped(reason: str) -> pytest.TestReport:
    place = ("test_x.py", 1, f"Skipped: {reason}")
    return pytest.TestReport("test_x", ("test_x.py", 1, "test_x"), {}, "skipped", place, "setup")


@pytest.mark.parametrize(
    ("value", "reason", "outcome"),
    [
        ("1", "no Slurm here (slurmctld): sh scripts/engines/install-slurm-debian.sh", "failed"),
        ("1", "Nsight Compute is not installed", "failed"),
        ("1", "MLflow is an extra of 1.1 GB", "skipped"),
        ("", "Nsight Compute is not installed", "skipped"),
    ],
)
def test_a_skipped_test_fails_where_tools_are_required(value: str, reason: str, outcome: str) -> None:
    report = fail_if_required(_skipped(reason), {VARIABLE: value})
    assert report.outcome == outcome and reason in str(report.longrepr)


def test_fixtures_and_marks_obey_it(tmp_path: Path) -> None:
    """By pytest itself: a fixture that skips, a mark, a file that skips as a whole, an expected failure."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.fixture\ndef tool(): pytest.skip('no tool')\n"
        "def test_fixture(tool): ...\n"
        "@pytest.mark.skipif(True, reason='no tool')\ndef test_mark(): ...\n"
        "@pytest.mark.xfail\ndef test_expected(): assert False\n"
    )
    (tmp_path / "test_whole.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    words = ["-o", "addopts=", "-p", "no:cacheprovider", "--continue-on-collection-errors", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}", VARIABLE: "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1 and "1 xfailed, 3 errors" in done.stdout, done.stdout


def test_ci_requires_the_tools_it_installs() -> None:
    text = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    assert f"export {VARIABLE}=1" in text
