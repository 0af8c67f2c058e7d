"""Detection and the probe: real files, real child processes, and what happens when one dies."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.hardware import detect, probe, resolve
from llm_perf_opt.hardware import probe as measured
from llm_perf_opt.hardware import probe as probe_cache
from llm_perf_opt.hardware.contention import ProcessorTime, other_load_ratio, processor_time
from llm_perf_opt.hardware.detect import DetectedCpu, DetectedGpu, detect_cpu, parse_nvidia_smi
from llm_perf_opt.hardware.probe_worker import best_time, host_timer, stream_bytes
from llm_perf_opt.summary import Hardware
from tests.support import python_program, write_program
from tests.text_facts import mentions

PYTHON = sys.executable
"""The real one: tests put another in its place."""
CPU = DetectedCpu("Some CPU", 4, 8 * 2.0**30)


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take measurements as undisturbed, whatever else runs here while the tests do."""
    monkeypatch.setattr(probe, "machine_is_busy", lambda cores: False)
    monkeypatch.setattr(measured, "UNDER_LOAD_RATIO", 1.0)


def fake_python(path: Path, body: str) -> str:
    """Write a program that stands in for the measuring process."""
    return str(write_program(path, python_program(f"import os, signal, sys, json\n{body}", python=PYTHON)))


