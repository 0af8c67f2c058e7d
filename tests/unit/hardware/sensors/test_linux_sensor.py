"""The processor as /sys and /proc tell it, on made-up trees: a server, a container, a meter for root only."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.hardware.sensors.linux import LinuxSensor
from tests.text_facts import mentions


def put(root: Path, **files: object) -> None:
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")


def server(root: Path) -> Path:
    rapl, cpu = "sys/class/powercap", "sys/devices/system/cpu"
    put(
        root,
        **{
            f"{rapl}/intel-rapl:0/name": "package-0",
            f"{rapl}/intel-rapl:0/energy_uj": 5_000_000,
            f"{rapl}/intel-rapl:0/max_energy_range_uj": 262_143_000_000,
            f"{rapl}/intel-rapl:0:0/name": "core",
            f"{rapl}/intel-rapl:0:0/energy_uj": 1,
            f"{rapl}/intel-rapl:1/name": "psys",
            f"{rapl}/intel-rapl:1/energy_uj": 1,
            f"{cpu}/cpu0/cpufreq/scaling_cur_freq": 3_000_000,
            f"{cpu}/cpu0/cpufreq/cpuinfo_max_freq": 3_800_000,
            f"{cpu}/cpu0/thermal_throttle/package_throttle_count": 7,
            f"{cpu}/cpu1/cpufreq/scaling_cur_freq": 2_000_000,
            "sys/class/thermal/thermal_zone0/type": "acpitz",
            "sys/class/thermal/thermal_zone0/temp": 99_000,
            "sys/class/thermal/thermal_zone1/type": "x86_pkg_temp",
            "sys/class/thermal/thermal_zone1/temp": 61_000,
            "sys/fs/cgroup/cpu.stat": "usage_usec 1\nnr_throttled 3",
            "proc/self/statm": "100 50 10 1 0 30 0",
        },
    )
    return root


def sensor_of(root: Path, times: list[float]) -> LinuxSensor:
    return LinuxSensor("some processor", root=root, cores=(0, 1), now=lambda: times.pop(0))


def test_a_server_reports_everything(tmp_path: Path) -> None:
    root = server(tmp_path)
    sensor = sensor_of(root, [10.0, 12.0])
    first = sensor.read()
    assert sensor.absent == {}
    assert sensor.limits.clock_max_hz == 3.8e9
    assert (first.clock_hz, first.temperature_c, first.throttled) == (2.5e9, 61.0, ())
    assert first.power_w is None  # power is a difference
    put(root, **{"sys/class/powercap/intel-rapl:0/energy_uj": 305_000_000})
    second = sensor.read()
    assert first.energy_j is not None
    assert second.energy_j == pytest.approx(first.energy_j + 300.0)
    assert second.power_w == pytest.approx(150.0)


def test_the_energy_counter_begins_again(tmp_path: Path) -> None:
    root = server(tmp_path)
    put(root, **{"sys/class/powercap/intel-rapl:0/energy_uj": 262_142_000_000})
    sensor = sensor_of(root, [0.0, 1.0])
    sensor.read()
    put(root, **{"sys/class/powercap/intel-rapl:0/energy_uj": 4_000_000})
    assert sensor.read().power_w == pytest.approx(5.0)


def test_counters_that_moved_are_reasons_once(tmp_path: Path) -> None:
    root = server(tmp_path)
    sensor = sensor_of(root, [0.0, 1.0, 2.0])
    assert sensor.read().throttled == ()
    put(
        root,
        **{
            "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": 8,
            "sys/fs/cgroup/cpu.stat": "nr_throttled 5",
        },
    )
    assert sensor.read().throttled == ("processor too hot", "processor quota of the container")
    assert sensor.read().throttled == ()


def test_what_a_container_hides_is_none_with_a_reason(tmp_path: Path) -> None:
    sensor = sensor_of(tmp_path, [])
    read = sensor.read()
    assert all(getattr(read, name) is None for name in read.__slots__)
    assert set(sensor.absent) == {
        "clock_hz",
        "power_w",
        "energy_j",
        "temperature_c",
        "memory_bytes",
        "throttled",
    }
    assert all(sensor.absent.values())


def test_a_meter_of_which_one_package_is_hidden_is_no_meter(tmp_path: Path) -> None:
    root = server(tmp_path)
    put(root, **{"sys/class/powercap/intel-rapl:2/name": "package-1"})  # its energy_uj cannot be read
    sensor = sensor_of(root, [])
    assert sensor.read().energy_j is None
    assert mentions(sensor.absent["energy_j"], "energy_uj")


def test_this_machine_reports_its_memory() -> None:
    read = LinuxSensor("this", cores=(0,)).read()
    assert read.memory_bytes is not None
    assert read.memory_bytes > 2**20
