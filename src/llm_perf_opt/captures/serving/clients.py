"""Results of load clients: what ``vllm bench``, SGLang, aiperf, guidellm, inference-perf, … measured, in the common form."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.captures.serving import OWN_REQUESTS
from llm_perf_opt.captures.serving.records import (
    CANCELLED,
    DISCONNECTED,
    ERROR,
    NAN,
    OK,
    REJECTED,
    STATUS_NAMES,
    TIMEOUT,
    ArrivalTrace,
    LoadRecord,
    RequestRows,
    count_or_missing,
    seconds_or_nan,
    time_or_nan,
)
from llm_perf_opt.core.limits import MOST_COUNT, MOST_PER_S, MOST_SUMMED_SECONDS, is_number
from llm_perf_opt.summary.serving import LatencyStat, LoadKind, LoadPoint

Object = Mapping[str, Any]


@dataclass(slots=True)
class ClientContent:
    """Content of one client file."""

    loads: list[LoadRecord] = field(default_factory=list)
    rows: RequestRows = field(default_factory=RequestRows)
    trace: ArrivalTrace | None = None
    engine: str | None = None
    version: str | None = None
    capacity_per_s: float | None = None
    slo: dict[str, float] = field(default_factory=dict)
    """Limits in seconds that the load was sent with."""
    definitions: dict[str, str] = field(default_factory=dict)
    disaggregated: int = 0
    """Requests whose prompt and answer were computed by different workers."""
    transfers_s: list[float] = field(default_factory=list)
    """Estimated times in which their KV cache was sent."""
    notes: list[str] = field(default_factory=list)


# Helpers for untrusted values of a file.


def _object(value: object) -> Object:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _rate(value: object) -> float | None:
    return float(value) if is_number(value) and 0 < value <= MOST_PER_S else None  # type: ignore[operator, arg-type]


def _amount(value: object) -> float | None:
    return float(value) if is_number(value) and 0 <= value <= MOST_COUNT else None  # type: ignore[operator, arg-type]


def _count(value: object) -> int | None:
    found = count_or_missing(value)
    return found if found >= 0 else None


def _seconds(value: object, scale: float = 1.0) -> float | None:
    if not is_number(value) or not 0 <= value * scale <= MOST_SUMMED_SECONDS:  # type: ignore[operator]
        return None
    return float(value) * scale  # type: ignore[arg-type]


def _stat(values: Mapping[str, object], scale: float, n: int | None, **names: str) -> LatencyStat | None:
    """Return percentiles that a tool computed; ``names``: the tool's names of p50, p90, p95, p99 and mean."""
    found = {ours: _seconds(values.get(theirs), scale) for ours, theirs in names.items()}
    return LatencyStat(**found, n=n) if any(value is not None for value in found.values()) else None


def _listed(values: object, index: int) -> object:
    return values[index] if isinstance(values, list) and index < len(values) else None


def _status_of(text: object, code: object = None) -> int:
    """Return the status of an error text or an HTTP status code."""
    if code == 429:
        return REJECTED
    message = str(text or "").lower()
    if "429" in message or "too many requests" in message:
        return REJECTED
    if "timeout" in message or "timed out" in message:
        return TIMEOUT
    if (
        "disconnect" in message
        or "reset by peer" in message
        or "connection closed" in message
        or "payload is not" in message
    ):
        return DISCONNECTED
    if "cancel" in message:
        return CANCELLED
    if message or (is_number(code) and not 200 <= int(code) < 300):  # type: ignore[call-overload]
        return ERROR
    return OK


# vllm bench serve and sglang bench_serving.


def _is_vllm_bench(one: object) -> bool:
    """Return whether an object is a result of ``vllm bench serve``."""
    keys = _object(one)
    return "request_throughput" in keys and "completed" in keys and not _is_sglang_bench(one)


def _is_sglang_bench(one: object) -> bool:
    """Return whether an object is a result of ``sglang.bench_serving``."""
    keys = _object(one)
    return "request_throughput" in keys and (
        "mean_e2e_latency_ms" in keys or "total_output_tokens_retokenized" in keys
    )


def _read_vllm_bench(objects: Iterable[Object], content: ClientContent) -> None:
    """Read results of ``vllm bench serve``, also several objects in a file."""
    content.engine = "vllm"
    for one in objects:
        _bench(one, content, "vllm bench serve", "e2el")


def _read_sglang_bench(objects: Iterable[Object], content: ClientContent) -> None:
    """Read the lines of ``sglang.bench_serving``."""
    content.engine = "sglang"
    for one in objects:
        _bench(one, content, "sglang bench_serving", "e2e_latency")


