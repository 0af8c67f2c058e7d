from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.analysis.roofline.demand import Point, demand
from llm_perf_opt.config.schema import ModelConfig, SiliconTables
from llm_perf_opt.core import units
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.hardware.catalogue import Catalogue, load_catalogue
from llm_perf_opt.hardware.silicon import Silicon
from llm_perf_opt.summary import Static, WhatIf
from llm_perf_opt.summary.file import save_summary
from llm_perf_opt.summary.static import AttentionShape, OperatorShapes, ProductShape
from llm_perf_opt.what_if.command import FRAMEWORKS, main
from llm_perf_opt.what_if.query import Query, price_query
from llm_perf_opt.what_if.target import Target, devices_that_meet, meets, needed_rates
from llm_perf_opt.workloads.counting.static_run import StaticCounter
from llm_perf_opt.workloads.registry import load_adapter
from tests.unit.analysis.roofline.test_what_if import decoder
from tests.unit.hardware.silicon.tables import gemm_grid, gemm_row, installation, write_table
from tests.unit.report_summaries import full_summary
from tests.unit.small_workloads import infer_config

OWN = Query([], [], [], [], [], [], "vllm")
H100 = "NVIDIA H100 SXM5 80GB"


def counted() -> Static:
    static = decoder()
    products = [
        ProductShape(phase, "model.layers.*.mlp.up_proj", 4, rows, 256, 64)
        for phase, rows in (("prefill", 16), ("decode", 1))
    ]
    static.operators = OperatorShapes(1, 16, 16, 64, products)
    return static


@pytest.fixture
def tables(tmp_path: Path) -> Silicon:
    place = installation(tmp_path)
    write_table(place.systems, "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", gemm_grid())
    return Silicon(place)


def test_every_combination_is_priced_with_tables_first(tables: Silicon) -> None:
    summary = full_summary()
    summary.static = counted()
    query = Query(["H100 SXM5 80GB", "RTX 5090"], ["bfloat16"], [1, 4], [16], [], [1, 2], "vllm")
    rows = price_query(summary, query, load_catalogue(), tables)
    assert len(rows) == 2 * 2 * 2
    first = rows[0]
    assert (first.device, first.batch_size, first.prompt_tokens, first.tensor_parallel) == (H100, 1, 16, 1)
    assert first.tpot_expected_s == pytest.approx(4 * 1 * 256 * 64 * 1e-9) and first.measured_share_ratio == 1
    assert first.tokens_per_s_per_w == pytest.approx(1 / first.tpot_expected_s / 700)
    assert first.expected_source == "vllm 0.24.0"


def test_a_device_without_tables_is_expected_by_its_limits_with_a_note(tables: Silicon) -> None:
    summary = full_summary()
    summary.static = counted()
    query = Query(["RTX 5090"], [], [], [], [], [], "vllm")
    (row,) = price_query(summary, query, load_catalogue(), tables)
    assert row.tpot_expected_s is not None and row.measured_share_ratio == 0 and row.expected_source is None


def test_by_default_devices_with_tables_are_shown(tables: Silicon) -> None:
    summary = full_summary()
    summary.static = counted()
    assert {row.device for row in price_query(summary, OWN, load_catalogue(), tables)} == {H100}


def test_several_devices_share_the_floor_and_the_memory(tables: Silicon) -> None:
    summary = full_summary()
    summary.static = counted()
    query = Query([H100], [], [], [], [], [1, 4], "vllm")
    one, four = price_query(summary, query, load_catalogue(), tables)
    assert one.tpot_floor_s is not None and four.tpot_floor_s == pytest.approx(one.tpot_floor_s / 4)
    assert (one.tensor_parallel, four.tensor_parallel) == (1, 4)
    assert re.search(r"\b4\b", four.note or "") and not re.search(r"\b4\b", one.note or "")
    assert four.tpot_expected_s is not None, "up projections leave no partial sums to exchange"


def test_sums_that_nobody_timed_take_as_long_as_the_links_or_leave_the_time_open(tables: Silicon) -> None:
    summary = full_summary()
    summary.static = counted()
    assert summary.static.operators is not None
    for one in summary.static.operators.products:
        one.name = one.name.replace("up_proj", "down_proj")
    query = Query([H100], [], [], [], [], [4], "vllm")
    (linked,) = price_query(summary, query, load_catalogue(), tables)
    assert linked.tpot_expected_s is not None
    without = replace(load_catalogue().named(H100), link_bytes_per_s=None)
    (row,) = price_query(summary, query, Catalogue((without,)), tables)
    assert row.tpot_expected_s is None and row.tpot_floor_s == linked.tpot_floor_s


