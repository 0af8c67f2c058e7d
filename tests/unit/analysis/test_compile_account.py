"""Compilations, recompilations and graph breaks from logs, structured traces, tlparse folders and torch traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.captures.compile_logs import read_compile_log
from llm_perf_opt.cli import main
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.summary import Summary
from llm_perf_opt.summary.file import load_summary

LINE = "V1117 22:17:{at} 10537 torch/_dynamo/{file}] [{id}] [__{tag}] {text}"


def break_lines(at: str, compile_id: str, place: str, explanation: str) -> list[str]:
    """As torch 2.13 writes them with TORCH_LOGS=graph_breaks."""
    texts = [
        f"Graph break in user code at {place}",
        "Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):",
        "",
        "Failed to trace builtin operator",
        f"  Explanation: {explanation}",
        "  Hint: Please report an issue to PyTorch.",
    ]
    return [
        LINE.format(at=at, file="symbolic_convert.py:5124", id=compile_id, tag="graph_breaks", text=text)
        for text in texts
    ]


def recompile_lines(at: str, compile_id: str, cause: str) -> list[str]:
    """As torch 2.13 writes them with TORCH_LOGS=recompiles."""
    frame, version = compile_id.split("/")
    texts = [
        "Recompiling function f in /home/me/prog.py:5",
        "    triggered by the following guard failure(s):",
        f"    - {frame}/{int(version) - 1}: {cause}",
        f"    - {frame}/0: another cause",
    ]
    return [
        LINE.format(at=at, file="guards.py:5396", id=compile_id, tag="recompiles", text=text)
        for text in texts
    ]


LIMIT = [
    "W1117 22:17:25.000000 10537 torch/_dynamo/convert_frame.py:1994] [0/4] torch._dynamo hit config.recompile_limit (4)",
    "W1117 22:17:25.000000 10537 torch/_dynamo/convert_frame.py:1994] [0/4]    function: 'f' (/home/me/prog.py:5)",
    "W1117 22:17:25.000000 10537 torch/_dynamo/convert_frame.py:1994] [0/4]    last reason: 0/3: tensor 'x' size mismatch",
]


def write(path: Path, *groups: list[str]) -> Path:
    path.write_text(
        "\n".join(["what the program prints", *(line for group in groups for line in group), "more"])
    )
    return path


def ingest(out: Path, *arguments: object) -> Summary:
    assert main(["ingest", "--out", str(out), *(str(argument) for argument in arguments)]) == 0
    return load_summary(out)


def test_a_log_gives_breaks_and_recompilations_with_cause_time_and_place(tmp_path: Path) -> None:
    log = write(
        tmp_path / "log.txt",
        break_lines("19.500000", "0/0", "/home/me/prog.py:7", "Dynamo does not know how to trace `print`"),
        recompile_lines("21.000000", "0/1", "tensor 'x' size mismatch at index 0. expected 4, actual 6"),
    )
    broken, again = read_compile_log(log)
    assert (broken.kind, broken.place, broken.at_s) == ("graph break", "/home/me/prog.py:7", 0.0)
    assert broken.cause == "Dynamo does not know how to trace `print`"
    assert (again.compile_id, again.place, again.at_s) == ("0/1", "f (/home/me/prog.py:5)", 1.5)
    assert again.cause == "tensor 'x' size mismatch at index 0. expected 4, actual 6"


def test_lines_of_earlier_releases_and_of_ranks_are_read(tmp_path: Path) -> None:
    old = [
        "[2023-10-01 12:00:00,123] [0/0] torch._dynamo.symbolic_convert.__graph_breaks: [DEBUG] Graph break: call_function "
        'print from user code at:   File "/home/me/old.py", line 3, in f'
    ]
    ranked = [f"[rank1]:{line}" for line in recompile_lines("30.000000", "2/1", "n == 1")]
    found = read_compile_log(write(tmp_path / "log.txt", old, ranked))
    assert [(one.kind, one.place) for one in found] == [
        ("graph break", "/home/me/old.py:3"),
        ("compilation", "f (/home/me/prog.py:5)"),
    ]


def test_the_second_version_is_usual_and_later_ones_are_a_finding(tmp_path: Path) -> None:
    once = write(tmp_path / "once.txt", recompile_lines("21.000000", "0/1", "size"))
    assert ingest(tmp_path / "a", "--compile-log", once).findings == []
    versions = [
        recompile_lines(f"2{number}.000000", f"0/{number}", f"size {number}") for number in range(1, 5)
    ]
    found = ingest(tmp_path / "b", "--compile-log", write(tmp_path / "often.txt", *versions, LIMIT))
    (finding,) = found.findings
    assert finding.id == "recompilation" and finding.gain_upper_s is None
    assert any("prog.py:5" in line and "size 2" in line for line in finding.evidence)
    assert any("limit" in line for line in finding.evidence)
    assert found.metrics["compile_steady_recompilations"] == 3.0
    assert found.sections[0].tables[0].rows[-1][0] == "limit reached"


def structured(compile_id: str, name: str, payload: list[str]) -> list[str]:
    frame, version = compile_id.split("/")
    head = json.dumps(
        {
            "artifact": {"name": name, "encoding": "string"},
            "frame_id": int(frame),
            "frame_compile_id": int(version),
            "attempt": 0,
        }
    )
    return [
        f"V1117 22:17:21.265000 1 torch/_dynamo/guards.py:5400] {head}",
        *(f"\t{line}" for line in payload),
    ]


def metrics_line(compile_id: str, seconds: float) -> list[str]:
    found = {
        "compile_id": compile_id,
        "co_name": "f",
        "co_filename": "/home/me/prog.py",
        "co_firstlineno": 5,
        "entire_frame_compile_time_s": seconds,
    }
    return [
        f"V1117 22:17:22.000000 1 torch/_dynamo/utils.py:2009] {json.dumps({'compilation_metrics': found})}"
    ]


def test_a_structured_trace_gives_each_duration(tmp_path: Path) -> None:
    log = write(
        tmp_path / "dedicated_log_torch_trace_x.log",
        structured("0/1", "recompile_reasons", ["0/0: tensor 'x' size mismatch"]),
        metrics_line("0/1", 1.25),
        structured(
            "0/1",
            "dynamo_graph_break_reason",
            ["Graph break in user code at /home/me/prog.py:9", "Reason: item()"],
        ),
    )
    again, broken = read_compile_log(log.parent)
    assert (again.seconds, again.cause) == (1.25, "tensor 'x' size mismatch")
    assert (broken.place, broken.cause) == ("/home/me/prog.py:9", "item()")


def test_a_folder_of_tlparse_is_read_by_its_artefacts(tmp_path: Path) -> None:
    (tmp_path / "-_0_1_0").mkdir()
    (tmp_path / "-_0_1_0" / "recompile_reasons_16.json").write_text('[\n"0/0: tensor size"\n]\n')
    (tmp_path / "-_0_1_0" / "dynamo_graph_break_reason_17.txt").write_text(
        "Graph break in user code at a.py:7\nReason: print\n"
    )
    found = {one.kind: one for one in read_compile_log(tmp_path)}
    assert (found["compilation"].compile_id, found["compilation"].cause) == ("0/1", "tensor size")
    assert (found["graph break"].place, found["graph break"].cause) == ("a.py:7", "print")


@pytest.mark.parametrize(
    "content", ["", "nothing of the kind\n", "V1117 22:17:21.265000 1 a.py:1] {not json\n"]
)
def test_what_holds_nothing_of_it_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text(content)
    with pytest.raises(InputError):
        read_compile_log(path)


def gpu_trace(versions: list[int]) -> dict[str, Any]:
    """Twenty steps of thirty kernels; in steps of ``versions`` the host first compiles the function again for 50 ms."""
    events: list[dict[str, Any]] = []
    at, version = 0.0, 0

    def span(
        cat: str, name: str, start: float, length: float, tid: int = 11, pid: int = 10, **args: Any
    ) -> None:
        events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "ts": start,
                "dur": length,
                "pid": pid,
                "tid": tid,
                "args": args,
            }
        )

    call = 0
    for step in range(20):
        if step in versions:
            version += 1
            span("cpu_op", "entire_frame_compile", at, 50_000.0)
            span("cpu_op", "_compile.compile_inner (dynamo_timed)", at + 1, 49_990.0)
            span(
                "user_annotation",
                f"entire_frame_compile_data: fn_name=x, compile_id=0/{version}",
                at + 10,
                1.0,
            )
            at += 50_000.0
        span("cpu_op", f"Torch-Compiled Region: 0/{version}", at, 600.0)
        for _ in range(30):
            call += 1
            span("cuda_runtime", "cudaLaunchKernel", at, 5.0, correlation=call)
            span("kernel", "gemm_kernel", at + 6.0, 12.0, tid=7, pid=0, correlation=call, device=0, stream=7)
            at += 20.0
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}],
        "traceEvents": events,
    }


def test_recompilations_between_settled_steps_are_not_one_off(tmp_path: Path) -> None:
    path = tmp_path / "steady.json"
    path.write_text(json.dumps(gpu_trace([5, 10, 15])))
    found = ingest(tmp_path / "run", "--trace", path)
    parts = {part.name: part.seconds for part in found.budget["all"].parts}
    assert parts.get("one-off", 0.0) == 0.0 and parts["host"] == pytest.approx(0.150, rel=0.02)
    assert found.verdicts["all"].bound == "host"
    ids = [one.id for one in found.findings]
    owner = next(part.owner for part in found.budget["all"].parts if part.name == "host")
    assert owner is not None and owner.what == "compilation"
    assert ids[0] == "host-idle" and "recompilation" in ids
    assert found.metrics["compile_s"] == pytest.approx(0.150)


def test_a_compilation_before_the_first_steps_is_a_one_off_cost(tmp_path: Path) -> None:
    path = tmp_path / "first.json"
    path.write_text(json.dumps(gpu_trace([1])))
    found = ingest(tmp_path / "run", "--trace", path)
    parts = {part.name: part.seconds for part in found.budget["all"].parts}
    assert parts["one-off"] == pytest.approx(0.050, rel=0.02)
    assert "recompilation" not in [one.id for one in found.findings]