def _bench(one: Object, content: ClientContent, tool: str, end_to_end: str) -> None:
    completed = _count(one.get("completed"))
    failed = _count(one.get("failed"))
    rate, concurrency = _rate(one.get("request_rate")), _amount(one.get("max_concurrency"))
    kind: LoadKind = "closed" if rate is None and concurrency else "open"
    point = LoadPoint(
        kind=kind,
        rate_per_s=rate,
        concurrency=concurrency if concurrency else _amount(one.get("concurrency")),
        seconds=_seconds(one.get("duration")),
        requests=_count(one.get("num_prompts")),
        completed=completed,
        failed=failed,
        completed_per_s=_amount(one.get("request_throughput")),
        tokens_per_s=_amount(one.get("output_throughput")),
        goodput_per_s=_amount(one.get("request_goodput")),
        tool=tool,
        label=_text(one.get("label")) or _text(one.get("tag")) or _text(one.get("date")),
    )
    for name, key in (("ttft_s", "ttft"), ("tpot_s", "tpot"), ("itl_s", "itl"), ("e2e_s", end_to_end)):
        names = {"p50": f"median_{key}_ms", "mean": f"mean_{key}_ms"}
        names |= {p: f"{p}_{key}_ms" for p in ("p90", "p95", "p99")}
        setattr(point, name, _stat(one, 1e-3, completed if name != "itl_s" else None, **names))
    if completed and point.output_tokens is None:
        for ours, theirs in (
            ("prompt_tokens", "total_input_tokens"),
            ("output_tokens", "total_output_tokens"),
        ):
            total = _amount(one.get(theirs))
            setattr(point, ours, total / completed if total is not None else None)
    cached = _amount(one.get("cache_hit_rate_pct"))
    point.cached_ratio = cached / 100 if cached is not None and cached <= 100 else None
    if rate is None and not concurrency:
        point.notes.append("All requests were sent at once (rate inf), so most of the latency is waiting.")
    engine = _text(one.get("backend"))
    content.loads.append(LoadRecord(point, engine=engine, model=_text(one.get("model_id"))))
    ttfts = _items(one.get("ttfts"))
    start_times, latencies = one.get("start_times"), one.get("latencies")
    for index, ttft in enumerate(ttfts):
        error = _listed(one.get("errors"), index)
        output = count_or_missing(_listed(one.get("output_lens"), index))
        gaps = [value for value in _items(_listed(one.get("itls"), index)) if is_number(value) and value >= 0]
        first = seconds_or_nan(ttft)
        # The arrays have no mask of successes: 0 or an error text marks a failed request.
        failed_here = bool(error) or (first == 0.0 and output <= 0) or first != first
        content.rows.add(
            f"{len(content.loads) - 1}-{index}",
            load=len(content.loads) - 1,
            sent_s=time_or_nan(_listed(start_times, index)),
            ttft_s=NAN if failed_here else first,
            e2e_s=NAN if failed_here else seconds_or_nan(_listed(latencies, index)),
            prompt_tokens=count_or_missing(_listed(one.get("input_lens"), index)),
            output_tokens=output,
            cached_tokens=count_or_missing(_listed(one.get("cached_tokens"), index)),
            status=(_status_of(error) or ERROR) if failed_here else OK,
            tokens_s=[] if failed_here else list(itertools.accumulate(gaps, initial=first)),
            server_queue_s=seconds_or_nan(_listed(one.get("server_queue_times"), index)),
            server_prefill_s=seconds_or_nan(_listed(one.get("server_ttfts"), index)),
        )
    content.definitions[tool] = (
        "E2E ends with the last chunk; TPOT = (E2E − TTFT) ÷ (tokens − 1); ITL: all gaps between chunks."
    )


# aiperf and genai-perf.

_TO_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


def _is_aiperf_summary(one: object) -> bool:
    """Return whether an object is a summary of aiperf or genai-perf."""
    first = _object(_object(one).get("request_latency"))
    return "unit" in first and "avg" in first


def _is_aiperf_record(one: object) -> bool:
    """Return whether an object is one request of aiperf."""
    keys = _object(one)
    return isinstance(keys.get("metadata"), Mapping) and isinstance(keys.get("metrics"), Mapping)