def test_nvidia_smi_output() -> None:
    text = "NVIDIA GeForce RTX 5090, 32607\nNVIDIA H100 80GB HBM3, 81559\nOrin (nvgpu), [N/A]\n\n"
    assert parse_nvidia_smi(text) == [
        DetectedGpu("NVIDIA GeForce RTX 5090", 32607 * 2.0**20, "nvidia-smi", "nvidia"),
        DetectedGpu("NVIDIA H100 80GB HBM3", 81559 * 2.0**20, "nvidia-smi", "nvidia"),
        DetectedGpu("Orin (nvgpu)", None, "nvidia-smi", "nvidia"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "processor\t: 0\nmodel name\t: AMD EPYC 7763  64-Core Processor\n",
            "AMD EPYC 7763 64-Core Processor",
        ),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "Arm Neoverse V2"),
        ("CPU part\t: 0xfff\n", "Arm part 0xfff"),
    ],
)
def test_cpu_names(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    (tmp_path / "meminfo").write_text("MemTotal:       16384 kB\n", encoding="utf-8")
    cpu = detect_cpu(tmp_path / "cpuinfo", tmp_path / "meminfo")
    assert (cpu.name, cpu.memory_bytes) == (expected, 16384 * 1024)


def test_cpu_without_proc(tmp_path: Path) -> None:
    cpu = detect_cpu(tmp_path / "no", tmp_path / "no")
    assert cpu.name and cpu.cores >= 1 and cpu.memory_bytes is None


def test_driver_files_name_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for bus, model in (("0000:01:00.0", "NVIDIA A10"), ("0000:02:00.0", "NVIDIA L4")):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        text = f"Model: \t\t {model}\nIRQ:   \t\t 44\n"
        (tmp_path / "gpus" / bus / "information").write_text(text, encoding="utf-8")
    assert [gpu.name for gpu in detect.detect_gpus(tmp_path / "gpus")] == ["NVIDIA A10", "NVIDIA L4"]


def test_driver_tool_is_run_through_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_python(tmp_path / "nvidia-smi", "print('NVIDIA L40S, 46068')")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [gpu.name for gpu in detect.detect_gpus(tmp_path)] == ["NVIDIA L40S"]
    fake_python(tmp_path / "nvidia-smi", "sys.exit('NVIDIA-SMI has failed')")
    assert detect.detect_gpus(tmp_path / "none") == []


@pytest.mark.slow
def test_real_probe_of_this_machine(tmp_path: Path) -> None:
    first = probe.probe("cpu", threads=1, dtypes=("operator", "bandwidth", "float32"), cache_dir=tmp_path)
    assert not first.cached and first.notes == []
    assert 1e8 < first.flops_per_s["float32"] < 1e15
    assert 1e8 < (first.bandwidth_bytes_per_s or 0) < 1e14
    assert "matrix product" in first.peaks()["float32"].source and first.threads == 1
    assert 1e-8 < (first.operator_s or 0) < 1e-3
    second = probe.probe("cpu", threads=1, dtypes=("operator", "bandwidth", "float32"), cache_dir=tmp_path)
    assert second.operator_s == first.operator_s
    assert second.cached and second.flops_per_s == first.flops_per_s


def test_illegal_instruction_is_survived_with_a_smaller_instruction_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
isa = os.environ.get("ONEDNN_MAX_CPU_ISA")
print(json.dumps({"kind": "start", "threads": 2, "torch": "x"}), flush=True)
for item in sys.argv[5:]:
    if item == "bandwidth":
        print(json.dumps({"kind": "bandwidth", "bytes_per_s": 1e10, "how": "copy"}), flush=True)
        continue
    if item == "operator":
        print(json.dumps({"kind": "operator", "seconds": 1e-6, "how": "addition"}), flush=True)
        continue
    if item == "bfloat16" and isa != "AVX512_CORE":
        os.kill(os.getpid(), signal.SIGILL)
    rate = 1e11 if item == "float32" else 2e11
    print(json.dumps({"kind": "gemm", "dtype": item, "flops_per_s": rate, "side": 1024}), flush=True)
"""
    monkeypatch.setattr(probe.sys, "executable", fake_python(tmp_path / "python", body))
    result = probe.probe("cpu", cache_dir=tmp_path / "cache")
    assert result.flops_per_s == {"float32": 1e11, "bfloat16": 2e11} and result.bandwidth_bytes_per_s == 1e10
    assert (result.operator_s, result.conditions["operator"]) == (1e-6, "addition")
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE" in result.conditions["bfloat16"]
    assert "ONEDNN" not in result.conditions["float32"]


def test_a_type_that_always_dies_is_left_out_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
print(json.dumps({"kind": "start", "threads": 2, "torch": "x"}), flush=True)
if "float32" in sys.argv:
    print(json.dumps({"kind": "gemm", "dtype": "float32", "flops_per_s": 1e11, "side": 512}), flush=True)
os.kill(os.getpid(), signal.SIGILL)
"""
    monkeypatch.setattr(probe.sys, "executable", fake_python(tmp_path / "python", body))
    result = probe.probe("cpu", dtypes=("float32", "bfloat16"), cache_dir=tmp_path / "cache")
    assert result.flops_per_s == {"float32": 1e11}
    (note,) = result.notes
    assert mentions(note, "bfloat16") and not mentions(note, "float32")
    hardware = probe.cpu_hardware(result, CPU)
    assert hardware.source == "probe" and "bfloat16" in (hardware.reason or "")


def test_a_failing_worker_gives_its_last_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        probe.sys, "executable", fake_python(tmp_path / "python", "sys.exit('no torch here')")
    )
    result = probe.probe("cpu", cache_dir=tmp_path / "cache")
    assert result.flops_per_s == {} and any("no torch here" in note for note in result.notes)
    assert list((tmp_path / "cache").glob("*")) == [], "a failure is not remembered"
    hardware = probe.cpu_hardware(result, CPU)
    assert (hardware.source, hardware.kind, hardware.memory_bytes) == ("none", "cpu", CPU.memory_bytes)


def test_cache_key_changes_with_what_matters() -> None:
    base = probe_cache.cache_key("cpu", "A", CPU, None, ("float32",))
    assert base == probe_cache.cache_key("cpu", "A", CPU, None, ("float32",))
    others = [
        probe_cache.cache_key("cuda:0", "A", CPU, None, ("float32",)),
        probe_cache.cache_key("cpu", "B", CPU, None, ("float32",)),
        probe_cache.cache_key("cpu", "A", DetectedCpu("Some CPU", 8, None), None, ("float32",)),
        probe_cache.cache_key("cpu", "A", CPU, 2, ("float32",)),
        probe_cache.cache_key("cpu", "A", CPU, None, ("float32", "bfloat16")),
    ]
    assert len({base, *others}) == 6


