"""``ingest`` with several captures: options given again, folders, and ranks that files are named for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.facts import CaptureOrigin
from llm_perf_opt.analysis.ranks import require_one_device
from llm_perf_opt.cli import main
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.summary import Summary
from llm_perf_opt.summary.file import load_summary
from tests.unit import kineto_traces as kineto
from tests.unit import nsys_exports
from tests.unit.timelines import ALL_REDUCE

LATE_US = 400.0
STEPS = 12


def events(late_us: float) -> list[dict[str, Any]]:
    """Collectives of 100 µs each, which this rank enters ``late_us`` after the first one could."""
    found = []
    for number in range(STEPS):
        start = 600.0 * number
        enter, end = start + 100.0 + late_us, start + 600.0
        found += [
            kineto.op("aten::mm", start, 20.0, 10 * number + 1),
            kineto.call("cudaLaunchKernel", start + 1, 2.0, 10 * number + 1),
            kineto.kernel("gemm", start + 10, enter - start - 10, 10 * number + 1, 10 * number + 1),
            kineto.call("cudaLaunchKernel", start + 5, 2.0, 10 * number + 2),
            kineto.kernel(ALL_REDUCE, enter, end - enter, 10 * number + 2, stream=20),
        ]
    return found


def trace(path: Path, rank: int | None, late_us: float = 0.0) -> Path:
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    return kineto.write(path, kineto.document(events(late_us), **info))


def export(path: Path, late_ns: int) -> Path:
    """An nsys export of one rank that computes and then enters one collective."""
    enter = 1_000 + 100_000 + late_ns
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            nsys_exports.kernel(1_000, enter, 1, 1),
            nsys_exports.kernel(enter, 1_000_000, 2, 3),
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [nsys_exports.call(100, 200, 1, 2), nsys_exports.call(300, 400, 2, 2)],
    }
    strings = {1: "gemm", 2: "cudaLaunchKernel_v7000", 3: ALL_REDUCE}
    return nsys_exports.write_export(path, tables, strings)


def ingest(out: Path, *arguments: object) -> Summary:
    assert main(["ingest", "--out", str(out), *(str(argument) for argument in arguments)]) == 0
    return load_summary(out)


def straggles(found: Summary) -> None:
    assert [row.rank for row in found.ranks] == [0, 1]
    assert found.communication is not None
    assert found.communication.straggler == 1
    assert [row.source for row in found.ranks] == sorted(row.source or "" for row in found.ranks)


def test_a_second_trace_does_not_replace_the_first(tmp_path: Path) -> None:
    first, second = trace(tmp_path / "a.json", 0), trace(tmp_path / "b.json", 1, LATE_US)
    found = ingest(tmp_path / "run", "--trace", first, "--trace", second)
    straggles(found)
    assert found.metrics["kernel_launches"] == 4 * STEPS
    assert next(op.calls for op in found.operators if op.name == "aten::mm") == 2 * STEPS
    assert found.findings[0].id == "straggler"
    assert found.findings[0].gain_upper_s == pytest.approx(STEPS * LATE_US * 1e-6)
    assert [part for part in found.run.command if part.startswith("--trace=")] == [
        f"--trace={first}",
        f"--trace={second}",
    ]


def test_the_same_file_twice_is_one(tmp_path: Path) -> None:
    path = trace(tmp_path / "a.json", None)
    found = ingest(tmp_path / "run", "--trace", path, "--trace", path)
    assert found.metrics["kernel_launches"] == 2 * STEPS
    assert found.ranks == []


def test_a_folder_of_traces_is_all_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    trace(folder / "rank1.json.gz", None, LATE_US)
    trace(folder / "rank0.json.gz", None)
    (folder / "notes.txt").write_text("not a trace", encoding="utf-8")
    straggles(ingest(tmp_path / "run", "--trace", folder))


def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, *paths: Path) -> str:
    arguments = [str(word) for path in paths for word in (option, path)]
    assert main(["ingest", "--out", str(tmp_path / "run"), *arguments]) == 3
    assert not (tmp_path / "run" / "summary.json").exists()
    message, _, hint = capsys.readouterr().err.partition("fix:")
    assert f"ingest {option} FILE" in hint and "compare" in hint
    return message


def test_a_rank_given_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [trace(tmp_path / f"{name}.json", rank) for name, rank in (("a", 0), ("b", 1), ("c", 1))]
    message = refused(tmp_path, capsys, "--trace", *paths)
    assert "b.json and c.json are both rank 1" in message


@pytest.mark.parametrize("device", [True, False])
def test_captures_without_ranks_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, device: bool
) -> None:
    """Also traces of a processor, whose operators would silently be added up."""
    work = (
        events(0.0)
        if device
        else [kineto.op("aten::mm", 0.0, 20.0, 1), kineto.op("aten::add", 30.0, 20.0, 2)]
    )
    paths = [kineto.write(tmp_path / name, kineto.document(work)) for name in ("before.json", "after.json")]
    message = refused(tmp_path, capsys, "--trace", *paths)
    assert "before.json does not state a rank" in message


def test_exports_without_ranks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [export(tmp_path / f"{name}.sqlite", 0) for name in ("before", "after")]
    assert "before.sqlite does not state a rank" in refused(tmp_path, capsys, "--nsys", *paths)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"distributedInfo": {"rank": 1, "world_size": 4}}, "number of ranks differs"),
        ({"distributedInfo": {"rank": 5, "world_size": 2}}, "is rank 5, and the job has 2 ranks"),
        (
            {
                "distributedInfo": {"rank": 1, "world_size": 2},
                "deviceProperties": [{"id": 0, "name": "Tesla V100"}],
            },
            "b.json on Tesla V100",
        ),
        (
            {
                "distributedInfo": {"rank": 1, "world_size": 2},
                "baseTimeNanoseconds": 1_700_000_100_000_000_000,
            },
            "b.json begins 100 s after a.json has ended",
        ),
    ],
    ids=["world", "beyond", "device", "time"],
)
def test_ranks_of_different_jobs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: dict[str, Any], reason: str
) -> None:
    about: dict[str, Any] = {
        "distributedInfo": {"rank": 0, "world_size": 2},
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}],
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    }
    first = kineto.write(tmp_path / "a.json", kineto.document(events(0.0), **about))
    second = kineto.write(tmp_path / "b.json", kineto.document(events(0.0), **about | other))
    assert reason in refused(tmp_path, capsys, "--trace", first, second)


def test_captures_of_different_tools_are_of_one_device() -> None:
    """A torch trace and an nsys export of one run name the same device; a table of kernels names none."""
    first = CaptureOrigin(Path("trace.json"), "torch profiler", devices=frozenset({"NVIDIA H100"}))
    same = CaptureOrigin(Path("run.sqlite"), "nsys", devices=frozenset({"NVIDIA H100"}))
    table = CaptureOrigin(Path("kernels.csv"), "nsys")
    require_one_device([first, same, table])
    other = CaptureOrigin(Path("other.sqlite"), "nsys", devices=frozenset({"NVIDIA L4"}))
    with pytest.raises(InputError, match=r"trace.json is of NVIDIA H100, other.sqlite of NVIDIA L4"):
        require_one_device([first, same, other])


@pytest.mark.parametrize("calls", [True, False])
def test_a_trace_without_device_events_is_noted_first(tmp_path: Path, *, calls: bool) -> None:
    work = [kineto.op("aten::mm", 10.0 * n, 6.0, n + 1) for n in range(5)]
    launches = [kineto.call("cudaLaunchKernel", 10.0 * n + 1, 2.0, n + 1) for n in range(5)] if calls else []
    path = kineto.write(tmp_path / "host.json", kineto.document([*work, *launches]))
    found = ingest(tmp_path / "run", "--trace", path)
    assert found.notes[0].startswith("The trace contains no device events")
    assert ("ProfilerActivity.CUDA" in found.notes[0]) == calls
    assert not any(
        "device events" in note
        for note in ingest(tmp_path / "two", "--trace", trace(tmp_path / "a.json", None)).notes
    )


def test_a_folder_without_a_trace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    assert main(["ingest", "--out", str(tmp_path / "run"), "--trace", str(folder)]) == 3
    message, _, hint = capsys.readouterr().err.partition("fix:")
    assert str(folder) in message and ".json.gz" in message and hint.strip()


def test_one_of_several_that_is_missing_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path / "a.json", 0)
    arguments = ["--trace", str(path), "--trace", str(tmp_path / "gone.json")]
    assert main(["ingest", "--out", str(tmp_path / "run"), *arguments]) == 3
    assert f"--trace {tmp_path / 'gone.json'}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", ["options", "folder"])
def test_exports_of_nsys_are_joined_alike(tmp_path: Path, given: str) -> None:
    folder = tmp_path / "exports"
    folder.mkdir()
    files = [export(folder / f"run.rank{rank}.sqlite", rank * 400_000) for rank in (0, 1)]
    arguments = ["--nsys", folder] if given == "folder" else ["--nsys", files[1], "--nsys", files[0]]
    found = ingest(tmp_path / "run", *arguments)
    straggles(found)
    assert found.ranks[0].waits_s == pytest.approx(400e-6)
    (trace_file,) = (tmp_path / "run" / "nsys").glob("*perfetto*")
    assert {"rank 0 device 0", "rank 1 device 0"} <= _processes(trace_file)


def _processes(path: Path) -> set[str]:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found = json.loads(raw)["traceEvents"]
    return {
        event["args"]["name"] for event in found if event["ph"] == "M" and event["name"] == "process_name"
    }


def test_ranks_of_different_tools_are_not_mixed(tmp_path: Path) -> None:
    found = ingest(
        tmp_path / "run",
        "--trace",
        trace(tmp_path / "rank0.json", 0),
        "--nsys",
        export(tmp_path / "rank1.sqlite", 0),
    )
    assert len(found.ranks) < 2
    assert found.metrics["kernel_launches"] == 2  # of the tool that disturbs the run less
