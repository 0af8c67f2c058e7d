"""Conclusions from real captures, against answers that were computed from the files without any of our code.

They are in the README of ``torch-traces-more``: busy is the union of all device activity, exposed communication is the
union of its kernels without that of everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core import units
from llm_perf_opt.summary import Summary
from llm_perf_opt.summary.file import load_summary

MS = 1e-3
ROUNDING_S = 1e-6
"""The answers have three places of a millisecond."""


@dataclass(frozen=True)
class Answer:
    kernels: int
    kernel_ms: float
    span_ms: float
    busy_ms: float
    communication_ms: float = 0.0
    exposed_ms: float = 0.0


ANSWERS = {
    "mi300-resnet-training-rccl": Answer(2_995, 97.256, 86.568, 84.002, 71.517, 55.288),
    "mi300-sglang-qwen3-8b-decode": Answer(555, 9.765, 473.750, 9.773),
    "mi300-vllm-piecewise-graphs": Answer(413, 156.009, 156.466, 156.086),
    "mi300-owlv2-inference": Answer(4_255, 327.420, 908.338, 331.816),
    "two-ranks-rank0": Answer(1_154, 606.519, 1_222.847, 547.656, 396.199, 336.033),
    "two-ranks-rank1": Answer(1_104, 651.026, 1_231.186, 580.050, 379.053, 299.495),
}


@pytest.fixture(scope="module")
def traces(shared_data: Path) -> Path:
    return shared_data / "torch-traces-more"


@pytest.fixture(scope="module")
def summaries(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Summary]:
    """Every trace by itself, read once for all tests."""
    return {
        name: ingest(tmp_path_factory.mktemp(name) / "run", "--trace", traces / f"{name}.json.gz")
        for name in ANSWERS
    }


def ingest(out: Path, *arguments: object) -> Summary:
    assert main(["ingest", "--out", str(out), *(str(argument) for argument in arguments)]) == 0
    return load_summary(out)


def parts(found: Summary, phase: str = "all") -> dict[str, float]:
    return {part.name: part.seconds for part in found.budget[phase].parts}


@pytest.mark.parametrize("name", ANSWERS)
def test_figures_equal_the_independent_answers(summaries: dict[str, Summary], name: str) -> None:
    found, answer = summaries[name], ANSWERS[name]
    assert found.metrics["kernel_launches"] == answer.kernels
    assert found.metrics["kernel_time_s"] == pytest.approx(answer.kernel_ms * MS, abs=ROUNDING_S)
    (device,) = found.devices
    backlog = device.backlog_s if name == "mi300-sglang-qwen3-8b-decode" else 0.0
    assert (device.span_s or 0) + (backlog or 0) == pytest.approx(answer.span_ms * MS, abs=ROUNDING_S)
    assert device.busy_s == pytest.approx(answer.busy_ms * MS, abs=ROUNDING_S)
    assert device.communication_s == pytest.approx(answer.communication_ms * MS, abs=ROUNDING_S)
    assert device.exposed_communication_s == pytest.approx(answer.exposed_ms * MS, abs=ROUNDING_S)
    assert (found.communication is not None) is (answer.communication_ms > 0)


@pytest.mark.parametrize("name", ANSWERS)
def test_budgets_of_real_captures_are_whole(summaries: dict[str, Summary], name: str) -> None:
    found = summaries[name]
    for budget in found.budget.values():
        assert sum(part.seconds for part in budget.parts) == pytest.approx(budget.span_s)
        assert all(0 <= part.share_ratio <= 1 for part in budget.parts)
    # Parts do not overlap, and what lies between phases has those left off: no time is claimed twice.
    losses = [one for one in found.findings if one.id in LOSSES and one.gain_upper_s is not None]
    assert sum(one.gain_upper_s or 0.0 for one in losses) <= found.budget["all"].span_s * 1.001


LOSSES = {
    "exposed-communication", "copies", "host-sync", "launch-bound", "allocation", "input-pipeline", "host-idle", "queued-work",
}  # fmt: skip


def test_exposed_communication_is_the_loss_of_the_training_step(summaries: dict[str, Summary]) -> None:
    found = summaries["mi300-resnet-training-rccl"]
    assert found.verdicts["all"].bound == "communication"
    first = found.findings[0]
    assert first.id == "exposed-communication"
    assert first.gain_upper_s == pytest.approx(55.288 * MS, abs=ROUNDING_S)
    assert not {one.id for one in found.findings} & {"launch-bound", "host-sync", "input-pipeline"}
    talk = found.communication
    assert talk is not None
    rows = {one.name: one for one in talk.collectives}
    assert rows["all_reduce"].group_size == 8
    assert rows["all_reduce"].bytes is not None and rows["all_reduce"].bytes > 2 * 2_873_320


def test_a_backlog_is_not_idleness(summaries: dict[str, Summary]) -> None:
    """The stream was full of an earlier prefill: launches at 0.2 ms start at 463.3 ms."""
    found = summaries["mi300-sglang-qwen3-8b-decode"]
    (device,) = found.devices
    assert device.backlog_s == pytest.approx(463.25 * MS, abs=0.1 * MS)
    assert device.busy_ratio is not None and device.busy_ratio > 0.9
    assert any(units.seconds(device.backlog_s) in note for note in found.notes)
    assert found.budget["all"].span_s == pytest.approx((473.75 - 463.25) * MS, abs=0.1 * MS)
    assert all((one.gain_upper_s or 0.0) < 1 * MS for one in found.findings if one.id in LOSSES)


def test_a_full_device_is_full_however_early_its_work_was_launched(summaries: dict[str, Summary]) -> None:
    found = summaries["mi300-vllm-piecewise-graphs"]
    assert found.utilisation["all"].device_busy_ratio == pytest.approx(0.9976, abs=1e-4)
    assert not [one for one in found.findings if one.id in LOSSES]
    assert found.verdicts["all"].bound == "unknown"
    assert found.verdicts["all"].arithmetic.startswith("kernels run for 99.7 %")


def test_the_input_pipeline_owns_the_idle_time(summaries: dict[str, Summary]) -> None:
    found = summaries["mi300-owlv2-inference"]
    split = parts(found)
    idle = sum(seconds for name, seconds in split.items() if name not in ("compute", "communication", "copy"))
    assert idle == pytest.approx((908.338 - 331.816) * MS, abs=ROUNDING_S)
    assert split["data"] == pytest.approx(562.7 * MS, abs=2 * MS)
    assert found.verdicts["all"].bound == "host"
    assert "DataLoader" in found.verdicts["all"].arithmetic
    first = found.findings[0]
    assert (first.id, first.gain_upper_s) == ("input-pipeline", pytest.approx(split["data"]))
    assert "more loader workers" in first.advice and "CUDA graph" not in first.advice
    gaps = found.idle_gaps[:4]
    assert all(138 * MS <= gap.seconds <= 143 * MS for gap in gaps)
    assert {gap.owner.what for gap in gaps} == {"data loading"}
    assert {gap.owner.range for gap in gaps} == {
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    }
    assert all(gap.seconds < 1 * MS for gap in found.idle_gaps[4:])


# two ranks of 128


@pytest.mark.parametrize("given", ["two options", "a folder"])
def test_two_ranks_are_joined(traces: Path, tmp_path: Path, given: str) -> None:
    files = [traces / f"two-ranks-rank{rank}.json.gz" for rank in (0, 1)]
    if given == "a folder":
        folder = tmp_path / "traces"
        folder.mkdir()
        for file in files:
            (folder / file.name).symlink_to(file)
        found = ingest(tmp_path / "run", "--trace", folder)
    else:
        found = ingest(tmp_path / "run", "--trace", files[0], "--trace", files[1])
    answers = [ANSWERS["two-ranks-rank0"], ANSWERS["two-ranks-rank1"]]
    assert [row.rank for row in found.ranks] == [0, 1]
    for row, answer in zip(found.ranks, answers, strict=True):
        assert row.span_s == pytest.approx(answer.span_ms * MS, abs=ROUNDING_S)
        assert row.busy_ratio == pytest.approx(answer.busy_ms / answer.span_ms, abs=1e-5)
        assert row.exposed_communication_s == pytest.approx(answer.exposed_ms * MS, abs=ROUNDING_S)
        assert row.waits_s is not None and 0 <= row.waits_s <= answer.communication_ms * MS
    talk = found.communication
    assert talk is not None
    assert talk.exposed_s == pytest.approx((336.033 + 299.495) / 2 * MS, abs=ROUNDING_S)
    assert talk.total_s == pytest.approx((396.199 + 379.053) / 2 * MS, abs=ROUNDING_S)
    assert found.metrics["kernel_launches"] == 1_154 + 1_104
    assert found.budget["all"].span_s == pytest.approx((1_222.847 + 1_231.186) / 2 * MS, abs=ROUNDING_S)
    assert any("2 of 128 ranks" in note and "126" in note for note in found.notes)
    report = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert "rank" in report.casefold()


def test_one_rank_of_many_is_labelled(summaries: dict[str, Summary]) -> None:
    (row,) = summaries["two-ranks-rank1"].ranks
    assert (row.rank, row.waits_s) == (1, None)


# a capture with nothing to recover


def test_a_healthy_capture_has_no_gain_and_no_loss(shared_data: Path, tmp_path: Path) -> None:
    found = ingest(tmp_path / "run", "--nsys", shared_data / "nsys-labelled" / "healthy.sqlite")
    assert found.findings == []
    assert found.budget["all"].span_s == pytest.approx(4.038, abs=0.002)
    assert found.utilisation["all"].device_busy_ratio == pytest.approx(4.0 / 4.038, abs=1e-3)
    page = (tmp_path / "run" / "stakeholder_summary.md").read_text(encoding="utf-8")
    assert "at most" not in page  # no gain is promised