def _read_aiperf_summary(objects: Iterable[Object], content: ClientContent) -> None:
    """Read ``profile_export_aiperf.json`` (or the format of genai-perf)."""
    for one in objects:
        tool = "aiperf" if "aiperf_version" in one or "schema_version" in one else "genai-perf"
        settings = _object(one.get("input_config"))
        # Since 0.13 the load is one of several phases; before, it was a key somewhere in the settings.
        phases = [_object(phase) for phase in _items(settings.get("phases"))]
        phase = next((held for held in phases if held.get("kind") == "profiling"), {})
        concurrency = _amount(phase.get("concurrency", _find_key(settings, "concurrency")))
        rate = _rate(phase.get("rate", _find_key(settings, "request_rate")))
        completed = _count(_average(one, "request_count"))
        failed = _count(_average(one, "error_request_count"))
        point = LoadPoint(
            kind="open" if rate is not None else "closed" if concurrency else None,
            rate_per_s=rate,
            concurrency=concurrency,
            completed=completed,
            failed=failed,
            requests=completed + (failed or 0) if completed is not None else None,
            completed_per_s=_average(one, "request_throughput"),
            tokens_per_s=_average(one, "output_token_throughput"),
            goodput_per_s=_average(one, "goodput"),
            prompt_tokens=_average(one, "input_sequence_length"),
            output_tokens=_average(one, "output_sequence_length"),
            tool=tool,
            label=_text(_object(one.get("run_info")).get("run_label")),
        )
        point.seconds = _unit_seconds(one.get("benchmark_duration"), "avg")
        for name, tag in (
            ("ttft_s", "time_to_first_token"),
            ("tpot_s", "inter_token_latency"),
            ("itl_s", "inter_chunk_latency"),
            ("e2e_s", "request_latency"),
        ):
            value = _object(one.get(tag))
            scale = _TO_SECONDS.get(str(value.get("unit")), 1e-3)
            names = {"mean": "avg", **{p: p for p in ("p50", "p90", "p95", "p99")}}
            setattr(point, name, _stat(value, scale, _count(value.get("count")) or completed, **names))
        complete = one.get("is_complete") is not False and one.get("was_cancelled") is not True
        reason = _text(one.get("incomplete_reason")) or (
            "it was cancelled" if one.get("was_cancelled") else None
        )
        content.loads.append(LoadRecord(point, is_complete=complete, incomplete_reason=reason))
        content.definitions[tool] = (
            "inter_token_latency is (E2E − TTFT) ÷ (tokens − 1), our TPOT; inter_chunk_latency is our ITL."
        )


def _average(one: Object, tag: str) -> float | None:
    return _amount(_object(one.get(tag)).get("avg"))


def _unit_seconds(value: object, key: str) -> float | None:
    held = _object(value)
    return _seconds(held.get(key), _TO_SECONDS.get(str(held.get("unit")), 1.0))


def _find_key(value: object, key: str, depth: int = 4) -> object:
    """Return the first value of a key at any depth of a configuration; lists hold one value per run of a sweep."""
    held = _object(value)
    if is_number(held.get(key)):
        return held[key]
    if depth:
        for inner in held.values():
            found = _find_key(inner, key, depth - 1)
            if found is not None:
                return found
    return None


def _read_aiperf_records(objects: Iterable[Object], content: ClientContent) -> None:
    """Read ``profile_export.jsonl``: one request per line, those of the warm-up left out."""
    content.loads.append(LoadRecord(LoadPoint(tool="aiperf")))
    warm = 0
    for number, one in enumerate(objects):
        about, metrics = _object(one.get("metadata")), _object(one.get("metrics"))
        if about.get("benchmark_phase") == "warmup":
            warm += 1
            continue
        error, sent = _object(one.get("error")), time_or_nan(about.get("request_start_ns"), 1e-9)
        ttft, e2e = _metric(metrics, "time_to_first_token"), _metric(metrics, "request_latency")
        gaps = _object(metrics.get("inter_chunk_latency"))
        scale = _TO_SECONDS.get(str(gaps.get("unit")), 1e-3)
        chunks = [float(v) * scale for v in _items(gaps.get("value")) if is_number(v) and v >= 0]
        status = OK
        if error:
            status = _status_of(f"{error.get('type')} {error.get('message')}", error.get("code")) or ERROR
        elif about.get("was_cancelled") is True:
            status = CANCELLED
        end = time_or_nan(about.get("request_end_ns"), 1e-9)
        content.rows.add(
            _text(about.get("x_request_id")) or f"request-{number}",
            scheduled_s=time_or_nan(about.get("credit_issued_ns"), 1e-9),
            sent_s=sent,
            ttft_s=ttft,
            e2e_s=e2e if e2e == e2e else end - sent,
            tokens_s=list(itertools.accumulate(chunks, initial=ttft)) if ttft == ttft else [],
            prompt_tokens=count_or_missing(_object(metrics.get("input_sequence_length")).get("value")),
            output_tokens=count_or_missing(_object(metrics.get("output_sequence_length")).get("value")),
            cached_tokens=count_or_missing(
                _object(metrics.get("usage_prompt_cache_read_tokens")).get("value")
            ),
            tpot_s=_metric(metrics, "inter_token_latency"),
            status=status,
        )
    if warm:
        content.notes.append(f"aiperf: {warm} warm-up requests are left out.")
    content.definitions["aiperf"] = (
        "inter_token_latency is (E2E − TTFT) ÷ (tokens − 1), our TPOT; inter_chunk_latency is our ITL."
    )


def _metric(metrics: Object, tag: str) -> float:
    held = _object(metrics.get(tag))
    return seconds_or_nan(held.get("value"), _TO_SECONDS.get(str(held.get("unit")), 1e-3))


# guidellm.


