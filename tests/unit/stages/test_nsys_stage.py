"""The stage on a stand-in for nsys: what the real tool does rarely, or not on demand."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.core.ranks import Rank
from llm_perf_opt.core.stage import Problem
from llm_perf_opt.stages.nsys import run as nsys_run
from llm_perf_opt.stages.nsys import stage as nsys_stage
from llm_perf_opt.stages.nsys.capture_set import range_end, rank_problems
from llm_perf_opt.stages.nsys.config import NsysConfig
from llm_perf_opt.stages.nsys.stage import NsysStage
from tests.nsys_support import RecordedProgress, alive, fake_nsys, stage_context, with_command, write_program
from tests.support import within_a_limit
from tests.text_facts import mentions

PROGRAM = with_command(sys.executable, "-c", "pass")


def config(tool: Path | str, **changes: object) -> NsysConfig:
    return NsysConfig(enable=True, executable=str(tool), **changes)  # type: ignore[arg-type]


def calls(tool: Path) -> int:
    return len((tool.parent / "calls").read_text().split())


def test_the_devices_memory_is_looked_at_before_the_program_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = []

    def no_room(device: str) -> None:
        requested.append(device)
        raise ToolError("this process still holds 9 GiB of cuda:1")

    monkeypatch.setattr(nsys_stage, "require_room", no_room)
    tool = fake_nsys(tmp_path / "tool", "report()")
    with pytest.raises(ToolError, match="still holds"):
        NsysStage().run(stage_context(tmp_path / "run", config(tool), resolved_device="cuda:1"))
    assert requested == ["cuda:1"] and not (tool.parent / "calls").exists()
    # The user's own program loads what it likes: this process never held it.
    NsysStage().run(stage_context(tmp_path / "own", config(tool), **PROGRAM))
    assert requested == ["cuda:1"] and calls(tool) >= 1


def test_a_lost_agent_is_tried_once_more(tmp_path: Path) -> None:
    tool = fake_nsys(
        tmp_path / "tool",
        """
        if calls == 1:
            print("Connection to Agent lost. This is most likely a bug.", file=sys.stderr)
            sys.exit(1)
        report()
        """,
    )
    result = NsysStage().run(stage_context(tmp_path / "run", config(tool), **PROGRAM))
    assert calls(tool) == 2
    assert (tmp_path / "run" / "nsys" / "run.nsys-rep").is_file()
    # The stand-in cannot export: the stage says so and keeps the report, of which nothing can be read.
    assert result.status == "failed"
    assert mentions(result.reason, "run.nsys-rep") and mentions(result.fix, "nsys export --type=sqlite")


def test_a_lost_agent_twice_is_a_failure_with_a_fix(tmp_path: Path) -> None:
    tool = fake_nsys(tmp_path / "tool", "sys.exit('Agent launcher failed.')")
    result = NsysStage().run(stage_context(tmp_path / "run", config(tool, isolate=False), **PROGRAM))
    assert calls(tool) == 2
    assert (result.status, result.exit_codes) == ("failed", {"run": 1})
    assert "helper process" in (result.reason or "")
    assert result.fix
    assert "--session=llm-perf-opt-" in (tool.parent / "shutdown").read_text()


def test_a_program_error_is_not_tried_again(tmp_path: Path) -> None:
    tool = fake_nsys(tmp_path / "tool", "print('workload: bad weights'); report(); sys.exit(7)")
    result = NsysStage().run(stage_context(tmp_path / "run", config(tool), **PROGRAM))
    assert calls(tool) == 1
    assert "exit code 7" in (result.reason or "")
    assert "bad weights" in (result.reason or "")


def test_a_hang_that_ignores_signals_is_ended_with_all_its_helpers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_run, "_GRACE_S", 0.3)
    tool = fake_nsys(
        tmp_path / "tool",
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"], start_new_session=True)
        (state / "helper").write_text(str(helper.pid))
        print("the last words of the program", flush=True)
        time.sleep(99)
        """,
    )
    result = within_a_limit(
        lambda limit_s: NsysStage().run(
            stage_context(tmp_path / "run", config(tool, timeout_s=limit_s, isolate=False), **PROGRAM)
        ),
        lambda result: "the last words" in (result.reason or ""),
    )
    assert result.status == "failed"
    assert re.search(r"\b(2|10|60) s\b", result.reason or "")
    assert "the last words" in (result.reason or "")
    assert "timeout_s" in (result.fix or "")
    assert result.exit_codes == {"run": None}
    assert not alive(int((tool.parent / "helper").read_text()))
    assert (tool.parent / "shutdown").exists()