def test_without_the_extra_there_are_floors_and_a_word_on_what_it_adds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_perf_opt.hardware.silicon.installation.installed", lambda: None)
    summary = full_summary()
    summary.static = counted()
    save_summary(summary, tmp_path)
    assert main([str(tmp_path), "--device", H100]) == 0
    output = capsys.readouterr().out
    assert "pip install 'llm-perf-opt[silicon]'" in output and H100 in output and "TPOT floor" in output
    assert main([str(tmp_path), "--json"]) == 0
    used = json.loads(capsys.readouterr().out)["silicon"]
    assert used["version"] is None and "pip install 'llm-perf-opt[silicon]'" in used["reason"]


def test_a_framework_no_table_is_of_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        main([str(tmp_path), "--framework", "vlm"])
    text = f"{caught.value.message} {caught.value.hint}"
    assert "--framework" in text and "'vlm'" in text and "vllm" in text
    assert {*FRAMEWORKS, "auto", "off"} == {one.value for one in SiliconTables}


def test_ranges_lie_around_the_expected_time(tables: Silicon) -> None:
    summary = full_summary()
    summary.static = counted()
    query = Query(["H100 SXM5 80GB", "RTX 5090"], [], [], [], [], [], "vllm")
    measured, roofline = price_query(summary, query, load_catalogue(), tables)
    assert measured.tpot_expected_low_s == measured.tpot_expected_s == measured.tpot_expected_high_s
    for row in (measured, roofline):
        assert row.tpot_expected_s is not None and row.tpot_expected_high_s is not None
        assert row.tpot_expected_low_s is not None
        assert row.tpot_expected_low_s <= row.tpot_expected_s <= row.tpot_expected_high_s
    assert roofline.tpot_expected_high_s is not None and roofline.tpot_expected_s is not None
    assert roofline.tpot_expected_high_s > 1.2 * roofline.tpot_expected_s
    assert measured.eager_is_bound and measured.eager_host_source == "typical"


