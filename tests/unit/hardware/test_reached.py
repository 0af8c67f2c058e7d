"""What silicon was seen to reach, beside the data sheet: shipped figures, their sources, and where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.analysis.roofline.limits import limits_for, reached_peak
from llm_perf_opt.analysis.roofline.utilisation import Work, utilisation
from llm_perf_opt.core.files import packaged_yaml
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.hardware.resolve import hardware_by_name
from llm_perf_opt.reporting.wording import describe_hardware
from llm_perf_opt.summary import Hardware, Peak
from tests.text_facts import mentions

SHIPPED = packaged_yaml("llm_perf_opt.hardware", "reached.yaml")["devices"]


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_nothing_was_measured_above_its_data_sheet(name: str) -> None:
    hardware = load_catalogue().named(name).to_hardware()
    assert hardware.bandwidth_bytes_per_s is not None and hardware.reached_bandwidth_bytes_per_s is not None
    assert 0.8 < hardware.reached_bandwidth_bytes_per_s / hardware.bandwidth_bytes_per_s <= 1
    assert hardware.reached_flops_per_s.keys() <= hardware.peak_flops_per_s.keys()
    for dtype, reached in hardware.reached_flops_per_s.items():
        assert 0.4 < reached.dense / hardware.peak_flops_per_s[dtype].dense <= 1
        assert reached.source.startswith("best measured: ") and "aiconfigurator-core" in reached.source


def test_float16_is_given_what_bfloat16_reached_where_their_peaks_are_equal() -> None:
    h100 = load_catalogue().named("NVIDIA H100 SXM5 80GB").to_hardware()
    assert h100.reached_flops_per_s["float16"] == h100.reached_flops_per_s["bfloat16"]
    assert h100.reached_flops_per_s["bfloat16"].dense == pytest.approx(956e12)
    assert describe_hardware(h100).count("bfloat16") == 2, "its peak, and what was reached"
    assert "float32" not in h100.reached_flops_per_s


def test_a_device_no_table_knows_has_nothing_reached() -> None:
    rtx = hardware_by_name("NVIDIA GeForce RTX 5090")
    assert rtx.source == "catalogue" and not rtx.reached_flops_per_s
    assert rtx.reached_bandwidth_bytes_per_s is None and describe_hardware(rtx).count("bfloat16") == 1
    use = utilisation(Work(1e12, 1e9, 0.0), 0.1, limits_for(rtx, "bfloat16"))
    assert use.mfu_ratio is not None and use.mfu_reached_ratio is None and use.mbu_reached_ratio is None


def test_a_users_entry_of_a_shipped_name_is_another_device(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("devices:\n  - {name: NVIDIA H100 SXM5 80GB, source: lab, bandwidth_gb_per_s: 3000}\n")
    mine = hardware_by_name(None, chosen="NVIDIA H100 SXM5 80GB", catalogue_file=str(own))
    assert mine.source == "user" and not mine.reached_flops_per_s


def test_utilisation_is_given_against_both() -> None:
    h100 = load_catalogue().named("NVIDIA H100 SXM5 80GB").to_hardware()
    use = utilisation(Work(98.95e12, 3.35e11, 0.0), 0.2, limits_for(h100, "bfloat16"))
    assert use.mfu_ratio == pytest.approx(0.5) and use.mbu_ratio == pytest.approx(0.5)
    assert use.mfu_reached_ratio == pytest.approx(0.5 * 989.5 / 956)
    assert use.mbu_reached_ratio == pytest.approx(0.5 * 3350 / 3140)
    assert mentions(use.arithmetic, "956 TFLOP/s", "vLLM 0.24.0")
    assert mentions(describe_hardware(h100), "956 TFLOP/s", "3.14 TB/s")


def test_this_machine_counts_where_it_did_better_and_is_no_second_number_of_itself() -> None:
    here = Hardware("GPU", "gpu", {"bfloat16": Peak(100.0, "sheet")}, 10.0, "catalogue")
    here.reached_flops_per_s = {"bfloat16": Peak(80.0, "tables")}
    here.measured_peak_flops_per_s = {"bfloat16": Peak(90.0, "here")}
    found = reached_peak(here, "bfloat16")
    assert found is not None and (found.value, found.source) == (90.0, "here")
    here.source = "probe"
    assert reached_peak(here, "bfloat16") is None
