"""How ranks are started, and what is made of manifests they left."""

from __future__ import annotations

import json
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.facts import Capture, Facts
from llm_perf_opt.captures.timeline import Timeline
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.logs import Verbosity
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.ranks import ROOT_VARIABLE
from llm_perf_opt.hardware import lease
from llm_perf_opt.hardware.lease import LEASE_VARIABLE
from llm_perf_opt.process.launch import ProcessResult
from llm_perf_opt.runs import assemble, ranks
from llm_perf_opt.runs import lease as run_lease
from llm_perf_opt.runs.app import prepare
from llm_perf_opt.runs.heartbeat import new_heartbeat
from llm_perf_opt.runs.manifest import (
    DeviceLease,
    RankRecord,
    StageRecord,
    new_manifest,
    read_manifest,
    write_manifest,
)
from llm_perf_opt.runs.ranks import (
    JoinedRun,
    RankJob,
    begin_run,
    command_of_ranks,
    environment_of_ranks,
    finish_run_of_ranks,
    wait_for_ranks,
)
from tests.unit.rank_captures import rank_capture, rank_timeline


def job(threads: int | None = None) -> RankJob:
    return RankJob(2, threads, ("model=llama_tiny", "run.ranks=2"), ("--config-dir", "mine"), Path("/here"))


def test_the_command_of_the_ranks() -> None:
    assert command_of_ranks(job()) == [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2",
        "-m", "llm_perf_opt", "run", "-q", "--config-dir", "mine", "model=llama_tiny", "run.ranks=2",
    ]  # fmt: skip


def test_cores_are_shared_out_unless_the_user_sets_otherwise() -> None:
    def threads(one: RankJob, given: dict[str, str], cores: int) -> str | None:
        return environment_of_ranks(one, Path("/run"), given, cores).get("OMP_NUM_THREADS")

    assert threads(job(), {}, 8) == "4"
    assert threads(job(), {}, 1) == "1"
    assert threads(job(threads=3), {}, 8) == "3"
    assert threads(job(), {"OMP_NUM_THREADS": "7"}, 8) is None


def leave_manifest(run: JoinedRun, rank: int, status: str, *, alive: bool = True) -> None:
    artifacts = Artifacts.for_run(run.folder(rank))
    manifest = new_manifest(artifacts, ["llm-perf-opt", "run"])
    manifest.status, manifest.heartbeat = status, new_heartbeat()  # type: ignore[assignment]
    if not alive:
        manifest.heartbeat.process_started = 1
    state = "ok" if status == "ok" else "running"
    manifest.stages["direct_inference"] = StageRecord(status=state)  # type: ignore[arg-type]
    write_manifest(artifacts, manifest)


def test_what_became_of_every_rank_is_reported(tmp_path: Path) -> None:
    """One ended well, one was killed, one never began, one is not done when the time is up."""
    run = JoinedRun(Artifacts.for_run(tmp_path / "run"), 4, ["llm-perf-opt", "run"])
    begin_run(run)
    leave_manifest(run, 0, "ok")
    leave_manifest(run, 1, "running", alive=False)
    leave_manifest(run, 3, "running")
    wait_for_ranks(run, 0.0)
    assert finish_run_of_ranks(run, quiet=True, as_json=False) == 1
    manifest = read_manifest(tmp_path / "run")
    assert [one.status for one in manifest.ranks] == ["ok", "died", "missing", "running"]
    assert manifest.status == "failed"
    assert manifest.stages["direct_inference"].status == "failed"
    assert manifest.reason is not None
    assert re.search(r"\brank 2 missing\b[^;]*manifest\.json", manifest.reason)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["run"]["status"] == "failed"


def test_ranks_that_have_all_ended_are_not_waited_for(tmp_path: Path) -> None:
    run = JoinedRun(Artifacts.for_run(tmp_path / "run"), 2, ["llm-perf-opt", "run"])
    begin_run(run)
    leave_manifest(run, 0, "ok")
    leave_manifest(run, 1, "running", alive=False)
    wait_for_ranks(run, 3600.0)
    assert finish_run_of_ranks(run, quiet=True, as_json=False) == 1


def test_an_earlier_run_is_moved_aside_with_its_ranks(tmp_path: Path) -> None:
    for _ in range(2):
        run = JoinedRun(Artifacts.for_run(tmp_path / "run"), 1, ["llm-perf-opt", "run"])
        begin_run(run)
        assert not run.folder(0).exists()
        leave_manifest(run, 0, "ok")
        finish_run_of_ranks(run, quiet=True, as_json=False)
    (earlier,) = (tmp_path / "run").glob("earlier-*")
    assert (earlier / "ranks" / "0" / "manifest.json").is_file()