def _is_guidellm(one: object) -> bool:
    """Return whether an object is a report of guidellm."""
    found = _items(_object(one).get("benchmarks"))
    return bool(found) and all("metrics" in _object(each) for each in found)


def _read_guidellm(objects: Iterable[Object], content: ClientContent) -> None:
    """Read a ``benchmarks.json`` (version 2; version 1 where it has the same keys)."""
    for report in objects:
        version = _object(report.get("metadata")).get("version")
        if version not in (2, None):
            content.notes.append(f"guidellm: the report has version {version}; version 2 is known.")
        for one in _items(report.get("benchmarks")):
            _guidellm_benchmark(_object(one), content)
    content.definitions["guidellm"] = (
        "time_per_output_token_ms is E2E ÷ tokens, not TPOT, and is not used; inter_token_latency_ms is (last − first token) ÷ "
        "(tokens − 1), our TPOT; gaps between single tokens are not kept."
    )


def _guidellm_benchmark(one: Object, content: ClientContent) -> None:
    strategy = _object(_object(one.get("config")).get("strategy")) or _object(one.get("strategy"))
    kind_name = str(strategy.get("type_") or strategy.get("kind") or "")
    streams = _amount(strategy.get("streams") or strategy.get("max_concurrency"))
    rate = _rate(strategy.get("rate"))
    closed = kind_name in ("synchronous", "concurrent", "throughput") or (
        rate is None and streams is not None
    )
    metrics = _object(one.get("metrics"))
    totals = _object(metrics.get("request_totals"))
    completed = _count(totals.get("successful"))
    failed = [_count(totals.get(name)) or 0 for name in ("errored", "incomplete")]
    point = LoadPoint(
        kind="closed" if closed else "open" if kind_name or rate is not None else None,
        rate_per_s=rate,
        concurrency=1.0 if kind_name == "synchronous" else streams,
        seconds=_seconds(one.get("duration")),
        completed=completed,
        failed=sum(failed) if totals else None,
        requests=_count(totals.get("total")),
        completed_per_s=_guidellm_mean(metrics, "requests_per_second"),
        tokens_per_s=_guidellm_mean(metrics, "output_tokens_per_second"),
        prompt_tokens=_guidellm_mean(metrics, "prompt_token_count"),
        output_tokens=_guidellm_mean(metrics, "output_token_count"),
        goodput_per_s=_amount(metrics.get("request_goodput")),
        tool="guidellm",
        label=kind_name or None,
    )
    for name, key, scale in (
        ("ttft_s", "time_to_first_token_ms", 1e-3),
        ("tpot_s", "inter_token_latency_ms", 1e-3),
        ("e2e_s", "request_latency", 1.0),
    ):
        held = _object(_object(metrics.get(key)).get("successful"))
        places = _object(held.get("percentiles"))
        merged = {**places, "mean": held.get("mean"), "median": held.get("median")}
        names = {"p50": "p50" if "p50" in places else "median", "mean": "mean"}
        names |= {p: p for p in ("p90", "p95", "p99")}
        setattr(point, name, _stat(merged, scale, _count(held.get("count")) or completed, **names))
    content.loads.append(LoadRecord(point))
    requests = _object(one.get("requests"))
    kept = len(_items(requests.get("successful")))
    if completed is not None and kept < completed:
        # Only a sample of the requests was kept: the tool's own percentiles cover all.
        content.notes.append(
            f"guidellm: the report keeps {kept} of {completed} requests of {point.label}; its own percentiles are used."
        )
        return
    for state, status in (("successful", OK), ("errored", ERROR), ("incomplete", CANCELLED)):
        for request in _items(requests.get(state)):
            _guidellm_request(_object(request), status, content)


def _guidellm_mean(metrics: Object, key: str) -> float | None:
    held = _object(metrics.get(key))
    return _amount(_object(held.get("successful")).get("mean"))


def _same_clock(scheduled_s: float, sent_s: float) -> float:
    """Return the scheduled time; 0.8 counts it from the start of the benchmark in some profiles, from which lateness cannot be derived."""
    return scheduled_s if abs(sent_s - scheduled_s) < 86_400 else NAN


