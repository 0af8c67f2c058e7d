"""Captures written from descriptions are concluded as described, and the judge can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.diagnosis_captures.described import CASES, Described, judge_described, write_described

from llm_perf_opt.cli import main


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_conclusion_is_the_one_described(case: Described, tmp_path: Path) -> None:
    paths = write_described(case, tmp_path / "capture")
    out = tmp_path / "out"
    code = main(["ingest", "--out", str(out), *(word for path in paths for word in ("--trace", str(path)))])
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8")) if not code else None
    assert judge_described(case, code, summary) == []


def test_the_judge_finds_wrong_verdicts_orders_claims_and_gains() -> None:
    case = next(case for case in CASES if case.name == "first-uses")
    claim = {"id": "launch-bound", "gain_upper_s": 0.6, "confidence": "high"}
    wrong = judge_described(case, 0, {"verdicts": {"all": {"bound": "launch"}}, "findings": [claim]})
    assert [text.split()[0] for text in wrong] == ["verdict", "first", "false", "claims"]
    refused = next(case for case in CASES if not case.bounds)
    assert judge_described(refused, 0, {}) and not judge_described(refused, 3, None)
