"""``ingest --serving`` end to end: records in, summary and reports out; comparison and gates on serving metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from tests.unit.serving_records import Plan, simulate, write_lines


def ingest(out: Path, *arguments: str) -> dict[str, Any]:
    assert main(["ingest", *arguments, "--out", str(out)]) == 0
    return json.loads((out / "summary.json").read_text())  # type: ignore[no-any-return]


def load(folder: Path, plan: Plan) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    simulated = simulate(plan)
    requests = write_lines(folder / "requests.jsonl", simulated.own_requests())
    steps = write_lines(folder / "steps.jsonl", simulated.vllm_steps())
    return ["--serving", str(requests), "--serving-steps", str(steps), "--slo", "ttft:500ms,tpot:50ms"]


def test_summary_and_reports_of_a_prefill_bound_server(tmp_path: Path) -> None:
    plan = Plan(requests=150, rate_per_s=2.0, long_prompt_every=4, long_prompt=8000, prefill_token_s=1e-4)
    summary = ingest(tmp_path / "out", *load(tmp_path, plan))
    (point,) = summary["serving"]["load"]
    assert sum(point["ttft_parts_s"].values()) == pytest.approx(point["ttft_s"]["mean"], rel=1e-6)
    assert summary["findings"][0]["id"] == "serving-prefill"
    assert "--max-num-batched-tokens" in summary["findings"][0]["advice"]
    assert 0 < point["goodput_per_s"] <= point["completed_per_s"]
    assert summary["serving"]["coverage_ratio"] == 1.0
    report = (tmp_path / "out" / "report.md").read_text()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "## Serving" in report and "Where the time of a request went" in page
    assert page.count("Parts of the TTFT") and "engine steps" in page


def test_text_from_records_is_escaped(tmp_path: Path) -> None:
    arguments = load(tmp_path, Plan(requests=120))
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    for line in lines[1:]:
        line["id"] = f"<script>alert(1)</script>{line['id']}"
    write_lines(tmp_path / "requests.jsonl", lines)
    ingest(tmp_path / "out", *arguments)
    assert "<script>alert" not in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--serving", "{}/absent.json"], 3, "does not exist"),
        (["--serving-steps", "{}/requests.jsonl"], 2, "needs --serving"),
        (["--serving", "{}/requests.jsonl", "--slo", "speed:1s"], 2, "is not NAME:TIME"),
        (
            ["--serving", "{}/requests.jsonl", "--serving-steps", "{}/requests.jsonl"],
            3,
            "contains no step records",
        ),
        (["--serving", "{}/damaged.json"], 3, "not valid JSON"),
    ],
)
def test_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, text: str
) -> None:
    load(tmp_path, Plan(requests=20))
    (tmp_path / "damaged.json").write_text('{"load_summary": {')
    filled = [argument.replace("{}", str(tmp_path)) for argument in arguments]
    assert main(["ingest", *filled, "--out", str(tmp_path / "out")]) == code
    assert text in capsys.readouterr().err


def test_gates_on_serving_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, step_s in (("a", 0.010), ("b", 0.0101), ("c", 0.020)):
        ingest(
            tmp_path / name,
            *load(tmp_path / f"{name}-records", Plan(requests=400, step_s=step_s, seed=len(name))),
        )
    compare = ["compare", str(tmp_path / "a")]
    assert main([*compare, str(tmp_path / "b"), "--gate", "ttft_p99:+50%", "--gate", "goodput:-20%"]) == 0
    assert main([*compare, str(tmp_path / "c"), "--gate", "ttft_p50:+5%"]) == 1
    assert "ttft_p50" in capsys.readouterr().out


def test_incomplete_measurement_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latency = {"unit": "ms", "avg": 800.0, "p50": 790.0, "p99": 990.0}
    for name, complete in (("a", True), ("b", False)):
        summary = {
            "schema_version": "1.4",
            "request_latency": latency,
            "time_to_first_token": latency,
            "request_count": {"avg": 9},
        }
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**summary, "is_complete": complete}))
        ingest(tmp_path / name, "--serving", str(path))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 3
    assert "incomplete" in capsys.readouterr().err


def test_what_cannot_be_compared_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other loads have no change, and other tools a note."""
    for name, rate in (("a", 2.0), ("b", 20.0)):
        ingest(tmp_path / name, *load(tmp_path / f"{name}-records", Plan(requests=60, rate_per_s=rate)))
    result = {"backend": "openai", "model_id": "m", "num_prompts": 2, "request_rate": 2.0, "duration": 1.0, "completed": 2, "failed": 0,
              "request_throughput": 2.0, "output_throughput": 6.0, "total_input_tokens": 8, "total_output_tokens": 6,
              "mean_ttft_ms": 15.0, "median_ttft_ms": 15.0, "p99_ttft_ms": 20.0}  # fmt: skip
    (tmp_path / "bench.json").write_text(json.dumps({"date": "x", **result}))
    ingest(tmp_path / "c", "--serving", str(tmp_path / "bench.json"))
    comparisons = {}
    for other in ("b", "c"):
        gate = ["--gate", "ttft_p99:+5%", "--out", str(tmp_path / f"a{other}")]
        assert main(["compare", str(tmp_path / "a"), str(tmp_path / other), *gate]) in (0, 1)
        comparisons[other] = json.loads((tmp_path / f"a{other}" / "comparison.json").read_text())
    metrics = {one["name"]: one for one in comparisons["b"]["metrics"]}
    assert metrics["ttft_p99"]["ratio"] is None and "no load in common" in metrics["ttft_p99"]["note"]
    assert comparisons["b"]["gates"][0]["status"] == "not comparable"
    assert not any("different load tools" in note for note in comparisons["b"]["notes"])
    assert any("different load tools" in note for note in comparisons["c"]["notes"])
    assert {one["name"]: one for one in comparisons["c"]["metrics"]}["ttft_p99"]["ratio"] is not None
