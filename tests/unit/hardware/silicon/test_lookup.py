from __future__ import annotations

import math
from pathlib import Path

import pytest

from llm_perf_opt.hardware.silicon import Attention, Gemm, MoeLayer, Silicon, lookup
from tests.text_facts import mentions
from tests.unit.hardware.silicon.tables import H100, gemm_grid, gemm_row, installation, write_table

GEMM = "h100_sxm/gemm/{}/gemm_perf.parquet"


def silicon_with(tmp_path: Path, **tables: list[dict[str, object]]) -> Silicon:
    """Tables by ``framework__version``."""
    place = installation(tmp_path)
    for name, rows in tables.items():
        framework, _, version = name.partition("__")
        write_table(place.systems, GEMM.format(f"{framework}/{version.replace('_', '.')}"), rows)
    return Silicon(place)


def test_a_measured_shape_is_given_as_measured_with_its_source(tmp_path: Path) -> None:
    found = silicon_with(tmp_path, vllm__0_24_0=gemm_grid()).time(Gemm(4, 64, 256), H100)
    assert found is not None and found.how == "measured" and found.rests_on_tables
    assert found.seconds == pytest.approx(4 * 64 * 256 * 1e-9)
    assert found.source is not None and found.source.describe() == "vllm 0.24.0, linear"
    assert found.source.table == "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet"


def test_between_measurements_a_power_law_is_met_exactly(tmp_path: Path) -> None:
    found = silicon_with(tmp_path, vllm__0_24_0=gemm_grid()).time(Gemm(9, 100, 128), H100)
    assert found is not None and found.how == "interpolated"
    assert found.seconds == pytest.approx(9 * 100 * 128 * 1e-9)


def test_slightly_beyond_the_edge_the_efficiency_of_the_edge_is_used(tmp_path: Path) -> None:
    found = silicon_with(tmp_path, vllm__0_24_0=gemm_grid()).time(Gemm(16, 512, 256), H100)
    assert found is not None and found.how == "extrapolated" and not found.rests_on_tables
    assert found.seconds == pytest.approx(16 * 512 * 256 * 1e-9)


def test_smaller_than_the_smallest_measured_is_not_thought_faster(tmp_path: Path) -> None:
    tables = silicon_with(tmp_path, vllm__0_24_0=gemm_grid())
    edge, below = tables.time(Gemm(1, 64, 64), H100), tables.time(Gemm(1, 32, 64), H100)
    assert edge is not None and below is not None and below.seconds == edge.seconds


def test_far_beyond_the_edge_there_is_no_answer(tmp_path: Path) -> None:
    assert silicon_with(tmp_path, vllm__0_24_0=gemm_grid()).time(Gemm(16, 2048, 256), H100) is None


def test_without_a_framework_the_median_of_all_tables_is_taken(tmp_path: Path) -> None:
    tables = silicon_with(
        tmp_path, vllm__0_24_0=gemm_grid(2.0), sglang__0_5_14=gemm_grid(1.0), trtllm__1_3_0=gemm_grid(4.0)
    )
    found = tables.time(Gemm(4, 64, 64), H100)
    assert found is not None and found.source is not None
    assert found.seconds == pytest.approx(2 * 4 * 64 * 64 * 1e-9) and found.source.framework == "vllm"
    assert {one.source.framework for one in found.tables} == {"vllm", "sglang", "trtllm"}


def test_of_a_framework_the_newest_version_is_taken(tmp_path: Path) -> None:
    tables = silicon_with(
        tmp_path, vllm__0_9_0=gemm_grid(1.0), vllm__0_24_0=gemm_grid(3.0), sglang__9_0=gemm_grid(7.0)
    )
    found = tables.time(Gemm(4, 64, 64), H100, framework="vllm")
    assert found is not None and found.source is not None and found.source.version == "0.24.0"
    assert found.seconds == pytest.approx(3 * 4 * 64 * 64 * 1e-9)


def test_the_newest_version_answers_also_between_its_shapes(tmp_path: Path) -> None:
    """An older, slower version holds one size that the newer one lies around: neighbours must not come from both."""
    old = [gemm_row(5, n, k, 5.0 * 5 * n * k * 1e-6) for n in (64, 256) for k in (64, 256)]
    tables = silicon_with(tmp_path, vllm__0_9_0=old, vllm__0_24_0=gemm_grid())
    times = [tables.time(Gemm(m, 64, 64), H100, framework="vllm") for m in (4, 5, 6)]
    assert [one.how for one in times if one is not None] == ["measured", "interpolated", "interpolated"]
    assert {one.source.version for one in times if one is not None and one.source is not None} == {"0.24.0"}
    seconds = [one.seconds for one in times if one is not None]
    assert seconds == sorted(seconds)


def test_a_table_with_a_wrong_label_is_not_used_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "MISLABELLED", {GEMM.format("vllm/0.24.0"): "mislabelled"})
    tables = silicon_with(tmp_path, vllm__0_24_0=gemm_grid(), sglang__0_5=gemm_grid(3.0))
    for framework in ("vllm", None):
        found = tables.time(Gemm(4, 64, 64), H100, framework=framework)
        assert found is not None and found.source is not None and found.source.framework == "sglang"
    (problem,) = tables.problems
    assert mentions(problem, GEMM.format("vllm/0.24.0"), "mislabelled")
    assert len(tables.tables_of(Gemm(4, 64, 64), H100)) == 1


