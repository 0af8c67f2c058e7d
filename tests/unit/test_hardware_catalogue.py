"""The catalogue: real driver names, dense numbers with sources, a user's own file, and no guessing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import llm_perf_opt.hardware as package
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.hardware.catalogue import hardware_for, load_catalogue

RAW = yaml.safe_load((Path(package.__file__).parent / "catalogue.yaml").read_text(encoding="utf-8"))

REAL_NAMES = {
    "NVIDIA GeForce RTX 3090": "NVIDIA GeForce RTX 3090",
    "GeForce RTX 3090": "NVIDIA GeForce RTX 3090",
    "NVIDIA GeForce RTX 4090": "NVIDIA GeForce RTX 4090",
    "NVIDIA GeForce RTX 5090": "NVIDIA GeForce RTX 5090",
    "NVIDIA A100-SXM4-40GB": "NVIDIA A100 SXM4 40GB",
    "A100-SXM4-40GB": "NVIDIA A100 SXM4 40GB",
    "NVIDIA A100-SXM4-80GB": "NVIDIA A100 SXM4 80GB",
    "NVIDIA A100-PCIE-40GB": "NVIDIA A100 PCIe 40GB",
    "NVIDIA A100 80GB PCIe": "NVIDIA A100 PCIe 80GB",
    "NVIDIA A10": "NVIDIA A10",
    "NVIDIA A30": "NVIDIA A30",
    "NVIDIA A40": "NVIDIA A40",
    "NVIDIA L4": "NVIDIA L4",
    "NVIDIA L40": "NVIDIA L40",
    "NVIDIA L40S": "NVIDIA L40S",
    "NVIDIA H100 80GB HBM3": "NVIDIA H100 SXM5 80GB",
    "NVIDIA H100 PCIe": "NVIDIA H100 PCIe",
    "NVIDIA H100 NVL": "NVIDIA H100 NVL",
    "NVIDIA H200": "NVIDIA H200 SXM",
    "NVIDIA H200 NVL": "NVIDIA H200 NVL",
    "NVIDIA H20": "NVIDIA H20",
    "NVIDIA GH200 480GB": "NVIDIA GH200 96GB HBM3",
    "NVIDIA B200": "NVIDIA B200",
    "NVIDIA GB200": "NVIDIA GB200",
    "Tesla T4": "NVIDIA T4",
    "Tesla V100-SXM2-16GB": "NVIDIA V100 SXM2 16GB",
    "Tesla V100-SXM2-32GB": "NVIDIA V100 SXM2 32GB",
    "Tesla V100-PCIE-16GB": "NVIDIA V100 PCIe 16GB",
    "Tesla V100S-PCIE-32GB": "NVIDIA V100S PCIe 32GB",
    "NVIDIA RTX A4500": "NVIDIA RTX A4500",
    "NVIDIA RTX A5000": "NVIDIA RTX A5000",
    "NVIDIA RTX A6000": "NVIDIA RTX A6000",
    "NVIDIA RTX 6000 Ada Generation": "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "AMD Instinct MI210": "AMD Instinct MI210",
    "AMD Instinct MI250X": "AMD Instinct MI250X",
    "AMD Instinct MI300X": "AMD Instinct MI300X",
    "AMD Instinct MI325X": "AMD Instinct MI325X",
}

NOT_IN_IT = [
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 5090 Laptop GPU",
    "NVIDIA GeForce RTX 5090 D",
    "NVIDIA GeForce RTX 4080 SUPER",
    "NVIDIA GeForce RTX 3080 Ti",
    "NVIDIA A10G",
    "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    "NVIDIA H200 141GB HBM3e something",
    "GRID T4-16Q",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "NVIDIA RTX 5000 Ada Generation",
    "Tesla V100-SXM3-32GB",
    "AMD Instinct MI250",
    "AMD Radeon RX 7900 XTX",
    "llvmpipe",
    "",
]


@pytest.mark.parametrize(("reported", "expected"), REAL_NAMES.items())
def test_real_driver_names(reported: str, expected: str) -> None:
    device, reason = load_catalogue().look_up(reported)
    assert device is not None and (device.name, reason) == (expected, None)


@pytest.mark.parametrize("reported", NOT_IN_IT)
def test_other_devices_are_not_mistaken_for_known_ones(reported: str) -> None:
    device, reason = load_catalogue().look_up(reported)
    assert device is None and "hardware.device" in (reason or "")
    hardware = hardware_for(reported, load_catalogue())
    assert (hardware.peak_flops_per_s, hardware.bandwidth_bytes_per_s, hardware.source) == ({}, None, "none")


def test_every_device_matches_only_itself() -> None:
    catalogue = load_catalogue()
    for reported in REAL_NAMES:
        assert len([device for device in catalogue.devices if device.matches(reported)]) == 1, reported


@given(st.text(max_size=40))
def test_any_name_gets_a_device_or_a_reason(name: str) -> None:
    device, reason = load_catalogue().look_up(name)
    assert (device is None) == (reason is not None)


def test_at_least_25_devices_and_every_number_has_a_source() -> None:
    catalogue = load_catalogue()
    assert len(catalogue.devices) >= 25
    assert len({device.name for device in catalogue.devices}) == len(catalogue.devices)
    for device in catalogue.devices:
        assert device.bandwidth_bytes_per_s and device.memory_bytes, device.name
        assert len(device.source) > 15, device.name
        assert all(len(peak.source) > 15 for peak in device.peaks.values())
    used = {entry["source"] for entry in RAW["devices"]}
    assert used <= set(RAW["documents"]), "a source must be a document of the list"


def test_dense_not_sparse() -> None:
    catalogue = load_catalogue()
    expected = {
        ("NVIDIA H100 80GB HBM3", "bfloat16"): 989.5e12,
        ("NVIDIA H100 PCIe", "bfloat16"): 756.5e12,
        ("NVIDIA H100 NVL", "bfloat16"): 835.5e12,
        ("NVIDIA H200", "float8"): 1979e12,
        ("NVIDIA A100-SXM4-80GB", "bfloat16"): 312e12,
        ("NVIDIA L4", "float16"): 121e12,
        ("NVIDIA B200", "bfloat16"): 2250e12,
        ("NVIDIA GB200", "float4"): 10000e12,
        ("NVIDIA GeForce RTX 5090", "bfloat16"): 209.5e12,
        ("NVIDIA GeForce RTX 4090", "bfloat16"): 165.2e12,
        ("NVIDIA GeForce RTX 3090", "bfloat16"): 71e12,
        ("AMD Instinct MI300X", "bfloat16"): 1307.4e12,
    }
    for (reported, dtype), value in expected.items():
        device, _ = catalogue.look_up(reported)
        assert device is not None and device.peaks[dtype].dense == pytest.approx(value, rel=1e-3), reported
    h100, _ = catalogue.look_up("NVIDIA H100 80GB HBM3")
    assert h100 is not None and "half of the printed 1979 with 2:4 sparsity" in h100.peaks["bfloat16"].source


def test_geforce_halves_the_rate_when_it_accumulates_in_float32() -> None:
    for name in ("RTX 3090", "RTX 4090", "RTX 5090"):
        peaks = load_catalogue().named(name).peaks
        assert peaks["float16_accumulate_float16"].dense == pytest.approx(
            2 * peaks["float16"].dense, rel=2e-3
        )
        assert peaks["bfloat16"].dense == peaks["float16"].dense
    # Professional cards of the same silicon do not.
    pro = load_catalogue().named("NVIDIA RTX 6000 Ada Generation").peaks
    assert pro["float16_accumulate_float16"].dense == pro["float16"].dense


def test_orders_that_hold_on_every_device() -> None:
    for device in load_catalogue().devices:
        peaks = {dtype: peak.dense for dtype, peak in device.peaks.items()}
        ladder = [
            peaks[name] for name in ("float32", "tf32", "bfloat16", "float8", "float4") if name in peaks
        ]
        assert ladder == sorted(ladder), device.name
        # No device has had less than 4 or more than 700 FLOP per byte at 16 bits: a slipped unit would show.
        if "bfloat16" in peaks and device.bandwidth_bytes_per_s:
            assert 30 < peaks["bfloat16"] / device.bandwidth_bytes_per_s < 700, device.name


def test_a_type_without_a_source_is_absent() -> None:
    assert "bfloat16" not in load_catalogue().named("NVIDIA T4").peaks
    assert "float8" not in load_catalogue().named("NVIDIA A100 SXM4 80GB").peaks


def test_memory_that_does_not_fit_the_name_is_another_card() -> None:
    catalogue = load_catalogue()
    device, reason = catalogue.look_up("NVIDIA GeForce RTX 4090", memory_bytes=48 * 2.0**30)
    assert device is None and "48.0 GiB of memory where the catalogue has 24 GiB" in (reason or "")
    device, _ = catalogue.look_up("NVIDIA H100 80GB HBM3", memory_bytes=81559 * 2.0**20)
    assert device is not None
    device, _ = catalogue.look_up("NVIDIA L4", memory_bytes=23034 * 2.0**20)
    assert device is not None


def test_ambiguous_name_asks_for_a_choice() -> None:
    device, reason = load_catalogue().look_up("Orin")
    assert device is None and "NVIDIA Jetson AGX Orin 64GB" in (reason or "")
    assert load_catalogue().named("NVIDIA Jetson AGX Orin 64GB").bandwidth_bytes_per_s == pytest.approx(
        204.8e9
    )


@pytest.mark.parametrize(
    "name", ["NVIDIA GeForce RTX 5090", "nvidia geforce rtx 5090", "GeForce RTX 5090", "RTX 5090"]
)
def test_users_choice_by_name(name: str) -> None:
    assert load_catalogue().named(name).name == "NVIDIA GeForce RTX 5090"


@pytest.mark.parametrize(
    ("name", "nearest"), [("RTX 5909", "RTX 5090"), ("H100", "NVIDIA H100 PCIe"), ("mi300", "MI300X")]
)
def test_unknown_choice_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_catalogue().named(name)
    assert nearest in (caught.value.hint or "") and caught.value.exit_code == 2


def test_user_file_adds_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        """
documents: {lab: "Our own measurement, 2026-03"}
devices:
  - name: NVIDIA A10G
    source: lab
    memory_gib: 24
    bandwidth_gb_per_s: 600
    peaks: {bf16: 70, fp16: {sparse: 140}, fp32: {value: 31.5, source: vendor page}}
  - name: NVIDIA GeForce RTX 5090
    match: ['(NVIDIA )?GeForce RTX 5090']
    source: power-limited to 400 W
    bandwidth_gb_per_s: 1700
