"""Reports of real captures say what the captures say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core import units
from llm_perf_opt.reporting.wording import BOUND_NAMES, BOUNDS, FINDINGS, PHASE_NAMES, PHASES, capitalised
from llm_perf_opt.summary.file import load_summary


@pytest.fixture(scope="module")
def rtx5090(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DeepSeek-OCR run measured elsewhere: wall-clock, kernel table and kernel counters."""
    folder = shared_data / "rtx5090-deepseek-ocr"
    out = tmp_path_factory.mktemp("rtx5090")
    timings = out / "timings.json"
    timings.write_text(json.dumps({"samples": 20, "new_tokens": 64, "prefill_s": 0.0983, "decode_s": 0.7074}))
    argv = ["ingest", "--timings", str(timings), "--ncu", str(folder / "ncu"), "--out", str(out / "run")]
    argv += ["--nsys", str(folder / "nsys" / "all-stage.cuda_gpu_kern_sum.csv")]
    assert main([*argv, "--device", "NVIDIA GeForce RTX 5090", "--dtype", "bfloat16"]) == 0
    return out / "run"


def test_report_shows_that_decode_waits_for_launches(rtx5090: Path) -> None:
    page = (rtx5090 / "report.md").read_text("utf-8")
    summary = load_summary(rtx5090)
    first = summary.findings[0]
    assert (summary.verdicts["decode"].bound, first.id, first.phase) == ("launch", "launch-bound", "decode")
    assert f"- **decode: {BOUND_NAMES['launch']}" in page
    assert re.search(rf"\| {PHASE_NAMES['all']} \| 30\.\d % \|", page)
    assert first.title in page.split("## Time")[0]
    plain = (rtx5090 / "stakeholder_summary.md").read_text("utf-8")
    assert f"- {capitalised(PHASES['decode'])}: {BOUNDS['launch']}" in plain
    problem = re.escape(FINDINGS["launch-bound"].problem)
    assert re.search(
        rf"^1\. \*\*{problem}\*\* .*{re.escape(units.seconds(first.gain_upper_s))}, \d+",
        plain,
        re.MULTILINE,
    )


def test_kernels_are_listed_with_both_verdicts_and_full_names(rtx5090: Path) -> None:
    summary = json.loads((rtx5090 / "summary.json").read_text("utf-8"))
    page = (rtx5090 / "kernels.md").read_text("utf-8")
    html = (rtx5090 / "report.html").read_text("utf-8")
    assert html.count('data-key="kernel-') == len(summary["kernels"])
    judged = [kernel for kernel in summary["kernels"] if kernel["vendor_verdict"]]
    assert judged
    for kernel in judged:
        assert kernel["name"] in page
    verdicts = page[page.index("## Verdicts of NVIDIA's rules") : page.index("## Full names")]
    shown = re.findall(r"^- \*\*\d+\*\*: ", verdicts, flags=re.MULTILINE)
    assert len(shown) == len(judged)


def test_families_of_the_page_are_those_of_the_summary(rtx5090: Path) -> None:
    summary = json.loads((rtx5090 / "summary.json").read_text("utf-8"))
    families = summary["kernel_families"]
    total = sum(kernel["total_s"] or 0.0 for kernel in summary["kernels"])
    assert sum(family["total_s"] for family in families) == pytest.approx(total)
    assert sum(family["share_ratio"] for family in families) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "name", ["Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "gaunernst_bert-small-uncased__1016001.json.gz"]
)
def test_trace_reports_are_whole_and_small(shared_data: Path, tmp_path: Path, name: str) -> None:
    assert (
        main(["ingest", "--trace", str(shared_data / "h100-torch-traces" / name), "--out", str(tmp_path)])
        == 0
    )
    html = (tmp_path / "report.html").read_text("utf-8")
    assert len(html) < 3_000_000
    for section in ("budget", "timeline", "kernels", "operators"):
        assert f'<section id="{section}">' in html
    assert (tmp_path / "torch_profiler" / "operators.md").read_text("utf-8").startswith("# Operators")
