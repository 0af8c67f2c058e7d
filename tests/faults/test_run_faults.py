"""Faults in a real run: interruption, a full disk, a directory nobody may write, two runs at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.progress import SilentProgress
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.files import atomic_write_bytes
from llm_perf_opt.process.tools import HIDE
from llm_perf_opt.runs import execute as pipeline
from tests.needs import need
from tests.support import QUICK, cli, files_below, read_json
from tests.warm import WarmProcess, warm_server


def _start(cwd: Path, *overrides: str) -> WarmProcess:
    return warm_server().start(["run", *overrides], cwd)


def test_ctrl_c_in_a_running_stage_leaves_a_report_and_exits_130(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = _start(
        tmp_path,
        *QUICK[1:],
        "infer.max_new_tokens=4000",
        f"artifacts.runs_dir={run}",
        "pipeline.static_analysis.use_analytic_fallback=false",
    )
    try:
        deadline = time.monotonic() + 120
        while "measuring" not in ((run / "run.log").read_text() if (run / "run.log").is_file() else ""):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    manifest = read_json(run / "manifest.json")
    assert manifest["status"] == "interrupted"
    assert manifest["stages"]["static_analysis"]["status"] == "ok"
    assert manifest["stages"]["torch_profiler"]["reason"] == "interrupted"
    assert "interrupted" in (run / "report.md").read_text()
    assert str(run) in output
    assert not [name for name in files_below(run) if ".partial" in name]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 kB."""
    need("mount")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_named_in_the_message(tiny_disk: Path, tmp_path: Path) -> None:
    (tiny_disk / "ballast").write_bytes(b"x" * 270_000)
    done = cli(
        "run",
        *QUICK,
        "pipeline.torch_profiler.enable=false",
        f"artifacts.runs_dir={tiny_disk / 'run'}",
        cwd=tmp_path,
    )
    assert done.returncode in (1, 4), done.stderr
    assert "no space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_directory_below_a_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = cli("run", *QUICK, f"artifacts.runs_dir={tmp_path / 'file' / 'run'}", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
    assert "artifacts.runs_dir" in done.stderr


def test_a_directory_without_write_permission_is_explained(tmp_path: Path) -> None:
    """As an ordinary user: root may write anywhere, so the run is started as nobody."""
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    code = (
        "import os, sys\n"
        "from llm_perf_opt.core.artifacts import reserve_directory\n"
        "from llm_perf_opt.core.errors import ToolError\n"
        "from pathlib import Path\n"
        "if os.geteuid() == 0:\n"
        "    os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    reserve_directory(Path(sys.argv[1]) / 'tmp' / 'runs' / 'x')\n"
        "except ToolError as error:\n"
        "    print(error); sys.exit(error.exit_code)\n"
    )
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", code, str(locked)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd="/",
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert "permission" in done.stdout and str(locked) in done.stdout
    assert "artifacts.runs_dir" in done.stdout


def test_B4_two_runs_started_together_get_two_directories(tmp_path: Path) -> None:
    overrides = [*QUICK, "pipeline.torch_profiler.enable=false"]
    first, second = _start(tmp_path, *overrides), _start(tmp_path, *overrides)
    for process in (first, second):
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    runs = sorted((tmp_path / "tmp" / "runs").iterdir())
    assert len(runs) == 2
    assert all((run / "report.md").is_file() for run in runs)


def test_corrupt_pages_are_skipped_counted_and_named_and_all_bad_is_an_error(tmp_path: Path) -> None:
    from PIL import Image

    images = tmp_path / "data" / "images"
    images.mkdir(parents=True)
    Image.new("RGB", (300, 200), "white").save(images / "good.png")
    (images / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    done = cli(
        "run",
        *QUICK,
        f"dataset.root={tmp_path / 'data'}",
        f"artifacts.runs_dir={tmp_path / 'run'}",
        "pipeline.static_analysis.enable=false",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    stage = read_json(tmp_path / "run" / "manifest.json")["stages"]["torch_profiler"]
    assert stage["status"] == "degraded"
    assert "broken.png" in stage["reason"]
    (images / "good.png").unlink()
    done = cli(
        "run",
        *QUICK,
        f"dataset.root={tmp_path / 'data'}",
        f"artifacts.runs_dir={tmp_path / 'run2'}",
        "pipeline.static_analysis.enable=false",
        cwd=tmp_path,
    )
    assert done.returncode in (1, 3)
    assert "broken.png" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("fault", "status"), [(ToolError("the probe failed"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_a_run_that_dies_before_its_first_stage_is_not_ok(
    fault: BaseException, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(pipeline, "_write_hardware", fail)
    config = compose_config([*QUICK, f"artifacts.runs_dir={tmp_path / 'run'}"], cwd=tmp_path)
    # An interruption ends the run with a report; a failure is told by whoever called.
    ended = pytest.raises(ToolError) if isinstance(fault, ToolError) else contextlib.nullcontext()
    with ended:
        pipeline.execute(
            config,
            Artifacts.for_run(tmp_path / "run"),
            SilentProgress(),
            command=["llm-perf-opt", "run"],
            overrides=(),
            resolved_yaml="",
        )
    assert read_json(tmp_path / "run" / "manifest.json")["status"] == status


def test_an_export_of_an_earlier_report_is_not_taken_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nsys").write_text("#!/bin/sh\necho 'cannot read the report' >&2\nexit 1\n")
    (tools / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(HIDE, "")  # of the real one; this one stands in for it
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"damaged")
    stale = tmp_path / "out" / "nsys" / "run.sqlite"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of another report")
    done = cli("ingest", "--nsys", str(report), "--out", str(tmp_path / "out"), cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert "could not export" in done.stderr


def test_a_long_name_in_wide_letters_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / f"{'頁' * 80}.png"
    assert atomic_write_bytes(path, b"x").read_bytes() == b"x"
