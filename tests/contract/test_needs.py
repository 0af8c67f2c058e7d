"""A tool that a test needs and the machine has not: the test is skipped with the fix, and fails where CI must have it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.process.tools import HIDE, find_program, find_tool, has_package, import_optional
from tests.needs import NEEDS, VARIABLE, fail_if_required, hidden_names, path_without_hidden, skip_summary
from tests.support import REPOSITORY


def _skipped(reason: str) -> pytest.TestReport:
    place = ("test_x.py", 1, f"Skipped: {reason}")
    return pytest.TestReport("test_x", ("test_x.py", 1, "test_x"), {}, "skipped", place, "setup")


@pytest.mark.parametrize(
    ("value", "reason", "outcome"),
    [
        ("1", "needs slurm: sh scripts/engines/install-slurm-debian.sh", "failed"),
        ("1", "needs ncu: sh scripts/install-nsight-debian.sh --apt", "failed"),
        ("1", "needs a reason that nobody knows", "failed"),
        ("1", "needs mlflow: pip install 'llm-perf-opt[mlflow]'", "skipped"),
        ("1", "needs vllm: sh scripts/engines/make-vllm.sh", "skipped"),
        ("vllm", "needs vllm: sh scripts/engines/make-vllm.sh", "failed"),
        ("vllm", "needs ncu: sh scripts/install-nsight-debian.sh --apt", "skipped"),
        ("", "needs ncu: sh scripts/install-nsight-debian.sh --apt", "skipped"),
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
    arguments = ["-o", "addopts=", "-p", "no:cacheprovider", "--continue-on-collection-errors", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}", VARIABLE: "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1 and "1 xfailed, 3 errors" in done.stdout, done.stdout


def test_the_summary_counts_each_need_and_names_its_command() -> None:
    reports = [_skipped(f"needs nsys: {NEEDS['nsys'].fix}")] * 3 + [
        _skipped("needs bash: x"),
        _skipped("other"),
    ]
    first, *lines = skip_summary(reports)
    assert first.startswith("5 ")
    assert [line.split()[0] for line in lines] == ["3", "1", "1"]
    assert NEEDS["nsys"].fix in lines[0] and NEEDS["bash"].fix in lines[1] and "other" in lines[2]
    assert skip_summary([]) == []


def test_a_marker_skips_before_fixtures_are_made_and_the_end_lists_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_one.py").write_text(
        "import pytest\n"
        "@pytest.fixture\ndef tool(): raise AssertionError('made')\n"
        "@pytest.mark.needs('nsys')\ndef test_it(tool): ...\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}", HIDE: "nsys"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert f"1 need nsys ({NEEDS['nsys'].fix})" in done.stdout


def test_what_is_hidden_is_hidden_from_the_product(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nsys"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(HIDE, "")
    assert find_program("nsys") and find_tool("nsys") == program and has_package("json.decoder")
    monkeypatch.setenv(HIDE, "nsys, json")
    assert find_program("nsys") is None and find_tool("nsys") is None
    assert find_tool("nsys", str(program)) == program, "what the user names is used"
    assert not has_package("json") and not has_package("json.decoder")
    with pytest.raises(ImportError):
        import_optional("json")


def test_a_bare_machine_has_no_optional_tool_and_no_optional_package() -> None:
    names = hidden_names().split(",")
    assert {"nsys", "ncu", "chromium", "slurmctld", "g++", "pynvml", "ncu_report", "aiconfigurator_core"} <= {
        *names
    }


def test_ci_requires_the_tools_it_installs() -> None:
    text = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    assert f"{VARIABLE}=1" in text and "python -m tests.needs" in text


def test_hidden_programs_are_not_on_the_path_of_programs_that_tests_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("with/ncu", "with/other", "without/other", "venv/bin/ncu", "venv/pyvenv.cfg"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
    path = ":".join(str(tmp_path / name) for name in ("with", "without", "absent", "venv/bin"))
    monkeypatch.setenv(HIDE, "ncu")
    replaced, *others = path_without_hidden(path, tmp_path / "links").split(":")
    assert others == path.split(":")[1:]
    assert shutil.which("other", path=replaced) and not shutil.which("ncu", path=replaced)
    monkeypatch.setenv(HIDE, "nothing")
    assert path_without_hidden(path, tmp_path / "more") == path
