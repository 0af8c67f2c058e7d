"""``static_compute.json`` and ``static_compute.md``: round trips, damaged files, what a reader sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from llm_perf_opt.analysis.static.counts import Conventions
from llm_perf_opt.analysis.static.mean import mean_document
from llm_perf_opt.captures.documents import load_static, save_document
from llm_perf_opt.config.schema import InferConfig
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.reporting.static_page import render_static_report, static_charts
from llm_perf_opt.stages.static_analysis import StaticAnalysisStage
from llm_perf_opt.summary import Hardware, Peak
from llm_perf_opt.summary.codec import to_plain
from llm_perf_opt.summary.static import StaticDocument
from llm_perf_opt.workloads.base import PhaseShapes
from llm_perf_opt.workloads.counting.static_run import StaticCounter
from llm_perf_opt.workloads.models.hf_causal_lm import HfCausalLmAdapter
from tests.unit.small_workloads import model_config


@pytest.fixture(scope="module")
def counter() -> StaticCounter:
    adapter = HfCausalLmAdapter(model_config("qwen_moe", name="a|model\nwith <b>odd</b> name"), InferConfig())
    return StaticCounter(adapter, torch.bfloat16, name="a|model\nwith <b>odd</b> name")


@pytest.fixture(scope="module")
def document(counter: StaticCounter) -> StaticDocument:
    return counter.document(PhaseShapes(2, 32, 0, 40), decode_steps=9)


def test_the_file_is_the_summary_static_and_more(document: StaticDocument, tmp_path: Path) -> None:
    path = save_document(tmp_path / "static_compute.json", document)
    static = load_static(path)
    assert static.source == "static_compute.json"
    static.source = None
    assert to_plain(static) == to_plain(document.static)
    plain = json.loads(path.read_text())
    assert plain["totals"] == to_plain(document.totals)
    assert {"model", "shapes", "totals", "cross_checks", "resident", "kv_layers", "methods"} <= set(plain)
    assert isinstance(plain["phases"]["prefill"]["flops"], int)  # exact: no exponent, no rounding


def test_totals_are_sums_of_what_was_counted(counter: StaticCounter, document: StaticDocument) -> None:
    steps = [
        counter.document(PhaseShapes(2, 32, 0, 32 + i)).static.phases["decode"].flops or 0 for i in range(9)
    ]
    assert document.totals.decode_flops == sum(steps)
    assert document.totals.request_flops == sum(steps) + (document.totals.prefill_flops or 0)
    assert document.totals.vision_flops is None


def test_the_summary_takes_the_count_at_the_shapes_of_the_run(
    tmp_path: Path, document: StaticDocument
) -> None:
    stage = StaticAnalysisStage()
    assert stage.facts(tmp_path).static is None
    configured = save_document(tmp_path / "static_analysis" / "static_compute.json", document)
    assert stage.facts(tmp_path).sources == {"static": (configured,)}
    at_run = save_document(tmp_path / "static_analysis" / "static_run.json", document)
    facts = stage.facts(tmp_path)
    assert facts.sources == {"static": (at_run,)}
    assert facts.static_document is not None  # the page stays that of the configured shapes


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe", b'{"params": 3}', b"[" * 100_000])
def test_damaged_documents_are_an_input_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "static_compute.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        load_static(path)
    with pytest.raises(InputError):
        load_static(tmp_path / "absent.json")


def test_the_report_shows_conventions_totals_and_a_folded_tree(document: StaticDocument) -> None:
    charts = static_charts(document)
    report = render_static_report(document, charts=list(charts))
    for phrase in document.static.conventions.values():
        assert phrase.split(":")[0][:20] in report
    assert f"{document.totals.request_flops:,.0f}".replace(",", "\u202f") in report
    assert "0-1 ×2" in report
    assert "<b>" not in report
    heading = report.splitlines()[0]
    assert heading.startswith("# Static analysis: ")
    rows = [line for line in report.splitlines() if line.startswith("| &emsp;")]
    assert len({line.count(" | ") for line in rows}) == 1
    assert all(svg.lstrip().startswith("<svg") or "<svg" in svg[:200] for svg in charts.values())
    assert {name for name in charts if name in report} == set(charts)


def test_the_mean_of_several_shapes_weighs_batches(counter: StaticCounter) -> None:
    short, long = (counter.document(PhaseShapes(1, prompt, 0, prompt)) for prompt in (16, 64))
    mean = mean_document([(short, 3), (long, 1)])
    for name in ("prefill", "decode"):
        first, second = short.static.phases[name].flops or 0, long.static.phases[name].flops or 0
        assert mean.static.phases[name].flops == pytest.approx((3 * first + second) / 4)
    rows = {row.name: row for row in mean.static.modules}
    assert rows[""].flops["prefill"] == pytest.approx(mean.static.phases["prefill"].flops)
    assert [shape.prompt_tokens for shape in mean.shapes] == [16, 64]
    assert mean.static.params == short.static.params
    assert isinstance(mean_document([(short, 1), (short, 1)]).static.phases["prefill"].flops, float)
    assert mean_document([(short, 5)]) is short


def test_both_conventions_are_named_in_the_document() -> None:
    text = Conventions("halved", "all", "per_layer").describe()
    assert text["attention"].startswith("halved")
    assert text["head_positions"].startswith("all")
    assert text["rotary"].startswith("per_layer")


def test_a_device_with_limits_gets_a_roofline_and_its_memory_as_a_level(document: StaticDocument) -> None:
    peak = Peak(1e13, "test")
    device = Hardware("Test GPU", "gpu", {"bfloat16": peak}, 1e12, "user", memory_bytes=2.0**24)
    charts = static_charts(document, device)
    assert "Test GPU" in charts["roofline.svg"]
    assert "Test GPU" in charts["memory_by_context.svg"]
    unknown = Hardware("Test GPU", "gpu", {"float16": peak}, 1e12, "user")
    assert "roofline.svg" not in static_charts(document, unknown)
    assert "roofline.svg" not in static_charts(document)
