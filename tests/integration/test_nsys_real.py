"""Captures with the real Nsight Systems, every generation found on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.process import tools as checks
from llm_perf_opt.process.launch import run_probe
from llm_perf_opt.stages.nsys.capture_set import CaptureSet, export_sqlite, has_kernels, write_summaries
from llm_perf_opt.stages.nsys.command import build_export_cmd, build_nsys_cmd
from llm_perf_opt.stages.nsys.config import NsysConfig
from llm_perf_opt.stages.nsys.probe import probe_nsys
from llm_perf_opt.stages.nsys.run import Captured, CaptureRequest, capture, find_importer
from llm_perf_opt.stages.nsys.stage import NsysStage
from llm_perf_opt.stages.workload import Workload
from tests.needs import need, nsys_of, nsys_target_parts
from tests.nsys_support import RecordedProgress, alive, ask_tool, stage_context, with_command, write_program
from tests.support import QUICK, cli, within_a_limit

TARGET = Path(__file__).with_name("nvtx_target.py")
TOOLS = checks.find_tools("nsys")

pytestmark = pytest.mark.needs("nsys")


def _name(tool: Path) -> str:
    return ".".join(map(str, probe_nsys(tool).version[:2]))


every_version = pytest.mark.parametrize("tool", TOOLS or [None], ids=_name if TOOLS else None)
"""The version matrix: what differs between generations runs on all of them, the rest on the first."""


@pytest.fixture(scope="module")
def one_tool() -> Path:
    return TOOLS[0]


@pytest.fixture
def watch(tmp_path: Path) -> Callable[..., Captured]:
    """Capture the target; keyword arguments change the request."""

    def run(tool: Path, *arguments: str, argv: tuple[str, ...] | None = None, **changes: Any) -> Captured:
        program = argv or (sys.executable, str(TARGET), *arguments)
        defaults: dict[str, Any] = {
            "executable": str(tool),
            "base": tmp_path / "out" / "run",
            "workload": Workload(program, cwd=tmp_path / "cwd", built_in=False),
            "trace": "nvtx",
            "timeout_s": 120.0,
        }
        (tmp_path / "out").mkdir(exist_ok=True)
        request = CaptureRequest(**{**defaults, **changes})
        for pause_s in (2, 10, None):
            result = capture(request, scratch=tmp_path / "scratch", log_dir=tmp_path / "logs")
            started = argv is not None or "target started" in result.process.stdout
            if result.fault is None or started or pause_s is None:
                break
            # nsys ended before the program printed its first line: the tool's own failure, on a busy machine several in a row.
            time.sleep(pause_s)
        return result

    return run


def ranges(tool: Path, report: Path) -> list[str]:
    """Names of the captured push/pop ranges, in order, read from the real export."""
    database, process = export_sqlite(str(tool), report, log_dir=report.parent / "export-logs")
    assert database is not None, process.text
    query = (
        "SELECT COALESCE(n.text, s.value) FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
        "WHERE n.eventType = 59 ORDER BY n.start"
    )
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return [name for (name,) in connection.execute(query) if name != "llm_perf_opt.probe"]


@every_version
def test_whole_run_and_its_summaries(tool: Path, watch: Callable[..., Captured], tmp_path: Path) -> None:
    result = watch(tool, "--rounds", "2", trace="nvtx,osrt")
    assert result.fault is None
    assert [path.name for path in result.reports] == ["run.nsys-rep"]
    assert ranges(tool, result.reports[0]) == ["prefill", "decode"] * 2
    assert f"target started in {tmp_path}/cwd" in result.process.stdout
    written, process = write_summaries(
        probe_nsys(tool), tmp_path / "out" / "run.sqlite", base="summary", log_dir=tmp_path / "logs"
    )
    assert set(written) == {"ranges", "os_runtime"}, process.text
    assert "decode" in written["ranges"].read_text()
    # A report without data leaves an empty file, with exit code 0: it is removed.
    assert sorted(p.name for p in (tmp_path / "out").glob("*.csv")) == sorted(
        p.name for p in written.values()
    )
    assert not list((tmp_path / "scratch").iterdir())


@every_version
@pytest.mark.contract("B10")
def test_B10_gated_capture_ends_the_program_and_that_is_success(
    tool: Path, watch: Callable[..., Captured]
) -> None:
    result = watch(tool, capture_range="nvtx", label="decode")
    assert result.fault is None
    assert result.process.returncode == 143
    assert ranges(tool, result.reports[0]) == ["decode"]


@every_version
@pytest.mark.contract("B15")
def test_B15_repeat_collects_several_occurrences(tool: Path, watch: Callable[..., Captured]) -> None:
    result = watch(tool, capture_range="nvtx", label="decode", capture_range_end="repeat:2")
    assert result.fault is None
    assert [path.name for path in result.reports] == ["run.1.nsys-rep", "run.2.nsys-rep"]
    assert [ranges(tool, report) for report in result.reports] == [["decode"], ["decode"]]


def test_stop_lets_the_program_go_on(one_tool: Path, watch: Callable[..., Captured]) -> None:
    result = watch(one_tool, capture_range="nvtx", label="prefill", capture_range_end="stop")
    assert result.fault is None
    assert result.process.returncode == 0
    assert "target done" in result.process.stdout
    assert ranges(one_tool, result.reports[0]) == ["prefill"]


@every_version
def test_a_range_that_never_opens(tool: Path, watch: Callable[..., Captured]) -> None:
    result = watch(tool, "--rounds", "1", capture_range="nvtx", label="no such range")
    assert result.process.returncode == 0
    assert result.reports == []
    assert result.fault is not None
    assert result.fault.kind == "range-never-opened"


def test_a_cuda_profiler_that_is_never_started(one_tool: Path, watch: Callable[..., Captured]) -> None:
    result = watch(one_tool, "--rounds", "1", trace="cuda,nvtx", capture_range="cudaProfilerApi")
    assert result.fault is not None
    assert result.fault.kind == "range-never-opened"
    assert "cudaProfilerStart" in result.fault.message


@pytest.mark.contract("E7")
def test_E7_plain_strings_match_because_the_variable_reaches_the_target(
    one_tool: Path, watch: Callable[..., Captured]
) -> None:
    code = (
        "from llm_perf_opt.workloads.engine import nvtx\n"
        "library = nvtx._find_backend()\n"
        "library._register = lambda *_: None\n"  # a library without registered strings, like torch.cuda.nvtx
        "with nvtx.stage('decode'): pass\n"
    )
    result = watch(one_tool, argv=(sys.executable, "-c", code), capture_range="nvtx", label="decode")
    assert result.fault is None
    assert len(result.reports) == 1


@pytest.mark.parametrize(("after", "expected"), [("code", "exit code 3"), ("segv", "signal 11")])
def test_a_crash_shows_its_output_and_keeps_the_report(
    one_tool: Path, watch: Callable[..., Captured], after: str, expected: str
) -> None:
    result = watch(one_tool, "--rounds", "1", "--after", after)
    assert result.fault is not None
    assert result.fault.kind == "program-crashed"
    assert expected in result.fault.message
    assert "target started" in result.fault.message
    assert [path.name for path in result.reports] == ["run.nsys-rep"]


def test_a_hang_is_stopped_and_the_report_saved(
    one_tool: Path, watch: Callable[..., Captured], tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    arguments = ("--rounds", "1", "--after", "hang", "--pid-file", str(pid_file))
    result = within_a_limit(
        lambda limit_s: watch(one_tool, *arguments, timeout_s=limit_s),
        lambda result: "target hangs" in result.process.stdout,
    )
    assert (result.process.ended, result.process.returncode) == ("timeout", None)
    assert result.fault is not None
    assert (result.fault.kind, result.fault.status) == ("hang", "degraded")
    assert ranges(one_tool, result.reports[0]) == ["prefill", "decode"]
    assert not alive(int(pid_file.read_text()))


def test_a_killed_nsys_leaves_nothing_running(one_tool: Path, watch: Callable[..., Captured]) -> None:
    """Without its command line nsys' agent and target would live on: the launcher finds them."""
    code = (
        "import os, signal, time\n"
        "from pathlib import Path\n"
        "stopped = []\n"  # none of them is to see that another one ended
        "for entry in Path('/proc').iterdir():\n"
        "    if not entry.name.isdigit() or int(entry.name) == os.getpid(): continue\n"
        "    try: words = (entry / 'cmdline').read_bytes(), (entry / 'environ').read_bytes()\n"
        "    except OSError: continue\n"
        "    if b'profile' in words[0] and os.environ['LLM_PERF_OPT_JOB'].encode() in words[1]:\n"
        "        stopped.append(int(entry.name))\n"
        "        os.kill(stopped[-1], signal.SIGSTOP)\n"
        "for pid in stopped: os.kill(pid, signal.SIGKILL)\n"
        "Path('pid').write_text(str(os.getpid()))\n"
        "time.sleep(99)\n"
    )
    result = watch(one_tool, argv=(sys.executable, "-c", code))
    assert (result.process.ended, result.process.returncode) == ("signal", -9)
    assert result.process.killed >= 1
    pid_file = Path(result.process.stdout_path or "").parent.parent / "cwd" / "pid"
    assert not pid_file.exists() or not alive(int(pid_file.read_text()))
    assert result.fault is not None
    assert result.fault.status == "failed"


