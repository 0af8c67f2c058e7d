"""MIG slices: named by transcripts of nvidia-smi, sized by the driver, limited to their share of the data sheet."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.hardware import mig, resolve
from llm_perf_opt.hardware.detect import DetectedGpu
from llm_perf_opt.hardware.mig import (
    MigSlice,
    limits_of_slice,
    parse_list,
    slice_by_name,
    visible_slice,
    with_profile,
)
from tests.drivers import nvml
from tests.drivers.tools import play, transcript
from tests.text_facts import mentions

H100_BF16 = 989.5e12
H100_BYTES_PER_S = 3.35e12


def test_names_of_slices() -> None:
    assert slice_by_name("NVIDIA A100-SXM4-40GB MIG 1g.5gb") == MigSlice("NVIDIA A100-SXM4-40GB", "1g.5gb")
    assert slice_by_name("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me") == MigSlice(
        "NVIDIA H100 80GB HBM3", "1g.10gb+me"
    )
    assert slice_by_name("NVIDIA H100 80GB HBM3") is None
    assert slice_by_name("MIGHTY GPU 1g.5gb") is None


def test_lists_of_new_and_old_drivers() -> None:
    (gpu,) = parse_list(transcript("nvidia-smi-L.mig-h100"))
    assert [one.profile for one in gpu.slices] == ["1g.20gb", "3g.40gb"]
    assert gpu.slices[0].name == "NVIDIA H100 80GB HBM3 MIG 1g.20gb"
    (old,) = parse_list(transcript("nvidia-smi-L.mig-a100-old-driver"))
    assert old.slices[0].uuid == "MIG-GPU-e91edf3b-b297-37c1-a2a7-7601c3238fa2/1/0"
    assert [one.profile for one in old.slices] == ["3g.20gb", "1c.3g.20gb"]
    assert parse_list(transcript("nvidia-smi-L.whole"))[0].slices == ()
    assert parse_list(transcript("nvidia-smi.driver-mismatch")) == []


@pytest.mark.parametrize(
    ("listed", "visible", "profile"),
    [
        ("mig-h100", None, "1g.20gb"),
        ("mig-h100", "0", "1g.20gb"),
        ("mig-h100", "MIG-77c1d2e3", "3g.40gb"),  # CUDA takes the beginning of a name
        ("mig-h100", "GPU-2d1c0c6b-8f0a-4b58-9c5e-3a3f6c1f0e11", "1g.20gb"),
        ("mixed", "MIG-cccc2222-0000-5000-8000-000000000000", "1g.5gb"),
    ],
)
def test_which_slice_a_program_gets(listed: str, visible: str | None, profile: str) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = visible_slice(parse_list(transcript(f"nvidia-smi-L.{listed}")), 0, environment)
    assert isinstance(found, MigSlice) and found.profile == profile


def test_whole_gpus_and_what_cannot_be_determined() -> None:
    mixed = parse_list(transcript("nvidia-smi-L.mixed"))
    assert visible_slice(mixed, 0, {}) == "unclear"
    assert visible_slice(mixed, 0, {"CUDA_VISIBLE_DEVICES": "1"}) == "unclear"  # CUDA's 1 may be another one
    assert visible_slice(mixed, 0, {"CUDA_VISIBLE_DEVICES": "MIG-unknown"}) == "unclear"
    assert visible_slice(mixed, 0, {"CUDA_VISIBLE_DEVICES": "GPU-aaaa0000"}) is None
    assert visible_slice(parse_list(transcript("nvidia-smi-L.whole")), 0, {}) is None


def test_a_slice_has_its_multiprocessors_share_of_the_peaks() -> None:
    (gpu,) = parse_list(transcript("nvidia-smi-L.mig-h100"))
    one = with_profile(gpu.slices[0], transcript("nvidia-smi-mig-lgip.h100"), 0)
    assert (one.multiprocessors, one.gpu_multiprocessors) == (26, 132)
    limits = limits_of_slice(resolve.hardware_by_name("NVIDIA H100 80GB HBM3"), one)
    # 26 of 132, not one of seven: a 1g.20gb of an H100 is larger than its name says.
    assert limits.peak_flops_per_s["bfloat16"].dense == pytest.approx(H100_BF16 * 26 / 132)
    assert mentions(
        limits.peak_flops_per_s["bfloat16"].source, "26", "132", "1g.20gb", "nvidia-smi mig -lgip"
    )
    assert limits.bandwidth_bytes_per_s == pytest.approx(H100_BYTES_PER_S * 2 / 8)
    assert mentions(limits.bandwidth_source, "2", "8")
    assert limits.memory_bytes == pytest.approx(19.62 * 2**30) and limits.source == "catalogue"


@pytest.mark.parametrize(
    ("name", "compute", "memory"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 1 / 7, 1 / 8),
        ("NVIDIA A100-SXM4-40GB MIG 1g.10gb", 1 / 7, 2 / 8),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 3 / 7, 4 / 8),
        ("NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb", 1 / 7, 4 / 8),
        ("NVIDIA A100-SXM4-80GB MIG 7g.80gb", 1.0, 1.0),
        ("NVIDIA H200 MIG 1g.18gb", 1 / 7, 1 / 8),
        ("NVIDIA A30 MIG 2g.12gb", 2 / 4, 4 / 8),
    ],
)
def test_by_name_alone_nvidias_fractions_count(name: str, compute: float, memory: float) -> None:
    limits, whole = resolve.hardware_by_name(name), resolve.hardware_by_name(name.partition(" MIG ")[0])
    assert limits.name == name and limits.kind == "gpu"
    assert limits.peak_flops_per_s["bfloat16"].dense == pytest.approx(
        whole.peak_flops_per_s["bfloat16"].dense * compute
    )
    assert limits.bandwidth_bytes_per_s == pytest.approx((whole.bandwidth_bytes_per_s or 0) * memory)
    assert "compute slices" in limits.peak_flops_per_s["bfloat16"].source


def test_a_slice_of_an_unknown_gpu_has_no_limits_of_a_data_sheet() -> None:
    limits = resolve.hardware_by_name("NVIDIA X900 MIG 1g.5gb")
    assert limits.source == "none" and limits.peak_flops_per_s == {} and "X900" in (limits.reason or "")


def test_a_run_on_a_slice_is_not_measured_against_the_whole_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {
        "-L": (0, transcript("nvidia-smi-L.mig-h100")),
        "mig -lgip": (0, transcript("nvidia-smi-mig-lgip.h100")),
    }
    play(tmp_path, "nvidia-smi", answers)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(mig, "_from_nvml", lambda one: one)
    whole = DetectedGpu("NVIDIA H100 80GB HBM3", 81559 * 2.0**20, "nvidia-smi")
    monkeypatch.setattr(resolve, "detect_device", lambda device: whole)
    limits = resolve.resolve_hardware("cuda:0", allow_probe=False)
    assert limits.name == "NVIDIA H100 80GB HBM3 MIG 1g.20gb"
    assert limits.peak_flops_per_s["bfloat16"].dense == pytest.approx(H100_BF16 * 26 / 132)
    # Without permission for the list of profiles NVIDIA's fraction counts.
    answers["mig -lgip"] = (4, transcript("nvidia-smi-mig-lgip.denied"))
    play(tmp_path, "nvidia-smi", answers)
    limits = resolve.resolve_hardware("cuda:0", allow_probe=False)
    assert limits.peak_flops_per_s["bfloat16"].dense == pytest.approx(H100_BF16 / 7)
    play(tmp_path, "nvidia-smi", {"-L": (0, transcript("nvidia-smi-L.mixed"))})
    limits = resolve.resolve_hardware("cuda:0", allow_probe=False)
    assert limits.source == "none" and "CUDA_VISIBLE_DEVICES=MIG-" in (limits.reason or "")
    play(tmp_path, "nvidia-smi", {"-L": (9, transcript("nvidia-smi.driver-mismatch"))})
    assert resolve.resolve_hardware("cuda:0", allow_probe=False).name == "NVIDIA H100 80GB HBM3"


def test_the_driver_library_sizes_a_slice(tmp_path: Path) -> None:
    play(tmp_path / "bin", "nvidia-smi", {"-L": (0, transcript("nvidia-smi-L.mig-h100"))})
    code = "from llm_perf_opt.hardware.mig import detect_slice as d; s = d(0); print(s.multiprocessors, s.gpu_multiprocessors, s.memory_bytes, s.count_source)"
    folder = nvml.build(tmp_path / "lib", "MIG")
    assert nvml.query(folder, code, PATH=str(tmp_path / "bin"), CUDA_VISIBLE_DEVICES="") == (
        f"26 132 {20096 * 2.0**20} nvidia-ml-py"
    )
    # An old driver lacks the questions: the list of profiles is asked, and may not be seen either.
    old = nvml.build(tmp_path / "old", "MIG", "OLD_DRIVER")
    assert nvml.query(old, code, PATH=str(tmp_path / "bin"), CUDA_VISIBLE_DEVICES="") == "None None None None"


def test_a_slice_can_be_chosen_by_name() -> None:
    name = "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert resolve.hardware_by_name(None, chosen=name) == resolve.hardware_by_name(name)
    with pytest.raises(ConfigError) as caught:
        resolve.hardware_by_name(None, chosen="NVIDIA H800 MIG 1g.10gb")
    assert "NVIDIA H100 SXM5 80GB" in (caught.value.hint or "")