def _guidellm_request(request: Object, status: int, content: ClientContent) -> None:
    info = _object(request.get("info"))
    times = _object(info.get("timings"))
    sent = time_or_nan(times.get("request_start") or request.get("request_start_time"))
    end = time_or_nan(times.get("request_end") or request.get("request_end_time"))
    first = time_or_nan(times.get("first_token_iteration"))
    answer = time_or_nan(times.get("first_output_token_iteration"))
    last = time_or_nan(times.get("last_token_iteration"))
    ttft = first - sent if first == first else seconds_or_nan(request.get("time_to_first_token_ms"), 1e-3)
    output = count_or_missing(request.get("output_tokens"))
    tpot = seconds_or_nan(request.get("inter_token_latency_ms"), 1e-3)
    if first == first and last == last and output > 1:
        tpot = (last - first) / (output - 1)
    if status == ERROR:
        status = _status_of(info.get("error")) or ERROR
    content.rows.add(
        _text(request.get("request_id")) or f"request-{len(content.rows)}",
        load=len(content.loads) - 1,
        scheduled_s=_same_clock(
            time_or_nan(times.get("targeted_start")), time_or_nan(times.get("request_start"))
        ),
        sent_s=sent,
        ttft_s=ttft,
        answer_ttft_s=answer - sent if answer == answer and answer != first else NAN,
        e2e_s=end - sent if end == end else seconds_or_nan(request.get("request_latency")),
        prompt_tokens=count_or_missing(request.get("prompt_tokens")),
        output_tokens=output,
        cached_tokens=count_or_missing(request.get("cached_tokens")),
        tpot_s=tpot,
        status=status,
    )


# inference-perf.


def is_inference_perf(one: object) -> bool:
    """Return whether an object is a report of inference-perf (lifecycle or Prometheus metrics)."""
    keys = _object(one)
    return isinstance(keys.get("load_summary"), Mapping) and isinstance(keys.get("successes"), Mapping)


def _is_inference_perf_requests(one: object) -> bool:
    """Return whether a value is inference-perf's list of requests, or one of them."""
    first = one[0] if isinstance(one, list) and one else one
    return {"start_time", "end_time", "info"} <= _object(first).keys()


def read_inference_perf(objects: Iterable[Object], content: ClientContent, stem: str) -> None:
    """Read the report of a stage; the number of the stage is in the file's name."""
    stage = re.search(r"stage_(-?\d+)", stem)
    label = f"stage {stage[1]}" if stage else stem
    for one in objects:
        good = _object(one.get("successes"))
        lifecycle = "latency" in good or bool(one.get("load_summary"))
        point = _lifecycle_point(one) if lifecycle else LoadPoint(tool="inference-perf")
        point.label = label
        if not lifecycle:
            point.server = _prometheus_facts(good)
        content.loads.append(LoadRecord(point, is_total=stage is None))
    content.definitions["inference-perf"] = (
        "time_per_output_token is (last − first chunk) ÷ (chunks − 1) and equals our TPOT only where a chunk is a token; "
        "normalized_time_per_output_token is E2E ÷ tokens and is not used."
    )


def _lifecycle_point(one: Object) -> LoadPoint:
    good, load = _object(one.get("successes")), _object(one.get("load_summary"))
    latency, through = _object(good.get("latency")), _object(good.get("throughput"))
    completed = _count(good.get("count"))
    delay = _object(load.get("schedule_delay"))
    point = LoadPoint(
        kind="open",
        rate_per_s=_rate(load.get("requested_rate")),
        requests=_count(load.get("count")),
        completed=completed,
        failed=_count(_object(one.get("failures")).get("count")),
        completed_per_s=_amount(through.get("requests_per_sec")),
        tokens_per_s=_amount(through.get("output_tokens_per_sec")),
        prompt_tokens=_amount(_object(good.get("prompt_len")).get("mean")),
        output_tokens=_amount(_object(good.get("output_len")).get("mean")),
        lag_s=_seconds(max(delay["p99"], 0.0)) if is_number(delay.get("p99")) else None,
        tool="inference-perf",
    )
    if completed and point.completed_per_s:
        point.seconds = _seconds(completed / point.completed_per_s)
    names = {"p50": "median", **{p: p for p in ("p90", "p95", "p99")}, "mean": "mean"}
    for name, key in (
        ("ttft_s", "time_to_first_token"),
        ("tpot_s", "time_per_output_token"),
        ("itl_s", "inter_token_latency"),
        ("e2e_s", "request_latency"),
    ):
        n = completed if name != "itl_s" else None
        setattr(point, name, _stat(_object(latency.get(key)), 1.0, n, **names))
    return point


def _prometheus_facts(good: Object) -> dict[str, float]:
    named = {
        "mean_waiting": ("queue_len", 1.0),
        "kv_usage_ratio": ("kv_cache_usage_percentage", 1.0),
        "preemptions": ("num_preemptions_total", 1.0),
        "prefix_hit_ratio": ("prefix_cache_hit_percent", 0.01),
        "ttft_mean_s": ("time_to_first_token", 1.0),
        "tpot_mean_s": ("time_per_output_token", 1.0),
    }
    found = {}
    for ours, (theirs, scale) in named.items():
        value = _amount(_object(good.get(theirs)).get("mean"))
        if value is not None:
            found[ours] = value * scale
    usage = _object(good.get("kv_cache_usage_percentage"))
    if _count(good.get("count")) and not any(_amount(value) for value in usage.values()):
        # Requests were served, so the cache was used: the engine has renamed this metric.
        found.pop("kv_usage_ratio", None)
    return found


