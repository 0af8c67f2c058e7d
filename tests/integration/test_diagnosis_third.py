"""Conclusions from the third set of real captures, one of each class, against the independent answers of its README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.summary import Summary
from llm_perf_opt.summary.file import load_summary

OWN_KEY = re.compile(r"\b(?:model|infer|run|dataset|pipeline)\.[a-z_]+")
NAMES = (
    "normalization_layer_test",
    "alexnet_warmup",
    "sglang_qwen3_8b_prefill",
    "negative_queue_rank0",
    "trace_diff_control_control",
    "trace_diff_test_test",
    "mi300_qwen1.5_0.5b",
    "sdpa_04_large_head_dim",
)


@pytest.fixture(scope="module")
def folder(shared_data: Path) -> Path:
    found = shared_data / "torch-traces-third"
    if not found.is_dir():
        pytest.skip("the third set of traces is not here")
    return found


@pytest.fixture(scope="module")
def summaries(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Summary]:
    found = {
        name: ingest(tmp_path_factory.mktemp(name) / "run", "--trace", folder / f"{name}.json.gz")
        for name in NAMES
    }
    ranks = [word for path in sorted((folder / "dlrm_8_ranks").iterdir()) for word in ("--trace", path)]
    found["dlrm"] = ingest(tmp_path_factory.mktemp("dlrm") / "run", *ranks)
    found["mock"] = ingest(tmp_path_factory.mktemp("mock") / "run", "--nsys", folder / "mock.sqlite")
    return found


def ingest(out: Path, *arguments: object) -> Summary:
    assert main(["ingest", "--out", str(out), *(str(argument) for argument in arguments)]) == 0
    return load_summary(out)


def ids(found: Summary) -> list[str]:
    return [one.id for one in found.findings]


def share(found: Summary, part: str) -> float:
    return sum(one.share_ratio for one in found.budget["all"].parts if one.name == part)


@pytest.mark.parametrize("name", ["normalization_layer_test", "alexnet_warmup"])
def test_one_off_costs_are_the_conclusion_and_no_gain(summaries: dict[str, Summary], name: str) -> None:
    found = summaries[name]
    assert found.verdicts["all"].bound == "one-off"
    assert ids(found) == ["one-off-costs"]
    assert found.findings[0].gain_upper_s is None
    assert share(found, "one-off") > 0.95


def test_first_launches_are_distinguished_from_later_ones(summaries: dict[str, Summary]) -> None:
    metrics = summaries["normalization_layer_test"].metrics
    assert (metrics["first_launches"], metrics["repeated_launches"]) == (
        pytest.approx(36, abs=5),
        pytest.approx(132, abs=5),
    )
    assert metrics["first_launch_s"] == pytest.approx(1.090, rel=0.01)


def test_a_busy_device_names_the_slow_product(summaries: dict[str, Summary]) -> None:
    found = summaries["sglang_qwen3_8b_prefill"]
    assert found.verdicts["prefill"].bound == "compute"
    (slow,) = found.findings
    assert slow.id == "slow-kernels"
    for phrase in ("49.4 %", "457 TFLOP/s", "543 TFLOP/s to 629 TFLOP/s", "24576"):
        assert phrase in slow.evidence[0]
    assert found.utilisation["prefill"].mfu_ratio == pytest.approx(0.33, abs=0.005)


def test_attention_far_below_the_device_is_reported_with_low_confidence(
    summaries: dict[str, Summary],
) -> None:
    (slow,) = summaries["sdpa_04_large_head_dim"].findings
    assert (slow.id, slow.confidence, slow.gain_upper_s) == ("slow-kernels", "low", None)
    assert "84.3 TFLOP/s" in slow.evidence[0]


def test_communication_is_the_largest_and_clocks_agree(summaries: dict[str, Summary]) -> None:
    found = summaries["dlrm"]
    assert found.verdicts["all"].bound == "communication"
    assert share(found, "communication") == pytest.approx(0.400, abs=0.001)
    assert share(found, "launch") == pytest.approx(0.353, abs=0.001)
    assert found.communication is not None and found.communication.straggler == 7
    assert not any("clocks" in note for note in found.notes)


def test_a_queue_of_earlier_launches_is_not_the_hosts(summaries: dict[str, Summary]) -> None:
    found = summaries["negative_queue_rank0"]
    assert (found.verdicts["all"].bound, ids(found)[0]) == ("queue", "queued-work")
    assert not {"host-idle", "launch-bound"} & set(ids(found))
    assert share(found, "host") * found.budget["all"].span_s < 0.0138
    exposed = next(one for one in found.findings if one.id == "exposed-communication")
    assert exposed.gain_upper_s == pytest.approx(0.18457, rel=0.001)


def test_one_synchronisation_is_no_habit(summaries: dict[str, Summary]) -> None:
    found = summaries["mi300_qwen1.5_0.5b"]
    assert ids(found) == ["unfused-elementwise"]


def test_two_kernels_are_too_little(summaries: dict[str, Summary]) -> None:
    found = summaries["mock"]
    assert found.verdicts["all"].bound == "unknown" and found.findings == []


def test_copies_within_the_device_are_not_to_be_pinned(summaries: dict[str, Summary]) -> None:
    copies = next(one for one in summaries["trace_diff_test_test"].findings if one.id == "copies")
    assert "within the device" in copies.advice and "Pin" not in copies.advice


def test_no_advice_names_our_keys(summaries: dict[str, Summary]) -> None:
    assert [
        one.advice for found in summaries.values() for one in found.findings if OWN_KEY.search(one.advice)
    ] == []


def test_captures_of_different_jobs_are_refused(folder: Path, tmp_path: Path) -> None:
    pair = [folder / f"trace_diff_{name}.json.gz" for name in ("control_control", "test_test")]
    assert (
        main(
            ["ingest", "--out", str(tmp_path / "run"), *(str(w) for path in pair for w in ("--trace", path))]
        )
        == 3
    )
