"""Prefill and decode on different workers: read where an engine reports it, else nothing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.serving.section import analyse_serving
from llm_perf_opt.captures.serving.reader import read_serving
from llm_perf_opt.reporting.serving_page import describe_disaggregation
from llm_perf_opt.summary.serving import Disaggregation
from tests.unit.serving_records import write_lines

AT = 1.7e9


def read(folder: Path, lines: list[dict[str, Any]]) -> Disaggregation | None:
    return analyse_serving(
        read_serving([write_lines(folder / "records.jsonl", lines)])
    ).serving.disaggregation


def dynamo(number: int, worker: dict[str, Any], transfer_ms: object) -> dict[str, Any]:
    request = {
        "request_id": f"r{number}", "input_tokens": 10, "output_tokens": 4, "request_received_ms": (AT + number) * 1e3,
        "ttft_ms": 50.0, "total_time_ms": 90.0, "kv_transfer_estimated_latency_ms": transfer_ms, "worker": worker,
    }  # fmt: skip
    return {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}


def test_dynamo_states_workers_and_transfers(tmp_path: Path) -> None:
    apart, same = ({"prefill_worker_id": 1, "decode_worker_id": other} for other in (2, 1))
    found = read(
        tmp_path, [dynamo(0, apart, 4.0), dynamo(1, apart, 6.0), dynamo(2, apart, "x"), dynamo(3, same, 9.0)]
    )
    assert found is not None and found.requests == 3
    assert found.transfer_s is not None
    assert (found.transfer_s.n, found.transfer_s.p50) == (2, pytest.approx(0.005))
    assert "3 requests" in describe_disaggregation(found) and "estimated" in describe_disaggregation(found)
    assert read(tmp_path, [dynamo(0, same, 4.0), dynamo(1, {}, 4.0)]) is None


@pytest.mark.parametrize("histogram", [False, True])
def test_sglang_metrics_of_transfers(tmp_path: Path, histogram: bool) -> None:
    def sample(number: int) -> dict[str, Any]:
        values = {"sglang:num_running_reqs": 1.0}
        named = {"latency_ms": 4.0, "speed_gb_s": 20.0, "bootstrap_ms": 2.0}
        for name, value in named.items():
            base = f"sglang:kv_transfer_{name}"
            # The first sample holds what was before the load.
            parts = {f"{base}_sum": 100.0 + value * 10 * number, f"{base}_count": 3.0 + 10 * number}
            values |= parts if histogram else {base: value if number else 0.0}
        return {"time_s": AT + number, "metrics": values}

    found = read(tmp_path, [sample(number) for number in range(3)])
    assert found is not None and found.source == "SGLang metrics" and found.requests is None
    assert found.transfer_s is not None and found.transfer_s.mean == pytest.approx(0.004)
    assert found.bytes_per_s == pytest.approx(20e9) and found.bootstrap_s == pytest.approx(0.002)
    assert found.alloc_s is None
    assert read(tmp_path, [{"time_s": AT, "metrics": {"sglang:num_running_reqs": 1.0}}]) is None