def _read_inference_perf_requests(objects: Iterable[Object], content: ClientContent) -> None:
    """Read ``per_request_lifecycle_metrics.json``; every stage is a load point."""
    stages: dict[object, int] = {}
    for number, one in enumerate(objects):
        stage = one.get("stage_id")
        stage = stage if isinstance(stage, int | str) else 0
        if stage not in stages:
            stages[stage] = len(content.loads)
            point = LoadPoint(kind="open", tool="inference-perf", label=f"stage {stage}")
            content.loads.append(LoadRecord(point))
        info = _object(one.get("info"))
        answer = _object(info.get("response_metrics")) or info
        request = _object(_object(info.get("request_metrics")).get("text"))
        sent, end = time_or_nan(one.get("start_time")), time_or_nan(one.get("end_time"))
        times = [
            time_or_nan(v) - sent
            for v in _items(answer.get("output_token_times") or answer.get("chunk_times"))
        ]
        error = _object(one.get("error"))
        usage = _object(answer.get("server_usage"))
        output = usage.get("completion_tokens", answer.get("output_tokens"))
        content.rows.add(
            f"request-{number}",
            load=stages[stage],
            scheduled_s=time_or_nan(one.get("scheduled_time")),
            sent_s=sent,
            e2e_s=end - sent,
            tokens_s=times,
            prompt_tokens=count_or_missing(info.get("input_tokens", request.get("input_tokens"))),
            output_tokens=count_or_missing(output),
            status=(_status_of(f"{error.get('error_type')} {error.get('error_msg')}") or ERROR)
            if error
            else OK,
        )


# Spans of the engine, Dynamo's request trace.


def _is_otlp(one: object) -> bool:
    """Return whether an object is an OTLP export of spans."""
    return isinstance(_object(one).get("resourceSpans"), list)


def _read_otlp(objects: Iterable[Object], content: ClientContent) -> None:
    """Read ``llm_request`` spans that vLLM or SGLang sent to a collector."""
    content.loads.append(LoadRecord(LoadPoint(tool="OpenTelemetry")))
    for one in objects:
        for resource in _items(one.get("resourceSpans")):
            for scope in _items(_object(resource).get("scopeSpans")):
                for span in _items(_object(scope).get("spans")):
                    _otlp_span(_object(span), content)
    content.definitions["OpenTelemetry"] = (
        "Times are the server's: they begin when the request arrives there, so network and client are not in them."
    )


def _otlp_span(span: Object, content: ClientContent) -> None:
    values: dict[str, object] = {}
    for item in _items(span.get("attributes")):
        held = _object(_object(item).get("value"))
        value = next(iter(held.values()), None)
        if "intValue" in held and isinstance(value, str) and value.lstrip("-").isdigit() and len(value) < 19:
            value = int(value)  # OTLP's JSON writes 64-bit integers as text
        values[str(_object(item).get("key"))] = value
    if not any(key.startswith("gen_ai.latency.") for key in values):
        return
    start = span.get("startTimeUnixNano")
    if isinstance(start, str) and start.isdigit() and len(start) < 21:
        start = int(start)
    ttft = seconds_or_nan(values.get("gen_ai.latency.time_to_first_token"))
    failed = _object(span.get("status")).get("code") in (2, "STATUS_CODE_ERROR")
    content.rows.add(
        _text(values.get("gen_ai.request.id")) or f"span-{len(content.rows)}",
        sent_s=time_or_nan(start, 1e-9),
        ttft_s=NAN if failed else ttft,
        e2e_s=seconds_or_nan(values.get("gen_ai.latency.e2e")),
        prompt_tokens=count_or_missing(values.get("gen_ai.usage.prompt_tokens")),
        output_tokens=count_or_missing(values.get("gen_ai.usage.completion_tokens")),
        cached_tokens=count_or_missing(values.get("gen_ai.usage.cached_tokens")),
        status=ERROR if failed else OK,
        server_queue_s=seconds_or_nan(values.get("gen_ai.latency.time_in_queue")),
        server_prefill_s=seconds_or_nan(values.get("gen_ai.latency.time_in_model_prefill")),
    )


def _is_dynamo_trace(one: object) -> bool:
    """Return whether an object is an event of Dynamo's request trace."""
    return str(_object(one).get("schema", "")).startswith("dynamo.request.trace")


