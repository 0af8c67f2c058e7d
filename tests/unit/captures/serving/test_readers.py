"""Readers of serving records: each format, a few rows each, written as the named tools write them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_perf_opt.analysis.serving.section import analyse_serving
from llm_perf_opt.captures.serving.reader import read_serving
from llm_perf_opt.captures.serving.records import STATUS_NAMES, ServingRecords
from llm_perf_opt.core.errors import InputError

VLLM_BENCH = {
    "date": "20261101-101010",
    "endpoint_type": "openai",
    "backend": "openai",
    "model_id": "tiny",
    "num_prompts": 3,
    "request_rate": 4.0,
    "max_concurrency": None,
    "duration": 2.0,
    "completed": 2,
    "failed": 1,
    "total_input_tokens": 30,
    "total_output_tokens": 6,
    "request_throughput": 1.0,
    "request_goodput": None,
    "output_throughput": 3.0,
    "mean_ttft_ms": 150.0,
    "median_ttft_ms": 150.0,
    "p99_ttft_ms": 199.0,
    "mean_e2el_ms": 300.0,
    "input_lens": [10, 20, 10],
    "output_lens": [3, 3, 0],
    "ttfts": [0.1, 0.2, 0.0],
    "itls": [[0.05, 0.05], [0.1, 0.1], []],
    "start_times": [10.0, 10.3, 10.5],
    "errors": ["", "", "Traceback: 429 Too Many Requests"],
}
SGLANG_BENCH = {
    "tag": "run",
    "backend": "sglang",
    "request_rate": "inf",
    "max_concurrency": 8,
    "duration": 10.0,
    "completed": 100,
    "total_input_tokens": 12800,
    "total_output_tokens": 6400,
    "request_throughput": 10.0,
    "output_throughput": 640.0,
    "mean_e2e_latency_ms": 700.0,
    "median_e2e_latency_ms": 690.0,
    "p99_e2e_latency_ms": 900.0,
    "mean_ttft_ms": 70.0,
    "median_ttft_ms": 60.0,
    "p99_ttft_ms": 200.0,
    "mean_tpot_ms": 10.0,
    "median_tpot_ms": 9.9,
    "p99_tpot_ms": 12.0,
    "cache_hit_rate_pct": 25.0,
}
AIPERF_SUMMARY: dict[str, Any] = {
    "schema_version": "1.4",
    "aiperf_version": "0.13.0",
    "benchmark_id": "b1",
    "request_throughput": {"unit": "requests/sec", "avg": 5.0},
    "request_latency": {
        "unit": "ms",
        "avg": 800.0,
        "p50": 790.0,
        "p90": 900.0,
        "p95": 950.0,
        "p99": 990.0,
        "count": 50,
    },
    "request_count": {"unit": "requests", "avg": 50.0},
    "time_to_first_token": {"unit": "ms", "avg": 50.0, "p50": 45.0, "p90": 60.0, "p95": 70.0, "p99": 99.0},
    "inter_token_latency": {"unit": "ms", "avg": 12.0, "p50": 11.0, "p99": 20.0},
    "output_sequence_length": {"unit": "tokens", "avg": 64.0},
    "input_config": {"loadgen": {"concurrency": 4}},
    "is_complete": True,
    "was_cancelled": False,
}


def aiperf_record(
    number: int, phase: str = "profiling", error: dict[str, Any] | None = None
) -> dict[str, Any]:
    start = 1_790_000_000_000_000_000 + number * 250_000_000
    record: dict[str, Any] = {
        "metadata": {
            "x_request_id": f"r{number}",
            "credit_issued_ns": start - 1_000_000,
            "request_start_ns": start,
            "request_end_ns": start + 400_000_000,
            "benchmark_phase": phase,
            "was_cancelled": False,
        },
        "metrics": {
            "time_to_first_token": {"value": 100.0, "unit": "ms"},
            "request_latency": {"value": 400.0, "unit": "ms"},
            "inter_chunk_latency": {"value": [100.0, 100.0, 100.0], "unit": "ms"},
            "output_sequence_length": {"value": 4, "unit": "tokens"},
            "input_sequence_length": {"value": 32, "unit": "tokens"},
        },
    }
    if error is not None:
        record |= {"error": error, "metrics": {}}
    return record


def guidellm_report(kept: int = 2) -> dict[str, Any]:
    requests = [
        {
            "type_": "generative_request_stats",
            "request_id": f"g{k}",
            "prompt_tokens": 100,
            "output_tokens": 11,
            "time_per_output_token_ms": 55.0,
            "info": {
                "status": "completed",
                "timings": {
                    "targeted_start": 100.0 + k,
                    "request_start": 100.01 + k,
                    "first_token_iteration": 100.11 + k,
                    "first_output_token_iteration": 100.31 + k,
                    "last_token_iteration": 100.61 + k,
                    "request_end": 100.62 + k,
                },
            },
        }
        for k in range(kept)
    ]
    summary = {
        "mean": 100.0,
        "median": 100.0,
        "count": 2,
        "percentiles": {"p50": 100.0, "p90": 100.0, "p95": 100.0, "p99": 100.0},
    }
    return {
        "metadata": {"version": 2, "guidellm_version": "0.8.1"},
        "config": {},
        "benchmarks": [
            {
                "type_": "generative_benchmark",
                "config": {"strategy": {"type_": "constant", "rate": 1.0}},
                "duration": 2.0,
                "metrics": {
                    "request_totals": {"successful": 2, "errored": 0, "incomplete": 1, "total": 3},
                    "time_to_first_token_ms": {"successful": summary},
                    "request_latency": {"successful": {"mean": 0.61, "percentiles": {"p50": 0.61}}},
                },
                "requests": {
                    "successful": requests,
                    "errored": [],
                    "incomplete": [{"request_id": "g9", "info": {}}],
                },
            }
        ],
    }


OTLP = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "name": "llm_request",
                            "startTimeUnixNano": "1790000000000000000",
                            "attributes": [
                                {"key": "gen_ai.request.id", "value": {"stringValue": "cmpl-1"}},
                                {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "200"}},
                                {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "24"}},
                                {"key": "gen_ai.latency.time_in_queue", "value": {"doubleValue": 0.3}},
                                {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.5}},
                                {"key": "gen_ai.latency.e2e", "value": {"doubleValue": 1.7}},
                                {
                                    "key": "gen_ai.latency.time_in_model_prefill",
                                    "value": {"doubleValue": 0.2},
                                },
                            ],
                        },
                        {"name": "other", "attributes": []},
                    ]
                }
            ]
        }
    ]
}


def lifecycle(count: int = 10) -> dict[str, Any]:
    places = {"mean": 0.1, "median": 0.09, "p90": 0.2, "p95": 0.3, "p99": 0.4}
    return {
        "load_summary": {
            "count": count,
            "schedule_delay": {"p99": 0.001},
            "requested_rate": 2.0,
            "achieved_rate": 2.0,
        },
        "successes": {
            "count": count,
            "latency": {
                "time_to_first_token": places,
                "request_latency": {"mean": 1.1},
                "time_per_output_token": {"mean": 0.1},
            },
            "throughput": {"requests_per_sec": 2.0, "output_tokens_per_sec": 22.0},
            "output_len": {"mean": 11.0},
        },
        "failures": {"count": 0},
    }


def write(path: Path, *values: Any, separator: str = "\n") -> Path:
    path.write_text(separator.join(json.dumps(value) for value in values))
    return path


def read(path: Path) -> ServingRecords:
    return read_serving([path])


def test_vllm_bench_marks_failed_requests_and_reads_several_objects(tmp_path: Path) -> None:
    second = {**VLLM_BENCH, "request_rate": "inf", "ttfts": None}
    found = read(write(tmp_path / "a.json", VLLM_BENCH, second, separator=""))
    assert found.kinds == ["vllm bench"] and len(found.loads) == 2
    requests = found.requests
    assert requests is not None
    assert [STATUS_NAMES[code] for code in requests.status] == ["ok", "ok", "rejected"]
    assert requests.ttft_s[:2].tolist() == [0.1, 0.2] and np.isnan(requests.ttft_s[2])
    np.testing.assert_allclose(requests.e2e_s[:2], [0.2, 0.4])
    first, other = (load.point for load in found.loads)
    assert (first.kind, first.rate_per_s, other.rate_per_s) == ("open", 4.0, None)
    assert first.ttft_s is not None and first.ttft_s.p99 == pytest.approx(0.199)


def test_sglang_bench_is_closed_loop(tmp_path: Path) -> None:
    point = read(write(tmp_path / "a.jsonl", SGLANG_BENCH, SGLANG_BENCH)).loads[1].point
    assert (point.kind, point.concurrency, point.cached_ratio) == ("closed", 8.0, 0.25)
    assert point.e2e_s is not None and point.e2e_s.p50 == pytest.approx(0.69)


def test_aiperf_summary_and_incomplete_run(tmp_path: Path) -> None:
    point = read(write(tmp_path / "a.json", AIPERF_SUMMARY)).loads[0].point
    assert point.tpot_s is not None and point.tpot_s.p99 == pytest.approx(0.020)
    assert (point.kind, point.concurrency, point.completed) == ("closed", 4.0, 50)
    cut = read(
        write(tmp_path / "b.json", {**AIPERF_SUMMARY, "is_complete": False, "incomplete_reason": "killed"})
    )
    assert not cut.loads[0].is_complete and cut.loads[0].incomplete_reason == "killed"


def test_aiperf_records_leave_warm_up_out(tmp_path: Path) -> None:
    lines = [
        aiperf_record(0, "warmup"),
        aiperf_record(1),
        aiperf_record(2, error={"code": 429, "type": "x", "message": ""}),
    ]
    found = read(write(tmp_path / "a.jsonl", *lines))
    requests = found.requests
    assert requests is not None and requests.id == ["r1", "r2"]
    assert [STATUS_NAMES[code] for code in requests.status] == ["ok", "rejected"]
    np.testing.assert_allclose(requests.token_s, [0.1, 0.2, 0.3, 0.4])
    assert requests.sent_s[0] - requests.scheduled_s[0] == pytest.approx(0.001, abs=1e-6)
    assert any("1 warm-up" in note for note in found.notes)


def test_guidellm_tpot_is_not_its_time_per_output_token(tmp_path: Path) -> None:
    found = read(write(tmp_path / "a.json", guidellm_report()))
    requests = found.requests
    assert requests is not None
    np.testing.assert_allclose(requests.ttft_s[:2], 0.1, atol=1e-6)
    np.testing.assert_allclose(requests.tpot_s[:2], 0.05, atol=1e-6)
    np.testing.assert_allclose(requests.answer_ttft_s[:2], 0.3, atol=1e-6)
    assert "not TPOT" in found.definitions["guidellm"]


def test_guidellm_sample_of_requests_is_not_taken_for_all(tmp_path: Path) -> None:
    found = read(write(tmp_path / "a.json", guidellm_report(kept=1)))
    assert found.requests is None and found.loads[0].point.ttft_s is not None
    assert any("keeps 1 of 2" in note for note in found.notes)


def test_inference_perf_folder_joins_server_metrics_and_drops_the_total(tmp_path: Path) -> None:
    write(tmp_path / "stage_0_lifecycle_metrics.json", lifecycle())
    write(tmp_path / "summary_lifecycle_metrics.json", lifecycle(99))
    prometheus = {"load_summary": {}, "successes": {"count": 10, "queue_len": {"mean": 7}}, "failures": {}}
    write(tmp_path / "stage_0_prometheus_metrics.json", prometheus)
    found = read(tmp_path)
    (load,) = found.loads
    assert load.point.server == {"mean_waiting": 7.0} and load.point.requests == 10


def test_inference_perf_requests(tmp_path: Path) -> None:
    rows = [
        {
            "stage_id": stage,
            "scheduled_time": 100.0,
            "start_time": 100.0,
            "end_time": 101.0,
            "info": {
                "input_tokens": 5,
                "response_metrics": {"output_tokens": 3, "output_token_times": [100.2, 100.6, 101.0]},
            },
            "error": None if stage == 0 else {"error_type": "TimeoutError", "error_msg": ""},
        }
        for stage in (0, 1)
    ]
    found = read(write(tmp_path / "per_request.json", rows))
    assert len(found.loads) == 2 and found.requests is not None
    assert found.requests.ttft_s[0] == pytest.approx(0.2)
    assert STATUS_NAMES[found.requests.status[1]] == "timeout"


def test_otlp_spans_and_mooncake(tmp_path: Path) -> None:
    spans = read(write(tmp_path / "a.json", OTLP)).requests
    assert spans is not None and len(spans) == 1
    assert (spans.ttft_s[0], spans.server_queue_s[0], spans.prompt_tokens[0]) == (0.5, 0.3, 200)
    trace = [
        {"timestamp": 1000 * k, "input_length": 1024, "output_length": 10, "hash_ids": [0, k]}
        for k in range(1, 4)
    ]
    point = read(write(tmp_path / "t.jsonl", *trace)).loads[0].point
    assert point.rate_per_s == pytest.approx(1.0) and point.cached_ratio == pytest.approx(1024 / 3072)


def test_vllm_log_and_prometheus_text(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "INFO 11-17 13:22:24 [x.py:1] Application startup complete\n"
        "INFO 11-17 13:22:25 [loggers.py:199] Engine 000: Iteration(4): 3 context requests, 1016 context tokens, 1 generation "
        "requests, 1 generation tokens, iteration elapsed time: 504.82 ms, CPU KV cache usage: 0.5%\n"
        "[core.py:349] Iteration(5): 0 context requests, 0 context tokens, 4 generation requests, 4 generation tokens, iteration "
        "elapsed time: 10.00 ms\n"
    )
    (steps,) = read(log).steps
    assert steps.prefill_tokens.tolist() == [1016, 0] and not steps.is_placed
    np.testing.assert_allclose(steps.duration_s, [0.50482, 0.010])
    bare = tmp_path / "core.log"
    bare.write_text(log.read_text().splitlines()[2] + "\n")
    assert len(read(bare).steps[0]) == 1
    metrics = tmp_path / "metrics.txt"
    metrics.write_text(
        '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 3.0\nvllm:kv_cache_usage_perc 0.5\n'
    )
    (samples,) = read(metrics).samples
    assert samples.running.tolist() == [3.0] and samples.kv_ratio.tolist() == [0.5]


def test_forward_pass_records_positional_and_named(tmp_path: Path) -> None:
    positional = [1, "w", 0, 7, 0.02, [2, 300, 0.0, 0, 4, 100, 0.0], [3, 50, 0.0, 1, 0, 0.0]]
    idle = [1, "w", 0, 8, 0.0, [0] * 7, [0] * 6]
    (steps,) = read(
        write(tmp_path / "f.jsonl", {"time_s": 100.0, "fpm": positional}, {"time_s": 101.0, "fpm": idle})
    ).steps
    assert (steps.prefill_tokens[0], steps.decode_requests[0], steps.waiting[0], steps.preempted[0]) == (
        300,
        4,
        4,
        1,
    )
    assert len(steps) == 1
    (bare,) = read(write(tmp_path / "g.jsonl", positional, positional)).steps
    assert not bare.is_placed


def test_finished_requests_are_read_from_text_that_is_cut_off(tmp_path: Path) -> None:
    text = "[FinishedRequestStats(finish_reason=<FinishReason.LENGTH: 1>, request_id='cmpl-req-0-0', e2e_latency=2.95, queued_time=3.2e-05, prefill_t"
    line = {
        "t": 100.0,
        "e": 0,
        "run": 1,
        "wait": 0,
        "kv": 0.1,
        "it": {"elapsed_ms": 10.0, "num_ctx_requests": 0, "num_generation_requests": 1},
        "is": {"iteration_timestamp": 99.9, "finished_requests": text},
    }
    idle = {"t": 101.0, "e": 0, "run": 0, "wait": 0, "kv": 0.0, "it": "None"}
    (steps,) = read(write(tmp_path / "s.jsonl", line, idle)).steps
    assert steps.finished.id == ["cmpl-req-0-0"]
    assert (steps.finished.e2e_s[0], steps.finished.queue_s[0]) == (2.95, 3.2e-05)


def test_gzip_and_cut_off_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    text = "\n".join(json.dumps(aiperf_record(k)) for k in range(3))
    path.write_bytes(gzip.compress((text + '\n{"metadata": {"x_req').encode()))
    found = read(path)
    assert found.requests is not None and len(found.requests) == 3
    assert any("cut off" in note for note in found.notes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "{}",
        "[]",
        "[1, 2]",
        "null",
        "{" * 5000,
        "[" * 100_000,
        '{"metadata": 3, "metrics": []}',
        '{"request_throughput": "x", "completed": NaN',
        '{"benchmarks": [3]}',
        '{"benchmarks": [{"metrics": {}}]}',
        '{"load_summary": {}, "successes": {"latency": 3}}',
        '{"resourceSpans": [3, {"scopeSpans": [{"spans": [null]}]}]}',
        '{"format": "llm-perf-opt.serve.requests"}',
        '{"format": "llm-perf-opt.serve.steps"}\n{"duration_s": -1}',
        '{"t0": 1e400, "tok": ["a"]}',
        '{"timestamp": "x", "input_length": -5, "output_length": {}}',
        '{"it": {"elapsed_ms": 1e308}, "run": 1}',
    ],
)
def test_damaged_files_are_input_errors_or_notes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(text)
    try:
        read(path)
    except InputError as error:
        assert str(path) in error.message


def test_wrong_types_and_huge_numbers_are_missing_values(tmp_path: Path) -> None:
    good = {
        "t0": 100.0,
        "tok": [100.1, 100.2],
        "t1": 100.2,
        "last": {"id": "a", "usage": {"completion_tokens": 2}},
    }
    bad = {
        "t0": 100.0,
        "tok": [1e300, "x", None, 99.0],
        "t1": "?",
        "last": {"id": "a", "usage": {"completion_tokens": 10**30}},
    }
    found = read(write(tmp_path / "a.jsonl", good, bad, good))
    requests = found.requests
    assert requests is not None and len(requests) == 3
    assert np.isnan(requests.ttft_s[1]) and requests.output_tokens[1] == -1
    assert any("more than once" in note for note in found.notes)


def test_unknown_file_names_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(write(tmp_path / "a.json", {"hello": 1}))
    assert "vllm bench" in (caught.value.hint or "")


VLLM_START = """
(APIServer pid=1) INFO 11-17 [entry.py:9] version 0.32.0, model x
(EngineCore pid=2) INFO 11-17 [core.py:115] Initializing a V1 LLM engine (v0.32.0) with config: model=x
(EngineCore pid=2) INFO 11-17 [default_loader.py:501] Loading weights took 4.25 seconds
(EngineCore pid=3) INFO 11-17 [default_loader.py:501] Loading weights took 4.75 seconds
(EngineCore pid=2) INFO 11-17 [gpu_model_runner.py:6581] Graph capturing finished in 3 secs, took 0.55 GiB
(EngineCore pid=2) INFO 11-17 [core.py:386] init engine (profile, create kv cache, warmup model) took 20.00 s (compilation: 12.50 s)
"""


def test_the_start_of_a_vllm_server_is_split_by_its_log() -> None:
    from llm_perf_opt.captures.serving import INITIALISES
    from llm_perf_opt.captures.serving.engines import read_cold_start

    start = read_cold_start(VLLM_START, 45.0, 15.0)
    assert (start.imports_s, start.weights_s, start.compilation_s, start.graph_capture_s) == (
        15.0,
        4.75,
        12.5,
        3.0,
    )
    assert start.kv_cache_s == pytest.approx(4.5)
    assert start.other_s == pytest.approx(5.25)
    assert INITIALISES.search(VLLM_START)
    sglang = (
        "Load weight end. elapsed=2.5 s, type=X\nCapture cuda graph end. Time elapsed: 1.50 s. mem usage=1"
    )
    found = read_cold_start(sglang, 10.0, None)
    assert (found.weights_s, found.graph_capture_s, found.compilation_s, found.kv_cache_s) == (
        2.5,
        1.5,
        None,
        None,
    )
    # Nothing that the log does not say, and nothing that cannot be.
    silent = read_cold_start("Loading weights took 99.0 seconds\nLoading weights took .. seconds", 10.0, 11.0)
    assert (silent.weights_s, silent.imports_s, silent.other_s, silent.total_s) == (None, None, None, 10.0)


# Files that the tools wrote here, against a stub server (12 requests of 32 and 8 tokens).

RECORDED = Path(__file__).parents[3] / "data" / "serving"


def test_a_folder_of_aiperf_is_one_load_point() -> None:
    """The summary has the load that was asked for, the lines every request; both agree."""
    folder = RECORDED / "aiperf-0.13"
    together = analyse_serving(read_serving([folder])).serving.load
    (stated,) = analyse_serving(read_serving([folder / "profile_export_aiperf.json.gz"])).serving.load
    (point,) = together
    assert (point.kind, point.rate_per_s, point.requests, point.completed) == ("open", 10.0, 12, 12)
    assert (stated.kind, stated.rate_per_s) == ("open", 10.0)
    assert (point.prompt_tokens, point.output_tokens) == (32, 8)
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        ours, theirs = getattr(point, name), getattr(stated, name)
        assert ours.mean == pytest.approx(theirs.mean, rel=1e-6)
        assert ours.p99 == pytest.approx(theirs.p99, rel=1e-6)


def test_a_recorded_result_of_vllm_bench_agrees_with_itself() -> None:
    path = RECORDED / "vllm-bench-0.32" / "result.json"
    stated = json.loads(path.read_text())
    (point,) = analyse_serving(read_serving([path])).serving.load
    assert (point.kind, point.rate_per_s, point.completed, point.failed) == ("open", 10.0, 12, 0)
    assert point.completed_per_s == pytest.approx(stated["request_throughput"])
    for name in ("ttft", "tpot", "itl"):
        ours = getattr(point, f"{name}_s")
        assert ours.mean == pytest.approx(stated[f"mean_{name}_ms"] / 1e3, rel=1e-6)
        assert ours.p50 == pytest.approx(stated[f"median_{name}_ms"] / 1e3, rel=1e-6)
        assert ours.p99 == pytest.approx(stated[f"p99_{name}_ms"] / 1e3, rel=1e-6)


def test_a_recorded_report_of_guidellm_agrees_with_itself() -> None:
    """Its inter-token latency is our TPOT; its own time per output token is not."""
    path = RECORDED / "guidellm-0.8" / "benchmarks.json.gz"
    stated = json.loads(gzip.decompress(path.read_bytes()))["benchmarks"]
    points = analyse_serving(read_serving([path])).serving.load
    assert [(one.kind, one.concurrency, one.completed, one.failed) for one in points] == [
        ("closed", 1.0, 10, 0),
        ("closed", 4.0, 10, 0),
    ]
    for point, theirs in zip(points, stated, strict=True):
        metrics = {
            name: one["successful"]
            for name, one in theirs["metrics"].items()
            if isinstance(one, dict) and "successful" in one
        }
        for name, key, scale in (
            ("ttft_s", "time_to_first_token_ms", 1e-3),
            ("tpot_s", "inter_token_latency_ms", 1e-3),
            ("e2e_s", "request_latency", 1.0),
        ):
            assert getattr(point, name).mean == pytest.approx(metrics[key]["mean"] * scale, rel=1e-6)
        assert point.output_tokens == 8.0
        assert point.tpot_s is not None and point.tpot_s.mean != pytest.approx(
            metrics["time_per_output_token_ms"]["mean"] * 1e-3, rel=0.1
        )


def test_a_schedule_of_guidellm_on_another_clock_is_not_lateness() -> None:
    from llm_perf_opt.captures.serving.clients import _same_clock

    assert _same_clock(1794956847.9, 1794956848.0) == 1794956847.9
    assert np.isnan(_same_clock(4.96, 1794956848.0))