def test_threads_that_a_launcher_sets_are_another_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun sets OMP_NUM_THREADS=1; its ceilings must not become those of a run with all processors."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    plain = probe_cache.cache_key("cpu", "A", CPU, None, ("float32",))
    chosen = probe_cache.cache_key("cpu", "A", CPU, 2, ("float32",))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert probe_cache.cache_key("cpu", "A", CPU, None, ("float32",)) != plain
    assert probe_cache.cache_key("cpu", "A", CPU, 2, ("float32",)) == chosen, "run.threads wins over it"


def test_a_machine_that_was_never_quiet_is_measured_again_once_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "UNDER_LOAD_RATIO", 0.1)
    monkeypatch.setattr(probe, "machine_is_idle", lambda: False)
    for _ in range(measured.MOST_TRIES):
        measuring(tmp_path, monkeypatch, flops=30e9, stream=7e9, load=0.9)
        busy = limits(tmp_path)
    measuring(tmp_path, monkeypatch, flops=200e9, stream=7e9, load=0.01)
    assert limits(tmp_path).peak_flops_per_s == busy.peak_flops_per_s, "still busy: left at that"
    monkeypatch.setattr(probe, "machine_is_idle", lambda: True)
    idle = limits(tmp_path)
    assert idle.peak_flops_per_s["float32"].dense == 200e9 and idle.measured_under_load is False


def measuring(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, flops: float, stream: float, load: float | None
) -> None:
    """Let a program stand in that reaches these rates while others use ``load`` of the processor."""
    rows: list[dict[str, object]] = [
        {"kind": "start", "threads": 2, "torch": "x"},
        {"kind": "bandwidth", "bytes_per_s": stream, "how": "copy"},
        {"kind": "gemm", "dtype": "float32", "flops_per_s": flops, "side": 512},
    ]
    if load is not None:
        rows.append({"kind": "load", "other_load_ratio": load})
    body = "".join(f"print({json.dumps(json.dumps(row))})\n" for row in rows)
    monkeypatch.setattr(probe.sys, "executable", fake_python(path / "python", body))


def limits(path: Path) -> Hardware:
    """The limits of a CPU run with a cache in ``path``."""
    items = ("bandwidth", "float32")
    return probe.cpu_hardware(probe.probe("cpu", dtypes=items, cache_dir=path / "cache"), CPU)


def test_a_measurement_next_to_other_work_is_noted_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "UNDER_LOAD_RATIO", 0.1)
    measuring(tmp_path, monkeypatch, flops=33.6e9, stream=8e9, load=0.8)
    disturbed = limits(tmp_path)
    assert (disturbed.measured_under_load, disturbed.measured_other_load_ratio) == (True, 0.8)
    assert mentions(disturbed.peak_flops_per_s["float32"].source, "2 threads")
    assert disturbed.measured_at is not None and disturbed.measurements == 1
    measuring(tmp_path, monkeypatch, flops=181e9, stream=7e9, load=0.02)
    quiet = limits(tmp_path)
    assert quiet.peak_flops_per_s["float32"].dense == 181e9
    assert quiet.bandwidth_bytes_per_s == 8e9, "the best of both, rate by rate"
    assert quiet.peak_flops_per_s["float32"].source != disturbed.peak_flops_per_s["float32"].source
    assert (quiet.measured_under_load, quiet.measured_other_load_ratio, quiet.measurements) == (
        False,
        0.02,
        2,
    )
    measuring(tmp_path, monkeypatch, flops=40e9, stream=7e9, load=0.9)
    assert limits(tmp_path) == quiet, "a quiet measurement is not made again"


