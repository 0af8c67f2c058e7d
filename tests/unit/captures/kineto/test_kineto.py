"""Reading torch traces: every layout, exact times, launches, ranges, and files that are not what they seem."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_perf_opt.analysis.timeline.attribution import attribute, by_path_and_name
from llm_perf_opt.captures.kineto.reader import KinetoCapture, read_kineto
from llm_perf_opt.captures.timeline import OpKind
from llm_perf_opt.core.errors import InputError
from tests.text_facts import mentions
from tests.unit.kineto_traces import HOST, LAYOUTS, annotation, call, document, kernel, op, span, write

PREFILL_AND_DECODE = [
    annotation("prefill", 100.0, 100.0),
    op("aten::mm", 110.0, 20.0, 1),
    call("cudaLaunchKernel", 115.0, 5.0, 11),
    annotation("decode", 250.0, 100.0),
    op("aten::mm", 260.0, 20.0, 2),
    call("cudaLaunchKernel", 265.0, 5.0, 12),
    call("cudaMemcpyAsync", 300.0, 4.0, 13),
    # The prefill kernel runs while the host is already in decode: it still belongs to prefill.
    kernel("gemm", 260.125, 40.001, 11, 1),
    kernel("gemv", 310.5, 7.25, 12, 2),
    span(
        "gpu_memcpy",
        "Memcpy DtoH",
        320.0,
        1.6,
        pid=0,
        tid=7,
        args={"device": 0, "stream": 7, "correlation": 13, "bytes": 8},
    ),
    span("gpu_user_annotation", "prefill", 260.125, 40.001, pid=0, tid=7),
    span("python_function", "model.py(1): forward", 100.0, 240.0, pid=0, tid=0),
]


def totals(capture: KinetoCapture) -> dict[tuple[str | None, str], tuple[int, int]]:
    found = attribute(capture.timeline)
    result = {}
    for (path, name), total in by_path_and_name(capture.timeline, found).items():
        phase = found.path_phase[path] if path >= 0 else -1
        key = (found.phases[phase] if phase >= 0 else None, capture.timeline.names[name])
        result[key] = (total.launches, total.total_ns)
    return result


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_every_text_layout_reads_the_same(tmp_path: Path, layout: str, suffix: str) -> None:
    path = write(tmp_path / f"t.{suffix}", document(PREFILL_AND_DECODE), layout)
    capture = read_kineto(path)
    assert totals(capture) == {("prefill", "gemm"): (1, 40_001), ("decode", "gemv"): (1, 7_250)}
    assert capture.timeline.ops.kind.tolist() == [OpKind.KERNEL, OpKind.KERNEL, OpKind.COPY]
    assert capture.timeline.ops.bytes.tolist() == [-1, -1, 8]
    assert capture.timeline.warnings == ()


def test_a_kernel_belongs_to_the_range_of_its_launch(tmp_path: Path) -> None:
    timeline = read_kineto(write(tmp_path / "t.json", document(PREFILL_AND_DECODE))).timeline
    first = int(np.flatnonzero(timeline.ops.start_ns == 260_125)[0])
    assert timeline.names[timeline.ranges.name[timeline.ops.range[first]]] == "prefill"
    assert timeline.names[timeline.calls.name[timeline.ops.launch[first]]] == "cudaLaunchKernel"
    assert timeline.ops.process.tolist() == [HOST] * 3


def test_device_annotations_and_python_frames_are_neither_kernels_nor_ranges(tmp_path: Path) -> None:
    timeline = read_kineto(write(tmp_path / "t.json", document(PREFILL_AND_DECODE))).timeline
    assert [timeline.names[name] for name in timeline.ranges.name] == ["prefill", "decode"]
    assert len(timeline.ops) == 3


@pytest.mark.parametrize("base_us", [0, 2_000_000_000_000, 7_889_000_000_000, 1_718_000_000_000_000])
def test_times_are_exact_to_the_nanosecond(tmp_path: Path, base_us: int) -> None:
    """The last is what torch up to 2.3 writes: microseconds since 1970, beyond what a float holds."""
    starts_ns = [base_us * 1000 + offset for offset in (0, 1, 499, 500, 501, 999, 1_000_001, 777_777_777)]
    events = "".join(
        f',{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{ns // 1000}.{ns % 1000:03d},"dur":0.001,"args":{{}}}}'
        for ns in starts_ns
    )
    timeline = read_kineto(write(tmp_path / "t.json", f'{{"traceEvents":[{events[1:]}]}}')).timeline
    assert timeline.ops.start_ns.tolist() == starts_ns
    assert (timeline.ops.end_ns - timeline.ops.start_ns).tolist() == [1] * len(starts_ns)


def test_cuda_graphs_streams_and_devices(tmp_path: Path) -> None:
    events = [
        annotation("decode", 0.0, 100.0),
        call("cudaGraphLaunch", 5.0, 10.0, 3),
        kernel("a", 20.0, 5.0, 3, args={"graph id": 1, "graph node id": 1}),
        kernel("b", 22.0, 5.0, 3, stream=20, args={"graph id": 1, "graph node id": 2}),
        call("cudaLaunchKernel", 50.0, 2.0, 4),
        kernel("c", 60.0, 5.0, 4, device=1),
    ]
    capture = read_kineto(write(tmp_path / "t.json", document(events)))
    ops = capture.timeline.ops
    assert (ops.device.tolist(), ops.stream.tolist()) == ([0, 0, 1], [7, 20, 7])
    assert ops.launch.tolist() == [0, 0, 1]
    assert capture.facts["graph_launches"] == 1
    assert {key[0] for key in totals(capture)} == {"decode"}


def test_metadata_before_and_after_the_events(tmp_path: Path) -> None:
    properties = [{"id": 0, "name": "NVIDIA H100"}, {"id": 1, "name": "unused"}]
    before = read_kineto(
        write(
            tmp_path / "a.json",
            document(
                PREFILL_AND_DECODE, deviceProperties=properties, distributedInfo={"rank": 3, "world_size": 8}
            ),
            "compact",
        )
    )
    assert before.timeline.devices == {0: "NVIDIA H100"}
    assert (before.facts["rank"], before.facts["world_size"]) == (3, 8)
    value = {"traceEvents": PREFILL_AND_DECODE, "deviceProperties": properties, "baseTimeNanoseconds": 17}
    after = read_kineto(write(tmp_path / "b.json", value, "indented"))
    assert (after.timeline.devices, after.facts["base_time_ns"]) == ({0: "NVIDIA H100"}, 17)
    assert after.facts["rank"] is None  # vLLM, SGLang and plain torch write none


def test_the_key_inside_other_metadata_is_not_the_list_of_events(tmp_path: Path) -> None:
    value = {
        "note": 'see "traceEvents": [',
        "nested": {"traceEvents": [{"ph": "X", "cat": "kernel"}]},
        "traceEvents": PREFILL_AND_DECODE,
    }
    assert len(read_kineto(write(tmp_path / "t.json", value)).timeline.ops) == 3


def test_a_bare_array_is_read_and_may_be_left_open(tmp_path: Path) -> None:
    closed = write(tmp_path / "a.json", json.dumps(PREFILL_AND_DECODE))
    assert len(read_kineto(closed).timeline.ops) == 3
    open_array = write(tmp_path / "b.json", json.dumps(PREFILL_AND_DECODE)[:-1] + ",\n")
    capture = read_kineto(open_array)
    assert len(capture.timeline.ops) == 3
    assert "not closed" in capture.timeline.warnings[0]


def test_a_cpu_only_trace(tmp_path: Path) -> None:
    capture = read_kineto(
        write(tmp_path / "t.json", document([annotation("decode", 0.0, 10.0), op("aten::mm", 1.0, 5.0, 1)]))
    )
    assert len(capture.timeline.ops) == 0
    assert capture.operators.self_device_ns is None
    assert any(mentions(warning, "GPU", "CUDA") for warning in capture.timeline.warnings)


def test_a_trace_without_annotations_or_launches(tmp_path: Path) -> None:
    timeline = read_kineto(write(tmp_path / "t.json", document([kernel("k", 1.0, 2.0, 5)]))).timeline
    assert (timeline.ops.launch.tolist(), timeline.ops.range.tolist()) == ([-1], [-1])
    assert any("no CUDA calls" in warning for warning in timeline.warnings)


def test_an_empty_list_of_events(tmp_path: Path) -> None:
    assert (
        len(
            read_kineto(
                write(tmp_path / "t.json", '{"traceEvents": [ ], "displayTimeUnit": "ms"}')
            ).timeline.ops
        )
        == 0
    )


def test_capitalised_categories_of_old_torch(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [
        span("Operator", "aten::mm", 0.0, 10.0, args={"External id": 5}),
        span("Runtime", "cudaLaunchKernel", 2.0, 1.0, args={"correlation": 9, "external id": 5}),
        span(
            "Kernel",
            "gemm",
            20.0,
            3.0,
            pid=0,
            tid=7,
            args={"device": 0, "stream": 7, "correlation": 9, "external id": 5},
        ),
    ]
    capture = read_kineto(write(tmp_path / "t.json", document(events)))
    assert capture.operators.self_device_ns is not None
    assert capture.operators.self_device_ns.tolist() == [3_000]


def test_merged_ranks_with_equal_ids_go_by_time(tmp_path: Path) -> None:
    events = [
        call("cudaLaunchKernel", 10.0, 1.0, 7, pid=1, tid=1),
        call("cudaLaunchKernel", 500.0, 1.0, 7, pid=2, tid=2),
        kernel("early", 20.0, 1.0, 7),
        kernel("late", 510.0, 1.0, 7, device=1),
    ]
    timeline = read_kineto(write(tmp_path / "t.json", document(events))).timeline
    assert timeline.ops.process.tolist() == [1, 2]
    assert any(mentions(warning, "correlation") for warning in timeline.warnings)


def test_ranks_merged_by_label_keep_their_own_ids(tmp_path: Path) -> None:
    """SGLang's merger writes the rank in front of every process id and leaves all other ids as they were."""
    events = []
    for rank, delay in (("[TP00]", 0.0), ("[TP01]", 1.0)):
        host = {"pid": f"{rank} {HOST + int(delay)}", "tid": 1}
        events += [
            annotation("decode", 0.0 + delay, 50.0, **host),
            op(f"op of {rank}", 2.0 + delay, 10.0, 5, **host),
            call("cudaLaunchKernel", 5.0 + delay, 1.0, 7, **host),
            kernel(f"k of {rank}", 20.0 - 2 * delay, 3.0 + delay, 7, 5) | {"pid": f"{rank} 0"},
        ]
    capture = read_kineto(write(tmp_path / "t.json", document(events), "compact"))
    ops, timeline = capture.timeline.ops, capture.timeline
    launched = {timeline.names[name]: int(pid) for name, pid in zip(ops.name, ops.process, strict=True)}
    assert launched == {"k of [TP00]": HOST, "k of [TP01]": HOST + 1}
    assert sorted(ops.device.tolist()) == [0, 1]
    assert capture.facts["ranks"] == ["[TP00]", "[TP01]"]
    device = capture.operators.self_device_ns
    assert device is not None
    found = {
        timeline.names[name]: int(time) for name, time in zip(capture.operators.name, device, strict=True)
    }
    assert found == {"op of [TP00]": 3_000, "op of [TP01]": 4_000}
    assert timeline.warnings == ()


