"""`compare --run` measures both configurations itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from tests.support import cli, read_json

TINY = ("model=llama_tiny", "infer.max_new_tokens=3", "infer.warmup_rounds=0", "dataset.synthetic_tokens=8")


@pytest.mark.slow
def test_runs_in_processes_of_their_own(tmp_path: Path) -> None:
    out = tmp_path / "a b"
    done = cli(
        "compare",
        *TINY,
        "--rounds",
        "1",
        "--out",
        str(out),
        "--json",
        "--run",
        "run.repeats=3",
        "--",
        "run.repeats=4",
        children=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rows = {row["name"]: row for row in found["metrics"]}
    assert rows["tpot"]["blocks"] == "repeats"
    assert rows["tpot"]["n"] == 3
    assert read_json(out / "comparison.json") == found
    timings = read_json(out / "b" / "001" / "direct_inference" / "timings.json")
    assert len(timings["samples"][0]["repeats"]) == 4
    assert (out / "logs" / "a-001.stderr.log").is_file()
    assert main(["compare", str(out / "a"), str(out / "b"), "-q"]) == 0


@pytest.mark.slow
def test_passes_in_turns_in_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["compare", *TINY, "--together", "--rounds", "6", "--out", str(out), "--json"]
    assert main([*arguments, "--run", "--", "model.attn_implementation=eager"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = {row["name"]: row for row in found["metrics"]}
    assert (rows["tpot"]["blocks"], rows["tpot"]["n"]) == ("rounds", 6)
    again = ["compare", str(out / "a"), str(out / "b"), "--json"]
    assert main(again) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == found["metrics"]
    assert main([*arguments, "--run", "--", "infer.batch_size=2"]) == 2  # the directories are taken


def test_threads_belong_to_the_process(tmp_path: Path) -> None:
    arguments = ["compare", *TINY, "--together", "--out", str(tmp_path / "out"), "--run"]
    assert main([*arguments, "run.threads=1", "--", "run.threads=2"]) == 2
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_is_reported_with_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    broken = [
        "model=llama_tiny",
        "--timeout",
        "1",
        "--rounds",
        "1",
        "--out",
        str(out),
        "--run",
        "--",
        "run.repeats=2",
    ]
    assert main(["compare", *broken]) == 4
    output = capsys.readouterr().err
    assert "took longer than --timeout" in output
    assert "Traceback" not in output