def _read_dynamo_trace(objects: Iterable[Object], content: ClientContent) -> None:
    """Read the ends of requests from Dynamo's request trace; other events are left out."""
    content.loads.append(LoadRecord(LoadPoint(tool="Dynamo request trace")))
    content.engine = "dynamo"
    for one in objects:
        held = _object(one.get("request"))
        if one.get("event_type") != "request_end" or not held:
            continue
        content.rows.add(
            _text(held.get("x_request_id"))
            or _text(held.get("request_id"))
            or f"request-{len(content.rows)}",
            sent_s=time_or_nan(held.get("request_received_ms"), 1e-3),
            ttft_s=seconds_or_nan(held.get("ttft_ms"), 1e-3),
            e2e_s=seconds_or_nan(held.get("total_time_ms"), 1e-3),
            prompt_tokens=count_or_missing(held.get("input_tokens")),
            output_tokens=count_or_missing(held.get("output_tokens")),
            cached_tokens=count_or_missing(held.get("cached_tokens")),
            tpot_s=seconds_or_nan(held.get("avg_itl_ms"), 1e-3),
            server_queue_s=seconds_or_nan(held.get("prefill_wait_time_ms"), 1e-3),
            server_prefill_s=seconds_or_nan(held.get("prefill_time_ms"), 1e-3),
        )
        worker = _object(held.get("worker"))
        first, second = worker.get("prefill_worker_id"), worker.get("decode_worker_id")
        if first is not None and second is not None and first != second:
            content.disaggregated += 1
            transfer = seconds_or_nan(held.get("kv_transfer_estimated_latency_ms"), 1e-3)
            content.transfers_s += [transfer] if transfer == transfer else []
    content.definitions["Dynamo request trace"] = (
        "Times are the frontend's: the network to the client is not in them."
    )


# A client that keeps every chunk, and our own.


def _is_chunk_record(one: object) -> bool:
    """Return whether a value is a request as a plain client logs it: ``t0``, every chunk's arrival ``tok``, end ``t1``."""
    first = one[0] if isinstance(one, list) and one else one
    return {"t0", "tok"} <= _object(first).keys()


def _read_chunk_records(objects: Iterable[Object], content: ClientContent) -> None:
    """Read requests with the arrival of every chunk and the last chunk (``usage``, ``metrics``)."""
    content.loads.append(LoadRecord(LoadPoint(tool="chunk times of a client")))
    for number, one in enumerate(objects):
        last = _object(one.get("last"))
        usage, metrics = _object(last.get("usage")), _object(last.get("metrics"))
        sent, end = time_or_nan(one.get("t0")), time_or_nan(one.get("t1"))
        details = _object(usage.get("prompt_tokens_details"))
        status = _status_of(one.get("error") or one.get("err"), one.get("status"))
        tokens = [time_or_nan(value) - sent for value in _items(one.get("tok"))]
        if status == OK and not tokens:
            status = ERROR
        name = _text(last.get("id")) or _text(one.get("id"))
        content.rows.add(
            name or (f"req-{one['i']}" if isinstance(one.get("i"), int) else f"request-{number}"),
            sent_s=sent,
            e2e_s=tokens[-1] if tokens else end - sent,
            tokens_s=tokens,
            prompt_tokens=count_or_missing(usage.get("prompt_tokens")),
            output_tokens=count_or_missing(usage.get("completion_tokens")),
            cached_tokens=count_or_missing(details.get("cached_tokens")),
            status=status,
            server_queue_s=seconds_or_nan(metrics.get("queue_time_ms"), 1e-3),
            server_prefill_s=seconds_or_nan(metrics.get("time_to_first_token_ms"), 1e-3),
        )
        found = re.fullmatch(
            r"(vllm|sglang)-(\d[\w.+]*?)(?:-[0-9a-f]{6,})?", str(last.get("system_fingerprint"))
        )
        if found and content.engine is None:
            content.engine, content.version = found[1], found[2]


def _is_own_requests(one: object) -> bool:
    """Return whether an object is the first line of our own ``serve/requests.jsonl``."""
    return _object(one).get("format") == OWN_REQUESTS


def _read_own_requests(objects: Iterable[Object], content: ClientContent) -> None:
    """Read ``serve/requests.jsonl``: a header with the load points, then a line per request."""
    for number, one in enumerate(objects):
        if number == 0:
            _own_header(one, content)
            continue
        load = one.get("load", 0)
        if not isinstance(load, int) or not 0 <= load < len(content.loads):
            load = 0
        sent = time_or_nan(one.get("sent_s"))
        status = one.get("status")
        first, end = time_or_nan(one.get("first_token_s")), time_or_nan(one.get("end_s"))
        times = [time_or_nan(value) - sent for value in _items(one.get("token_s"))]
        server = _object(one.get("server"))
        content.rows.add(
            str(one.get("id") or f"request-{number - 1}"),
            load=load,
            scheduled_s=time_or_nan(one.get("scheduled_s")),
            sent_s=sent,
            ttft_s=first - sent,
            answer_ttft_s=time_or_nan(one.get("first_answer_s")) - sent,
            e2e_s=end - sent,
            tokens_s=times,
            prompt_tokens=count_or_missing(one.get("prompt_tokens")),
            output_tokens=count_or_missing(one.get("output_tokens")),
            cached_tokens=count_or_missing(one.get("cached_tokens")),
            status=STATUS_NAMES.index(status) if status in STATUS_NAMES else ERROR,
            server_queue_s=seconds_or_nan(server.get("queue_s")),
            server_prefill_s=seconds_or_nan(server.get("prefill_s")),
        )


