"""The catalogue: real driver names, dense numbers with sources, a user's own file, and no guessing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt import hardware as package
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.hardware.catalogue import load_catalogue
from tests.text_facts import mentions

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
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "NVIDIA A10G": "NVIDIA A10G",
    "NVIDIA B300 SXM6 AC": "NVIDIA B300",
    "Intel(R) Arc(TM) Pro B60 Graphics": "Intel Arc Pro B60",
    "NVIDIA GB300": "NVIDIA GB300",
    "NVIDIA GH200 144G HBM3e": "NVIDIA GH200 144GB HBM3e",
    "AMD Instinct MI300X VF": "AMD Instinct MI300X",
    "AMD Instinct MI355X VF": "AMD Instinct MI355X",
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
    "NVIDIA A10M",
    "NVIDIA H20-3e",
    "NVIDIA H20 NVL16",
    "NVIDIA H100",
    "NVIDIA A10-24Q",
    "Tesla V100-SXM2-32GB-LS",
    "AMD Instinct MI308X",
    "AMD Instinct MI300X HF",
    "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    "NVIDIA H200 141GB HBM3e something",
    "GRID T4-16Q",
    "NVIDIA RTX 5000 Ada Generation",
    "Tesla V100-SXM3-32GB",
    "AMD Instinct MI250X / MI250",
    "AMD Radeon Graphics",
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


def test_every_device_matches_only_itself() -> None:
    catalogue = load_catalogue()
    for reported in REAL_NAMES:
        assert len([device for device in catalogue.devices if device.matches(reported)]) == 1, reported


@given(st.text(max_size=40))
def test_any_name_gets_a_device_or_a_reason(name: str) -> None:
    device, reason = load_catalogue().look_up(name)
    assert (device is None) == (reason is not None)


REQUIRED = """RTX 3090|RTX 4090|RTX 5090|A100 SXM4 40GB|A100 SXM4 80GB|A10|A30|L4|L40S|H100 SXM5 80GB|H100 PCIe|H100 NVL
H200 SXM|H20|B200|GB200|T4|V100 SXM2 32GB|RTX 6000 Ada Generation|RTX PRO 6000 Blackwell Workstation Edition|MI210|MI300X
MI325X|Jetson AGX Orin 64GB""".replace("\n", "|").split("|")
STRONG = ("maker", "quoted", "reprint")
AGREEMENT = 0.015


def printed_figures() -> Iterator[tuple[str, str, dict[str, float]]]:
    """Device, figure, and what each document prints for it, as a dense rate of one device."""
    for entry in RAW["devices"]:
        figures: dict[str, dict[str, float]] = {}
        for document, row in entry["printed"].items():
            for key, figure in row.items():
                number = next(iter(figure.values())) / 2 if isinstance(figure, dict) else figure
                figures.setdefault(key, {})[document] = number
        yield from ((entry["name"], key, found) for key, found in figures.items())


def test_the_common_devices_are_there() -> None:
    names = [device.name for device in load_catalogue().devices]
    assert len(names) == len(set(names)) >= 25
    assert all(any(name.endswith(f" {wanted}") for name in names) for wanted in REQUIRED)
    for device in load_catalogue().devices:
        assert device.bandwidth_bytes_per_s and device.memory_bytes, device.name


def test_every_document_names_its_content_and_place() -> None:
    used = {document for _, _, found in printed_figures() for document in found}
    assert used == set(RAW["documents"]), "every document is used, and every one that is used is described"
    for key, document in RAW["documents"].items():
        assert set(document) == {"title", "address", "kind"}, key
        assert document["kind"] in (*STRONG, "other"), key
        assert document["address"].startswith("http") or document["kind"] == "maker", key
        assert ("as quoted" in document["title"]) <= (document["kind"] == "quoted"), key


@pytest.mark.parametrize(("device", "figure", "found"), list(printed_figures()))
def test_every_figure_is_printed_somewhere_and_its_documents_agree(
    device: str, figure: str, found: dict[str, float]
) -> None:
    strong = [name for name in found if RAW["documents"][name]["kind"] in STRONG]
    assert strong or len(found) >= 2, "one document of the weakest kind is not enough"
    first = next(iter(found.values()))
    for document, number in found.items():
        assert number == pytest.approx(first, rel=AGREEMENT), document


def test_no_documents_row_is_an_alias_of_anothers() -> None:
    """Two documents that share one node agree whatever they print."""
    rows = [row for entry in RAW["devices"] for row in entry["printed"].values()]
    assert len({id(row) for row in rows}) == len(rows)
    text = (Path(package.__file__).parent / "catalogue.yaml").read_text(encoding="utf-8")
    assert "<<:" not in text


def test_what_is_used_is_what_the_first_document_prints() -> None:
    known = {device.name: device for device in load_catalogue().devices}
    for name, figure, found in printed_figures():
        document, number = next(iter(found.items()))
        title, device = RAW["documents"][document]["title"], known[name]
        if figure == "memory_gib":
            assert device.memory_bytes == pytest.approx(number * 2**30)
            assert (device.memory_source or "").startswith(title)
        elif figure == "bandwidth_gb_per_s":
            assert device.bandwidth_bytes_per_s == pytest.approx(number * 1e9)
            assert (device.bandwidth_source or "").startswith(title)
        elif figure == "link_gb_per_s":
            assert (
                device.link_bytes_per_s
                == device.to_hardware().link_bytes_per_s
                == pytest.approx(number * 1e9)
            )
            assert (device.link_source or "").startswith(title)
        else:
            assert device.peaks[figure].dense == pytest.approx(number * 1e12)
            assert device.peaks[figure].source.startswith(title)


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
    assert h100 is not None and mentions(h100.peaks["bfloat16"].source, "1979", "2:4")


def test_geforce_halves_the_rate_when_it_accumulates_in_float32() -> None:
    for name in ("RTX 3090", "RTX 4090", "RTX 5090"):
        peaks = load_catalogue().named(name).peaks
        assert peaks["float16_accumulate_float16"].dense == pytest.approx(
            2 * peaks["float16"].dense, rel=2e-3
        )
        assert peaks["bfloat16"].dense == peaks["float16"].dense
    # Professional cards of the same silicon do not.
    pro = load_catalogue().named("NVIDIA RTX PRO 6000 Blackwell Workstation Edition").peaks
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
    assert device is None and mentions(reason, "48.0 GiB", "24 GiB")
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
  - name: NVIDIA A10M
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
    mine = catalogue.named("NVIDIA A10M").to_hardware()
    assert mine.source == "user" and mine.bandwidth_source == "Our own measurement, 2026-03"
    assert {name: peak.dense for name, peak in mine.peak_flops_per_s.items()} == {
        "bfloat16": 70e12,
        "float16": 70e12,
        "float32": 31.5e12,
    }
    assert mine.peak_flops_per_s["float32"].source == "vendor page"
    limited = catalogue.named("NVIDIA GeForce RTX 5090").to_hardware()
    assert (limited.bandwidth_bytes_per_s, limited.peak_flops_per_s, limited.memory_bytes) == (
        1.7e12,
        {},
        None,
    )
    assert catalogue.named("Tesla T4").to_hardware().source == "catalogue"


def test_user_file_may_set_what_each_document_prints(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        """
documents: {sheet: {title: Data sheet, address: "here"}}
devices:
  - name: X1
    printed:
      sheet: {memory_gib: {package: 64}, bf16: {sparse: 100}}
      a test: {bf16: 49, bandwidth_gb_per_s: 800}
