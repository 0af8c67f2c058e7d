"""What a newcomer types wrong, and what the command line answers: our words, and the documented exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.api import Run
from llm_perf_opt.cli import main
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.reporting.console import console_summary
from llm_perf_opt.summary import Kernel, LedgerRow, Operator, StageInfo
from tests.unit.report_summaries import bare_summary


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("expected", "message", "fix"),
    [
        (["--cfg", "job", "model=zzz"], "model=zzz", "llama_tiny"),
        (["--cfg", "job", "run.repeat=3"], "'run.repeat'", "run.repeats"),
        (["--cfg", "job", "run.repeats=0"], "run.repeats=0", "at least 1"),
        (["--info", "defaults", "run.repeats=x"], "run.repeats: 'x'", "run.repeats=null"),
        (["--multirun", "--cfg", "job", "run.repeats=1,0"], "run.repeats=0", "at least 1"),
        (["pipeline.ncu.metrics=a,b"], "commas", "'pipeline.ncu.ncu_cli.metrics=[a,b]'"),
        (["infer.prompt=a,b"], "commas", "\"infer.prompt='a,b'\""),
        (["model.path=~somebody/x"], "'~'", "model.path=/"),
        (["model.path=~/x"], "'~'", f"model.path={Path.home()}/x"),
        (["infer.prompt=Hi!"], "Hydra", "'infer.prompt=\"Hi!\"'"),
        (["dataset.root=a{b"], "Hydra", "'dataset.root=\"a{b\"'"),
    ],
)
def test_a_wrong_override_is_explained(
    expected: list[str], message: str, fix: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["run", *expected]) == ConfigError.exit_code
    out, err = capsys.readouterr()
    shown, _, hint = err.partition("fix: ")
    assert message in shown
    assert fix in hint
    assert out == ""
    assert "hydra.cc" not in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("quoted", ["infer.prompt='<image> Hi!'", "pipeline.ncu.ncu_cli.metrics=[a,b]"])
def test_the_suggested_fix_works(quoted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--plan", "--json", quoted]) == 0
    assert json.loads(capsys.readouterr().out)["stages"]


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda path: path.write_text("x"), "file"),
        (lambda path: path.mkdir(), "empty"),
        (lambda path: (path.mkdir(), (path / "other.txt").touch()), "config.json"),
        (lambda path: None, "not exist"),
    ],
)
@pytest.mark.parametrize("preset", ["hf_causal_lm", "deepseek_ocr"])
def test_a_checkpoint_that_is_none_is_an_input_that_cannot_be_used(
    make: object, wrong: str, preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "checkpoint")  # type: ignore[operator]
    code = main(["run", f"model={preset}", "model.path=./checkpoint"])
    assert code == InputError.exit_code
    output = capsys.readouterr().err.partition("fix:")[0]
    assert wrong in output.partition("checkpoint")[2]
    assert not (tmp_path / "tmp").exists()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["doctor", "--help"], ["run", "--cfg", "job"]]
)
def test_a_reader_that_leaves_is_no_traceback(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)  # as `| true`: nobody reads what is written
    with os.fdopen(write, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "llm_perf_opt", *arguments],
            stdout=nobody, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_plan_without_a_gpu_shows_the_command_of_ncu(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "run",
        "--plan",
        "run.device=cpu",
        "pipeline.ncu.enable=true",
        "pipeline.torch_profiler.enable=false",
    ]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert re.search(r"^ncu: .*\bskipped\b", text, flags=re.MULTILINE)
    shown = text[text.index("\nncu: ") :].partition("fix: ")[2]
    assert "--target-processes" in shown and "run.device=cuda:0" in re.sub("[\"']", "", shown)
    assert main([*arguments, "--json", "pipeline.ncu.executable=/nowhere/ncu"]) == 0
    stage = json.loads(capsys.readouterr().out)["stages"][-1]
    assert stage["skipped"] and any("/nowhere/ncu" in step for step in stage["steps"])


def test_tables_of_a_run_without_kernels_have_their_columns(tmp_path: Path) -> None:
    run = Run(tmp_path, bare_summary())
    assert run.kernels().sort("total_s", descending=True).head(5).height == 0
    assert run.kernels().schema["total_s"].is_float() and run.kernels().schema["launches"].is_integer()
    for table, kind, nested in (
        (run.kernels(), Kernel, {"counters"}),
        (run.operators(), Operator, set()),
        (run.ledger(), LedgerRow, {"others_s"}),
    ):
        assert set(table.columns) == set(kind.__dataclass_fields__) - nested
    assert {"name", "type", "params"} <= set(run.modules().columns)


def test_the_console_prints_the_whole_fix() -> None:
    summary = bare_summary()
    fix = "install it where it belongs " * 12 + "and then run LAST-WORD"
    summary.stages = {"nsys": StageInfo(status="skipped", reason=f"{'it is missing ' * 30}(fix: {fix})")}
    lines = console_summary(summary, Path("/r/report.html")).splitlines()
    assert "LAST-WORD" in "\n".join(lines)
    assert all(len(line) < 80 for line in lines)
