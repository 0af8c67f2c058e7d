"""The right word for each fault: what happened, and advice that helps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import CheckpointError, InputError, ToolError
from llm_perf_opt.core.files import RUN_DIRECTORY, atomic_write_text, explain_os_errors, hint_other_directory
from llm_perf_opt.process import groups
from llm_perf_opt.process.groups import JOB_VARIABLE, start_time
from llm_perf_opt.process.launch import ProcessResult
from llm_perf_opt.process.tools import find_tool, install_hint, missing_tool
from llm_perf_opt.stages.ncu.diagnose import NO_KERNELS, NcuEvidence
from llm_perf_opt.stages.ncu.diagnose import diagnose as diagnose_ncu
from llm_perf_opt.stages.nsys.diagnose import Evidence, Fault, diagnose
from tests.faults.processes import wait_for
from tests.nsys_support import alive, fake_nsys
from tests.support import cli


def _evidence(returncode: int | None, text: str = "", ended: str = "exit", **more: object) -> Evidence:
    seconds = float(str(more.pop("seconds", 1.0)))
    process = ProcessResult(("nsys",), returncode, seconds, ended, text, "")  # type: ignore[arg-type]
    return Evidence(
        process=process, reports=[], trigger=None, ends_program=False, opened=False, closed=False, **more
    )  # type: ignore[arg-type]


def _fault(found: Fault | None) -> Fault:
    assert found is not None
    return found


def test_nsys_killed_is_not_a_missing_importer() -> None:
    fault = _fault(diagnose(_evidence(-9, ended="signal", streams=[Path("x.qdstrm")])))
    assert fault.kind == "tool-killed"
    assert "signal 9" in fault.message
    assert "host part" not in fault.fix


@pytest.mark.parametrize(
    "expected", ["Connection to the Agent lost.", "Connection to Agent lost. This is most likely a bug."]
)
def test_a_killed_agent_is_named_and_not_tried_again_when_the_capture_was_under_way(expected: str) -> None:
    fault = _fault(diagnose(_evidence(1, f"tick\n{expected}\n", streams=[Path("x.qdstrm")], seconds=100.0)))
    assert fault.kind == "agent"
    assert not fault.transient
    assert "helper process" in fault.message
    assert "host part" not in fault.fix
    assert _fault(diagnose(_evidence(1, expected))).transient
    assert _fault(diagnose(_evidence(1, expected, streams=[Path("x.qdstrm")], seconds=5.0))).transient


def test_an_exception_of_nsys_itself_is_not_the_programs_fault() -> None:
    text = "Dynamic exception type: ...\n[boost::errinfo_api_function_*] = sem_open\n"
    fault = _fault(diagnose(_evidence(1, text)))
    assert fault.kind == "agent"
    assert fault.transient
    assert "sem_open" in fault.message


@pytest.mark.parametrize(
    ("returncode", "ended", "text", "kind", "expected"),
    [
        (
            3,
            "exit",
            f"==WARNING== {NO_KERNELS}.\n==ERROR== The application returned an error code (3).",
            "program",
            "exit code 3",
        ),
        (-9, "signal", f"==WARNING== {NO_KERNELS}.", "tool-killed", "signal 9"),
        (0, "exit", f"==WARNING== {NO_KERNELS}.", "no-kernels", "kernel"),
    ],
)
def test_ncu_names_who_failed(returncode: int, ended: str, text: str, kind: str, expected: str) -> None:
    fault = diagnose_ncu(NcuEvidence(text=text, report_written=False, ended=ended, returncode=returncode))
    assert fault is not None
    assert fault.kind == kind
    assert expected in fault.message


def test_a_tool_that_may_not_be_run_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = fake_nsys(tmp_path / "bin", "pass")
    tool.chmod(0o644)
    assert find_tool("nsys", str(tool)) is None
    error = missing_tool("nsys", str(tool))
    assert str(tool) in error.message and error.hint == f"chmod +x {tool}"
    monkeypatch.delenv("LLM_PERF_OPT_NSYS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert missing_tool("nsys").hint == f"chmod +x {tool}"
    monkeypatch.setenv("LLM_PERF_OPT_NSYS", str(tmp_path / "bin"))
    folder = missing_tool("nsys")
    assert "directory" in folder.message and str(tool) in (folder.hint or ""), (
        "the program itself is to be named"
    )
    absent = missing_tool("nsys", "/nowhere/nsys")
    assert "/nowhere/nsys" in absent.message and absent.hint == install_hint("nsys")
    done = cli("run", "--plan", "pipeline.nsys.enable=true", f"pipeline.nsys.executable={tool}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert error.message in done.stdout and f"chmod +x {tool}" in done.stdout
    assert install_hint("nsys") not in done.stdout


def test_a_missing_tokenizer_is_not_an_image_problem(tmp_path: Path) -> None:
    from llm_perf_opt.workloads.models.processors import load_tokenizer

    with pytest.raises(CheckpointError, match=r"no tokenizer\.json") as caught:
        load_tokenizer(tmp_path)
    assert isinstance(caught.value, InputError)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot read"):
        load_tokenizer(tmp_path)


def test_a_fault_of_the_checkpoint_is_not_blamed_on_samples() -> None:
    from llm_perf_opt.workloads.engine.driver import _Run

    class Engine:
        def prepare(self, _samples: object) -> None:
            raise CheckpointError("no tokenizer.json in /x", hint="copy the checkpoint's tokenizer files")

    run = object.__new__(_Run)
    run._engine = Engine()  # type: ignore[assignment]
    with pytest.raises(CheckpointError, match="tokenizer"):
        run._leave_out_unreadable([object()])  # type: ignore[list-item]


def test_the_advice_is_that_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    target = tmp_path / "file" / "x"
    with pytest.raises(ToolError) as caught:
        atomic_write_text(target, "x")
    assert "artifacts.runs_dir" not in str(caught.value)
    with pytest.raises(ToolError) as caught, hint_other_directory("another directory: --out DIR"):
        atomic_write_text(target, "x")
    assert "--out DIR" in str(caught.value)
    with pytest.raises(ToolError) as caught, explain_os_errors(target, elsewhere=RUN_DIRECTORY):
        target.write_text("x")
    assert "artifacts.runs_dir" in str(caught.value)


@pytest.mark.parametrize("verb", ["ingest", "compare", "report"])
def test_write_errors_of_other_verbs_do_not_advise_a_key_of_run(verb: str, tmp_path: Path) -> None:
    timings = tmp_path / "timings.json"
    timings.write_text(json.dumps({"samples": 2, "new_tokens": 8, "prefill_s": 0.1, "decode_s": 0.4}))
    made = cli("ingest", "--timings", str(timings), "--out", str(tmp_path / "a"), cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    (tmp_path / "file").write_text("in the way")
    below = str(tmp_path / "file" / "out")
    if verb == "ingest":
        arguments = ["ingest", "--timings", str(timings), "--out", below]
    elif verb == "compare":
        arguments = ["compare", str(tmp_path / "a"), str(tmp_path / "a"), "--out", below]
    else:
        page = tmp_path / "a" / "report.md"
        page.unlink()
        page.mkdir()
        (page / "in the way").touch()
        arguments = ["report", str(tmp_path / "a")]
    done = cli(*arguments, cwd=tmp_path)
    assert done.returncode in (2, 3, 4), done.stderr
    assert "Traceback" not in done.stderr
    assert "artifacts.runs_dir" not in done.stderr
    assert ("--out" in done.stderr) == (verb != "report")


@pytest.fixture
def orphan() -> subprocess.Popen[bytes]:  # type: ignore[misc]
    """A process that says it was started by a run that is long gone."""
    gone = subprocess.Popen(["true"])
    marker = f":{gone.pid}-{start_time(gone.pid) or 1}-0123"
    gone.wait()
    process = subprocess.Popen(["sleep", "100"], env={"PATH": os.environ["PATH"], JOB_VARIABLE: marker})
    wait_for(lambda: marker.encode() in Path(f"/proc/{process.pid}/environ").read_bytes())
    yield process
    process.kill()
    process.wait()


def test_an_orphan_is_named_and_ended_on_demand(orphan: subprocess.Popen[bytes], tmp_path: Path) -> None:
    found = [one for one in groups.find_orphans() if one.pid == orphan.pid]
    assert [one.name for one in found] == ["sleep"]
    assert found[0].ours
    assert f"process {orphan.pid}" in groups.advice(found)
    assert "doctor --clean" in groups.advice(found)
    done = cli("doctor", cwd=tmp_path)
    assert f"process {orphan.pid}" in done.stdout
    done = cli("doctor", "--clean", cwd=tmp_path)
    assert f"cleaned: sleep (process {orphan.pid})" in done.stderr
    assert not alive(orphan.pid)


def test_jobs_under_way_and_strangers_are_no_orphans() -> None:
    own = f":{os.getpid()}-{start_time(os.getpid())}-0123"
    children = [
        subprocess.Popen(["sleep", "100"], env={"PATH": os.environ["PATH"], **extra})
        for extra in ({}, {JOB_VARIABLE: own}, {JOB_VARIABLE: f"{own}:999999999-1-ab"}, {JOB_VARIABLE: ":ofanotherkind"})
    ]  # fmt: skip
    try:
        time.sleep(0.3)
        found = {one.pid for one in groups.find_orphans()}
        assert not found & {child.pid for child in children}
    finally:
        for child in children:
            child.send_signal(signal.SIGKILL)
            child.wait()


def test_a_capture_that_fails_next_to_an_orphaned_agent_names_it(tmp_path: Path) -> None:
    from llm_perf_opt.stages.nsys.config import NsysConfig
    from llm_perf_opt.stages.nsys.stage import NsysStage
    from tests.nsys_support import stage_context, with_command

    code = "import time; time.sleep(100)"
    gone = subprocess.Popen(["true"])
    marker = f":{gone.pid}-1-0123"
    gone.wait()
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--start-agent"], env={**os.environ, JOB_VARIABLE: marker}
    )
    try:
        time.sleep(0.5)
        tool = fake_nsys(tmp_path / "tool", "print('cannot go on'); sys.exit(2)")
        config = NsysConfig(enable=True, executable=str(tool), isolate=False)
        result = NsysStage().run(stage_context(tmp_path / "run", config, **with_command("sleep", "1")))
        assert result.status == "failed"
        assert f"nsys agent (process {process.pid})" in (result.fix or "")
        assert "doctor --clean" in (result.fix or "")
    finally:
        process.kill()
        process.wait()