def test_a_missing_program(one_tool: Path, watch: Callable[..., Captured]) -> None:
    result = watch(one_tool, argv=("/no/such/program",))
    assert result.fault is not None
    assert result.fault.kind == "program-missing"


def test_stale_output_is_never_fresh(one_tool: Path, watch: Callable[..., Captured], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    old = tmp_path / "out" / "run.nsys-rep"
    old.write_text("old")
    os.utime(old, (1_000_000, 1_000_000))
    result = watch(one_tool, "--rounds", "1", capture_range="nvtx", label="never")
    assert result.reports == []
    assert old.read_text() == "old"


def test_an_output_directory_that_vanishes_is_made_again(
    one_tool: Path, watch: Callable[..., Captured], tmp_path: Path
) -> None:
    """nsys keeps the report in its scratch directory then, with exit code 0: it is moved into place."""
    code = f"import os; os.rmdir({str(tmp_path / 'out')!r})"
    result = watch(one_tool, argv=(sys.executable, "-c", code))
    assert [path.name for path in result.reports] == ["run.nsys-rep"]
    assert result.fault is None


def test_a_path_with_everything_in_it(one_tool: Path, watch: Callable[..., Captured], tmp_path: Path) -> None:
    folder = tmp_path / "a b,c%p=é$q'{x}"
    folder.mkdir()
    result = watch(one_tool, "--rounds", "1", base=folder / "run")
    assert result.reports == [folder / "run.nsys-rep"]
    assert ranges(one_tool, result.reports[0]) == ["prefill", "decode"]
    written, process = write_summaries(
        probe_nsys(one_tool), folder / "run.sqlite", base="summary", log_dir=tmp_path / "logs"
    )
    assert "ranges" in written, process.text


def test_a_talkative_program_does_not_hide_the_range(one_tool: Path, watch: Callable[..., Captured]) -> None:
    result = watch(
        one_tool,
        "--rounds",
        "1",
        "--after",
        "chatter",
        capture_range="nvtx",
        label="decode",
        capture_range_end="stop",
    )
    assert result.fault is None
    assert "Capture range started" not in result.process.stdout


def test_without_its_importer_nsys_leaves_a_raw_stream(
    watch: Callable[..., Captured], tmp_path: Path
) -> None:
    result = watch(_target_part(tmp_path) / "nsys", "--rounds", "1")
    assert result.reports == []
    assert result.fault is not None
    assert result.fault.kind == "importer"
    assert [path.name for path in result.kept_streams] == ["run.qdstrm"]


def test_an_importer_that_failed_once_is_retried_and_the_crash_still_reported(
    watch: Callable[..., Captured], tmp_path: Path
) -> None:
    target = _target_part(tmp_path)
    real = [path for tool in TOOLS if (path := find_importer(str(tool)))]
    assert real, "no host part of Nsight Systems"
    failed = tmp_path / "failed"
    write_program(
        target.parent / "host-linux-x64" / "QdstrmImporter",
        f'#!/bin/sh\n[ "$1" = --version ] || [ -e "{failed}" ] || {{ : > "{failed}"; exit 1; }}\n'
        f'exec "{real[0]}" "$@"\n',
    )
    result = watch(target / "nsys", "--rounds", "1", "--after", "code")
    assert failed.exists()
    assert result.attempts == 1
    assert result.fault is not None
    assert result.fault.kind == "program-crashed"
    assert "exit code 3" in result.fault.message
    assert ranges(TOOLS[0], result.reports[0]) == ["prefill", "decode"]


def _target_part(tmp_path: Path) -> Path:
    """A copy (hard links) of only the target part: what a headless installation looks like."""
    need("nsys unpacked")
    copy = tmp_path / "nsight-systems" / "target-linux-x64"
    try:
        shutil.copytree(nsys_target_parts()[0], copy, symlinks=True, copy_function=os.link)
    except (OSError, shutil.Error):
        pytest.skip("the tool is on another file system than the tests")
    return copy


@every_version
def test_flags_and_reports_we_use_exist_in_every_generation(tool: Path) -> None:
    known = probe_nsys(tool)
    command = build_nsys_cmd(
        "/o",
        [],
        nvtx_capture="a",
        capture_end="stop",
        domain_include=["x"],
        session="s",
        executable=str(tool),
    )
    used = {word[2:].split("=")[0] for word in command if word.startswith("--")}
    assert used <= known.flags
    assert known.report_name("kernels") == ("gpukernsum" if known.version < (2023,) else "cuda_gpu_kern_sum")
    assert (
        run_probe(
            build_export_cmd(Path("/no/x.nsys-rep"), Path("/no/x.sqlite"), executable=str(tool))
        ).returncode
        == 1
    )


def add_one_kernel(tool: Path, report: Path, database: Path) -> None:
    """Export with every table of this version's schema and put one GPU kernel in, all NOT NULL columns set."""
    command = build_export_cmd(report, database, executable=str(tool))
    ask_tool([*command[:-1], "--lazy=false", command[-1]], database)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        (name_id,) = connection.execute("SELECT MAX(id) + 1 FROM StringIds").fetchone()
        connection.execute("INSERT INTO StringIds (id, value) VALUES (?, ?)", (name_id, "gemm<float, 4>"))
        columns = connection.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)").fetchall()
        row = {name: 1 for _, name, _, required, _, _ in columns if required}
        row |= {"start": 1000, "end": 5000, "demangledName": name_id, "shortName": name_id}
        marks = ", ".join("?" * len(row))
        connection.execute(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL ({', '.join(row)}) VALUES ({marks})", tuple(row.values())
        )
        connection.commit()


