"""Which device a run takes, told from files of the kernel and of the installed torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.config import devices
from llm_perf_opt.config.devices import TorchBuild, build_kind, resolve_device
from llm_perf_opt.core.errors import ConfigError
from tests.text_facts import mentions

VERSION_FILE = """from typing import Optional
__version__ = '{version}'
cuda: Optional[str] = {cuda}
git_version = 'cf30153c4c131c8164ee7798e5022d810682e2cb'
hip: Optional[str] = {hip}
rocm: Optional[str] = {hip}
xpu: Optional[str] = {xpu}
"""


def version_file(version: str, cuda: str = "None", hip: str = "None", xpu: str = "None") -> str:
    return VERSION_FILE.format(version=version, cuda=cuda, hip=hip, xpu=xpu)


@pytest.mark.parametrize(
    ("text", "version", "kind"),
    [
        (version_file("2.13.0+cpu"), "2.13.0+cpu", "cpu"),
        (version_file("2.13.0", cuda="'13.0'"), "2.13.0", "cuda"),  # PyPI's has no suffix
        (version_file("2.13.0+rocm7.0", hip="'7.0.51831'"), "2.13.0+rocm7.0", "rocm"),
        (version_file("2.13.0+xpu", xpu="'20250301'"), "2.13.0+xpu", "xpu"),
        (version_file("2.13.0a0+gitabc", cuda="'12.8'"), "2.13.0a0+gitabc", "cuda"),  # built from source
        ("", "2.8.0+rocm6.3", "rocm"),
        ("", "2.8.0+xpu", "xpu"),
        ("", "2.8.0+cu128", "cuda"),
        ("", "2.8.0+cpu", "cpu"),
    ],
)
def test_a_build_names_its_target(
    text: str, version: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "mps_device_count", lambda: 0)
    assert build_kind(text, version) == kind


def test_a_build_for_nothing_else_on_a_mac_is_for_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "mps_device_count", lambda: 1)
    assert build_kind(version_file("2.13.0"), "2.13.0") == "mps"


def machine(
    monkeypatch: pytest.MonkeyPatch, kind: str, *, backends: list[str] | None = None, **counts: int
) -> None:
    """A machine with so many GPUs, and a torch of a kind."""
    monkeypatch.setattr(devices, "torch_build", lambda: TorchBuild(f"2.13.0+{kind}", kind))  # type: ignore[arg-type]
    monkeypatch.setattr(devices, "torch_backends", lambda: backends or [])
    for name in ("cuda", "rocm", "xpu", "mps"):
        monkeypatch.setattr(devices, f"{name}_device_count", lambda name=name: counts.get(name, 0))


@pytest.mark.parametrize(
    ("kind", "count", "auto"),
    [
        ("cuda", {"cuda": 2}, "cuda:0"),
        ("rocm", {"rocm": 1}, "cuda:0"),
        ("xpu", {"xpu": 1}, "xpu:0"),
        ("mps", {"mps": 1}, "mps"),
        ("cpu", {"cuda": 1}, "cpu"),
        ("cuda", {"rocm": 1}, "cpu"),
        ("xpu", {"cuda": 1}, "cpu"),  # an XPU build counted as CUDA once
        ("cuda", {}, "cpu"),
    ],
)
def test_auto_takes_what_build_and_machine_agree_on(
    kind: str, count: dict[str, int], auto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, kind, **count)
    assert resolve_device("auto") == auto


@pytest.mark.parametrize(
    ("kind", "count", "wanted", "name"),
    [
        ("cuda", {"cuda": 2}, "cuda", "cuda:0"),
        ("cuda", {"cuda": 2}, "cuda:1", "cuda:1"),
        ("rocm", {}, "cuda:1", "cuda:1"),  # WSL hides AMD's devices; torch is asked when the run starts
        ("xpu", {"xpu": 1}, "xpu", "xpu:0"),
        ("mps", {"mps": 1}, "mps", "mps"),
        ("cpu", {}, "cpu", "cpu"),
    ],
)
def test_devices_by_name(
    kind: str, count: dict[str, int], wanted: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, kind, **count)
    assert resolve_device(wanted) == name


@pytest.mark.parametrize(
    ("kind", "count", "wanted", "facts"),
    [
        ("cuda", {"cuda": 2}, "cuda:2", ["2", "cuda:0", "cuda:1"]),
        ("cpu", {"cuda": 1}, "cuda", ["2.13.0+cpu", "CPU"]),
        ("xpu", {"cuda": 1}, "cuda", ["2.13.0+xpu", "XPU"]),
        ("cuda", {"rocm": 1}, "cuda", ["CUDA"]),
        ("cuda", {"cuda": 1, "xpu": 1}, "xpu", ["2.13.0+cuda", "CUDA"]),
        ("cpu", {}, "mps", ["Apple"]),
        ("cpu", {}, "tpu", None),
        ("cpu", {}, "cuda:x", None),
        ("cpu", {}, "", None),
    ],
)
def test_what_is_not_there_is_refused_with_the_reason(
    kind: str, count: dict[str, int], wanted: str, facts: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, kind, **count)
    if kind == "cuda" and count.get("rocm"):
        monkeypatch.setattr(devices, "rocm_device_count", lambda: 0)
    with pytest.raises(ConfigError) as caught:
        resolve_device(wanted)
    assert caught.value.data["key"] == "run.device" and f"run.device={wanted}" in caught.value.message
    assert caught.value.data.get("unavailable", False) is (facts is not None), "a device, but not here"
    assert mentions(caught.value.message, *(facts or ()))


def test_a_backend_of_torch_has_names_that_only_torch_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "cpu", backends=["torch_npu"])
    assert resolve_device("npu") == "npu:0" and resolve_device("npu:3") == "npu:3"
    assert resolve_device("auto") == "cpu"  # until torch is asked
    assert devices.may_have_accelerator()
    machine(monkeypatch, "cpu")
    assert not devices.may_have_accelerator()


def test_gpus_are_counted_from_the_kernels_files(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for name, simd in (("0", 0), ("1", 416), ("2", 416)):  # the first is the processor
        (nodes / name).mkdir(parents=True)
        (nodes / name / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simd}\nmem_banks_count 1\n")
    assert devices.rocm_device_count(tmp_path) == 2
    for name, vendor in (("renderD128", "0x8086"), ("renderD129", "0x1002")):
        (tmp_path / "sys/class/drm" / name / "device").mkdir(parents=True)
        (tmp_path / "sys/class/drm" / name / "device" / "vendor").write_text(f"{vendor}\n")
    assert devices.xpu_device_count(tmp_path) == 1
    assert devices.rocm_device_count(tmp_path / "none") == devices.xpu_device_count(tmp_path / "none") == 0


def test_torch_is_not_imported_to_find_out() -> None:
    code = (
        "import sys; from llm_perf_opt.config import devices as d; d.resolve_device('auto'); d.torch_build(); "
        "from llm_perf_opt.hardware.detect import detect_gpus; detect_gpus(); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