WIDE = {
    "model_type": "llama",
    "vocab_size": 8192,
    "hidden_size": 4096,
    "intermediate_size": 8192,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


def counted_on_paper() -> Static:
    import torch

    adapter = load_adapter(ModelConfig(adapter="hf_causal_lm", arch=dict(WIDE)), infer_config("llama"))
    counter = StaticCounter(adapter, torch.bfloat16, use_closed_forms=False)
    return counter.document(adapter.default_shapes(), decode_steps=2).static


def test_tables_that_found_their_weights_in_a_cache_expect_nothing_below_the_floor(tmp_path: Path) -> None:
    place = installation(tmp_path)
    sizes = [(m, n, k) for m in (1, 256) for n in (64, 32768) for k in (64, 32768)]
    warm = [gemm_row(m, n, k, 1e-3) for m, n, k in sizes]
    write_table(place.systems, "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", warm)
    summary = full_summary()
    summary.static = counted_on_paper()
    query = Query([H100], ["bfloat16"], [1, 4], [64], [], [1, 2], "vllm")
    for row in price_query(summary, query, load_catalogue(), Silicon(place)):
        assert row.tpot_expected_s is not None and row.tpot_floor_s is not None
        assert row.tpot_expected_s >= row.tpot_floor_s
        assert row.tpot_expected_low_s is None or row.tpot_expected_low_s >= row.tpot_floor_s
        assert row.ttft_expected_s is not None and row.ttft_floor_s is not None
        assert row.ttft_expected_s >= row.ttft_floor_s


def test_a_floor_of_a_split_that_engines_do_not_make_is_labelled(tables: Silicon) -> None:
    summary = full_summary()
    summary.static = counted()  # its layers are few and its floors those of a large model
    one, two = price_query(summary, Query([H100], [], [], [], [], [1, 2], "vllm"), load_catalogue(), tables)
    assert two.tpot_expected_s is not None and two.tpot_floor_s is not None
    assert two.tpot_expected_s < two.tpot_floor_s
    assert "transformers" in (two.note or "") and "transformers" not in (one.note or "")


def test_too_many_devices_leave_floors_and_a_reason(tables: Silicon) -> None:
    summary = full_summary()
    summary.static = counted()
    assert summary.static.operators is not None
    for one in summary.static.operators.products:
        one.name = one.name.replace("up_proj", "down_proj")
    summary.static.operators.attention = [
        AttentionShape("decode", "model.layers.*.self_attn", 4, 1, 17, 48, 8, 8)
    ]
    five, eight, sixteen = price_query(
        summary, Query([H100], [], [], [], [], [5, 8, 16], "vllm"), load_catalogue(), tables
    )
    assert eight.tpot_expected_s is not None
    for row, fact in ((five, r"\b48 heads\b"), (sixteen, r"\ball-reduce\b.*\b16\b")):
        assert row.tpot_floor_s is not None and row.tpot_expected_s is None
        assert re.search(fact, row.note or "") and not re.search(fact.replace("16", "8"), eight.note or "")


def test_mistakes_are_named(tables: Silicon) -> None:
    summary, catalogue = full_summary(), load_catalogue()
    summary.static = None
    with pytest.raises(InputError, match="no static model"):
        price_query(summary, OWN, catalogue, tables)
    summary.static = counted()
    with pytest.raises(ConfigError, match="--dtype float3"):
        price_query(summary, Query([], ["float3"], [], [], [], [], "vllm"), catalogue, tables)
    with pytest.raises(ConfigError, match="--device toaster") as caught:
        price_query(summary, Query(["toaster"], [], [], [], [], [], "vllm"), catalogue, tables)
    assert "--catalogue FILE" in (caught.value.hint or "")
    summary.static.scaling = None
    with pytest.raises(InputError) as refused:
        price_query(summary, Query([], [], [8], [], [], [], "vllm"), catalogue, tables)
    for option in ("--dtype", "--batch", "--prompt", "--context"):
        assert option in (refused.value.hint or "")
    assert price_query(summary, OWN, catalogue, tables), "its own point can be priced"


def counted_run(tmp_path: Path) -> Path:
    summary = full_summary()
    summary.static = counted()
    save_summary(summary, tmp_path)
    return tmp_path


def test_a_target_lists_who_meets_it_and_the_rates_it_needs(tables: Silicon) -> None:
    summary = full_summary()
    static = summary.static = counted()
    rows = price_query(summary, Query([H100], [], [1, 4], [], [], [], "vllm"), load_catalogue(), tables)
    target = Target(1.0, 0.02)
    (met,) = devices_that_meet(rows, target)
    assert (met.device, met.batch_sizes, met.largest.batch_size) == (H100, [1, 4], 4)
    one, four = needed_rates(static, rows, target)
    own = demand(static, Point(one.dtype, 1, one.context_tokens, one.prompt_tokens))
    assert own.step is not None and own.first_token is not None
    assert one.bytes_per_s == pytest.approx(max(own.step[1] / 0.02, sum(size for _, size in own.first_token)))
    assert one.flops_per_s is not None and four.flops_per_s == pytest.approx(4 * one.flops_per_s)
    assert devices_that_meet(rows, Target(tpot_s=1e-9)) == []


def test_a_target_is_part_of_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(counted_run(tmp_path))
    assert main([run, "--device", H100, "--ttft", "1s", "--tpot", "20ms", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == {"ttft_s": 1.0, "tpot_s": 0.02}
    assert {each["batch_size"] for each in found["what_if"]} >= {1, 8, 32}, "what a target asks about"
    assert {"met", "needed"} <= found.keys()
    assert main([run, "--device", H100, "--tpot", "20ms"]) == 0
    assert "What a device needs" in capsys.readouterr().out


@pytest.mark.parametrize("expected", ["1", "fast", "0s", "2h"])
def test_a_target_without_a_unit_is_refused(expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="20ms"):
        main([str(tmp_path), "--ttft", expected])


def row(**fields: object) -> WhatIf:
    plain = WhatIf(
        "device", "bfloat16", 1, 16, ttft_floor_s=0.1, tpot_floor_s=0.001, tokens_per_s=1.0, fits=True
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("priced", "found"),
    [
        (row(tpot_expected_s=0.005, tpot_expected_high_s=0.008), "yes"),
        (row(tpot_expected_s=0.005, tpot_expected_high_s=0.02), "likely"),
        (row(tpot_expected_s=0.02, tpot_expected_high_s=0.03), "no"),
        (row(tpot_expected_s=0.005, tpot_expected_high_s=0.008, fits=False), "no"),
        (row(), "not known"),
        (row(tpot_floor_s=0.02), "no"),
    ],
)
def test_a_row_meets_a_target_by_its_whole_range_its_expected_time_or_not(priced: WhatIf, found: str) -> None:
    assert meets(priced, Target(tpot_s=0.01)) == found


def test_the_page_has_a_chart_with_the_range_and_this_run_as_it_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = counted_run(tmp_path), tmp_path / "out"
    assert main([str(run), "--device", H100, "--out", str(out)]) == 0
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 100 or "report:" in max(output.splitlines(), key=len)
    measured = full_summary().timings.tpot_s
    assert measured is not None
    (own,) = [line for line in output.splitlines() if "this run" in line]
    assert units.seconds(measured.shown) in own, "the measurement, not a floor"
    page = (out / "what_if.html").read_text()
    assert "lpo-dots" in page and "90 % range" in page
    assert json.loads((out / "what_if.json").read_text())["what_if"][0]["device"] == H100
    assert main([str(run), "--device", H100, "--csv"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert dict(zip(head.split(","), line.split(","), strict=False))["device"] == H100
