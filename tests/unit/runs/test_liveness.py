"""A killed job is told from a running one: by its process here, by its heartbeat elsewhere, whatever the clocks say."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core import layout
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.runs import heartbeat, manifest
from llm_perf_opt.runs.finish import finish_interrupted
from llm_perf_opt.runs.heartbeat import Watch, beating, new_heartbeat, process_start
from llm_perf_opt.runs.manifest import new_manifest, read_manifest, write_manifest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / layout.MANIFEST
    found.write_text("{}")
    return found


def test_a_process_of_this_machine_is_looked_up(path: Path) -> None:
    mine = new_heartbeat()
    assert Watch(path.parent).judge(mine, path).alive
    # The number is in use again, by another process.
    assert not Watch(path.parent).judge(replace(mine, process_started=1), path).alive
    os.utime(path, (0, 0))  # however old its manifest is
    assert Watch(path.parent).judge(mine, path).alive


def test_a_process_that_ended_and_was_not_reaped_is_dead(path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    started = process_start(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(child.pid) is None
    beat = replace(new_heartbeat(), pid=child.pid, process_started=started)
    assert not Watch(path.parent).judge(beat, path).alive
    child.wait()


def test_elsewhere_the_age_of_the_manifest_decides(path: Path) -> None:
    beat = replace(new_heartbeat(), machine="another", host="node7")
    now = path.stat().st_mtime
    assert Watch(path.parent, now=now + 50).judge(beat, path).alive
    gone = Watch(path.parent, now=now + 61).judge(beat, path)
    assert not gone.alive
    assert "node7" in gone.why and "61 s" in gone.why
    slow = replace(beat, interval_s=60.0)
    assert Watch(path.parent, now=now + 300).judge(slow, path).alive


def test_a_clock_that_is_wrong_is_named_and_does_not_matter(path: Path) -> None:
    ahead = datetime.fromtimestamp(path.stat().st_mtime + 3600, UTC).isoformat()
    watch = Watch(path.parent)
    assert watch.judge(replace(new_heartbeat(), machine="another", host="node7", at=ahead), path).alive
    assert watch.skewed == {"node7": pytest.approx(3600, abs=2)}


def test_a_manifest_of_an_earlier_release_is_decided_by_its_age(path: Path) -> None:
    os.utime(path, (0, 0))
    assert not Watch(path.parent).judge(None, path).alive


def test_a_manifest_is_renewed_until_the_run_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = Artifacts.for_run(tmp_path)
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 3600.0)
    run = new_manifest(artifacts, ["run"])
    run.heartbeat = new_heartbeat()
    with beating(artifacts):
        write_manifest(artifacts, run)
        monkeypatch.setattr(manifest, "timestamp", lambda: "later")
        manifest.beat(tmp_path / layout.MANIFEST)
        found = read_manifest(tmp_path).heartbeat
        assert found is not None and found.at == "later"
        run.status = "ok"
        write_manifest(artifacts, run)
        monkeypatch.setattr(manifest, "timestamp", lambda: "during the report")
        manifest.beat(tmp_path / layout.MANIFEST)
        found = read_manifest(tmp_path).heartbeat
        assert found is not None and found.at == "during the report"
        (tmp_path / layout.SUMMARY).write_text("{}")
        monkeypatch.setattr(manifest, "timestamp", lambda: "much later")
        manifest.beat(tmp_path / layout.MANIFEST)
        found = read_manifest(tmp_path).heartbeat
        assert found is not None and found.at == "during the report"


@pytest.mark.parametrize("change", [{"pid": 1}, {"process_started": 1}, {"machine": "another"}])
def test_a_run_that_is_stopped_early_leaves_the_earlier_one_as_it_was(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    artifacts = Artifacts.for_run(tmp_path)
    run = new_manifest(artifacts, ["run"])
    run.status, run.heartbeat = "ok", replace(new_heartbeat(), **change)
    write_manifest(artifacts, run)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    finish_interrupted(artifacts)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before

    run.heartbeat = new_heartbeat()
    write_manifest(artifacts, run)
    finish_interrupted(artifacts)
    assert read_manifest(tmp_path).status == "interrupted"
    assert (tmp_path / layout.SUMMARY).is_file()