def _own_header(one: Object, content: ClientContent) -> None:
    content.engine, content.version = _text(one.get("engine")), _text(one.get("engine_version"))
    content.capacity_per_s = _rate(one.get("client_capacity_per_s"))
    limits = {str(name): seconds_or_nan(value) for name, value in _object(one.get("slo")).items()}
    content.slo = {name: limit for name, limit in limits.items() if limit > 0}
    for load in map(_object, _items(one.get("loads")) or [{}]):
        kind = load.get("kind")
        point = LoadPoint(
            kind=kind if kind in ("open", "closed") else None,
            rate_per_s=_rate(load.get("rate_per_s")),
            concurrency=_amount(load.get("concurrency")),
            label=_text(load.get("label")),
            planned_prompt_tokens=_amount(load.get("planned_prompt_tokens")),
            tool="llm-perf-opt",
        )
        if reason := _text(load.get("client_reason")):
            point.client_bound = True
            point.notes.append(f"The client limited this load point: {reason[:300]}.")
        content.loads.append(LoadRecord(point, from_schedule=True, model=_text(one.get("model"))))


# Traces of arrivals.


def _is_mooncake(one: object) -> bool:
    """Return whether an object is a line of a Mooncake trace."""
    return {"timestamp", "input_length", "output_length"} <= _object(one).keys()


def _read_mooncake(objects: Iterable[Object], content: ClientContent) -> None:
    """Read a Mooncake trace: arrivals to replay. Nothing in it was measured."""
    import numpy as np

    times, prompts, outputs, blocks = [], [], [], []
    skipped = 0
    for one in objects:
        at = time_or_nan(one.get("timestamp"), 1e-3)
        prompt, output = count_or_missing(one.get("input_length")), count_or_missing(one.get("output_length"))
        if at != at or prompt < 0 or output < 0:
            skipped += 1
            continue
        times.append(at)
        prompts.append(prompt)
        outputs.append(output)
        blocks.append([value for value in _items(one.get("hash_ids")) if isinstance(value, int)])
    if skipped:
        content.notes.append(f"Mooncake trace: {skipped} lines without a time or lengths are left out.")
    order = sorted(range(len(times)), key=times.__getitem__)
    content.trace = ArrivalTrace(
        time_s=np.array([times[k] for k in order], np.float64),
        prompt_tokens=np.array([prompts[k] for k in order], np.int64),
        output_tokens=np.array([outputs[k] for k in order], np.int64),
        blocks=[blocks[k] for k in order],
    )
    span = times[order[-1]] - times[order[0]] if len(order) > 1 else None
    point = LoadPoint(
        kind="open",
        rate_per_s=(len(order) - 1) / span if span else None,
        seconds=span,
        requests=len(order),
        prompt_tokens=sum(prompts) / len(prompts) if prompts else None,
        output_tokens=sum(outputs) / len(outputs) if outputs else None,
        cached_ratio=_shared_prefix_ratio(content.trace),
        tool="Mooncake trace",
        label="arrivals to replay",
        notes=[
            "A trace of arrivals: nothing was measured. cached_ratio is that of a prefix cache without limit."
        ],
    )
    content.loads.append(LoadRecord(point))


def _shared_prefix_ratio(trace: ArrivalTrace) -> float | None:
    """Return the share of prompt tokens that an unlimited prefix cache would have held."""
    seen: set[int] = set()
    hit = total = 0
    for blocks, tokens in zip(trace.blocks, trace.prompt_tokens.tolist(), strict=True):
        known = 0
        for block in blocks:
            if block not in seen:
                break
            known += 1
        hit += min(known * trace.block_tokens, tokens)
        total += tokens
        seen.update(blocks)
    return hit / total if total else None


Reader = Callable[[Iterable[Object], ClientContent], None]
CLIENT_FORMATS: dict[str, tuple[Callable[[object], bool], Reader]] = {
    "llm-perf-opt requests": (_is_own_requests, _read_own_requests),
    "aiperf requests": (_is_aiperf_record, _read_aiperf_records),
    "aiperf summary": (_is_aiperf_summary, _read_aiperf_summary),
    "guidellm": (_is_guidellm, _read_guidellm),
    "sglang bench": (_is_sglang_bench, _read_sglang_bench),
    "vllm bench": (_is_vllm_bench, _read_vllm_bench),
    "inference-perf requests": (_is_inference_perf_requests, _read_inference_perf_requests),
    "OTLP spans": (_is_otlp, _read_otlp),
    "Dynamo request trace": (_is_dynamo_trace, _read_dynamo_trace),
    "chunk times": (_is_chunk_record, _read_chunk_records),
    "Mooncake trace": (_is_mooncake, _read_mooncake),
}
"""Format → what recognises its first object, and what reads its objects; inference-perf's reports need the file's name besides."""