@every_version
@pytest.mark.contract("A7")
def test_A7_the_kernel_summary_has_one_name_in_every_version(
    tool: Path, watch: Callable[..., Captured], tmp_path: Path
) -> None:
    (report,) = watch(tool, "--rounds", "1").reports
    folder = tmp_path / "out"
    add_one_kernel(tool, report, folder / "run.sqlite")
    assert has_kernels(folder / "run.sqlite")
    captures = CaptureSet(
        capabilities=probe_nsys(tool),
        folder=folder,
        scratch=tmp_path / "scratch",
        progress=RecordedProgress(),
        device="cuda:0",
    )
    captures._summarise("run", folder / "run.sqlite")
    assert captures.result().status == "ok"
    header, line = (folder / "summary.csv").read_text().split("\n")[:2]
    assert header.startswith("Time (%),Total Time (ns),Instances,")
    assert '"gemm<float, 4>"' in line
    assert ",4000," in line


@every_version
@pytest.mark.contract("A10")
def test_A10_the_stage_writes_its_contract_and_nothing_else(tool: Path, tmp_path: Path) -> None:
    config = NsysConfig(enable=True, executable=str(tool), trace="cuda,nvtx")
    context = stage_context(
        tmp_path / "run", config, **with_command(sys.executable, str(TARGET), "--rounds", "1")
    )
    assert [problem for problem in NsysStage().check(context) if problem.severity == "error"] == []
    result = NsysStage().run(context)
    # CUDA was asked for and a CPU has none: said, not failed.
    assert result.status == "degraded"
    assert "as expected" in (result.reason or "")
    folder = tmp_path / "run" / "nsys"
    assert (folder / "run.nsys-rep").is_file()
    assert (folder / "run.sqlite").is_file()
    assert not (folder / "summary.csv").exists()  # no kernels, so no kernel summary
    assert not (tmp_path / "run" / "ncu").exists()
    assert list((tmp_path / "run").rglob("*.nsys-rep")) == [folder / "run.nsys-rep"]
    assert all(path.exists() for path in result.artifacts)
    assert result.exit_codes == {"run": 0, "run.export": 0, "run.stats": 0}


