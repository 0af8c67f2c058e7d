"""Captures with all launches the model needs, and captures of a part: what is derived from them, and what not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.captures import (
    attention_layers,
    cut_pass,
    matrix_modules,
    most_matrix_launches,
    shortage,
)
from llm_perf_opt.captures.documents import save_document
from llm_perf_opt.cli import main
from llm_perf_opt.summary import Coverage, Kernel, Params, Static, StaticModule, StaticPhase, Summary
from llm_perf_opt.summary.file import load_summary
from llm_perf_opt.summary.static import ShapesUsed, StaticDocument, Totals
from tests.text_facts import mentions
from tests.unit.summaries import kernel

LAYERS, PER_LAYER = 4, 7


def module(name: str, kind: str, component: str = "language_model", **flops: float) -> StaticModule:
    return StaticModule(
        name=name, type=kind, depth=name.count("."), params=1, flops=flops, component=component
    )


def model() -> Static:
    """Four layers of seven projections and attention each, a head, a routed expert, a projector of vision."""
    work = {"prefill": 1e9, "decode": 1e6}
    modules = [
        each
        for layer in range(LAYERS)
        for each in (
            module(f"layers.{layer}.attn", "LlamaSdpaAttention", **work),
            *(module(f"layers.{layer}.p{number}", "Linear", **work) for number in range(PER_LAYER)),
            module(f"layers.{layer}.norm", "RMSNorm"),
            module(f"layers.{layer}.mlp.experts.0.up", "Linear", **work),
        )
    ]
    modules += [
        module("lm_head", "Linear", "lm_head", **work),
        module("projector", "Linear", "projector", vision=1e6),
    ]
    phase = StaticPhase(flops=1e9, weight_bytes=1e9, activation_bytes=0.0, kv_bytes=0.0, intensity=1.0)
    return Static(
        params=Params(1, 1, {}),
        kv_bytes_per_token=None,
        phases={"vision": phase, "prefill": phase, "decode": phase},
        modules=modules,
        coverage=Coverage(1.0, []),
        conventions={},
    )


MODULES = LAYERS * PER_LAYER + 1


def launched(family: str, launches: int, phase: str | None = "decode") -> Kernel:
    return kernel(family, family, 1.0, phase=phase, launches=launches)


def test_modules_that_need_a_launch() -> None:
    assert matrix_modules(model(), "decode") == MODULES
    assert matrix_modules(model(), "vision") == 1
    assert matrix_modules(model(), "decode", "lm_head") == 1
    assert attention_layers(model(), "decode") == LAYERS and attention_layers(model(), "vision") == 0


def test_launches_that_may_be_matrix_products() -> None:
    rows = [launched("gemm", 3), launched("gemv", 4), launched("other", 5), launched("norm", 100)]
    assert most_matrix_launches(rows) == 12
    assert most_matrix_launches([*rows, launched("graph", 1)]) is None  # what is inside a graph is not seen
    assert most_matrix_launches([]) is None


@pytest.mark.parametrize(
    ("launches", "steps", "cut"),
    [
        (MODULES * 10, 10, False),
        (MODULES * 10 * 4 // 7, 10, False),  # query, key and value in one, gate and up in one
        (MODULES * 25, 10, False),  # attention as batched products too
        (MODULES * 3, 10, True),
        (5, 1, True),  # one layer of four
    ],
)
def test_far_fewer_launches_than_the_model_needs_are_a_cut_capture(
    launches: int, steps: int, cut: bool
) -> None:
    found = shortage(
        model(), [launched("gemm", launches), launched("norm", 999)], "decode", {"decode": steps}
    )
    assert (found is not None) is cut
    if found is not None:
        assert (found.launches, found.expected) == (launches, MODULES * steps)
        assert found.phase == "decode"
        assert mentions(found.text, "decode", f"{launches:,}", f"{MODULES * steps:,}")


def test_nothing_is_reported_without_a_static_model_or_with_hidden_launches() -> None:
    few = [launched("gemm", 1)]
    assert shortage(None, few, "decode", {"decode": 10}) is None
    assert shortage(model(), [*few, launched("graph", 9)], "decode", {"decode": 10}) is None
    assert shortage(model(), few, "decode", {}) is None
    assert shortage(model(), [launched("triton", MODULES * 10)], "decode", {"decode": 10}) is None
    assert cut_pass(None, few, "decode", 10) is None


@pytest.mark.parametrize(
    ("launches", "cut"), [(4, False), (40, False), (80, False), (43, False), (7, True), (39, True)]
)
def test_a_capture_that_ends_in_the_middle_of_a_pass(launches: int, cut: bool) -> None:
    found = cut_pass(model(), [launched("attention", launches)], "decode", 10)
    assert (found is not None) is cut
    if found is not None:
        assert f"{launches} attention launches" in found.text and "4 layers" in found.text


# --- through ingest ---------------------------------------------------------------------------------------

HEADER = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"


def table(path: Path, *rows: tuple[str, int, int]) -> Path:
    lines = [f"1.0,{total},{count},1.0,1.0,1,1,0.0,{name}" for name, count, total in rows]
    path.write_text("\n".join([HEADER, *lines, ""]), encoding="utf-8")
    return path


def document(path: Path) -> Path:
    static = model()
    shapes = ShapesUsed(1, 8, 0, 8, 9)
    totals = Totals(None, 1e9, 1e9, 9, 9e6, 1e9, None)
    about = {"name": "m", "architecture": None, "dtype": "bfloat16"}
    return save_document(path, StaticDocument(static, about, [shapes], totals, {}))


def ingested(tmp_path: Path, nsys: Path, wall: dict[str, Any], *more: object) -> Summary:
    timings = tmp_path / "wall.json"
    timings.write_text(json.dumps(wall), encoding="utf-8")
    arguments = ["ingest", "--nsys", nsys, "--timings", timings, "--out", tmp_path / "out", *more]
    assert main([str(argument) for argument in arguments]) == 0
    return load_summary(tmp_path / "out")


DECODE = {"samples": 2, "new_tokens": 11, "decode_s": 0.1}
MS = 1_000_000


def test_decode_alone_suffices_for_a_verdict_of_decode(tmp_path: Path) -> None:
    """Only decode was timed; the table is of all stages, so that its time bounds what decode can have used."""
    nsys = table(tmp_path / "all-stage.csv", ("gemm", 290, 40 * MS))
    found = ingested(tmp_path, nsys, DECODE)
    assert found.verdicts["decode"].bound == "launch"
    assert "at most 20" in found.verdicts["decode"].arithmetic
    assert found.metrics["launches_per_token"] is None
    busy = ingested(tmp_path, table(tmp_path / "all-stage.csv", ("gemm", 290, 180 * MS)), DECODE)
    assert busy.verdicts["decode"].bound == "unknown"


def test_a_table_of_decode_and_the_time_of_decode_give_its_verdict(tmp_path: Path) -> None:
    found = ingested(tmp_path, table(tmp_path / "decode.csv", ("gemm", 290, 30 * MS)), DECODE)
    assert found.verdicts["decode"].bound == "launch"
    assert found.utilisation["decode"].device_busy_ratio == pytest.approx(
        0.3
    )  # of one pass: the most it can be
    assert {row.phase for row in found.kernels} == {"decode"}
    assert found.metrics["launches_per_token"] is None  # how many passes it holds is not known
    assert "all" not in found.verdicts


def test_the_passes_of_a_table_are_in_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "cmd.txt").write_text("nsys profile --capture-range=nvtx --nvtx-capture=decode python x.py\n")
    found = ingested(tmp_path, table(tmp_path / "summary.csv", ("gemm", 290, 80 * MS)), DECODE)
    assert found.utilisation["decode"].device_busy_ratio == pytest.approx(0.8)
    assert found.metrics["launches_per_token"] == pytest.approx(290 / 10)


def test_a_table_that_may_hold_one_pass_or_all_decides_nothing(tmp_path: Path) -> None:
    found = ingested(tmp_path, table(tmp_path / "decode.csv", ("gemm", 290, 90 * MS)), DECODE)
    assert found.verdicts["decode"].bound == "unknown"
    assert any(mentions(note, "decode", "45.0 %", "90.0 %") for note in found.notes)


@pytest.mark.parametrize("name", ["per-stage-sam", "vision", "prefill"])
def test_a_table_of_another_range_is_not_used_for_decode(name: str, tmp_path: Path) -> None:
    """A few kernels of another range must not pass for all the work of decode."""
    found = ingested(tmp_path, table(tmp_path / f"{name}.csv", ("gemm", 290, MS)), DECODE)
    assert found.verdicts["decode"].bound == "unknown"
    assert found.metrics["launches_per_token"] is None
    assert "device_busy_s" not in found.metrics
    assert [finding.id for finding in found.findings if finding.phase == "decode"] == []


def test_the_real_table_of_one_stage_next_to_timings_of_others(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "rtx5090-deepseek-ocr" / "nsys"
    wall = {"samples": 20, "new_tokens": 64, "prefill_s": 0.0983, "decode_s": 0.7074}
    found = ingested(tmp_path, folder / "per-stage-projector.cuda_gpu_kern_sum.csv", wall)
    assert {row.phase for row in found.kernels} == {"vision"}
    assert found.verdicts["decode"].bound == "unknown" and found.metrics["launches_per_token"] is None
    del wall["prefill_s"]
    whole = ingested(tmp_path, folder / "all-stage.cuda_gpu_kern_sum.csv", wall)
    assert whole.verdicts["decode"].bound == "launch"  # 4.946 s of kernels in 20 × 0.7074 s, at most 35 %
    assert "at most 35" in whole.verdicts["decode"].arithmetic


@pytest.mark.parametrize(("launches", "cut"), [(MODULES * 10 * 2, False), (MODULES * 3, True)])
def test_a_cut_capture_is_flagged_and_not_used(launches: int, cut: bool, tmp_path: Path) -> None:
    (tmp_path / "cmd.txt").write_text("nsys profile --capture-range=nvtx --nvtx-capture=decode python x.py\n")
    nsys = table(tmp_path / "summary.csv", ("ampere_sgemm_128x64_nn", launches, 10 * MS))
    found = ingested(tmp_path, nsys, DECODE, "--static", document(tmp_path / "static.json"))
    notes = [note for note in found.notes if "truncated" in note]
    assert bool(notes) is cut
    assert (found.metrics["launches_per_token"] is None) is cut
    assert (found.verdicts["decode"].bound == "launch") is not cut
    if cut:
        assert f"{launches} matrix launches" in notes[0] and str(MODULES * 11) in notes[0].replace(",", "")