def test_memory_reports(tmp_path: Path) -> None:
    def report(at_us: str, used: int, device_type: int) -> str:
        args = f'{{"Total Allocated": {used}, "Device Type": {device_type}, "Device Id": 0, "Bytes": 1}}'
        return f'{{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]","pid":1,"tid":1,"ts":{at_us},"args":{args}}}'

    for base in ("", "171800000"):  # today's torch, and time stamps since 1970
        text = ",".join((report(f"{base}2000000.002", 30, 1), report(f"{base}1000000.001", 20, 0)))
        memory = read_kineto(write(tmp_path / "t.json", f'{{"traceEvents":[{text}]}}')).memory
        assert memory.time_ns.tolist() == [int(f"{base}1000000001"), int(f"{base}2000000002")]
        assert (memory.allocated_bytes.tolist(), memory.device_type.tolist()) == ([20, 30], [0, 1])


def test_ids_as_text_and_fields_of_odd_types(tmp_path: Path) -> None:
    """Tools that rewrite traces quote numbers, prefix process ids, or leave fields null."""
    events = [
        annotation("decode", 0.0, 100.0, pid="rank 0", tid="main"),
        call("cudaLaunchKernel", 5.0, 1.0, 3, pid="rank 0", tid="main"),
        {
            "ph": "X",
            "cat": "kernel",
            "name": "k",
            "pid": "0",
            "tid": "7",
            "ts": "10.5",
            "dur": "2.25",
            "args": {"device": "0", "stream": 7, "correlation": "3"},
        },
        {"ph": "X", "cat": "kernel", "name": None, "pid": 0, "tid": 7, "ts": 20, "dur": None, "args": None},
        None,
    ]
    timeline = read_kineto(write(tmp_path / "t.json", {"traceEvents": events}, "compact")).timeline
    assert timeline.ops.start_ns.tolist() == [10_500]
    assert (timeline.ops.end_ns - timeline.ops.start_ns).tolist() == [2_250]
    assert timeline.ops.launch.tolist() == [0]
    assert any(mentions(warning, "1", "4") for warning in timeline.warnings)
    assert timeline.names[timeline.ranges.name[timeline.ops.range[0]]] == "decode"