""",
        encoding="utf-8",
    )
    mine = load_catalogue(path).named("X1")
    assert (mine.memory_bytes, mine.bandwidth_bytes_per_s) == (32 * 2.0**30, 800e9)
    assert (mine.bandwidth_source, mine.peaks["bfloat16"].dense) == ("a test", 50e12)
    assert mentions(mine.peaks["bfloat16"].source, "Data sheet", "100", "2:4")
    assert mentions(mine.memory_source, "Data sheet", "64")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("devices: {}", "'devices'"),
        ("[]", "'devices'"),
        ("devices: [{memory_gib: 1}]", "'name'"),
        ("devices: [{name: X}]", "'source'"),
        ("devices: [{name: X, source: s, speed: 3}]", "'speed'"),
        ("devices: [{name: X, source: s, memory_gib: -1}]", "memory_gib"),
        ("devices: [{name: X, source: s, memory_gib: '24'}]", "memory_gib"),
        ("devices: [{name: X, source: s, peaks: {bf17: 1}}]", "'bf17'"),
        ("devices: [{name: X, source: s, peaks: {bf16: {dense: 1}}}]", "number"),
        ("devices: [{name: X, source: s, peaks: [1]}]", "'peaks'"),
        ("devices: [{name: X, source: s, match: ['(']}]", "regular expression"),
        ("devices: [{name: X, source: s, kind: tpu}]", "kind"),
        ("devices: [{name: X, printed: {a: {speed: 3}}}]", "'speed'"),
        ("devices: [{name: X, printed: {a: 3}}]", "'printed.a'"),
        ("devices: [{name: X, printed: {}}]", "'printed'"),
        ("devices: [{name: X, printed: {a: {bf16: 3, bfloat16: 9}}}]", "bfloat16"),
        ("devices: [{name: X, source: s, peaks: {bf16: 3, bfloat16: 9}}]", "bfloat16"),
        ("devices: [{name: X, source: s, peaks: {bf16: {sparse: 10, value: 7}}}]", "number"),
        ("devices: [{name: X, source: s, memory_gib: {sparse: 64}}]", "sparse"),
        ("devices: [{name: X, printed: {a: {bf16: 3}}, source: s}]", "printed"),
        ("devices: []\ndocuments: {a: 3}", "documents.a"),
        ("devices: []\nambiguous: [{match: [x]}]", "'choose'"),
        ("devices: [", "YAML"),
    ],
)
def test_bad_user_files_name_the_problem(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_catalogue(path)
    assert mentions(caught.value.message, "bad.yaml", complaint)
    assert caught.value.data["key"] == "hardware.catalogue"


def test_missing_user_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_catalogue(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("typed", "first"), [("RTX5090", "NVIDIA GeForce RTX 5090"), ("rtx 4O90", "NVIDIA GeForce RTX 4090")]
)
def test_nearest_names_are_near(typed: str, first: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_catalogue().named(typed)
    assert first in (caught.value.hint or "").split("; or")[0]


@pytest.mark.parametrize(
    ("reported", "near"),
    [
        ("NVIDIA GeForce RTX 5090 D", "NVIDIA GeForce RTX 5090"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", "NVIDIA GeForce RTX 5090"),
        ("NVIDIA GeForce RTX 5090 D v2", "NVIDIA GeForce RTX 5090"),
        ("NVIDIA H800", "NVIDIA H100 SXM5 80GB"),
        ("NVIDIA H800 PCIe", "NVIDIA H100 PCIe"),
        ("AMD Instinct MI308X", "AMD Instinct MI300X"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H100 SXM5 80GB"),
        ("NVIDIA A800-SXM4-80GB", "NVIDIA A100 SXM4 80GB"),
    ],
)
def test_a_device_that_is_not_known_is_refused_with_the_nearest_name(reported: str, near: str) -> None:
    device, reason = load_catalogue().look_up(reported)
    assert device is None
    assert reason is not None and f"nearest: {near};" in reason


@pytest.mark.parametrize("reported", ["NVIDIA GB10", "Tesla K80", "NVIDIA Thor", "NVIDIA A2"])
def test_like_letters_alone_are_not_near(reported: str) -> None:
    device, reason = load_catalogue().look_up(reported)
    assert device is None and reason is not None and "nearest" not in reason


def test_a_choice_that_is_near_nothing_gets_no_name() -> None:
    with pytest.raises(ConfigError) as caught:
        load_catalogue().named("GB10")
    assert "GB200" not in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["AMD Instinct MI250", "AMD Instinct MI250X"])
def test_both_versions_of_the_mi250_resolve(name: str) -> None:
    device, _ = load_catalogue().look_up(name)
    assert device is not None and device.name == name


@pytest.mark.parametrize("reported", ["NVIDIA GB10", "NVIDIA H800"])
def test_no_limits_are_assumed_for_a_relative(reported: str) -> None:
    assert load_catalogue().look_up(reported)[0] is None