def test_another_framework_answers_where_the_chosen_one_does_not_reach(tmp_path: Path) -> None:
    beyond = [gemm_row(m, 4096, 64, 1.0) for m in (1, 16)]
    tables = silicon_with(tmp_path, vllm__0_24_0=gemm_grid(), sglang__0_5=beyond)
    found = tables.time(Gemm(1, 4096, 64), H100, framework="vllm")
    assert found is not None and found.source is not None and found.source.framework == "sglang"


def test_devices_are_found_by_the_drivers_and_the_catalogues_name(tmp_path: Path) -> None:
    tables = silicon_with(tmp_path, vllm__0_24_0=gemm_grid())
    by_driver, by_catalogue = tables.system(H100), tables.system("NVIDIA H100 SXM5 80GB")
    assert by_driver is not None and by_driver is by_catalogue
    assert by_driver.power_w == 700 and by_driver.devices_per_node == 8


@pytest.mark.parametrize("device", ["NVIDIA GeForce RTX 5090", "NVIDIA H100 PCIe", "toaster", ""])
def test_a_device_without_tables_has_no_times(tmp_path: Path, device: str) -> None:
    tables = silicon_with(tmp_path, vllm__0_24_0=gemm_grid())
    assert tables.system(device) is None and tables.time(Gemm(4, 64, 64), device) is None


def test_operators_without_a_table_have_no_times(tmp_path: Path) -> None:
    tables = silicon_with(tmp_path, vllm__0_24_0=gemm_grid())
    assert tables.time(Attention("context", 1, 64, 8, 8, 64), H100) is None
    assert tables.time(MoeLayer(1, 64, 64, 1, 8), H100) is None
    assert tables.time(Gemm(4, 64, 64, "float8"), H100) is None
    assert tables.problems == []


def test_rows_without_a_usable_time_are_left_out_and_reported(tmp_path: Path) -> None:
    bad = [gemm_row(4, 64, 64, value) for value in (0.0, -1.0, math.nan, math.inf, None)]
    rows = [row for row in gemm_grid() if (row["m"], row["n"], row["k"]) != (4, 64, 64)]
    tables = silicon_with(tmp_path, vllm__0_24_0=[*rows, *bad, gemm_row(0, 64, 64, 1.0)])
    found = tables.time(Gemm(1, 64, 64), H100)
    assert found is not None and found.how == "measured"
    assert tables.time(Gemm(4, 64, 64), H100) is not None
    (problem,) = tables.problems
    assert mentions(problem, "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", "6", "17")


def test_a_table_with_other_columns_is_left_out_and_the_rest_answers(tmp_path: Path) -> None:
    renamed = [{("rows" if key == "m" else key): value for key, value in row.items()} for row in gemm_grid()]
    tables = silicon_with(tmp_path, vllm__0_24_0=renamed, sglang__0_5=gemm_grid(2.0))
    found = tables.time(Gemm(4, 64, 64), H100)
    assert found is not None and found.source is not None and found.source.framework == "sglang"
    (problem,) = tables.problems
    assert mentions(problem, "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", "m")


def test_a_file_that_is_no_table_is_left_out_and_reported(tmp_path: Path) -> None:
    place = installation(tmp_path)
    write_table(place.systems, GEMM.format("sglang/0.5"), gemm_grid())
    broken = place.systems / "data" / GEMM.format("vllm/0.24.0")
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"PAR1 this is not parquet")
    tables = Silicon(place)
    found = tables.time(Gemm(4, 64, 64), H100)
    assert found is not None and found.how == "measured"
    (problem,) = tables.problems
    assert mentions(problem, "vllm/0.24.0/gemm_perf.parquet")


def test_text_where_numbers_belong_is_left_out(tmp_path: Path) -> None:
    rows = [{**row, "latency": "fast"} for row in gemm_grid()]
    tables = silicon_with(tmp_path, vllm__0_24_0=rows)
    assert tables.time(Gemm(4, 64, 64), H100) is None
    assert "12 of 12 rows" in tables.problems[0]


def test_another_version_of_the_package_is_read_and_reported(tmp_path: Path) -> None:
    place = installation(tmp_path, version="0.13.1")
    write_table(place.systems, GEMM.format("vllm/0.24.0"), gemm_grid())
    tables = Silicon(place)
    assert tables.time(Gemm(4, 64, 64), H100) is not None
    (problem,) = tables.problems
    assert mentions(problem, "0.13.1", "0.12")


def test_a_description_that_is_no_yaml_costs_only_the_power(tmp_path: Path) -> None:
    place = installation(tmp_path)
    (place.systems / "h100_sxm.yaml").write_text("gpu: [")
    write_table(place.systems, GEMM.format("vllm/0.24.0"), gemm_grid())
    tables = Silicon(place)
    system = tables.system(H100)
    assert system is not None and system.power_w is None and tables.time(Gemm(4, 64, 64), H100) is not None
    assert mentions(tables.problems[0], "h100_sxm.yaml")


def test_float16_is_answered_by_the_other_16_bit_type(tmp_path: Path) -> None:
    found = silicon_with(tmp_path, vllm__0_24_0=gemm_grid()).time(Gemm(4, 64, 64, "float16"), H100)
    assert found is not None and found.how == "measured"
