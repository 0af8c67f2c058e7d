"""``history``, ``history --sql`` and ``compare --baseline`` over runs on disk."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.history.data import History
from llm_perf_opt.history.page import describe_empty, skipped_lines
from llm_perf_opt.reporting.wording import sentence
from llm_perf_opt.summary.codec import decode_file
from llm_perf_opt.summary.file import load_summary, save_summary
from tests.unit.history.runs_made import make_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty runs; a slower commit comes after twelve; one failed, one has a clock of the future."""
    root = tmp_path_factory.mktemp("runs")
    noise = np.random.default_rng(3).normal(0, 0.01, 20)
    for number in range(20):
        slow = number >= 12
        make_run(
            root, f"r{number:02d}", tpot_s=0.01 * float(np.exp(noise[number])) * (1.1 if slow else 1.0), day=number + 1,
            commit=("b" if slow else "a") * 40, packages={"torch": "2.14" if slow else "2.13"},
        )  # fmt: skip
    make_run(root, "failed", day=5, status="failed", tpot_s=0.001)
    skewed = make_run(root, "skewed", day=25, tpot_s=0.001)
    import os

    os.utime(skewed / "summary.json", (1.6e9, 1.6e9))
    make_run(root, "other", day=28, dtype="bfloat16")
    return root


def test_the_commit_that_came_with_a_change_is_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(runs), "--metric", "tpot", "--json"]) == 0
    history = json.loads(capsys.readouterr().out)
    trend = next(t for t in history["trends"] if len(t["points"]) == 20)
    (change,) = trend["changes"]
    assert change["outcome"] == "worse"
    assert change["earliest"] <= 12 <= change["latest"]
    assert change["low_ratio"] < 1.1 < change["high_ratio"]
    came = {item["what"]: (item["before"], item["after"]) for item in change["came_with"]}
    assert came == {"commit": ("a" * 40, "b" * 40), "torch": ("2.13", "2.14")}
    few = next(t for t in history["trends"] if len(t["points"]) == 1)
    assert few["changes"] == [] and "too few" in few["reason"]
    reasons = {entry["path"]: entry["reason"] for entry in history["left_out"]}
    assert reasons["failed"] == "the run failed"
    assert reasons["skewed"].startswith("clocks disagree")
    assert trend["points"][0]["low"] < trend["points"][0]["value"] < trend["points"][0]["high"]