# --- damage ----------------------------------------------------------------------------------------------


def _whole(tmp_path: Path) -> bytes:
    return write(
        tmp_path / "whole.json", document(PREFILL_AND_DECODE * 40, deviceProperties=[{"id": 0}]), "default"
    ).read_bytes()


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.95])
def test_a_cut_off_file_is_noticed(tmp_path: Path, share: float) -> None:
    data = _whole(tmp_path)
    path = tmp_path / "cut.json"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError, match="cut off"):
        read_kineto(path)


def test_a_cut_off_gzip_is_noticed(tmp_path: Path) -> None:
    packed = gzip.compress(_whole(tmp_path))
    path = tmp_path / "cut.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match="cut off"):
        read_kineto(path)


def test_a_file_cut_behind_the_events_keeps_them(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": PREFILL_AND_DECODE, "traceName": "a long name"})
    capture = read_kineto(write(tmp_path / "t.json", text[:-5]))
    assert len(capture.timeline.ops) == 3
    assert mentions(capture.timeline.warnings[0], "t.json", "events")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("hello", "not JSON"),
        ('{"a": 1}', "no 'traceEvents'"),
        ('{"traceEvents": {}}', "no 'traceEvents'"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_kineto(write(tmp_path / "t.json", content))


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_kineto(tmp_path / "absent.json")
    with pytest.raises(InputError, match="cannot read"):
        read_kineto(tmp_path)


def test_damage_inside_an_event_is_refused_with_its_place(tmp_path: Path) -> None:
    text = json.dumps(document(PREFILL_AND_DECODE)).replace('"dur": 7.25', '"dur": 7,,25')
    with pytest.raises(InputError, match=r"byte \d+") as caught:
        read_kineto(write(tmp_path / "t.json", text))
    assert caught.value.data["path"] == str(tmp_path / "t.json")


def test_known_mistakes_of_exporters_are_corrected(tmp_path: Path) -> None:
    text = (
        json.dumps(document(PREFILL_AND_DECODE))
        .replace('"bytes": 8', '"bytes": 8, "memory bandwidth (GB/s)": inf, "x": -nan')
        .replace("model.py(1)", "C:\\Users\\new\\model.py\t\udcff")
    )
    capture = read_kineto(write(tmp_path / "t.json", text))
    assert len(capture.timeline.ops) == 3
    assert "repaired" in capture.timeline.warnings[0]


@pytest.mark.parametrize("place", ["head", "event", "tail"])
def test_nesting_without_end_is_damage_not_a_crash(tmp_path: Path, place: str) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    parts = {"head": "1", "event": "1", "tail": "1"} | {place: deep}
    text = f'{{"h": {parts["head"]}, "traceEvents": [{{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "x": {parts["event"]}}}], "t": {parts["tail"]}}}'
    path = write(tmp_path / "t.json", text)
    if place == "tail":
        assert mentions(read_kineto(path).timeline.warnings[0], "t.json", "events")
    else:
        with pytest.raises(InputError):
            read_kineto(path)


def test_a_negative_duration_is_not_hidden(tmp_path: Path) -> None:
    events = [kernel("k", 5.0, -1.0, 1), kernel("k", 5.0, 1.0, 2)]
    capture = read_kineto(write(tmp_path / "t.json", document(events)))
    assert capture.timeline.ops.end_ns.tolist() == [6_000]
    assert any(mentions(each, "1", "2") for each in capture.timeline.warnings)
    with pytest.raises(InputError) as caught:
        read_kineto(write(tmp_path / "t.json", document(events[:1])))
    assert mentions(caught.value.message, "t.json", "1")


# --- real traces -----------------------------------------------------------------------------------------


def test_h100_kernel_totals_equal_the_independent_table(shared_data: Path) -> None:
    folder = shared_data / "h100-torch-traces"
    for table in sorted(folder.glob("*.kernel_summary.csv")):
        capture = read_kineto(folder / table.name.replace(".kernel_summary.csv", ".json.gz"))
        timeline = capture.timeline
        kernels = timeline.ops.kind == OpKind.KERNEL
        got: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        durations = (timeline.ops.end_ns - timeline.ops.start_ns)[kernels].tolist()
        for name, duration in zip(timeline.ops.name[kernels].tolist(), durations, strict=True):
            got[timeline.names[name]][0] += 1
            got[timeline.names[name]][1] += duration
        want: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        with table.open(newline="") as stream:
            for row in csv.DictReader(stream):
                want[row["Kernel name"]][0] += int(row["Kernel duration (µs)_count"])
                want[row["Kernel name"]][1] += round(float(row["Kernel duration (µs)_sum"]) * 1000)
        assert dict(got) == dict(want)


def test_h100_device_time_by_operator_equals_the_independent_table(shared_data: Path) -> None:
    """Copies and memsets are not in the table, so operators that only launch kernels are compared."""
    folder = shared_data / "h100-torch-traces"
    for table in sorted(folder.glob("*.kernel_summary.csv")):
        capture = read_kineto(folder / table.name.replace(".kernel_summary.csv", ".json.gz"))
        want: dict[str, int] = defaultdict(int)
        with table.open(newline="") as stream:
            for row in csv.DictReader(stream):
                if row["Parent cpu_op"]:
                    want[row["Parent cpu_op"]] += round(float(row["Kernel duration (µs)_sum"]) * 1000)
        device = capture.operators.self_device_ns
        assert device is not None
        got: dict[str, int] = defaultdict(int)
        for name, time in zip(capture.operators.name.tolist(), device.tolist(), strict=True):
            got[capture.timeline.names[name]] += time
        with_memsets = {"aten::mm", "aten::addmm"}
        assert {name: got[name] for name in want if name not in with_memsets} == {
            name: time for name, time in want.items() if name not in with_memsets
        }
        assert all(got[name] >= want[name] for name in with_memsets)
