"""The quick cases of the fault matrix, in this process; ``python -m tests.faults.matrix`` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from tests.faults.matrix.all_cases import CASES
from tests.faults.matrix.case import Case
from tests.faults.matrix.judge import problems

QUICK = [case for case in CASES if not case.slow]


def test_there_are_enough_cases_and_no_two_are_the_same() -> None:
    assert len(CASES) >= 200
    assert len({case.id for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", QUICK, ids=[case.id for case in QUICK])
def test_fault(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in case.env.items():
        monkeypatch.setenv(name, value)
    try:
        code = main(case.arguments(tmp_path))
    except SystemExit as leaving:  # argparse ends this way
        code = leaving.code if isinstance(leaving.code, int) else 1
    out = capsys.readouterr()
    assert problems(case, tmp_path, code, out.out + out.err) == []