""",
        encoding="utf-8",
    )
    catalogue = load_catalogue(path)
    mine = hardware_for("NVIDIA A10G", catalogue)
    assert mine.source == "user" and mine.bandwidth_source == "Our own measurement, 2026-03"
    assert {name: peak.dense for name, peak in mine.peak_flops_per_s.items()} == {
        "bfloat16": 70e12,
        "float16": 70e12,
        "float32": 31.5e12,
    }
    assert mine.peak_flops_per_s["float32"].source == "vendor page"
    limited = hardware_for("NVIDIA GeForce RTX 5090", catalogue)
    assert (limited.bandwidth_bytes_per_s, limited.peak_flops_per_s, limited.memory_bytes) == (
        1.7e12,
        {},
        None,
    )
    assert hardware_for("Tesla T4", catalogue).source == "catalogue"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("devices: {}", "must have a list 'devices'"),
        ("[]", "must have a list 'devices'"),
        ("devices: [{memory_gib: 1}]", "needs a 'name'"),
        ("devices: [{name: X}]", "needs a 'source'"),
        ("devices: [{name: X, source: s, speed: 3}]", "unknown key 'speed'"),
        ("devices: [{name: X, source: s, memory_gib: -1}]", "memory_gib must be a positive number"),
        ("devices: [{name: X, source: s, memory_gib: '24'}]", "memory_gib must be a positive number"),
        ("devices: [{name: X, source: s, peaks: {bf17: 1}}]", "unknown data type 'bf17'"),
        ("devices: [{name: X, source: s, peaks: {bf16: {dense: 1}}}]", "must be a number"),
        ("devices: [{name: X, source: s, peaks: [1]}]", "'peaks' must be a mapping"),
        ("devices: [{name: X, source: s, match: ['(']}]", "bad regular expression"),
        ("devices: [{name: X, source: s, kind: tpu}]", "kind must be gpu or cpu"),
        ("devices: [", "not valid YAML"),
    ],
)
def test_bad_user_files_name_the_problem(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_catalogue(path)
    assert complaint in caught.value.message and "bad.yaml" in caught.value.message


def test_missing_user_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_catalogue(tmp_path / "absent.yaml")