def test_the_devices_of_all_ranks_are_held_before_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another run holds the processor: the ranks are not started, and so wait for nobody, until it lets go."""
    monkeypatch.setenv(LEASE_VARIABLE, str(tmp_path / "leases"))
    monkeypatch.setattr(lease, "_POLL_S", 0.01)
    config = prepare(["model=llama_tiny", "run.device=cpu"], config_dir=None, config_name="config").config
    artifacts = Artifacts.for_run(tmp_path / "run")
    done = threading.Event()
    started: list[bool] = []

    def other() -> None:
        with lease.hold_device(lease.cpu_device(), "another run", check=lambda: None):
            held.set()
            done.wait(60)

    def let_go() -> None:  # what the one who waits does again and again
        assert not started
        done.set()

    def run_process(command: list[str], **options: Any) -> ProcessResult:
        started.append(True)
        run = JoinedRun(artifacts, 2, command)
        monkeypatch.setenv(ROOT_VARIABLE, options["env"][ROOT_VARIABLE])
        for rank in range(2):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", "2")
            leave_manifest(run, rank, "ok")
            own = read_manifest(run.folder(rank))
            with run_lease.device_lease(config, Artifacts.for_run(run.folder(rank)), own):
                assert own.lease is None, "a rank holds nothing itself"
        return ProcessResult(tuple(command), 0, 1.0, "exit", "", "")

    held = threading.Event()
    monkeypatch.setattr(run_lease, "raise_if_interrupted", let_go)
    monkeypatch.setattr(ranks, "run_process", run_process)
    holder = threading.Thread(target=other)
    holder.start()
    assert held.wait(60)
    with caplog.at_level("WARNING", "llm_perf_opt.lease"):
        code = ranks.run_ranks(job(), config, artifacts, verbosity=Verbosity.quiet, as_json=False)
    holder.join()
    manifest = read_manifest(artifacts.root)
    assert (code, manifest.status) == (0, "ok")
    assert "waiting for cpu" in caplog.text and "another run" in caplog.text
    assert manifest.lease is not None and manifest.lease.exclusive
    assert manifest.lease.waited_s is not None and manifest.lease.waited_s > 0
    assert manifest.lease.directory == str(tmp_path / "leases")


def test_a_device_that_any_rank_had_to_share_is_reported(tmp_path: Path) -> None:
    run = JoinedRun(Artifacts.for_run(tmp_path / "run"), 2, ["llm-perf-opt", "run"])
    begin_run(run)
    for rank, phrase in enumerate((None, "pid 4711")):
        leave_manifest(run, rank, "ok")
        own = read_manifest(run.folder(rank))
        own.lease = DeviceLease(f"GPU-{rank}", exclusive=True, others_ratio=0.5 * rank, shared=phrase)
        write_manifest(Artifacts.for_run(run.folder(rank)), own)
    finish_run_of_ranks(run, quiet=True, as_json=False)
    manifest = read_manifest(tmp_path / "run")
    assert manifest.lease == DeviceLease("GPU-0, GPU-1", exclusive=True, others_ratio=0.5, shared="pid 4711")
    (note,) = [note for note in manifest.notes if "GPU-" in note]
    assert note.startswith("rank 1: ") and "GPU-1" in note and "GPU-0" not in note and "pid 4711" in note


def test_the_bound_of_what_is_kept_is_one_for_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = JoinedRun(Artifacts.for_run(tmp_path / "run"), 4, ["llm-perf-opt", "run"])
    manifest = begin_run(run)
    times = [100, 300]
    kept: dict[str, Capture] = {}
    for rank in range(4):
        leave_manifest(run, rank, "ok")
        manifest.ranks.append(RankRecord(rank, f"ranks/{rank}", "ok"))
        kept[str(rank)] = rank_capture(rank_timeline(times, [one + 90 for one in times]), "trace", rank)
    monkeypatch.setattr(
        assemble, "stage_facts", lambda folder, _: [Facts("trace", captures=[kept[folder.name]])]
    )

    def size(rank: int) -> int:
        timeline = kept[str(rank)].found
        assert isinstance(timeline, Timeline)
        return len(timeline.ops) + len(timeline.calls)

    whole = size(0)
    assemble._rank_facts(tmp_path / "run", manifest, most_rows=2 * whole)
    assert [size(rank) == whole for rank in range(4)] == [True, True, False, False]


def test_ranks_without_anything_to_run_are_refused_before_they_start() -> None:
    only_counted = ["model=llama_tiny", "run.ranks=2", "pipeline.torch_profiler.enable=false"]
    with pytest.raises(ConfigError, match=r"run\.ranks=2") as refused:
        prepare(only_counted, config_dir=None, config_name="config")
    assert refused.value.hint is not None and "pipeline.torch_profiler.enable=true" in refused.value.hint
    assert refused.value.data["key"] == "run.ranks"
    assert prepare(only_counted[::2], config_dir=None, config_name="config").config.run.ranks == 1
