"""The quick cases of the fault matrix; ``python -m tests.faults.matrix`` runs all of them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from tests.faults.matrix.all_cases import CASES
from tests.faults.matrix.case import Case
from tests.faults.matrix.judge import problems
from tests.faults.matrix.run import run_case

QUICK = [case for case in CASES if not case.slow and not case.own_process]
QUICK_PROCESSES = [case for case in CASES if not case.slow and case.own_process]
GROUPS = {
    "tool", "workload", "signal", "disk", "clock", "checkpoint", "data", "configuration", "path", "concurrency",
    "ingest", "report", "server", "foreign", "structure", "verb",
}  # fmt: skip


def test_there_are_enough_cases_of_every_group_and_no_two_are_the_same() -> None:
    assert len(CASES) >= 600
    assert len({case.id for case in CASES}) == len(CASES)
    assert {case.group for case in CASES} == GROUPS


@pytest.mark.parametrize("case", QUICK, ids=[case.id for case in QUICK])
def test_fault(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in case.env.items():
        monkeypatch.setenv(name, value)
    arguments = case.arguments(tmp_path)
    with case.around(tmp_path) if case.around is not None else contextlib.nullcontext():
        try:
            code = main(arguments)
        except SystemExit as leaving:  # argparse ends this way
            code = leaving.code if isinstance(leaving.code, int) else 1
    out = capsys.readouterr()
    assert problems(case, tmp_path, code, out.out + out.err) == []


@pytest.mark.parametrize("case", QUICK_PROCESSES, ids=[case.id for case in QUICK_PROCESSES])
def test_fault_in_a_process_of_its_own(case: Case, tmp_path: Path) -> None:
    assert run_case(case, tmp_path) == []
