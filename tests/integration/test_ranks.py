"""Runs of two real ranks (gloo on the CPU): one directory each, one summary, and what is said when one does not end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.__main__ import main
from tests.support import REPOSITORY, cli, read_json

SMALL = (
    "model=llama_tiny",
    "run.device=cpu",
    "run.exclusive=false",
    "infer.max_new_tokens=4",
    "infer.warmup_rounds=0",
    "run.ranks_timeout_s=60",
    "dataset.synthetic_tokens=16",
    "dataset.synthetic_count=1",
    "pipeline.static_analysis.enable=false",
    "hardware.probe=false",
)
ENVIRONMENT = {"PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}", "OMP_NUM_THREADS": "1"}
DIRECT_ONLY = ("pipeline.torch_profiler.enable=false", "pipeline.direct_inference.enable=true")


def torchrun(*arguments: str, timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "llm_perf_opt", "run", *arguments),
        ],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def texts(folder: Path) -> list[str]:
    file = next(folder.rglob("predictions.jsonl"))
    return [json.loads(line)["raw_text"] for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run under torchrun, with the torch profiler; times decide how many passes there are."""
    run = tmp_path_factory.mktemp("ranks") / "run"
    done = torchrun(
        *SMALL, "run.max_measure_s=1", "pipeline.direct_inference.enable=true", f"artifacts.runs_dir={run}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return run


def test_every_rank_has_a_directory_and_the_run_one_summary(profiled: Path) -> None:
    manifest = read_json(profiled / "manifest.json")
    assert manifest["status"] == "ok"
    assert [(one["rank"], one["status"]) for one in manifest["ranks"]] == [(0, "ok"), (1, "ok")]
    assert {path.name for path in (profiled / "ranks").iterdir()} == {"0", "1"}
    repeats = [
        read_json(profiled / "ranks" / rank / "torch_profiler" / "timings.json")["measuring"]["repeats"]
        for rank in "01"
    ]
    assert repeats[0] == repeats[1], "a rank that measures more often than the other waits for ever"
    summary = read_json(profiled / "summary.json")
    assert summary["stages"]["torch_profiler"]["status"] == "ok"
    assert "split over 2 ranks" in " ".join(summary["notes"])
    assert summary["hardware"]["source"] == "none", "limits of one device are none of two"
    for name in manifest["stages"]["torch_profiler"]["artifacts"]:
        assert (profiled / name).is_file()


def test_the_ranks_traces_tell_who_waits_for_whom(profiled: Path) -> None:
    summary = read_json(profiled / "summary.json")
    assert [one["rank"] for one in summary["ranks"]] == [0, 1]
    talk = summary["communication"]
    by_name = {one["name"]: one for one in talk["collectives"]}
    # One of the embedding, two of each layer, for the prompt and three further tokens; the logits are gathered.
    layers = 4
    assert by_name["all_reduce"]["count"] == 4 * (1 + 2 * layers)
    assert by_name["all_gather"]["count"] == 4
    # A collective begins when the last rank enters, so that every instant of waiting is part of it.
    assert 0 <= talk["wait_s"] <= talk["total_s"]
    assert 0 < talk["exposed_s"] <= talk["total_s"]
    assert sum(one["last_in"] for one in summary["ranks"]) <= 4 * (2 + 2 * layers)
    for one in summary["ranks"]:
        assert one["communication_s"] < one["span_s"]


def test_the_text_is_that_of_one_process(profiled: Path, tmp_path: Path) -> None:
    assert main(["run", "-q", *SMALL, *DIRECT_ONLY, f"artifacts.runs_dir={tmp_path / 'alone'}"]) == 0
    assert texts(profiled / "ranks" / "0") == texts(profiled / "ranks" / "1") == texts(tmp_path / "alone")


def test_reports_are_remade_from_the_ranks(profiled: Path) -> None:
    before = read_json(profiled / "summary.json")
    done = cli("report", "--reanalyse", str(profiled), env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert read_json(profiled / "summary.json") == before


def test_a_rank_that_is_killed_is_told(tmp_path: Path) -> None:
    run = tmp_path / "run"
    adapter = "model.adapter=tests.integration.rank_adapters:Killed"
    done = cli(
        "run",
        "-q",
        *SMALL,
        *DIRECT_ONLY,
        adapter,
        "run.ranks=2",
        f"artifacts.runs_dir={run}",
        env=ENVIRONMENT,
    )
    assert done.returncode == 1, done.stderr
    manifest = read_json(run / "manifest.json")
    assert manifest["status"] == "failed"
    assert manifest["ranks"][1]["status"] == "died"
    assert "ended without a word" in manifest["reason"]
    notes: list[Any] = read_json(run / "summary.json")["notes"]
    assert any("rank 1 died" in note for note in notes)


def test_a_rank_that_fails_does_not_keep_the_other_waiting(tmp_path: Path) -> None:
    run = tmp_path / "run"
    adapter = "model.adapter=tests.integration.rank_adapters:Failing"
    done = torchrun(*SMALL, *DIRECT_ONLY, adapter, "--json", f"artifacts.runs_dir={run}")
    assert done.returncode != 0
    manifest = read_json(run / "manifest.json")
    assert manifest["status"] == "failed"
    assert "the weights of this rank are not here" in manifest["stages"]["direct_inference"]["reason"]
    assert manifest["stages"]["direct_inference"]["status"] == "failed"
    assert json.loads(done.stdout)["run"]["status"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("model=t5_small",), "adapter hf_seq2seq does not split its model over ranks"),
        (
            ("model=llama_tiny", "model.compile=true", "model.cache=static"),
            "model.compile=true does not go with 2 ranks",
        ),
        (
            ("model=llama_tiny", "pipeline.nsys.enable=true"),
            "pipeline.nsys.enable=true does not go with 2 ranks",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_before_anything_starts(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(
        ["run", "--plan", *arguments, "run.device=cpu", "run.ranks=2", f"artifacts.runs_dir={tmp_path / 'x'}"]
    )
    assert code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