def test_the_size_limit_ends_a_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_run, "_GRACE_S", 5.0)
    tool = fake_nsys(
        tmp_path / "tool",
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        pathlib.Path(os.environ["TMPDIR"], "nsys-report-1.qdstrm").write_bytes(b"x" * 3_000_000)
        signal.sigwait({signal.SIGINT})
        report()
        sys.exit(130)
        """,
    )
    result = NsysStage().run(stage_context(tmp_path / "run", config(tool, max_bytes=1_000_000), **PROGRAM))
    assert "size limit" in (result.reason or "")
    assert (tmp_path / "run" / "nsys" / "run.nsys-rep").is_file()
    assert not list((tmp_path / "run" / "tmp" / "nsys").iterdir())


def test_output_of_an_earlier_run_is_never_read_as_fresh(tmp_path: Path) -> None:
    tool = fake_nsys(tmp_path / "tool", "print('Generated:')")
    folder = tmp_path / "run" / "nsys"
    folder.mkdir(parents=True)
    for name in ("run.nsys-rep", "run.sqlite", "summary.csv", "run.1.nsys-rep"):
        (folder / name).write_text("old")
    result = NsysStage().run(stage_context(tmp_path / "run", config(tool), **PROGRAM))
    assert result.status == "failed"
    assert sorted(path.name for path in folder.iterdir()) == ["cmd.txt", "logs"]

    (folder / "run.nsys-rep").write_text("old")
    context = stage_context(tmp_path / "run", config(tool, force_overwrite=False), **PROGRAM)
    assert [problem.key for problem in NsysStage().check(context)] == ["pipeline.nsys.force_overwrite"]
    with pytest.raises(ConfigError, match="earlier capture"):
        NsysStage().run(context)
    assert (folder / "run.nsys-rep").read_text() == "old"


def test_only_the_raw_stream_is_kept_for_another_machine(tmp_path: Path) -> None:
    tool = fake_nsys(
        tmp_path / "tool",
        """
        stream = pathlib.Path(os.environ["TMPDIR"], "nsys-report-1.qdstrm")
        stream.write_bytes(b"raw")
        print(f"Generated:\\n    {stream}")
        """,
    )
    result = NsysStage().run(stage_context(tmp_path / "run", config(tool), **PROGRAM))
    kept = tmp_path / "run" / "nsys" / "run.qdstrm"
    assert result.status == "failed"
    assert kept.read_bytes() == b"raw"
    assert kept in result.artifacts
    assert "importer" in (result.reason or "")


LEAVES_ITS_STREAMS = """
    for number in range(1, {streams} + 1):
        pathlib.Path(os.environ["TMPDIR"], f"nsys-report-{{number}}.qdstrm").write_bytes(b"raw %d" % number)
        time.sleep(0.01)
    print("loading the model", flush=True)
    print("Importer error status: An unknown error occurred.", file=sys.stderr, flush=True)
    sys.exit({code})
"""


@pytest.mark.parametrize("streams", [1, 2])
def test_a_stream_that_the_importer_of_nsys_left_is_imported_again(tmp_path: Path, streams: int) -> None:
    """The importer fails now and then on a busy machine; the program need not run again for it."""
    tool = fake_nsys(tmp_path / "tool", LEAVES_ITS_STREAMS.format(streams=streams, code=0))
    write_program(
        tmp_path / "tool" / "host-linux-x64" / "QdstrmImporter",
        '#!/bin/sh\n[ "$1" = --input-file ] && [ "$3" = --output-file ] && cp "$2" "$4"\n',
    )
    result = NsysStage().run(stage_context(tmp_path / "run", config(tool), **PROGRAM))
    folder = tmp_path / "run" / "nsys"
    names = ["run.nsys-rep"] if streams == 1 else ["run.1.nsys-rep", "run.2.nsys-rep"]
    assert [path.read_bytes() for path in map(folder.joinpath, names)] == [b"raw 1", b"raw 2"][:streams]
    assert not list(folder.glob("*.qdstrm"))
    assert "importer" not in (result.reason or "")
    assert calls(tool) == 1


def test_a_crash_is_reported_even_when_the_importer_fails_twice(tmp_path: Path) -> None:
    tool = fake_nsys(tmp_path / "tool", LEAVES_ITS_STREAMS.format(streams=1, code=3))
    write_program(tmp_path / "tool" / "host-linux-x64" / "QdstrmImporter", "#!/bin/sh\nexit 1\n")
    result = NsysStage().run(stage_context(tmp_path / "run", config(tool), **PROGRAM))
    assert result.status == "failed"
    reason = result.reason or ""
    assert "An unknown error occurred" in reason
    assert mentions(reason, "exit code 3")
    assert "loading the model" in reason
    assert (tmp_path / "run" / "nsys" / "run.qdstrm").read_bytes() == b"raw 1"


def test_one_label_of_several_failing_degrades(tmp_path: Path) -> None:
    tool = fake_nsys(
        tmp_path / "tool",
        """
        if "--nvtx-capture=decode" in arguments:
            print("Capture range started in the application.\\nCapture range ended in the application.")
            report()
            sys.exit(143)
        print("Generated:")
        """,
        exports=True,
    )
    labels = config(tool, capture_range="nvtx", nvtx_capture=["prefill", "decode"])
    context = stage_context(tmp_path / "run", labels, **PROGRAM)
    result = NsysStage().run(context)
    assert result.status == "degraded"
    first = (result.reason or "").partition("run.decode")[0]
    assert mentions(first, "run.prefill", "'prefill'"), "the range that was never opened"
    assert result.exit_codes["run.prefill"] == 0
    assert result.exit_codes["run.decode"] == 143
    assert isinstance(context.progress, RecordedProgress)
    assert "capture range open" in context.progress.notes


def test_the_tool_missing_is_a_skip_with_the_way_to_get_it(tmp_path: Path) -> None:
    context = stage_context(tmp_path / "run", config("/missing/nsys"), **PROGRAM)
    (problem,) = NsysStage().check(context)
    assert problem.severity == "skip"
    assert "install-nsight-debian.sh" in problem.fix
    with pytest.raises(ToolError, match="not installed"):
        NsysStage().run(context)


@pytest.mark.contract("B10")
@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"capture_range": "nvtx"}, "pipeline.nsys.nvtx_capture"),
        ({"capture_range": "nvtx", "nvtx_capture": ""}, "pipeline.nsys.nvtx_capture"),
        ({"capture_range": "nvtx", "nvtx_capture": []}, "pipeline.nsys.nvtx_capture"),
        ({"capture_range": "nvtx", "nvtx_capture": "decode*"}, "pipeline.nsys.nvtx_capture"),
        ({"capture_range": "nvtx", "nvtx_capture": ["a", "b,c"]}, "pipeline.nsys.nvtx_capture"),
        ({"capture_range": "NVTX"}, "pipeline.nsys.capture_range"),
        ({"capture_range_end": "bogus"}, "pipeline.nsys.capture_range_end"),
        ({"extra_args": ["--trace=none"]}, "pipeline.nsys.extra_args"),
        ({"extra_args": ["--unknown-flag=1"]}, "pipeline.nsys.extra_args"),
        ({"nvtx_domain_include": ["a"], "nvtx_domain_exclude": ["b"]}, "pipeline.nsys.nvtx_domain_include"),
        ({"timeout_s": 0.0}, "pipeline.nsys.timeout_s"),
        ({"trace": 5}, "pipeline.nsys.trace"),
        ({"trace": ["cuda", None]}, "pipeline.nsys.trace"),
        ({"capture_range": "nvtx", "nvtx_capture": {"a": 1}}, "pipeline.nsys.nvtx_capture"),
    ],
)
def test_B10_mistakes_are_errors_before_anything_starts(
    tmp_path: Path, changes: dict[str, object], key: str
) -> None:
    tool = fake_nsys(tmp_path / "tool", "report()")
    problems = NsysStage().check(stage_context(tmp_path / "run", config(tool, **changes), **PROGRAM))
    assert [(problem.severity, problem.key) for problem in problems] == [("error", key)]
    assert problems[0].fix
    assert not (tool.parent / "calls").exists()


def test_check_is_content_with_a_sound_configuration_and_writes_nothing(tmp_path: Path) -> None:
    tool = fake_nsys(tmp_path / "tool", "report()")
    context = stage_context(tmp_path / "run", config(tool, extra_args=["--cuda-graph-trace=node"]), **PROGRAM)
    assert NsysStage().check(context) == []
    assert NsysStage().plan(context)
    assert list((tmp_path / "run").iterdir()) == []


def test_a_missing_program_is_found_before_the_run(tmp_path: Path) -> None:
    tool = fake_nsys(tmp_path / "tool", "report()")
    context = stage_context(tmp_path / "run", config(tool), **with_command("no-such-program"))
    (problem,) = NsysStage().check(context)
    assert (problem.severity, problem.key) == ("error", "pipeline.workload.command")


def test_plan_shows_exact_commands_and_files(tmp_path: Path) -> None:
    tool = fake_nsys(tmp_path / "tool", "report()")
    labels = config(tool, capture_range="nvtx", nvtx_capture=["prefill", "decode"], capture_range_end="stop")
    plan = "\n".join(NsysStage().plan(stage_context(tmp_path / "run", labels, **PROGRAM)))
    for phrase in (
        "--nvtx-capture=prefill",
        "--nvtx-capture=decode",
        "--capture-range-end=stop",
        f"write {tmp_path}/run/nsys/run.prefill.nsys-rep",
        f"write {tmp_path}/run/nsys/run.decode.sqlite",
        f"write {tmp_path}/run/nsys/summary.csv",
    ):
        assert phrase in plan


@pytest.mark.contract("B10")
def test_B10_gating_off_passes_no_nvtx_flag(tmp_path: Path) -> None:
    tool = fake_nsys(tmp_path / "tool", "report()")
    off = config(
        tool, gating_nvtx=False, capture_range="nvtx", nvtx_capture="decode", capture_range_end="stop"
    )
    plan = "\n".join(NsysStage().plan(stage_context(tmp_path / "run", off, **PROGRAM)))
    assert "--capture-range" not in plan
    assert "--nvtx" not in plan


def test_without_an_nvtx_library_a_gated_capture_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_perf_opt.stages.nsys.stage.backend_name", lambda: None)
    tool = fake_nsys(tmp_path / "tool", "report()")
    gated = config(tool, capture_range="nvtx", nvtx_capture="decode")
    (problem,) = NsysStage().check(stage_context(tmp_path / "a", gated))
    assert (problem.severity, problem.fix) == ("error", "pip install nvidia-nvtx")
    (problem,) = NsysStage().check(stage_context(tmp_path / "b", config(tool)))
    assert problem.severity == "degraded"
    assert NsysStage().check(stage_context(tmp_path / "c", gated, resolved_device="cuda:0")) == []
    assert NsysStage().check(stage_context(tmp_path / "d", gated, **PROGRAM)) == []


def test_the_profiler_api_is_refused_where_the_workload_cannot_call_it(tmp_path: Path) -> None:
    tool = fake_nsys(tmp_path / "tool", "report()")
    chosen = config(tool, capture_range="cudaProfilerApi")
    (problem,) = [
        one
        for one in NsysStage().check(stage_context(tmp_path / "run", chosen))
        if one.key == "pipeline.nsys.capture_range"
    ]
    assert problem.severity == "error" and "cudaProfilerStart" in problem.message and "nvtx" in problem.fix
    own = stage_context(tmp_path / "run", chosen, **PROGRAM)
    assert not [one for one in NsysStage().check(own) if one.key == "pipeline.nsys.capture_range"]


def test_a_hotkey_is_refused_where_nobody_can_press_one(tmp_path: Path) -> None:
    tool = fake_nsys(tmp_path / "tool", "report()")

    def problems(**changes: Any) -> list[Problem]:
        keys = {"capture_range": "hotkey", **changes.pop("keys", {})}
        found = NsysStage().check(stage_context(tmp_path / "run", config(tool, **keys), **changes))
        return [one for one in found if one.key == "pipeline.nsys.capture_range"]

    (problem,) = problems()
    assert problem.severity == "error" and "window" in problem.message and "nvtx" in problem.fix
    assert problems(**PROGRAM) == []
    assert problems(keys={"gating_nvtx": False}) == [], "the whole run is captured then"


def test_the_built_in_workload_is_set_to_call_the_profiler_api(tmp_path: Path) -> None:
    tool = fake_nsys(tmp_path / "tool", "report()")
    for capture_range, shown in (("cudaProfilerApi", True), ("none", False)):
        context = stage_context(tmp_path / "run", config(tool, capture_range=capture_range))
        context.config.resolved_device = "cuda:0"
        (request,) = nsys_stage._requests(
            context,
            context.stage_config("nsys", NsysConfig),
            str(tool),
            tmp_path,
            frozenset({"cuda-graph-trace"}),
        )
        assert (request.workload.env.get("LLM_PERF_OPT_PROFILER_RANGE") == "1") is shown
        assert "--cuda-graph-trace=node" in request.command()
        assert not [one for one in NsysStage().check(context) if one.key == "pipeline.nsys.capture_range"]


def test_a_rank_captures_a_program_that_meets_those_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = fake_nsys(
        tmp_path / "tool",
        """
        out = out.replace("%q{RANK}", os.environ["RANK"])
        (state / "group").write_text(os.environ["LLM_PERF_OPT_RANKS_GROUP"])
        report(out + ".nsys-rep")
        """,
        exports=True,
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(nsys_stage, "require_room", lambda device: None)
    result = NsysStage().run(stage_context(tmp_path / "run", config(tool)))
    assert (tmp_path / "run" / "nsys" / "run.rank1.nsys-rep") in result.artifacts
    assert (tool.parent / "group").read_text() == "nsys/run"


@pytest.mark.parametrize(
    ("changes", "device", "key"),
    [
        ({"capture_range_end": "stop-shutdown"}, "cpu", "pipeline.nsys.capture_range_end"),
        ({"isolate": True}, "cuda:0", "pipeline.nsys.isolate"),
        ({"capture_range_end": "repeat:2"}, "cuda:0", None),
        ({"isolate": None}, "cuda:0", None),
    ],
)
def test_what_does_not_go_with_several_ranks_is_refused(
    changes: dict[str, object], device: str, key: str | None
) -> None:
    found = rank_problems(config("nsys", **changes), Rank(0, 2, 0), device)
    assert [(problem.severity, problem.key) for problem in found] == ([] if key is None else [("error", key)])
    assert rank_problems(config("nsys", **changes), None, device) == []


def test_a_range_of_several_ranks_ends_the_capture_and_not_the_program() -> None:
    assert range_end(config("nsys"), Rank(0, 2, 0)) == "stop"
    assert range_end(config("nsys"), None) is None
    assert range_end(config("nsys", capture_range_end="repeat:3"), Rank(0, 2, 0)) == "repeat:3"