@pytest.mark.contract("B15")
def test_B15_a_list_makes_one_capture_each_and_cmd_txt_replays(one_tool: Path, tmp_path: Path) -> None:
    config = NsysConfig(
        enable=True,
        executable=str(one_tool),
        trace="nvtx",
        capture_range="nvtx",
        nvtx_capture=["prefill", "decode"],
    )
    context = stage_context(
        tmp_path / "run", config, **with_command(sys.executable, str(TARGET), "--rounds", "1")
    )
    result = NsysStage().run(context)
    assert result.status == "ok", result.reason
    folder = tmp_path / "run" / "nsys"
    for label in ("prefill", "decode"):
        assert ranges(one_tool, folder / f"run.{label}.nsys-rep") == [label]
        (folder / f"run.{label}.nsys-rep").unlink()
        (folder / f"run.{label}.sqlite").unlink()
    run_probe(["sh", str(folder / "cmd.txt")], timeout_s=240.0, cwd=tmp_path)
    assert ranges(one_tool, folder / "run.decode.nsys-rep") == ["decode"]
    assert (folder / "run.prefill.sqlite").is_file()


@pytest.mark.slow
@pytest.mark.contract("A5")
def test_A5_A10_the_built_in_workload_from_the_command_line(one_tool: Path, tmp_path: Path) -> None:
    """One real decode of the built-in workload, started from a directory with an awkward name."""
    start = tmp_path / "it's a, dir"
    start.mkdir()
    result = cli(
        "run",
        "run.device=cpu",
        *QUICK,
        "pipeline.static_analysis.enable=false",
        "pipeline.torch_profiler.enable=false",
        "pipeline.nsys.enable=true",
        "profiling/nsys@pipeline.nsys=nsys.decode",
        cwd=start,
        env={"LLM_PERF_OPT_NSYS": str(one_tool)},
    )
    assert result.returncode == 0, result.stderr
    (run,) = (start / "tmp" / "runs").iterdir()
    reports = list(run.rglob("*.nsys-rep"))
    assert reports == [run / "nsys" / "run.nsys-rep"]
    captured = ranges(one_tool, reports[0])
    assert captured[0] == "decode"
    assert "warmup" not in captured
    assert not (run / "ncu").exists()
    assert not (run / "torch_profiler").exists()
    assert sorted(path.name for path in (run / "tmp").iterdir()) == ["nsys", "workload"]


@pytest.mark.needs("nsys 2022.4", "unshare")
def test_a_session_list_left_by_a_killed_nsys_is_removed(tmp_path: Path) -> None:
    """2022.4 waits for ever for a list in shared memory that nobody will finish, and says "Agent launcher failed"."""
    old = nsys_of((2022, 4))
    version = probe_nsys(old[0]).version_text.partition("-")[0]
    script = Path(__file__).with_name("poisoned_nsys.py")
    done = run_probe(
        ["unshare", "--mount", sys.executable, str(script), str(old[0]), version, str(tmp_path)],
        timeout_s=180,
    )
    assert done.ok, done.text
    found = json.loads(done.stdout.splitlines()[-1])
    # The attempt that the list spoilt, and one or two more: nsys may lose its helper on a busy machine.
    assert found in ({"fault": None, "attempts": count, "reports": 1} for count in (2, 3))
    assert f"removed /dev/shm/NSys-{version}" in done.stderr
