"""The false-keep rate of whole searches: the real search over recorded timings, without a gain and with a planted one."""

from __future__ import annotations

import importlib
import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.text_facts import mentions


@pytest.fixture
def rates(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, which finds its neighbours beside it."""
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    script = importlib.import_module("improve_rates")
    monkeypatch.setattr(script, "SETTINGS", ("infer.inference_mode=true", "model.cache=preallocated"))
    return script


def timings(path: Path, passes: int) -> Path:
    chance = random.Random(1)
    samples = [
        {
            "id": name,
            "repeats": [
                {"prefill_s": 0.1 * chance.lognormvariate(0.0, 0.05), "decode_s": 0.0} for _ in range(passes)
            ],
        }
        for name in ("x", "y")
    ]
    path.write_text(json.dumps({"samples": samples}), encoding="utf-8")
    return path


def test_searches_are_run_over_recorded_timings(
    rates: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--timings",
        str(timings(tmp_path / "timings.json", 160)),
        "--repeats",
        "1",
        "--searches",
        "1",
    ]
    monkeypatch.setattr(sys, "argv", ["improve_rates.py", *arguments])
    monkeypatch.setattr(rates, "FACTORS", (1.0, 0.5))
    assert rates.main() == 0
    output = capsys.readouterr().out
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in output.splitlines()
        if line.startswith("|")
    ]
    places = [n for n, cells in enumerate(rows) if mentions(cells[0], "model.cache=preallocated")]
    assert len(places) == len(rates.SPREADS) == 3
    for place, spread in zip(places, ("0%", "1%", "3%"), strict=True):
        assert mentions(rows[place][0], "-20%") and rows[place][1:] == ["0 (0%)", "0 (0%)", "1 (100%)"]
        assert rows[place - 1][1:] == ["0 (0%)", "0 (0%)", ""], "no remedy does anything"
        assert mentions(rows[place - 3][0], "1", "2", "6", spread), "searches, remedies, tests, spread"


def test_a_gain_of_one_process_is_measured_in_others(rates: Any) -> None:
    """With 2 % between processes, one process shows gains that are none; over processes few are left."""
    stretch = [[0.1 * factor for factor in (1.0, 1.001, 0.999, 1.0) * 20] for _ in range(2)]
    alone = together = 0
    for seed in range(60):
        dealer = rates.Dealer(itertools.repeat(stretch), 0.02, random.Random(seed))
        found, passes, _ = dealer.experiment(1.0, rates.spec(0.05, seed))
        alone += rates.measured(passes, rates.spec(0.05, seed)).verdict == "gain"
        together += found.verdict == "gain"
    assert alone >= 5 and together <= 0.05 * 60, "the error that was asked for"


def test_a_best_that_does_nothing_is_counted(rates: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sides that are not the same in truth: what is kept without having been planted is false."""
    stretch = [[0.1 * factor for factor in (1.0, 1.001, 0.999, 1.0) * 20] for _ in range(2)]
    plain = rates.turns
    monkeypatch.setattr(rates, "turns", lambda dealt, factor, wanted: plain(dealt, 0.5 * factor, wanted))
    found = rates.search_rates([stretch], {}, 1)
    assert (found.searches, found.false, found.any_false, found.found) == (1, 1, 1, 0)
