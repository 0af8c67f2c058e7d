"""Rules about kernels on real captures: one that has each problem, and those that have not."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main

RULES = {"eager-attention", "misaligned-gemm", "old-flash-attention", "unfused-elementwise"}
OWLV2 = "torch-traces-more/mi300-owlv2-inference.json.gz"
QWEN = "h100-torch-traces/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], dict[str, Any]]:
    """Return the summary of a capture, ingested once."""

    @functools.cache
    def read(capture: Path) -> dict[str, Any]:
        out = tmp_path_factory.mktemp("run") / "run"
        flag = "--trace" if capture.name.endswith(".json.gz") else "--nsys"
        assert main(["ingest", "--out", str(out), flag, str(capture)]) == 0
        found: dict[str, Any] = json.loads((out / "summary.json").read_text("utf-8"))
        return found

    return read


Ingested = Callable[[Path], dict[str, Any]]


@pytest.mark.parametrize(
    ("capture", "expected"),
    [
        ("nsys-labelled/healthy.sqlite", set()),
        ("h100-nsys/h100_2gpu_1s.sqlite", set()),
        ("torch-traces-more/mi300-resnet-training-rccl.json.gz", {"unfused-elementwise"}),
        ("torch-traces-more/mi300-sglang-qwen3-8b-decode.json.gz", set()),
        ("torch-traces-more/mi300-vllm-piecewise-graphs.json.gz", set()),
        (OWLV2, {"eager-attention"}),
        (QWEN, {"old-flash-attention", "unfused-elementwise"}),
        # 0.3 ms of kernels: below the evidence floor of kernel rules.
        ("h100-torch-traces/gaunernst_bert-small-uncased__1016001.json.gz", set()),
        ("rtx5090-deepseek-ocr/nsys/all-stage.cuda_gpu_kern_sum.csv", {"unfused-elementwise"}),
    ],
)
def test_findings_of_real_captures(
    shared_data: Path, ingested: Ingested, capture: str, expected: set[str]
) -> None:
    summary = ingested(shared_data / capture)
    assert {finding["id"] for finding in summary["findings"]} & RULES == expected
    assert summary["coverage"]["kernel_time_classified_ratio"] == pytest.approx(1.0)
    assert not [kernel for kernel in summary["kernels"] if kernel["name"].startswith("_Z")]


def test_a_capture_labelled_healthy_is_promised_no_gain(shared_data: Path, ingested: Ingested) -> None:
    assert ingested(shared_data / "nsys-labelled" / "healthy.sqlite")["findings"] == []


def test_eager_attention_is_priced_by_its_softmax(shared_data: Path, ingested: Ingested) -> None:
    summary = ingested(shared_data / OWLV2)
    (found,) = [one for one in summary["findings"] if one["id"] == "eager-attention"]
    softmax = sum(kernel["total_s"] for kernel in summary["kernels"] if kernel["family"] == "softmax")
    assert softmax == pytest.approx(0.1540, abs=1e-4)  # 153.7 + 0.3 ms by the trace's own durations
    assert found["gain_upper_s"] == pytest.approx(softmax, rel=0.02)
    assert found["confidence"] == "high"
    assert summary["hardware"]["name"] == "AMD Instinct MI300X VF"
