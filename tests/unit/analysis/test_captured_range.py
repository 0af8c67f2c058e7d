"""Tables of one range: which one, by its name, its columns or the files beside it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from llm_perf_opt.analysis.captures import captured_range, split_by_phase
from llm_perf_opt.captures.nsys.csv import read_nsys_csv
from llm_perf_opt.captures.nsys.reader import read_capture_configuration
from llm_perf_opt.captures.timeline import CaptureConfiguration
from llm_perf_opt.stages.nsys.facts import nsys_facts

HEADER = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"
TABLE = f"{HEADER}\n100.0,1000,10,100.0,100.0,100,100,0.0,gemm\n"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("per-stage-sam.cuda_gpu_kern_sum.csv", ("sam", "vision", "sam")),
        ("per-stage-projector.cuda_gpu_kern_sum.csv", ("projector", "vision", "projector")),
        ("all-stage.cuda_gpu_kern_sum.csv", ("all", None, None)),
        ("summary.decode.csv", ("decode", "decode", None)),
        ("decode_cuda_gpu_kern_sum.csv", ("decode", "decode", None)),
        ("run-Prefill-kernels.csv", ("prefill", "prefill", None)),
        ("cuda_gpu_kern_sum.csv", None),
        ("summary.csv", None),
        ("prefill-and-decode.csv", None),
        ("token-bench.csv", None),
        ("decoder-layers.csv", None),
    ],
)
def test_ranges_of_file_names(name: str, expected: tuple[str, str | None, str | None] | None) -> None:
    found = captured_range(Path("/x") / name, None)
    assert (found and (found.name, found.phase, found.component)) == expected
    assert found is None or (found.passes is None and found.source == "the file's name")


def test_real_tables_are_recognised_by_their_names(shared_data: Path) -> None:
    folder = shared_data / "rtx5090-deepseek-ocr" / "nsys"
    for name, phase in (("sam", "vision"), ("projector", "vision")):
        path = folder / f"per-stage-{name}.cuda_gpu_kern_sum.csv"
        (capture,) = nsys_facts(path).captures
        assert {(kernel.phase, kernel.module) for kernel in capture.facts.kernels} == {(phase, name)}
        assert sum(kernel.launches or 0 for kernel in capture.facts.kernels) == sum(
            int(row["Instances"]) for row in csv.DictReader(path.read_text().splitlines())
        )
        assert any(f"range {name} alone" in warning for warning in capture.facts.warnings)
    (whole,) = nsys_facts(folder / "all-stage.cuda_gpu_kern_sum.csv").captures
    assert {kernel.phase for kernel in whole.facts.kernels} == {None}


PROFILE = (
    "nsys profile --trace=cuda,nvtx --capture-range={} {} -o /x/run python work.py --capture-range=nvtx\n"
)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (PROFILE.format("none", ""), (None, None)),
        (PROFILE.format("nvtx", "--nvtx-capture=decode"), ("decode", 1)),
        (PROFILE.format("nvtx", "--nvtx-capture=decode@LLM --capture-range-end=stop"), ("decode", 1)),
        (PROFILE.format("nvtx", "--nvtx-capture decode --capture-range-end repeat:4"), ("decode", 1)),
        (PROFILE.format("nvtx", "--nvtx-capture=decode --capture-range-end=none"), None),
        ("nsys export --type sqlite x.nsys-rep\n", None),
        ("", None),
    ],
)
def test_ranges_of_the_command_next_to_a_table(
    command: str, expected: tuple[str | None, int | None] | None, tmp_path: Path
) -> None:
    write(tmp_path / "nsys" / "cmd.txt", f"# Run again with: sh cmd.txt\n\n{command}")
    found = read_capture_configuration(write(tmp_path / "nsys" / "table.csv", TABLE))
    assert (found and (found.label, found.passes)) == expected


def test_of_several_commands_the_one_the_table_is_named_after(tmp_path: Path) -> None:
    both = PROFILE.format("nvtx", "--nvtx-capture=prefill") + PROFILE.format("nvtx", "--nvtx-capture=decode")
    write(tmp_path / "cmd.txt", both)
    for name, label in (("summary.decode.csv", "decode"), ("summary.csv", "prefill")):
        found = read_capture_configuration(write(tmp_path / name, TABLE))
        assert found is not None and found.label == label
    assert read_capture_configuration(write(tmp_path / "other.csv", TABLE)) is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("capture_range: nvtx\n    nvtx_capture: decode", ("decode", "decode", 1)),
        ("capture_range: nvtx\n    nvtx_capture: [prefill, decode]", None),
        ("capture_range: none\n    nvtx_capture: null", ("all", None, None)),
        ("capture_range: nvtx\n    nvtx_capture: step", None),
        ("executable: null", None),
    ],
)
def test_ranges_of_the_configuration_of_the_run(
    settings: str, expected: tuple[str, str | None, int | None] | None, tmp_path: Path
) -> None:
    write(tmp_path / "config.yaml", f"pipeline:\n  nsys:\n    {settings}\n")
    path = write(tmp_path / "nsys" / "kernels.csv", TABLE)
    found = captured_range(path, read_capture_configuration(path))
    assert (found and (found.name, found.phase, found.passes)) == expected


def test_damaged_configuration_gives_nothing(tmp_path: Path) -> None:
    write(tmp_path / "config.yaml", "pipeline: [")
    write(tmp_path / "cmd.txt", "nsys profile 'open\n")
    assert read_capture_configuration(write(tmp_path / "kernels.csv", TABLE)) is None


def test_the_name_of_the_table_counts_before_the_configuration() -> None:
    other = CaptureConfiguration("prefill", 1, "cmd.txt")
    found = captured_range(Path("decode.csv"), other)
    assert found is not None and (found.phase, found.passes) == ("decode", None)
    same = captured_range(Path("decode.csv"), CaptureConfiguration("decode", 1, "cmd.txt"))
    assert same is not None and (same.phase, same.passes) == ("decode", 1)


RANGES = (
    "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Kernel Name\n"
    ":decode,PushPop,1,1,2,40,4000,100.0,100.0,100,100,0.0,gemv\n"
    ":decode,PushPop,1,1,1,1,50,50.0,50.0,50,50,0.0,argmax\n"
    ":decode_step,PushPop,1,1,20,40,4000,100.0,100.0,100,100,0.0,gemv\n"
    ":prefill,PushPop,1,1,2,10,9000,900.0,900.0,900,900,0.0,gemm\n"
    ":sample,PushPop,1,1,2,40,4000,100.0,100.0,100,100,0.0,gemv\n"
)


def test_a_table_with_a_column_of_ranges_is_a_table_for_each_phase(tmp_path: Path) -> None:
    path = write(tmp_path / "nvtx_kern_sum.csv", RANGES)
    found = {of.phase: (table, of) for table, of in split_by_phase(read_nsys_csv(path))}
    assert set(found) == {"decode", "prefill"}
    table, of = found["decode"]
    assert {(row.name, row.count) for row in table.kernels} == {
        ("gemv", 40),
        ("argmax", 1),
    }  # not the steps again
    assert (of.name, of.passes) == ("decode", 2)
    captures = nsys_facts(path).captures
    assert {kernel.phase for capture in captures for kernel in capture.facts.kernels} == {"decode", "prefill"}


def test_a_column_of_ranges_without_phases_changes_nothing(tmp_path: Path) -> None:
    plain = "".join(RANGES.splitlines(keepends=True)[i] for i in (0, 5))
    path = write(tmp_path / "nvtx_kern_sum.csv", plain)
    assert split_by_phase(read_nsys_csv(path)) == []
    (capture,) = nsys_facts(path).captures
    assert [(kernel.name, kernel.phase, kernel.launches) for kernel in capture.facts.kernels] == [
        ("gemv", None, 40)
    ]
