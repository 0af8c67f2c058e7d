"""Runs of two real ranks (gloo on the CPU): one directory each, one summary, and what is said when one does not end."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.compare.sides import load_side
from llm_perf_opt.process.tools import find_tools
from tests.integration.rank_adapters import NO_WEIGHTS
from tests.nsys_support import ask_tool
from tests.support import REPOSITORY, cli, read_json
from tests.warm import warm_server

SMALL = (
    "model=llama_tiny",
    "run.device=cpu",
    "infer.max_new_tokens=4",
    "infer.warmup_rounds=0",
    "run.ranks_timeout_s=60",
    "dataset.synthetic_tokens=16",
    "dataset.synthetic_count=1",
    "pipeline.static_analysis.enable=false",
    "hardware.probe=false",
)
ENVIRONMENT = {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'src'}", "OMP_NUM_THREADS": "1"}
NSYS = find_tools("nsys")
DIRECT_ONLY = ("pipeline.torch_profiler.enable=false", "pipeline.direct_inference.enable=true")


def torchrun(*arguments: str, timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
    """Run under torchrun, launcher and ranks forked; nsys starts its programs with the real interpreter."""
    return subprocess.run(
        [
            *(warm_server().stand_in, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
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
    """A run under torchrun, with the torch profiler and, where it is there, nsys; times decide how many passes there are."""
    run = tmp_path_factory.mktemp("ranks") / "run"
    capture = ("pipeline.nsys.enable=true", "pipeline.nsys.trace=nvtx") if NSYS else ()
    done = torchrun(
        *SMALL,
        *capture,
        "run.max_measure_s=1",
        "pipeline.direct_inference.enable=true",
        "pipeline.torch_profiler.record_shapes=true",
        "pipeline.static_analysis.enable=true",
        f"artifacts.runs_dir={run}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return run


def test_every_rank_has_a_directory_and_the_run_one_summary(profiled: Path) -> None:
    manifest = read_json(profiled / "manifest.json")
    assert manifest["status"] == "ok"
    assert [(one["rank"], one["status"]) for one in manifest["ranks"]] == [(0, "ok"), (1, "ok")]
    assert {path.name for path in (profiled / "ranks").iterdir()} == {"0", "1"}
    lease = manifest["lease"]
    assert lease["exclusive"] and lease["directory"] == os.environ["LLM_PERF_OPT_LEASES"]
    assert read_json(profiled / "ranks" / "1" / "manifest.json")["lease"] is None, (
        "the first holds it for both"
    )
    repeats = [
        read_json(profiled / "ranks" / rank / "torch_profiler" / "timings.json")["measuring"]["repeats"]
        for rank in "01"
    ]
    assert repeats[0] == repeats[1], "a rank that measures more often than the other waits for ever"
    summary = read_json(profiled / "summary.json")
    assert summary["stages"]["torch_profiler"]["status"] == "ok"
    assert "split over 2 ranks" in " ".join(summary["notes"])
    assert summary["workload"]["ranks"] == 2
    assert summary["hardware"]["source"] == "none", "limits of one device are none of two"
    for name in manifest["stages"]["torch_profiler"]["artifacts"]:
        assert (profiled / name).is_file()


def test_the_ranks_traces_show_who_waits_for_whom(profiled: Path) -> None:
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
    rows = summary["ranks"]
    for one in rows:
        assert one["communication_s"] < one["span_s"]
        assert one["exposed_communication_s"] <= one["communication_s"]
        assert one["waits_s"] <= one["communication_s"]

    def mean(name: str) -> float:
        return sum(one[name] for one in rows) / len(rows)

    # What is said of all is the mean of what is said of each, and the sum of what is said of each kind.
    for total, own in (
        ("total_s", "communication_s"),
        ("exposed_s", "exposed_communication_s"),
        ("wait_s", "waits_s"),
    ):
        assert talk[total] == pytest.approx(mean(own), rel=1e-6, abs=1e-9)
    for name in ("total_s", "exposed_s", "wait_s"):
        assert talk[name] == pytest.approx(sum(one[name] for one in talk["collectives"]), rel=1e-6, abs=1e-9)
    assert talk["share_ratio"] == pytest.approx(talk["exposed_s"] / mean("span_s"), rel=1e-6)
    # With two ranks, what one waits the other causes, but for ranks that came together.
    assert rows[0]["causes_wait_s"] <= rows[1]["waits_s"] + 1e-9
    assert rows[1]["causes_wait_s"] <= rows[0]["waits_s"] + 1e-9


def test_collectives_of_ranks_are_those_of_the_static_model(profiled: Path) -> None:
    """Payloads of the trace, byte for byte: one prefill and three steps."""
    summary = read_json(profiled / "summary.json")
    split = next(one for one in summary["static"]["splits"] if one["ranks"] == 2)
    text = {one["name"]: one["bytes"] for one in summary["communication"]["collectives"]}
    passes = {"prefill": 1, "decode": 3}
    for name in ("all_reduce", "all_gather"):
        assert text[name] == sum(
            one["bytes"] * passes[one["phase"]] for one in split["exchanges"] if one["name"] == name
        )
    for row, share in zip(summary["ranks"], split["shares"], strict=True):
        assert row["weight_bytes"] == share["weight_bytes"] < summary["static"]["resident_bytes"]["weights"]
        assert row["kv_bytes_per_token"] == summary["static"]["kv_bytes_per_token"] / 2
        assert row["link_bytes"]["decode"] > 0
    assert 'id="table-ranks-static"' in (profiled / "report.html").read_text(encoding="utf-8")


@pytest.mark.needs("nsys")
def test_every_rank_is_captured_in_a_session_of_its_own(profiled: Path, tmp_path: Path) -> None:
    manifest = read_json(profiled / "manifest.json")
    assert manifest["stages"]["nsys"]["status"] == "ok", manifest["stages"]["nsys"]
    sessions = set()
    for rank in "01":
        folder = profiled / "ranks" / rank / "nsys"
        assert (folder / f"run.rank{rank}.nsys-rep").is_file()
        command = (folder / "cmd.txt").read_text(encoding="utf-8")
        assert "run.rank%q{RANK}" in command
        sessions |= {line for line in command.splitlines() if "--session-new=" in line}
    assert len(sessions) == 2
    summary = read_json(profiled / "summary.json")
    assert "ranks/1/nsys/run.rank1.sqlite" in summary["sources"]["nsys"]
    section = next(one for one in summary["sections"] if one["title"].startswith("Ranges of 2 ranks"))
    steps = {row[0]: row for row in section["tables"][0]["rows"]}
    assert steps["decode_step"][1:3] == ["decode", "3"], "the program of one rank ran as often as the other's"
    # The reports alone, in one folder, say the same.
    captures = tmp_path / "captures"
    captures.mkdir()
    for rank in "01":
        shutil.copy(profiled / "ranks" / rank / "nsys" / f"run.rank{rank}.nsys-rep", captures)
    assert main(["ingest", "--nsys", str(captures), "--out", str(tmp_path / "joined")]) == 0
    assert section["tables"] in [
        one["tables"] for one in read_json(tmp_path / "joined" / "summary.json")["sections"]
    ]


@pytest.mark.needs("nsys")
def test_one_capture_around_the_launcher_distinguishes_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    report = ask_tool(
        [
            *(
                NSYS[0],
                "profile",
                "--trace=nvtx",
                "--sample=none",
                "--cpuctxsw=none",
                "--force-overwrite=true",
            ),
            *(f"--session-new=around-{os.getpid()}", "-o", tmp_path / "all"),
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            Path(__file__).with_name("rank_ranges.py"),
        ],
        tmp_path / "all.nsys-rep",
    )
    assert main(["ingest", "--nsys", str(report), "--out", str(tmp_path / "joined")]) == 0
    summary = read_json(tmp_path / "joined" / "summary.json")
    assert [one["rank"] for one in summary["ranks"]] == [0, 1]
    assert all(one["span_s"] > 0 for one in summary["ranks"])
    (note,) = [note for note in summary["notes"] if re.search(r"\b2 processes\b", note)]
    assert note.startswith("all.") and re.search(r"\brank 0\b", note)
    assert "device" not in note, "they say themselves which rank they are"
    rows = {row[0]: row for row in summary["sections"][0]["tables"][0]["rows"]}
    assert rows["decode"][1:3] == ["decode", "3"]
    assert (rows["dawdling"][5], rows["dawdling"][7]) == ("1", "1"), "only rank 1 did"


def test_the_text_is_that_of_one_process(profiled: Path, tmp_path: Path) -> None:
    assert main(["run", "-q", *SMALL, *DIRECT_ONLY, f"artifacts.runs_dir={tmp_path / 'alone'}"]) == 0
    assert texts(profiled / "ranks" / "0") == texts(profiled / "ranks" / "1") == texts(tmp_path / "alone")


def test_reports_are_remade_from_the_ranks_byte_for_byte(profiled: Path) -> None:
    written = [path for path in profiled.iterdir() if path.suffix in (".json", ".html", ".md")]
    before = {path: path.read_bytes() for path in written}
    assert profiled / "summary.json" in before and profiled / "report.html" in before
    assert cli("report", "--reanalyse", str(profiled), env=ENVIRONMENT).returncode == 0
    assert {path: path.read_bytes() for path in written} == before


def test_a_run_of_ranks_is_compared_by_the_timings_of_its_first_rank(profiled: Path) -> None:
    side = load_side(profiled, "A")
    (document,) = side.documents
    assert document is not None, "without them there is no interval"
    assert document == read_json(profiled / "ranks" / "0" / "torch_profiler" / "timings.json")


def test_a_run_of_ranks_is_one_run_of_the_history(profiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(profiled.parent)]) == 0
    assert capsys.readouterr().out.startswith("1 runs, ")


@pytest.mark.parametrize(("who", "rank"), [("Killed", 1), ("FirstKilled", 0)])
def test_a_killed_rank_is_reported(who: str, rank: int, tmp_path: Path) -> None:
    """The second under ``run.ranks``; the first, which would have reported all of them, under bare torchrun."""
    run = tmp_path / "run"
    arguments = (*SMALL, *DIRECT_ONLY, f"model.adapter=tests.integration.rank_adapters:{who}")
    if rank == 1:
        arguments = (*arguments, "run.ranks=2", f"artifacts.runs_dir={run}")
        code = cli("run", "-q", *arguments, env=ENVIRONMENT, children=True).returncode
    else:
        code = torchrun("-q", *arguments, f"artifacts.runs_dir={run}").returncode
    assert code == 1
    manifest = read_json(run / "manifest.json")
    assert manifest["status"] == "failed"
    assert manifest["ranks"][rank]["status"] == "died"
    assert manifest["lease"]["exclusive"]
    assert manifest["ranks"][1 - rank]["status"] in ("failed", "interrupted")
    assert f"rank {rank} died" in manifest["reason"] and "ended without a word" in manifest["reason"]
    notes: list[Any] = read_json(run / "summary.json")["notes"]
    assert any(f"rank {rank} died" in note for note in notes)
    assert not (run / "run.lock").exists()


def test_a_rank_that_fails_does_not_keep_the_other_waiting(tmp_path: Path) -> None:
    run = tmp_path / "run"
    adapter = "model.adapter=tests.integration.rank_adapters:Failing"
    done = torchrun(*SMALL, *DIRECT_ONLY, adapter, "--json", f"artifacts.runs_dir={run}")
    assert done.returncode != 0
    manifest = read_json(run / "manifest.json")
    assert manifest["status"] == "failed"
    assert NO_WEIGHTS in manifest["stages"]["direct_inference"]["reason"]
    assert manifest["stages"]["direct_inference"]["status"] == "failed"
    assert json.loads(done.stdout)["run"]["status"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("model=t5_small",), "hf_seq2seq"),
        (
            ("model=llama_tiny", "model.compile=true", "model.cache=static"),
            "model.compile=true",
        ),
        (
            ("model=llama_tiny", "pipeline.ncu.enable=true"),
            "pipeline.ncu.enable=true",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_before_anything_starts(
    arguments: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(
        ["run", "--plan", *arguments, "run.device=cpu", "run.ranks=2", f"artifacts.runs_dir={tmp_path / 'x'}"]
    )
    assert code == 2
    message = capsys.readouterr().err.partition("fix:")[0]
    assert expected in message and "ranks" in message
    assert not (tmp_path / "x").exists()
