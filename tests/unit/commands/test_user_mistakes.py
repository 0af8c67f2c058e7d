"""Mistakes and questions on the command line: one line, the nearest valid spelling, and nothing written unasked."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.commands import VERBS
from llm_perf_opt.config.legacy import current_overrides, translate_overrides
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.workloads.models import hub


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hub.hub_config.cache_clear()


@pytest.mark.parametrize(
    ("expected", "code", "fix"),
    [
        (["run", "model=gpt2"], 2, "model=hf model.path=gpt2"),
        (["run", "model=meta-llama/Llama-3.1-8B"], 2, "model=hf model.path=meta-llama/Llama-3.1-8B"),
        (["run", "dtype=fp16"], 2, "model.dtype=float16"),
        (["run", "--model", "x"], 2, "model=x"),
        (["run", "--batch-size=4"], 2, "infer.batch_size=4"),
        (["run", "--plann"], 2, "--plan"),
        (["what-if", "x", "--batch", "eight"], 2, "'eight' is not a whole number"),
        (["what-if", "x", "--bach", "8"], 2, "--batch"),
        (["sweep-report"], 2, "directory"),
    ],
)
def test_a_mistake_gets_one_message_with_what_to_type(
    expected: list[str], code: int, fix: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(expected) == code
    out, err = capsys.readouterr()
    assert err.startswith("error: ") and err.count("\n") == 2 and fix in err
    assert out == "" and "usage:" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("adapter", ["hf", "hf_causal_lm"])
def test_a_hub_model_without_a_network_fails_before_any_work(
    adapter: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    assert main(["run", f"model={adapter}", "model.path=someone/some-model"]) == InputError.exit_code
    err = capsys.readouterr().err
    assert "hf download someone/some-model" in err and err.count("\n") == 2
    assert not (tmp_path / "tmp").exists()


def test_the_hub_is_queried_once_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: refused at once
    assert hub._unreachable()
    monkeypatch.setenv("HF_ENDPOINT", "ftp://example.com")
    assert "not a URL" in (hub._unreachable() or "")


def test_a_hub_id_is_distinguished_from_a_path(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    wanted = {
        "gpt2": True,
        "meta-llama/Llama-3.1-8B": True,
        "here": False,
        "./x": False,
        "/x": False,
        "~/x": False,
    }
    assert {name: hub.is_hub_id(name) for name in wanted} == wanted


def test_short_names_of_data_types() -> None:
    assert translate_overrides(["model.dtype=fp16,BF16,float32"]) == ["model.dtype=float16,bfloat16,float32"]


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"completion"}))
def test_exit_code_1_is_listed_only_where_it_is_used(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    codes = [
        line.split()[0] for line in capsys.readouterr().out.partition("exit codes:\n")[2].splitlines() if line
    ]
    assert {"0", "2", "3", "4", "70", "130"} <= {*codes}
    assert ("1" in codes) is (
        verb in {"run", "serve", "compare", "sweep-report", "doctor", "self-test-report", "migrate"}
    )


def test_nothing_is_written_into_a_directory_that_is_only_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["history", "."]) == 0
    assert main(["history", ".", "--json"]) == 0
    assert main(["sweep-report", "."]) == InputError.exit_code
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_plan_can_be_pasted_although_paths_have_spaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "it's a run"
    program = "pipeline.workload.command=[echo,'two words']"
    quoted = str(run).replace("'", "\\'")
    parts = ["run", "--plan", "pipeline.nsys.enable=true", program, f"artifacts.runs_dir='{quoted}'"]
    assert main([*parts, "--json"]) == 0
    stages = {stage["stage"]: stage for stage in json.loads(capsys.readouterr().out)["stages"]}
    for command in (
        step.removeprefix("run   ") for step in stages["nsys"]["steps"] if step.startswith("run ")
    ):
        arguments = shlex.split(command)
        assert any(str(run) in argument for argument in arguments)
        assert max(len(line) for line in command.splitlines()) <= 140
    assert shlex.split(stages["program"]["steps"][0].removeprefix("run   ")) == ["echo", "two words"]
    assert main(parts) == 0
    assert "write nsys/run.nsys-rep" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_old_keys_are_shown_as_what_they_became(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["device=cpu", "repeats=7", "run.repeats=3", "pipeline.ncu.metrics='a,b'"]
    assert current_overrides(given) == [
        "run.device=cpu",
        "run.repeats=3",
        "pipeline.ncu.ncu_cli.metrics=[a,b]",
    ]
    assert main(["run", "--cfg", "job", "device=cpu", "repeats=7"]) == 0
    shown = capsys.readouterr().out
    assert "  device: cpu\n  repeats: 7\n" in shown
    assert "\ndevice:" not in shown and "\nrepeats:" not in shown


def test_one_meaning_of_stage2(repository: Path) -> None:
    from llm_perf_opt.runners.deep_profile_runner import TOGGLES

    pixi = (repository / "pixi.toml").read_text()
    assert translate_overrides(["runner=stage2"]) == list(TOGGLES)
    assert f'stage2-profile = "llm-perf-opt run {" ".join(TOGGLES)}"' in pixi


@pytest.mark.needs("bash")
def test_the_script_for_ncu_runs_under_any_shell(repository: Path) -> None:
    script = repository / "scripts" / "ncu" / "release" / "ncu-profile-kernels.sh"
    command = ["sh", str(script), "--ncu", "/nowhere/ncu", "--dry-run", "--", "echo", "a b"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--section SpeedOfLight" in done.stdout
    command.remove("--dry-run")  # only a command that is printed needs no ncu
    assert subprocess.run(command, capture_output=True, check=False).returncode == 4
