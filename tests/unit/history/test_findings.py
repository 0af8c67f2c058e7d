"""The track record of advice: searches below a directory, in the index, on the page and in reports."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.history import index as index_module
from llm_perf_opt.history import store
from llm_perf_opt.history.index import renew_index
from llm_perf_opt.history.rows import indexed_records
from llm_perf_opt.remedies.data import (
    Baseline,
    Best,
    FindingGrade,
    Grade,
    Improvement,
    SearchSettings,
    save_improvement,
)
from llm_perf_opt.remedies.track_record import keep_record, read_records
from tests.unit.history.runs_made import make_run

DEVICE = "a processor"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def make_search(folder: Path, *grades: Grade, day: int = 1, device: str = DEVICE) -> Improvement:
    """Write the ``improve.json`` of a search that graded one finding per grade."""
    result = Improvement(
        metric="total",
        baseline=Baseline(["model=tiny"], 1.0, model="tiny", device=device),
        method=SearchSettings(0.05, 9, 0.02, 80, 0, "a bound"),
        best=Best([], None, None, None),
        started=f"2026-02-{day:02d}T00:00:00+00:00",
        grades=[
            FindingGrade(f"rule-{place}", "decode", 0.5, 0.2, int(grade == "confirmed"), 1, grade)
            for place, grade in enumerate(grades)
        ],
    )
    folder.mkdir(parents=True)
    save_improvement(result, folder)
    return result


def make_searches(root: Path) -> None:
    make_search(root / "a", "confirmed", "wrong")
    make_search(root / "b", "partly", day=2)
    make_search(root / "deep" / "c", "wrong", day=3)
    make_search(root / "d", "not shown", day=4)
    make_search(root / "e", "confirmed", day=5, device="another")
    make_search(root / "nothing-graded")


def test_searches_become_rows_and_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    make_searches(root)
    make_run(root, "a/baseline")  # the run a search began with is a run
    done = renew_index(root)
    assert (done.info.runs, done.info.findings) == (1, 6)
    rows = store.read_findings(root)
    assert [(row.search, row.finding, row.grade) for row in rows][:2] == [
        ("a", "rule-0", "confirmed"),
        ("a", "rule-1", "wrong"),
    ]
    read: list[str] = []
    original = index_module.load_improvement
    monkeypatch.setattr(
        index_module, "load_improvement", lambda path: (read.append(path.parent.name), original(path))[1]
    )
    before = (root / store.FINDINGS).stat().st_mtime_ns
    renew_index(root)
    assert read == ["nothing-graded"]
    assert (root / store.FINDINGS).stat().st_mtime_ns == before
    (root / "b" / "improve.json").unlink()
    assert renew_index(root).info.findings == 5


def test_a_search_that_cannot_be_read_is_named_and_left_out(tmp_path: Path) -> None:
    make_search(tmp_path / "a", "confirmed")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "improve.json").write_text('{"metric": "to', encoding="utf-8")
    for _ in range(2):  # the second time it is known, and named all the same
        (entry,) = renew_index(tmp_path).info.left_out
        assert entry.path == "torn/improve.json" and "not valid JSON" in entry.reason
        assert str(tmp_path) not in entry.reason


def test_unreadable_findings_are_set_aside(tmp_path: Path) -> None:
    make_search(tmp_path / "a", "confirmed")
    renew_index(tmp_path)
    (tmp_path / store.FINDINGS).write_bytes(b"PAR1 torn")
    done = renew_index(tmp_path)
    assert "findings.unreadable-1.parquet" in done.notes[0] and done.info.findings == 1


def test_the_record_is_kept_by_rule_and_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_searches(tmp_path)
    make_run(tmp_path, "run")
    assert main(["history", str(tmp_path), "--html"]) == 0
    output = capsys.readouterr().out
    # How often it helped, in how many searches that could tell, and how many could not; by machine.
    shown = [line for line in output.splitlines() if "rule-0 (decode)" in line]
    assert [re.findall(r"\d+", line.partition("(decode)")[2]) for line in shown] == [
        ["2", "3", "1"],
        ["1", "1"],
    ]
    assert DEVICE in shown[0] and "another" in shown[1]
    page = (tmp_path / "history.html").read_text(encoding="utf-8")
    rows = page[page.index('<section id="findings"') :].partition("</section>")[0].split("<tr")
    (row,) = [row for row in rows if "rule-0" in row and DEVICE in row]
    assert re.search(r">[^<\d]*2 of 3\b[^<\d]*1\b", row)
    found = json.loads((tmp_path / "history.json").read_text(encoding="utf-8"))["findings"]
    first = found[0]
    assert (first["finding"], first["device"], first["trials"], first["helped"]) == ("rule-0", DEVICE, 3, 2)
    assert first["not_shown"] == 1 and first["last"].startswith("2026-02-04")
    assert main(["history", str(tmp_path), "--json", "--model", "another"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_reports_count_searches_of_the_index_and_of_this_user_once(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    run = make_run(root, "run")
    mine = make_search(root / "a", "confirmed")
    keep_record(mine, root / "a")
    make_search(root / "b", "wrong", day=2)  # of a colleague, whose home is not ours
    assert [record.grades[0].grade for record in read_records(DEVICE, indexed_records(run))] == ["confirmed"]
    renew_index(root)
    found = read_records(DEVICE, indexed_records(run))
    assert sorted(record.grades[0].grade for record in found) == ["confirmed", "wrong"]
    assert read_records("another", indexed_records(run)) == []
    (root / store.FINDINGS).write_bytes(b"torn")
    assert len(read_records(DEVICE, indexed_records(run))) == 1