def test_page_and_console_show_the_same(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", str(runs), "--html", "--out", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    page = (tmp_path / "history.html").read_text(encoding="utf-8")
    for text in (output, page):
        assert "commit aaaaaaaaaaaa → bbbbbbbbbbbb" in text
        assert "1 trend was tested" in text
    assert json.loads((tmp_path / "history.json").read_text(encoding="utf-8"))["runs"] == 23


def test_runs_that_were_all_left_out_are_not_runs_without_the_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "runs", "failed", status="failed")
    assert main(["history", str(tmp_path / "runs"), "--html", "--out", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    found = decode_file(tmp_path / "history.json", History)
    assert found.trends == [] and [entry.path for entry in found.left_out] == ["failed"]
    assert skipped_lines(found.left_out)[0] in output
    # What is said of runs that were left out is not what is said of runs that never had the metric.
    without = replace(found, left_out=[])
    assert describe_empty(found) in output and describe_empty(found) != describe_empty(without) not in output
    page = (tmp_path / "history.html").read_text(encoding="utf-8")
    assert sentence(describe_empty(found)) in page and 'id="left-out"' in page


def test_names_in_runs_are_escaped(tmp_path: Path) -> None:
    for day in (1, 2):
        make_run(tmp_path, f"<script>alert({day})<", day=day, commit="<b>x")
    assert main(["history", str(tmp_path), "--html"]) == 0
    page = (tmp_path / "history.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and "<b>x" not in page and "&lt;script&gt;alert" in page


def test_an_unknown_metric_names_the_nearest(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(runs), "--metric", "tpott"]) == 2
    assert "did you mean 'tpot'?" in capsys.readouterr().err


def test_sql(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT status, count(*) AS many FROM runs GROUP BY status ORDER BY status"
    code = main(["history", str(runs), "--sql", query, "--json"])
    out = capsys.readouterr().out
    if importlib.util.find_spec("duckdb") is None:
        assert code == 4 and "llm-perf-opt[duckdb]" in json.loads(out)["hint"]
        return
    assert json.loads(out) == [{"status": "failed", "many": 1}, {"status": "ok", "many": 22}]
    assert main(["history", str(runs), "--sql", "SELECT nothing FROM runs"]) == 2


def _compare(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["compare", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_baselines(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latest = _compare(capsys, str(runs / "r15"), "--baseline", "latest")
    assert latest["a"]["name"] == "r14"  # type: ignore[index]
    assert "r14" in latest["notes"][0]  # type: ignore[index]
    best = _compare(capsys, str(runs / "r15"), "--baseline", "best")
    assert int(best["a"]["name"][1:]) < 12  # type: ignore[index]
    named = _compare(capsys, str(runs / "r15"), "--baseline", "r03")
    assert named["a"]["name"] == "r03"  # type: ignore[index]


def test_nothing_to_compare_with_names_what_differs(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(runs / "other"), "--baseline", "latest"]) == 3
    output = capsys.readouterr().err
    assert "dtype: float32 → bfloat16" in output and "--any-configuration" in output
    assert (
        _compare(capsys, str(runs / "other"), "--baseline", "latest", "--any-configuration")["a"]["name"]
        == "r19"
    )  # type: ignore[index]
    elsewhere = make_run(tmp_path, "b", cpu="another", day=30)
    assert main(["compare", str(elsewhere), "--baseline", "latest", "--index", str(runs)]) == 3
    assert re.search(r"a processor \(2\b.* → another \(2\b", capsys.readouterr().err)
    assert main(["compare", str(runs / "r00"), "--baseline", "latest"]) == 3
    assert "began after it" in capsys.readouterr().err
    assert main(["compare", str(elsewhere), "--baseline", "latest"]) == 3
    assert "no other run" in capsys.readouterr().err
    assert main(["compare", str(runs / "r15"), "--baseline", "nope"]) == 3
    assert main(["compare", str(runs / "r15"), str(runs / "r14"), "--baseline", "latest"]) == 2
    assert main(["compare", "--baseline", "latest", "--run", "--", "a=b"]) == 2


def test_junit_and_comment(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--junit", str(tmp_path / "j.xml"), "--markdown", str(tmp_path / "c.md"))
    arguments = ("compare", str(runs / "r15"), "--baseline", "r03", "--gate", "tpot:+3%", *files)
    assert main([*arguments]) == 0
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("1", "0", "1")
    comment = (tmp_path / "c.md").read_text(encoding="utf-8")
    assert comment.startswith("<!-- llm-perf-opt compare -->") and "**tpot**" in comment
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    (gate,) = json.loads(capsys.readouterr().out)["gates"]
    assert (gate["metric"], gate["status"]) == ("tpot", "not enough data")
    assert main([*arguments, "--strict"]) == 1
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "0")
    capsys.readouterr()


def test_shared_runs_are_left_out_unless_requested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path, "alone", tpot_s=0.01)
    make_run(tmp_path, "shared", tpot_s=0.02, day=2, device_use={"shared": "others used 80 %"})

    def points(*expected: str) -> list[float]:
        assert main(["history", str(tmp_path), "--metric", "tpot", *expected, "--json"]) == 0
        (trend,) = json.loads(capsys.readouterr().out)["trends"]
        return [point["value"] for point in trend["points"]]

    assert points() == [pytest.approx(0.01)]
    assert points("--include-shared") == [pytest.approx(0.01), pytest.approx(0.02)]
    assert main(["history", str(tmp_path)]) == 0
    assert "--include-shared" in capsys.readouterr().out


def test_sides_of_experiments_are_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, "search/baseline")
    make_run(tmp_path, "search/experiments/001/a", config=None)
    (tmp_path / "search" / "experiments" / "001" / "spec.json").write_text("{}")
    assert main(["history", str(tmp_path), "--json"]) == 0
    history = json.loads(capsys.readouterr().out)
    assert history["runs"] == 1 and history["left_out"] == []
    assert {point["run"] for trend in history["trends"] for point in trend["points"]} == {"search/baseline"}


def test_configurations_of_one_label_are_distinguished_by_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings after the sixth are not in the label."""
    common = "".join(f"  k{number}: 1\n" for number in range(6))
    for name, last in (("one", "aa"), ("two", "bb")):
        make_run(tmp_path, name, config=f"model:\n  name: tiny\ninfer:\n{common}  z: {last}\n")
    assert main(["history", str(tmp_path), "--metric", "tpot", "--json"]) == 0
    one, two = json.loads(capsys.readouterr().out)["trends"]
    assert one["label"] != two["label"]
    assert {label.rpartition(" · ")[2] for label in (one["label"], two["label"])} == {
        "infer.z=aa",
        "infer.z=bb",
    }


def test_a_trend_has_one_statistic_also_with_runs_of_an_earlier_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, typical in (("old", None), ("new", 0.5)):
        folder = make_run(tmp_path, name, tpot_s=0.01)
        summary = load_summary(folder)
        assert summary.timings.tpot_s is not None
        summary.timings.tpot_s.typical = typical
        save_summary(summary, folder)

    def values(directory: Path) -> list[float]:
        assert main(["history", str(directory), "--metric", "tpot", "--json"]) == 0
        trends = json.loads(capsys.readouterr().out)["trends"]
        return [point["value"] for trend in trends for point in trend["points"]]

    assert values(tmp_path / "new") == [0.5]
    assert values(tmp_path) == [pytest.approx(0.01), pytest.approx(0.01)]