def test_the_best_value_of_this_machine_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is never quiet: the best counts, with its time; after some tries it is left at that."""
    monkeypatch.setattr(measured, "UNDER_LOAD_RATIO", 0.1)
    monkeypatch.setattr(probe, "machine_is_idle", lambda: False)
    measuring(tmp_path, monkeypatch, flops=90e9, stream=8e9, load=0.5)
    first = limits(tmp_path)
    for _ in range(measured.MOST_TRIES + 2):
        measuring(tmp_path, monkeypatch, flops=30e9, stream=7e9, load=0.9)
        later = limits(tmp_path)
        assert later.peak_flops_per_s == first.peak_flops_per_s
        assert later.measured_at == first.measured_at and later.measured_under_load
        assert later.measured_other_load_ratio == 0.5
    assert later.measurements == measured.MOST_TRIES


def test_without_an_account_of_the_processor_the_load_average_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(tmp_path, monkeypatch, flops=1e11, stream=1e10, load=None)
    monkeypatch.setattr(probe, "machine_is_busy", lambda cores: True)
    assert limits(tmp_path).measured_under_load is True
    monkeypatch.setattr(probe, "machine_is_busy", lambda cores: False)
    assert limits(tmp_path).measured_under_load is False


def test_others_share_of_the_processor(tmp_path: Path) -> None:
    def read(busy: int, own_s: float, clock_s: float) -> ProcessorTime:
        lines = "".join(f"cpu{core} {busy} 0 0 900 50 0 0 0 0 0\n" for core in os.sched_getaffinity(0))
        (tmp_path / "stat").write_text(f"cpu  9 9 9 9\n{lines}intr 1 2 3\n", encoding="ascii")
        found = processor_time(tmp_path / "stat")
        assert found is not None and found.cores == len(os.sched_getaffinity(0))
        return replace(found, own_s=own_s, clock_s=clock_s)

    ticks = os.sysconf("SC_CLK_TCK")
    before = read(0, own_s=0.0, clock_s=0.0)
    after = read(ticks, own_s=0.5 * before.cores, clock_s=2.0)  # each core worked 1 of 2 s, half of it for us
    assert other_load_ratio(before, after) == pytest.approx(0.25)
    assert other_load_ratio(before, replace(after, own_s=99.0)) == 0.0
    assert other_load_ratio(None, after) is None
    assert processor_time(tmp_path / "no") is None


def test_a_beaten_ceiling_is_measured_again_and_the_best_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(tmp_path, monkeypatch, flops=90e9, stream=8e9, load=0.0)
    limits(tmp_path)
    probe_cache.distrust_measurements(tmp_path / "cache")
    measuring(tmp_path, monkeypatch, flops=120e9, stream=7e9, load=0.0)
    again = limits(tmp_path)
    assert (again.peak_flops_per_s["float32"].dense, again.bandwidth_bytes_per_s) == (120e9, 8e9)


def test_damaged_cache_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"kind": "gemm", "dtype": "float32", "flops_per_s": 1e11, "side": 512}
    start = {"kind": "start", "threads": 2, "torch": "x"}
    body = f"print({json.dumps(json.dumps(start))}); print({json.dumps(json.dumps(row))})"
    monkeypatch.setattr(probe.sys, "executable", fake_python(tmp_path / "python", body))
    cache = tmp_path / "cache"
    probe.probe("cpu", dtypes=("float32",), cache_dir=cache)
    (file,) = cache.glob("*.json")
    assert probe.probe("cpu", dtypes=("float32",), cache_dir=cache).cached
    file.write_text("{ half", encoding="utf-8")
    assert not probe.probe("cpu", dtypes=("float32",), cache_dir=cache).cached
    assert probe.probe("cpu", dtypes=("float32",), cache_dir=cache).cached


def test_unwritable_cache_costs_only_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"kind": "gemm", "dtype": "float32", "flops_per_s": 1e11, "side": 512}
    body = f"print({json.dumps(json.dumps(row))})"
    monkeypatch.setattr(probe.sys, "executable", fake_python(tmp_path / "python", body))
    (tmp_path / "file").write_text("", encoding="utf-8")
    result = probe.probe("cpu", dtypes=("float32",), cache_dir=tmp_path / "file" / "cache")
    assert result.flops_per_s == {"float32": 1e11}
    assert str(tmp_path / "file" / "cache") in result.notes[-1]


def test_best_time_is_the_shortest(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([9.0, 5.0, 1.0, 3.0])  # the first is the warm-up's
    assert best_time(lambda: None, lambda call: next(times), most_s=0.0) == 1.0


@pytest.mark.parametrize(
    ("times", "best", "used"),
    [
        ([1.0, 1.0, 1.01, 0.5], 1.0, 3),  # stable: no more is needed
        ([3.0, 1.0, 2.0, 1.01, 1.01, 0.5], 1.0, 5),  # disturbed: goes on until the best was reached thrice
        ([9.0, 7.0, 5.0, 3.0, 1.0, 0.5], 3.0, 4),  # never stable: until the time is used up
    ],
)
def test_measuring_ends_when_the_best_time_is_stable(
    monkeypatch: pytest.MonkeyPatch, times: list[float], best: float, used: int
) -> None:
    now, left = [0.0], iter([0.0, *times])
    monkeypatch.setattr("llm_perf_opt.hardware.probe_worker.time.perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += next(left)

    assert best_time(call, host_timer, least_s=2.0, most_s=22.0) == best
    assert now[0] == pytest.approx(sum(times[:used]))


def test_stream_is_larger_than_the_caches(tmp_path: Path) -> None:
    (tmp_path / "index3").mkdir()
    (tmp_path / "index3" / "size").write_text("131072K\n", encoding="ascii")
    assert stream_bytes("cpu", tmp_path) == 4 * (128 << 20)
    assert stream_bytes("cpu", tmp_path / "none") == 256 << 20


def test_probe_switched_off_leaves_a_cpu_without_limits() -> None:
    hardware = resolve.resolve_hardware("cpu", allow_probe=False)
    assert (
        hardware.kind == "cpu"
        and hardware.peak_flops_per_s == {}
        and "hardware.probe" in (hardware.reason or "")
    )


def test_chosen_device_wins_over_the_machine() -> None:
    hardware = resolve.resolve_hardware("cpu", chosen="RTX 5090", allow_probe=False)
    assert hardware.name == "NVIDIA GeForce RTX 5090" and hardware.source == "catalogue"
    assert hardware.peak_flops_per_s["bfloat16"].dense == 209.5e12


def test_gpu_gets_the_data_sheet_and_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resolve, "detect_device", lambda device: DetectedGpu("NVIDIA L4", 23034 * 2.0**20, "nvidia-smi")
    )
    row = {"kind": "gemm", "dtype": "bfloat16", "flops_per_s": 9e13, "side": 8192}
    stream = {"kind": "bandwidth", "bytes_per_s": 2.6e11, "how": "copy"}
    body = f"print({json.dumps(json.dumps(row))}); print({json.dumps(json.dumps(stream))})"
    monkeypatch.setattr(probe.sys, "executable", fake_python(tmp_path / "python", body))
    hardware = resolve.resolve_hardware("cuda:0", cache_dir=tmp_path / "cache")
    assert hardware.peak_flops_per_s["bfloat16"].dense == 121e12 and hardware.bandwidth_bytes_per_s == 3e11
    assert hardware.measured_peak_flops_per_s["bfloat16"].dense == 9e13
    assert hardware.measured_bandwidth_bytes_per_s == 2.6e11
    assert hardware.memory_bytes == 23034 * 2.0**20


def test_no_gpu_and_unknown_gpu_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "detect_device", lambda device: None)
    nothing = resolve.resolve_hardware("cuda:0")
    assert nothing.source == "none" and nothing.peak_flops_per_s == {} and mentions(nothing.reason, "GPU")
    monkeypatch.setattr(
        resolve, "detect_device", lambda device: DetectedGpu("Mystery 9000", None, "nvidia-smi")
    )
    hardware = resolve.resolve_hardware("cuda:0", allow_probe=False)
    assert (
        hardware.kind == "gpu"
        and hardware.peak_flops_per_s == {}
        and "Mystery 9000" in (hardware.reason or "")
    )


def test_captures_are_looked_up_by_name_alone() -> None:
    assert resolve.hardware_by_name("NVIDIA H100 80GB HBM3").bandwidth_bytes_per_s == 3.35e12
    assert mentions(resolve.hardware_by_name(None).reason, "--device", "hardware.device")
    assert resolve.hardware_by_name("x", chosen="NVIDIA L4").name == "NVIDIA L4"
