"""A server on devices that were not measured: memory, ranges, capacity, and what the command prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.summary import Static
from llm_perf_opt.summary.file import save_summary
from llm_perf_opt.summary.static import AttentionShape, OperatorShapes, ProductShape
from llm_perf_opt.what_if.command import main
from llm_perf_opt.what_if.query import Query, points_of
from llm_perf_opt.what_if.serving import ServingQuery, memory_of, serve_on
from llm_perf_opt.what_if.step_times import Ranged, padded
from tests.unit.analysis.roofline.test_what_if import decoder
from tests.unit.report_summaries import full_summary

H100 = "NVIDIA H100 SXM5 80GB"


def counted() -> Static:
    static = decoder()
    products = [
        ProductShape(phase, name, 4, rows, outputs, inputs)
        for phase, rows in (("prefill", 16), ("decode", 1))
        for name, outputs, inputs in (
            ("model.layers.*.mlp.up_proj", 14336, 4096),
            ("model.layers.*.mlp.down_proj", 4096, 14336),
        )
    ]
    products += [
        ProductShape(phase, "lm_head", 1, 1, 32000, 4096, "sequences") for phase in ("prefill", "decode")
    ]
    attention = [
        AttentionShape(phase, "model.layers.*.self_attn", 4, rows, 16, 32, 8, 128)
        for phase, rows in (("prefill", 16), ("decode", 1))
    ]
    static.operators = OperatorShapes(1, 16, 16, 4096, products, attention)
    return static


@pytest.fixture
def run(tmp_path: Path) -> Path:
    summary = full_summary()
    summary.static = counted()
    save_summary(summary, tmp_path)
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


LOAD = ("--serve", "--device", "H100 SXM5 80GB", "--prompt-tokens", "500", "--new-tokens", "20")
FIGURES = ("ttft_expected{}_s", "itl_expected{}_s", "e2e_expected{}_s", "tokens_per_s{}", "requests_per_s{}")


def test_every_figure_lies_inside_its_range(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, str(run), *LOAD, "--concurrency", "1,4,32", "--price", "2", "--slo", "ttft:1s")
    assert [row["concurrency"] for row in found["serving"]] == [1, 4, 32]
    for row in found["serving"]:
        assert row["fits"] is True
        for name in (*FIGURES, "cost_per_million_tokens{}", "goodput_per_s{}"):
            low, value, high = (row[name.format(end)] for end in ("_low", "", "_high"))
            assert 0 < low <= value <= high, name
    one, _, many = found["serving"]
    assert many["tokens_per_s"] > 4 * one["tokens_per_s"]
    assert many["itl_expected_s"] > one["itl_expected_s"] and many["ttft_expected_s"] > one["ttft_expected_s"]
    assert many["cost_per_million_tokens"] == pytest.approx(2 / 3600 / many["tokens_per_s"] * 1e6)
    assert found["assumptions"]["step_s"]["low"] < found["assumptions"]["step_s"]["high"]


def test_both_spellings_of_the_prompt_length_are_taken(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        answer(
            capsys,
            str(run),
            "--serve",
            "--device",
            H100,
            name,
            "300",
            "--new-tokens",
            "4",
            "--concurrency",
            "2",
        )
        for name in ("--prompt", "--prompt-tokens")
    ]
    assert rows[0]["serving"] == rows[1]["serving"] and rows[0]["serving"][0]["prompt_tokens"] == 300


def test_memory_adds_up_and_the_first_load_that_does_not_fit_is_marked(run: Path) -> None:
    static = counted()
    device = load_catalogue().named(H100)
    (point,) = points_of(static, "bfloat16", Query([H100], [], [], [1000], [], [], "vllm"))
    memory = memory_of(static, point, device, ServingQuery(1000, 200))
    assert memory is not None and memory.total_bytes is not None
    used = memory.weights_bytes + memory.activations_bytes + memory.runtime_bytes + memory.kv_cache_bytes
    assert used == pytest.approx(0.92 * memory.total_bytes)
    half = memory_of(static, point, device, ServingQuery(1000, 200, cache_dtype="float8"))
    assert half is not None and half.kv_bytes_per_token == pytest.approx(memory.kv_bytes_per_token / 2)
    most = int(memory.kv_tokens // 1200)
    query = ServingQuery(1000, 200, concurrency=[1])
    (row,), _ = serve_on(static, [device], [point], query, None)
    assert row.largest_concurrency == pytest.approx(most, rel=0.02) and row.fits
    share = (used - memory.kv_cache_bytes + 20 * 1216 * memory.kv_bytes_per_token) / memory.total_bytes
    tight = ServingQuery(1000, 200, concurrency=[16, 64], memory_share=share)
    (first, second), _ = serve_on(static, [device], [point], tight, None)
    assert (first.fits, second.fits) == (True, False)
    assert first.largest_concurrency == second.largest_concurrency == 20
    assert second.ttft_expected_s is not None and first.ttft_expected_s is not None
    assert second.ttft_expected_s > first.ttft_expected_s


def test_a_model_larger_than_the_memory_has_no_times() -> None:
    static = counted()
    device = load_catalogue().named(H100)
    (point,) = points_of(static, "bfloat16", Query([H100], [], [], [1000], [], [], "vllm"))
    query = ServingQuery(1000, 200, concurrency=[1], memory_share=1e-6)
    (row,), _ = serve_on(static, [device], [point], query, None)
    assert row.fits is False and row.ttft_expected_s is None and row.largest_concurrency == 0 and row.notes


def test_a_target_is_divided_among_servers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, str(run), *LOAD, "--target-rate", "2000", "--slo", "ttft:300ms,tpot:50ms")
    (capacity,) = found["capacity"]
    assert (
        capacity["rate_per_replica_low_s"]
        <= capacity["rate_per_replica_s"]
        <= capacity["rate_per_replica_high_s"]
    )
    assert capacity["devices"] >= 2000 / capacity["rate_per_replica_s"]
    assert capacity["devices_low"] <= capacity["devices"] <= capacity["devices_high"]
    impossible = answer(capsys, str(run), *LOAD, "--target-rate", "10", "--slo", "ttft:1us")
    assert impossible["capacity"][0]["devices"] is None and impossible["capacity"][0]["note"]


def test_a_rate_above_the_capacity_has_throughput_and_no_latency(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    light, heavy = answer(capsys, str(run), *LOAD, "--rate", "1,100000")["serving"]
    assert light["is_sustained"] and light["ttft_expected_s"] > 0 and light["requests_per_s"] == 1
    assert not heavy["is_sustained"] and heavy["ttft_expected_s"] is None and heavy["requests_per_s"] < 100000


def test_the_table_is_printed_for_people(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run), *LOAD, "--concurrency", "2"]) == 0
    printed = capsys.readouterr().out
    assert "TTFT" in printed and "2 in flight" in printed and "KV cache" in printed


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--serve", "--batch", "4"), "--batch"),
        (("--rate", "4"), "--rate"),
        (("--price", "4"), "--price"),
        (("--serve", "--kv-cache-dtype", "int3"), "--kv-cache-dtype"),
        (("--serve", "--slo", "speed:3s"), "--slo"),
    ],
)
def test_wrong_options_are_named(run: Path, arguments: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        main([str(run), *arguments])


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x", ""])
def test_rates_that_are_not_positive_numbers_are_refused(run: Path, text: str) -> None:
    with pytest.raises(SystemExit):
        main([str(run), "--serve", "--rate", text])


def test_steps_are_padded_to_captured_sizes() -> None:
    assert [padded(n) for n in (0, 1, 2, 3, 5, 9, 256, 257, 512, 1000)] == [
        1,
        1,
        2,
        4,
        8,
        16,
        256,
        272,
        512,
        1024,
    ]
    assert Ranged(1, 2, 3).at("high") == 3
