"""What a search leaves: improve.json and its schema, pages, the best configuration, the track record; the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.model.codec import to_plain
from llm_perf_opt.model.improve import (
    Answered,
    Baseline,
    Best,
    FindingGrade,
    Improvement,
    ImproveMethod,
    Measured,
    NotTried,
    OutputCheck,
    Step,
    Trial,
    improve_schema,
    load_improvement,
    save_improvement,
)
from llm_perf_opt.model.summary import Finding, Summary
from llm_perf_opt.process.restart import missing_variables, restart_with
from llm_perf_opt.reporting.improve.console import improve_console
from llm_perf_opt.reporting.improve.markdown import improve_markdown
from llm_perf_opt.reporting.improve.words import headline
from llm_perf_opt.runs.experiments import add_experiments
from llm_perf_opt.runs.improve.best_config import write_best
from llm_perf_opt.runs.improve.command import duration, parse_arguments, percentage
from llm_perf_opt.runs.improve.improve import write_pages
from llm_perf_opt.runs.track_record import keep_record, read_records
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
        method=ImproveMethod(0.05, 9, 0.02, 80, 0, "a bound"),
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
    jsonschema.validate(json.loads((tmp_path / "improve.json").read_text()), improve_schema())
    assert load_improvement(tmp_path) == made
    assert {"baseline", "tried", "best"} <= set(to_plain(made))


def test_the_published_schema_is_the_one_of_the_code(repository: Path) -> None:
    path = repository / "src" / "llm_perf_opt" / "model" / "improve.schema.json"
    assert json.loads(path.read_text()) == improve_schema()


def test_pages_show_the_ladder_and_escape_what_is_not_ours(tmp_path: Path) -> None:
    made = improvement()
    write_pages(made, tmp_path)
    page, text = (tmp_path / "improve.html").read_text(), (tmp_path / "improve.md").read_text()
    assert "<script>alert(1)" not in page
    # In code spans it is text; everywhere else it must be escaped.
    assert text.count("<script>") == text.count("`` x=<script>")
    assert "from baseline to best" in page
    assert 'href="experiments/001/comparison.html"' in page
    said = improve_console(made)
    assert re.search(r"^  keep +model\.cache=preallocated", said, re.MULTILINE)
    assert "predicted at most 500 ms, measured 300 ms" in said
    assert "best together: model.cache=preallocated   total −30.0 % [−40.0 … −20.0]   tokens equal" in said


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
    assert re.search(r"all of it, measured again.*760 ms.*24\.0 %", text)
    assert "measured again" in (tmp_path / "improve.html").read_text()


def test_the_best_is_a_preset_that_composes_to_the_same_values(tmp_path: Path) -> None:
    words = [
        "model=llama_tiny",
        "infer.max_new_tokens=7",
        "model.cache=static",
        "run.env.MALLOC_ARENA_MAX='2'",
    ]
    path = write_best(words, tmp_path)
    found = compose_config([], config_dir=path.parent, config_name=path.stem)
    wanted = compose_config(words)
    assert (found.model, found.infer, found.dataset) == (wanted.model, wanted.infer, wanted.dataset)
    assert found.run.env == {"MALLOC_ARENA_MAX": "2"}


def run_summary(device: str = "CPU X", command: list[str] | None = None) -> Summary:
    words = command or ["llm-perf-opt", "run", "model=llama_tiny", "artifacts.runs_dir=/x"]
    made = summary(
        findings=[
            Finding("growing-cache", "", "decode", [], 0.1, "", "", "high"),
            Finding("straggler", "", None, [], 0.1, "", "", "high"),
        ]
    )
    made.run.command, made.hardware.name = words, device
    return made


def test_a_finding_says_how_it_is_tried_and_how_it_did_before(tmp_path: Path) -> None:
    made = run_summary()
    add_experiments(made)
    assert (
        made.findings[0].improve_command
        == "llm-perf-opt improve model=llama_tiny --only growing-cache:decode"
    )
    assert made.findings[0].track_record is None
    assert made.findings[1].improve_command is None
    keep_record(improvement(), tmp_path / "one")
    keep_record(improvement(), tmp_path / "one")  # resumed: the same search, not a second one
    worse = improvement()
    worse.grades[0].grade = "wrong"
    keep_record(worse, tmp_path / "two")
    add_experiments(made)
    assert made.findings[0].track_record == "this advice helped in 1 of 2 trials on this machine"
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
    assert made.findings[0].track_record == (
        "this advice helped in 1 of 1 trial on this machine, helped in 0 of 1 trial for tokens_per_s on this machine"
    )


def test_the_first_finding_says_whether_its_remedy_is_kept() -> None:
    made = improvement()
    made.baseline.first_finding = Answered("growing-cache", "decode", 0.5)
    kept = "growing-cache (decode): its remedy model.cache=preallocated is kept"
    assert f"first finding: {kept}" in improve_console(made)
    assert f"**first finding**: {kept}" in improve_markdown(made).replace("\\", "")
    made.best = Best([], None, None, None)
    assert "showed a gain alone, but is not in the best" in improve_console(made)
    made.tried[0].decision, made.tried[0].reason = "drop", "slower"
    assert "no remedy of it is kept (model.cache=preallocated: drop, slower)" in improve_console(made)
    made.baseline.first_finding = Answered("host-sync", "decode", 0.5)
    assert "host-sync (decode): none of its remedies was tried" in improve_console(made)
    made.baseline.first_finding = None
    assert "first finding" not in improve_console(made)


def test_the_reason_of_an_unconfirmed_best_is_its_own() -> None:
    made = improvement()
    made.best.confirmed = False
    assert "not measured a second time" in headline(made)
    again = Trial(
        "cache", made.best.overrides, None, None, None, "failed", "failed", "it crashed", role="confirmation"
    )
    made.tried.append(again)
    assert "not confirmed: measured again, it crashed" in headline(made)
    again.decision, again.output = "drop", "equal"
    again.measured = Measured(-0.1, -0.3, 0.1, 80, 1.0, 0.9, "not shown", 0.99)
    assert "not confirmed: measured again, the gain was not shown" in headline(made)


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
    assert [duration(text) for text in ("90", "90s", "10m")] == [90.0, 90.0, 600.0]
    assert percentage("0.02") == 0.02
    with pytest.raises(ConfigError, match="one run"):
        parse_arguments(["A", "B"])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--only", "thread", "--plan"], 2, "did you mean threads"),
        (["model.cash=static", "--plan"], 2, "model.cache"),
        (["no-such-run", "--plan"], 3, "does not exist"),
        (["artifacts.runs_dir=/x", "model=llama_tiny", "--out", "o"], 2, "--out"),
        (["--try", "threads", "--plan"], 2, "not a list of overrides"),
    ],
)
def test_mistakes_are_told(
    words: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["improve", *words]) == code
    assert said in capsys.readouterr().err


def test_a_process_is_not_started_again_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_ALREADY", "1")
    assert missing_variables({"SET_ALREADY": "1"}) == {}
    restart_with({"SET_ALREADY": "1"}, [])
    monkeypatch.setenv("LLM_PERF_OPT_RESTARTED", "1")
    with pytest.raises(ToolError, match="NOT_SET_YET"):
        restart_with({"NOT_SET_YET": "1"}, [])
