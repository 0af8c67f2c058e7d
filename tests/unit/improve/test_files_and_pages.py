"""What a search leaves: improve.json and its schema, pages, the best configuration, the track record; the command line."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.commands.schema import main as schema_main
from llm_perf_opt.commands.schema import schema
from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.improve.baseline import write_best
from llm_perf_opt.improve.command import duration, parse_arguments, percentage
from llm_perf_opt.improve.improve import write_pages
from llm_perf_opt.improve.page import (
    describe_first_finding,
    headline,
    improve_console,
    improve_markdown,
    ladder_table,
    unconfirmed,
)
from llm_perf_opt.process.environment import missing_variables, restart_with
from llm_perf_opt.remedies.data import (
    Answered,
    Baseline,
    Best,
    FindingGrade,
    Improvement,
    Measured,
    NotTried,
    OutputCheck,
    SearchSettings,
    Step,
    Trial,
    load_improvement,
    save_improvement,
)
from llm_perf_opt.remedies.track_record import keep_record, read_records
from llm_perf_opt.reporting.markdown import render_table
from llm_perf_opt.runs.experiments import add_experiments
from llm_perf_opt.summary import Finding, Summary
from llm_perf_opt.summary.codec import to_plain
from tests.unit.summaries import summary

HOSTILE = "x=<script>alert(1)</script>|`"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def improvement() -> Improvement:
    found = Measured(-0.3, -0.4, -0.2, 20, 1.0, 0.7, "gain", 0.99)
    kept = Trial(
        "cache", ["model.cache=preallocated"], "growing-cache", 0.5, found, "equal", "keep", "a gain", phase="decode",
        measured_gain_s=0.3, check=OutputCheck(True, 2), comparison="experiments/001/comparison.html",
    )  # fmt: skip
    return Improvement(
        metric="total",
        baseline=Baseline(
            ["model=llama_tiny"], 1.0, total_s=1.0, ttft_s=0.4, run="baseline", model=HOSTILE, device="CPU X"
        ),
        method=SearchSettings(0.05, 9, 0.02, 80, 0, "a bound"),
        best=Best(["model.cache=preallocated"], -0.3, -0.4, -0.2, "equal", True, "llm-perf-opt run …"),
        started="2026-01-01T00:00:00",
        tried=[kept, Trial("own", [HOSTILE], None, None, None, "failed", "failed", HOSTILE)],
        not_tried=[NotTried("experts", HOSTILE)],
        ladder=[Step("cache", ["model.cache=preallocated"], 0.7, -0.3)],
        grades=[FindingGrade("growing-cache", "decode", 0.5, 0.3, 1, 1, "confirmed")],
        notes=[HOSTILE],
    )


def test_the_file_fits_its_schema_and_is_read_back(tmp_path: Path) -> None:
    made = improvement()
    save_improvement(made, tmp_path)
    jsonschema.validate(json.loads((tmp_path / "improve.json").read_text()), schema("improve"))
    assert load_improvement(tmp_path) == made
    assert {"baseline", "tried", "best"} <= set(to_plain(made))


def test_the_printed_schema_has_every_key_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert schema_main(["improve"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == schema("improve")
    document = to_plain(improvement())
    jsonschema.validate(document, printed)
    settings = {k: v for k, v in document["method"].items() if k != "least_gain_ratio"}
    for spoiled in ({**document, "more": 1}, {**document, "method": settings}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(spoiled, printed)


def test_pages_show_the_ladder_and_escape_what_is_not_ours(tmp_path: Path) -> None:
    made = improvement()
    write_pages(made, tmp_path)
    page, text = (tmp_path / "improve.html").read_text(), (tmp_path / "improve.md").read_text()
    assert "<script>alert(1)" not in page
    # In code spans it is text; everywhere else it must be escaped.
    assert text.count("<script>") == text.count("`` x=<script>")
    ladder = page[page.index('<section id="ladder"') :].partition("</section>")[0]
    assert re.findall(r'data-name="([^"]+)"', ladder)[1] == "model.cache=preallocated" and "700 ms" in ladder
    assert 'href="experiments/001/comparison.html"' in page
    output = improve_console(made)
    assert re.search(
        r"^  keep +model\.cache=preallocated .*growing-cache \(decode\): .*500 ms\b.*300 ms\b",
        output,
        re.MULTILINE,
    )
    change = re.escape("total −30.0 % [−40.0 … −20.0]")
    assert re.search(rf"^best .*model\.cache=preallocated +{change} .*\bequal$", output, re.MULTILINE)


def test_the_ladder_ends_where_the_headline_does(tmp_path: Path) -> None:
    """Its steps multiply to 700 ms; measured again as a whole it was 760 ms, which is what the headline says."""
    made = improvement()
    again = Measured(-0.24, -0.3, -0.2, 30, 1.0, 0.76, "gain", 0.99)
    made.tried.append(
        Trial(
            "cache", ["model.cache=preallocated"], None, None, again, "equal", "keep", "", role="confirmation"
        )
    )
    made.best.change_ratio = -0.24
    write_pages(made, tmp_path)
    text = (tmp_path / "improve.md").read_text()
    rows = render_table(ladder_table(made))
    assert rows in text
    assert [re.findall(r"\d+ ms|−[\d.]+ %|1\.00 s", line) for line in rows.strip().splitlines()[2:]] == [
        ["1.00 s"],
        ["700 ms", "−30.0 %"],
        ["760 ms", "−24.0 %"],
    ]
    page = (tmp_path / "improve.html").read_text()
    bars = re.findall(
        r'data-value="([^"]+)"', page[page.index('<section id="ladder"') :].partition("</section>")[0]
    )
    assert [float(value) for value in bars] == pytest.approx([1.0, -0.3, 0.06, 0.76] * 2), "desk and phone"


def test_the_best_is_a_preset_that_composes_to_the_same_values(tmp_path: Path) -> None:
    arguments = [
        "model=llama_tiny",
        "infer.max_new_tokens=7",
        "model.cache=static",
        "run.env.MALLOC_ARENA_MAX='2'",
    ]
    path = write_best(arguments, tmp_path)
    found = compose_config([], config_dir=path.parent, config_name=path.stem)
    wanted = compose_config(arguments)
    assert (found.model, found.infer, found.dataset) == (wanted.model, wanted.infer, wanted.dataset)
    assert found.run.env == {"MALLOC_ARENA_MAX": "2"}


def run_summary(device: str = "CPU X", command: list[str] | None = None) -> Summary:
    text = command or ["llm-perf-opt", "run", "model=llama_tiny", "artifacts.runs_dir=/x"]
    made = summary(
        findings=[
            Finding("growing-cache", "", "decode", [], 0.1, "", "", "high"),
            Finding("straggler", "", None, [], 0.1, "", "", "high"),
        ]
    )
    made.run.command, made.hardware.name = text, device
    return made


def test_a_finding_names_its_experiment_and_its_record(tmp_path: Path) -> None:
    made = run_summary()
    add_experiments(made)
    command = ["llm-perf-opt", "improve", "model=llama_tiny", "--only", "growing-cache:decode"]
    assert shlex.split(made.findings[0].improve_command or "") == command
    assert made.findings[0].track_record is None
    assert made.findings[1].improve_command is None
    keep_record(improvement(), tmp_path / "one")
    keep_record(improvement(), tmp_path / "one")  # resumed: the same search, not a second one
    worse = improvement()
    worse.grades[0].grade = "wrong"
    keep_record(worse, tmp_path / "two")
    add_experiments(made)
    assert re.findall(r"\d+", made.findings[0].track_record or "") == ["1", "2"], "helped in one of two"
    other = run_summary("another device")
    add_experiments(other)
    assert other.findings[0].track_record is None


def test_the_record_of_a_metric_counts_for_that_metric(tmp_path: Path) -> None:
    """A search by the time to the first token says nothing of decoding; one by throughput is named as such."""
    for metric, grade in (("ttft", "wrong"), ("total", "confirmed"), ("tokens_per_s", "wrong")):
        one = improvement()
        one.metric, one.grades[0].grade = metric, grade  # type: ignore[assignment]
        keep_record(one, tmp_path / metric)
    made = run_summary()
    add_experiments(made)
    by_time, by_rate = (made.findings[0].track_record or "").split(", ")
    assert re.findall(r"\d+", by_time) == ["1", "1"] and "tokens_per_s" not in by_time
    assert re.findall(r"\d+", by_rate) == ["0", "1"] and "tokens_per_s" in by_rate
    assert "ttft" not in f"{by_time}{by_rate}"


def test_the_first_finding_shows_whether_its_remedy_is_kept() -> None:
    made = improvement()
    made.baseline.first_finding = Answered("growing-cache", "decode", 0.5)
    messages: list[str] = []

    def first_lines() -> str:
        """Each state has words of its own, the same in both forms; they begin with the finding."""
        text = describe_first_finding(made)
        assert text is not None and text not in messages
        messages.append(text)
        assert text in improve_console(made) and text in improve_markdown(made).replace("\\", "")
        return text

    kept = first_lines()
    assert kept.startswith("growing-cache (decode): ") and "model.cache=preallocated" in kept
    made.best = Best([], None, None, None)
    alone = first_lines()
    assert alone.startswith("growing-cache (decode): ") and "model.cache=preallocated" in alone
    made.tried[0].decision, made.tried[0].reason = "drop", "slower"
    dropped = first_lines()
    assert (
        dropped.startswith("growing-cache (decode): ") and "model.cache=preallocated: drop, slower" in dropped
    )
    made.baseline.first_finding = Answered("host-sync", "decode", 0.5)
    untried = first_lines()
    assert untried.startswith("host-sync (decode): ") and "model.cache" not in untried
    made.baseline.first_finding = None
    assert describe_first_finding(made) is None and "first finding" not in improve_console(made)


def test_the_reason_of_an_unconfirmed_best_is_its_own() -> None:
    made = improvement()
    made.best.confirmed = False
    once = unconfirmed(made)
    assert once in headline(made)
    again = Trial(
        "cache", made.best.overrides, None, None, None, "failed", "failed", "it crashed", role="confirmation"
    )
    made.tried.append(again)
    assert "it crashed" in unconfirmed(made) and unconfirmed(made) in headline(made)
    again.decision, again.output = "drop", "equal"
    again.measured = Measured(-0.1, -0.3, 0.1, 80, 1.0, 0.9, "not shown", 0.99)
    assert unconfirmed(made) in headline(made)
    assert "it crashed" not in unconfirmed(made) and unconfirmed(made) != once, "the gain was only not shown"
    made.best.confirmed = True
    assert unconfirmed(made) not in headline(made)


def test_a_run_that_cannot_be_repeated_has_no_command() -> None:
    made = run_summary(command=["llm-perf-opt", "ingest", "--nsys", "x"])
    add_experiments(made)
    assert made.findings[0].improve_command is None


def test_a_damaged_record_is_left_out(tmp_path: Path) -> None:
    path = keep_record(improvement(), tmp_path)
    assert path is not None
    path.write_text("{")
    assert read_records("CPU X") == []


def test_the_command_line() -> None:
    options = parse_arguments(
        ["RUN", "model=llama_tiny", "--budget", "2h", "--only", "threads", "--least-gain", "5%"]
    )
    assert (options.run, options.overrides) == (Path("RUN"), ["model=llama_tiny"])
    assert (options.budget, options.only, options.least_gain) == (7200.0, ["threads"], 0.05)
    assert [duration(text) for text in ("90s", "1.5m", "10m", "2 h")] == [90.0, 90.0, 600.0, 7200.0]
    with pytest.raises(argparse.ArgumentTypeError, match="2s, 2m or 2h"):
        duration("2")
    assert percentage("0.02") == 0.02
    with pytest.raises(ConfigError, match="one run"):
        parse_arguments(["A", "B"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--only", "thread", "--plan"], 2, "threads?"),
        (["model.cash=static", "--plan"], 2, "model.cache"),
        (["no-such-run", "--plan"], 3, "no-such-run"),
        (["artifacts.runs_dir=/x", "model=llama_tiny", "--out", "o"], 2, "--out"),
        (["--try", "threads", "--plan"], 2, "--try 'key=value"),
        (["model=llama_tiny", "--budget", "20s", "--out", "o"], 2, "--budget 60s"),
    ],
)
def test_mistakes_are_reported(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["improve", *arguments]) == code
    assert message in capsys.readouterr().err


def test_a_process_is_not_started_again_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_ALREADY", "1")
    assert missing_variables({"SET_ALREADY": "1"}) == {}
    restart_with({"SET_ALREADY": "1"}, [])
    monkeypatch.setenv("LLM_PERF_OPT_RESTARTED", "1")
    with pytest.raises(ToolError, match="NOT_SET_YET"):
        restart_with({"NOT_SET_YET": "1"}, [])
