"""Engine records without a profiler: steps (vLLM's statistics and log, forward-pass metrics) and ``/metrics``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from llm_perf_opt.captures.serving import OWN_METRICS, OWN_STEPS
from llm_perf_opt.captures.serving.records import (
    LATEST_S,
    NAN,
    Samples,
    StepRows,
    count_or_missing,
    seconds_or_nan,
    time_or_nan,
)
from llm_perf_opt.core.limits import Count, Seconds, Share, is_number
from llm_perf_opt.summary.serving import ColdStart

Object = Mapping[str, Any]


@dataclass(slots=True)
class EngineContent:
    """Content of one engine file."""

    rows: StepRows = field(default_factory=StepRows)
    samples: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    """(Time, name → value summed over labels)."""
    engine: str | None = None
    version: str | None = None
    notes: list[str] = field(default_factory=list)
    skipped: int = 0
    """Lines that are not steps."""


def _object(value: object) -> Object:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _ratio(value: object) -> float:
    return float(value) if is_number(value) and 0 <= value <= 1.001 else NAN  # type: ignore[operator, arg-type]


# vLLM: records of a stat-logger plug-in for each step.

_FINISHED = re.compile(r"FinishedRequestStats\((?P<body>.*?)(?=FinishedRequestStats\(|$)", re.DOTALL)
_FIELD = re.compile(r"(\w+)=('(?:[^'\\]|\\.)*'|-?[\d.]+(?:e[+-]?\d+)?|None)")


def _is_vllm_steps(one: object) -> bool:
    """Return whether an object is a step as a stat-logger plug-in of vLLM wrote it."""
    return _statistics(_object(one))[0] is not None


def _statistics(one: Object) -> tuple[Object | None, Object, Object]:
    """Return (iteration details, iteration statistics, scheduler state) of a line; details ``None``: not such a line."""
    scheduler = _object(one.get("scheduler_stats"))
    details = one.get("it", one.get("iteration_details", scheduler.get("iteration_details")))
    found = one.get("is", one.get("iteration_stats"))
    statistics = _object(found)
    state = scheduler or one
    if isinstance(details, Mapping) and "elapsed_ms" in details:
        return details, statistics, state
    named = "it" in one and ("run" in one or "kv" in one)
    return ({} if named or (scheduler and found is not None) else None), statistics, state


def _read_vllm_steps(objects: Iterable[Object], content: EngineContent) -> None:
    """Read the steps of vLLM's statistics; lines without a step (idle, dummy) are left out."""
    content.engine = "vllm"
    clock_only = 0
    for one in objects:
        details, statistics, state = _statistics(one)
        if not details or details.get("is_dummy") is True:
            content.skipped += 1
            continue
        end = time_or_nan(statistics.get("iteration_timestamp"))
        if end != end:
            end = time_or_nan(one.get("t", one.get("time_s")))
            clock_only += 1
        duration = seconds_or_nan(details.get("elapsed_ms"), 1e-3)
        if duration != duration:
            content.skipped += 1
            continue
        waits = [seconds_or_nan(v) for v in _items(statistics.get("time_to_first_tokens_iter"))]
        waits = [value for value in waits if value == value]
        has_waits = isinstance(statistics.get("time_to_first_tokens_iter"), list)
        row = content.rows.add(
            end_s=end,
            duration_s=duration,
            engine=max(count_or_missing(one.get("e", one.get("engine_idx", 0))), 0),
            prefill=(_least0(details, "num_ctx_requests"), _least0(details, "num_ctx_tokens")),
            decode=(_least0(details, "num_generation_requests"), _least0(details, "num_generation_tokens")),
            running=count_or_missing(state.get("run", state.get("num_running_reqs"))),
            waiting=count_or_missing(state.get("wait", state.get("num_waiting_reqs"))),
            kv_ratio=_ratio(state.get("kv", state.get("kv_cache_usage"))),
            preempted=_least0(statistics, "num_preempted_reqs"),
            cached_tokens=_cached(statistics.get("prompt_token_stats")),
            first_tokens=len(waits) if has_waits else -1,
            waits_s=waits,
        )
        _add_speculation(content.rows, row, state.get("spec", state.get("spec_decoding_stats")))
        for finished in _finished(statistics.get("finished_requests")):
            _add_finished(content.rows, row, finished)
    if clock_only:
        content.notes.append(
            f"{clock_only} steps are placed by the time they were written, not by vLLM's own time stamp."
        )


def _add_speculation(rows: StepRows, row: int, value: object) -> None:
    held = _object(value)
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    rows.add_speculation(row, *(count_or_missing(held.get(name)) for name in names))


def _least0(held: Object, key: str) -> int:
    return max(count_or_missing(held.get(key)), 0)


def _cached(value: object) -> int:
    """Cached prompt tokens, from a record or from the text of one."""
    if isinstance(value, Mapping):
        return count_or_missing(value.get("cached_tokens", value.get("local_cache_hit")))
    found = re.search(r"cached_tokens=(\d{1,15})", value) if isinstance(value, str) else None
    return int(found[1]) if found else -1


def _finished(value: object) -> list[Object]:
    """Finished requests: records, or the text of a list of them that may be cut off."""
    if isinstance(value, list):
        return [_object(one) for one in value if isinstance(one, Mapping)] + [
            one for text in value if isinstance(text, str) for one in _finished(text)
        ]
    if not isinstance(value, str):
        return []
    return [
        {name: _plain(text) for name, text in _FIELD.findall(match["body"])}
        for match in _FINISHED.finditer(value)
    ]


def _plain(text: str) -> object:
    if text.startswith("'"):
        return text[1:-1]
    try:
        return float(text)
    except ValueError:
        return None


def _add_finished(rows: StepRows, row: int, one: Object) -> None:
    name = one.get("request_id")
    if not isinstance(name, str) or not name:
        return
    rows.add_finished(
        row,
        name,
        e2e_s=seconds_or_nan(one.get("e2e_latency", one.get("e2e_s"))),
        queue_s=seconds_or_nan(one.get("queued_time", one.get("queue_s"))),
        prefill_s=seconds_or_nan(one.get("prefill_time", one.get("prefill_s"))),
        decode_s=seconds_or_nan(one.get("decode_time", one.get("decode_s"))),
        prompt_tokens=count_or_missing(one.get("num_prompt_tokens", one.get("prompt_tokens"))),
        cached_tokens=count_or_missing(one.get("num_cached_tokens", one.get("cached_tokens"))),
        output_tokens=count_or_missing(one.get("num_generation_tokens", one.get("output_tokens"))),
        preemptions=count_or_missing(one.get("num_preemptions", one.get("preemptions"))),
    )


# vLLM: the log of --enable-logging-iteration-details.

_STEP_LINE = re.compile(
    r"(?:Engine (?P<engine>\d+): )?Iteration\((?P<index>\d+)\): (?P<ctx>\d+) context requests, (?P<ctx_tokens>\d+) context tokens, "
    r"(?P<gen>\d+) generation requests, (?P<gen_tokens>\d+) generation tokens, "
    r"iteration elapsed time: (?P<ms>[\d.]+) ms(?P<dummy> \(dummy\))?(?:, \w+ KV cache usage: (?P<kv>[\d.]+)%)?"
)


_LINE_TIME = re.compile(r"(\d{10}\.\d{1,9}) ")
"""Seconds since 1970 before a line."""


def is_vllm_log(text: str) -> bool:
    """Return whether text is a server log with a line per step."""
    return _STEP_LINE.search(text) is not None


def read_vllm_log(lines: Iterable[str], content: EngineContent) -> None:
    """Read the step lines of a server log. Their durations are exact; the time stamps are whole seconds, so a step is placed only
    where the time at which its line came stands before it, as in ``serve/steps.log``."""
    content.engine = "vllm"
    placed = 0
    for line in lines:
        found = _STEP_LINE.search(line)
        if found is None or found["dummy"]:
            content.skipped += 1
            continue
        numbers = {name: int(found[name][:15]) for name in ("ctx", "ctx_tokens", "gen", "gen_tokens")}
        try:
            duration = seconds_or_nan(float(found["ms"]), 1e-3)
            kv = _ratio(float(found["kv"]) / 100) if found["kv"] else NAN
        except ValueError:
            duration = kv = NAN
        if duration != duration:
            content.skipped += 1
            continue
        came = _LINE_TIME.match(line)
        placed += came is not None
        content.rows.add(
            end_s=time_or_nan(_number(came[1])) if came else NAN,
            duration_s=duration,
            engine=int((found["engine"] or "0")[:6]),
            prefill=(numbers["ctx"], numbers["ctx_tokens"]),
            decode=(numbers["gen"], numbers["gen_tokens"]),
            kv_ratio=kv,
        )
    content.notes.append(
        "The steps are from the server's log and placed by the time at which their lines came."
        if placed
        else "The step log gives durations only (its time stamps are whole seconds): steps are counted, not matched to requests."
    )


# The start of a server, from its log.

_START_LINES = {
    "weights_s": r"Loading weights took ([\d.]+) seconds|Load weight end\. elapsed=([\d.]+) s",
    "compilation_s": r"\(compilation: ([\d.]+) s|torch\.compile takes ([\d.]+) s in total",
    "graph_capture_s": r"Graph capturing finished in ([\d.]+) secs|Capture cuda graph end\. Time elapsed: ([\d.]+) s",
    "init_s": r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s",
}


def read_cold_start(log: str, total_s: float, imports_s: float | None) -> ColdStart:
    """Split the start of a vLLM or SGLang server from its log; with several ranks the slowest is used."""
    found: dict[str, float] = {}
    for name, pattern in _START_LINES.items():
        values = [seconds_or_nan(_number(a or b)) for a, b in _pairs(pattern, log)]
        known = [value for value in values if 0 <= value <= total_s]
        if known:
            found[name] = max(known)
    start = ColdStart(total_s, imports_s if imports_s is not None and imports_s <= total_s else None)
    start.weights_s, start.graph_capture_s = found.get("weights_s"), found.get("graph_capture_s")
    start.compilation_s = found.get("compilation_s")
    if "init_s" in found:
        # Compilation and graph capture happen while the engine is initialised.
        within = (start.compilation_s or 0.0) + (start.graph_capture_s or 0.0)
        start.kv_cache_s = max(found["init_s"] - within, 0.0)
    parts = (start.imports_s, start.weights_s, start.compilation_s, start.graph_capture_s, start.kv_cache_s)
    if any(part is not None for part in parts):
        start.other_s = max(total_s - sum(part or 0.0 for part in parts), 0.0)
    return start


def _pairs(pattern: str, log: str) -> Iterator[tuple[str, str]]:
    for found in re.finditer(pattern, log):
        groups = [group or "" for group in found.groups()]
        yield groups[0], groups[1] if len(groups) > 1 else ""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return NAN


# Forward-pass metrics (SGLang, Dynamo, TensorRT-LLM).

_FPM = ("version", "worker_id", "dp_rank", "counter_id", "wall_time", "scheduled_requests", "queued_requests")
_SCHEDULED = (
    "num_prefill_requests",
    "sum_prefill_tokens",
    "var_prefill_length",
    "sum_prefill_kv_tokens",
    "num_decode_requests",
    "sum_decode_kv_tokens",
    "var_decode_kv_tokens",
)
_QUEUED = (
    "num_prefill_requests",
    "sum_prefill_tokens",
    "var_prefill_length",
    "num_decode_requests",
    "sum_decode_kv_tokens",
    "var_decode_kv_tokens",
)


def _named(value: object, names: Sequence[str]) -> Object:
    """A record of msgspec is positional; as JSON it may also have names."""
    if isinstance(value, list):
        return dict(zip(names, value, strict=False))
    return _object(value)


def _forward_pass(one: object) -> tuple[Object, object]:
    """Return (the record, when it was received)."""
    held = _object(one)
    at = next((held[key] for key in ("time_s", "t", "received_s", "timestamp") if key in held), None)
    inner = next(
        (held[key] for key in ("fpm", "metrics", "record") if isinstance(held.get(key), list | Mapping)), one
    )
    return _named(inner, _FPM), at


def _is_forward_pass(one: object) -> bool:
    """Return whether a value is a forward-pass metrics record."""
    record, _ = _forward_pass(one)
    scheduled = record.get("scheduled_requests")
    return "wall_time" in record and isinstance(scheduled, list | Mapping)


def _read_forward_pass(objects: Iterable[object], content: EngineContent) -> None:
    """Read forward-pass metrics; the record itself has no time stamp, so only the receiver's time stamp can place it."""
    content.engine = content.engine or "forward-pass metrics"
    unplaced = unknown = 0
    evicted: dict[int, int] = {}
    for one in objects:
        record, at = _forward_pass(one)
        if record.get("version", 1) != 1:
            unknown += 1
            continue
        scheduled = _named(record.get("scheduled_requests"), _SCHEDULED)
        queued = _named(record.get("queued_requests"), _QUEUED)
        duration = seconds_or_nan(record.get("wall_time"))
        if not duration > 0:  # an idle heartbeat
            content.skipped += 1
            continue
        end = time_or_nan(at)
        unplaced += end != end
        decoding = _least0(scheduled, "num_decode_requests")
        # Queued decodes are preempted requests: an increase is a preemption.
        engine, back = _least0(record, "dp_rank"), _least0(queued, "num_decode_requests")
        preempted = max(back - evicted.get(engine, 0), 0)
        evicted[engine] = back
        content.rows.add(
            end_s=end,
            duration_s=duration,
            engine=engine,
            preempted=preempted,
            prefill=(_least0(scheduled, "num_prefill_requests"), _least0(scheduled, "sum_prefill_tokens")),
            decode=(decoding, decoding),
            running=decoding + _least0(scheduled, "num_prefill_requests"),
            waiting=_least0(queued, "num_prefill_requests") + _least0(queued, "num_decode_requests"),
        )
    if unknown:
        content.notes.append(f"{unknown} forward-pass records of another version than 1 are left out.")
    if unplaced:
        content.notes.append(
            "Forward-pass records without the time they were received cannot be matched to requests."
        )


# Our own steps.


def is_own_steps(one: object) -> bool:
    """Return whether an object is the first line of our own ``serve/steps.jsonl``."""
    return _object(one).get("format") == OWN_STEPS


class _OwnStep(msgspec.Struct):
    """A line of ``serve/steps.jsonl``; msgspec checks types and limits."""

    duration_s: Seconds
    end_s: Annotated[float, msgspec.Meta(ge=0, le=LATEST_S)] = NAN
    engine: Count = 0
    prefill_requests: Count | None = None
    prefill_tokens: Count | None = None
    decode_requests: Count | None = None
    decode_tokens: Count | None = None
    running: Count | None = None
    waiting: Count | None = None
    kv_ratio: Share | None = None
    preempted: Count = 0
    cached_tokens: Count | None = None
    first_waits_s: list[Seconds] | None = None
    """For each request that got its first token here, the time since its arrival at the server."""
    prefill: dict[str, Count] | None = None
    """Request → prompt tokens."""
    decode: list[str] | None = None
    finished: list[dict[str, Any]] | None = None


def read_own_steps(lines: Iterable[bytes], content: EngineContent) -> None:
    """Read ``serve/steps.jsonl``: a header, then a line per step; ``prefill`` and ``decode`` have request ids where known."""
    decoder = msgspec.json.Decoder(_OwnStep)
    for number, line in enumerate(lines):
        if number == 0:
            header = _object(msgspec.json.decode(line))
            engine, version = header.get("engine"), header.get("engine_version")
            content.engine = engine if isinstance(engine, str) else None
            content.version = version if isinstance(version, str) else None
            continue
        if not line.strip():
            continue
        try:
            _add_own_step(content.rows, decoder.decode(line))
        except (ValueError, RecursionError):  # truncated, or invalid values
            content.skipped += 1
    if content.skipped:
        content.notes.append(
            f"{content.skipped} lines are not steps, or have impossible values, and are left out."
        )


def _add_own_step(rows: StepRows, step: _OwnStep) -> None:
    tokens, decode, waits = step.prefill or {}, step.decode or [], step.first_waits_s
    decoding = len(decode) if step.decode_requests is None else step.decode_requests
    counts = (
        step.engine,
        len(tokens) if step.prefill_requests is None else step.prefill_requests,
        sum(tokens.values()) if step.prefill_tokens is None else step.prefill_tokens,
        decoding,
        decoding if step.decode_tokens is None else step.decode_tokens,
        -1 if step.running is None else step.running,
        -1 if step.waiting is None else step.waiting,
        step.preempted,
        -1 if step.cached_tokens is None else step.cached_tokens,
        -1 if waits is None else len(waits),
    )
    row = rows.add_row(
        counts, (step.end_s, step.duration_s, NAN if step.kv_ratio is None else step.kv_ratio), waits or ()
    )
    for name, value in tokens.items():
        rows.add_member(row, name, value)
    for name in decode:
        rows.add_member(row, name, 0)
    for finished in step.finished or ():
        _add_finished(rows, row, finished)


# Choices of routers.


class _Choices(msgspec.Struct):
    """A line of ``serve/routing.jsonl``: choices of every expert in every layer since the line before."""

    counts: list[list[Count]]


def read_routing(lines: Iterable[bytes]) -> list[npt.NDArray[np.int64]]:
    """Return the windows of choices in order, each layers × experts; lines of another shape are left out."""
    decoder, found = msgspec.json.Decoder(_Choices), list[npt.NDArray[np.int64]]()
    for line in lines:
        try:
            counts = decoder.decode(line).counts
        except (ValueError, RecursionError):  # the header, or a truncated line
            continue
        if counts and counts[0] and len({len(layer) for layer in counts}) == 1:
            found.append(np.array(counts, np.int64))
    # The end of a server may cut its last window.
    whole = max((window.shape for window in found), default=None)
    return [window for window in found if window.shape == whole]


# Samples of /metrics.

_SAMPLE_LINE = re.compile(
    r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(?P<value>[-+.\deE]+|NaN|[+-]Inf)(?:\s+(?P<at>\d+))?\s*$"
)
_GAUGES = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "kv_ratio": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits"),
    "drafts": ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts"),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens"),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens"),
}
"""Column → names under which engines export it, the first that is there counts."""
_TRANSFERS = tuple(
    f"sglang:kv_transfer_{name}"
    for name in ("latency_ms", "speed_gb_s", "total_mb", "alloc_ms", "bootstrap_ms")
)
"""Of prefill and decode workers; a gauge, or a histogram whose sum and count are exported."""


def is_prometheus(text: str) -> bool:
    """Return whether text is a ``/metrics`` response of an engine."""
    return any(name in text for names in _GAUGES.values() for name in names) and "\n" in text


def read_prometheus(lines: Iterable[str], content: EngineContent) -> None:
    """Read one ``/metrics`` response; it has no time stamp."""
    values: dict[str, float] = {}
    for line in lines:
        found = _SAMPLE_LINE.match(line)
        if found is None or found["value"].endswith(("NaN", "Inf")):
            continue
        try:
            values[found["name"]] = values.get(found["name"], 0.0) + float(found["value"])
        except ValueError:
            content.skipped += 1
    content.samples.append((NAN, values))


def _is_metric_samples(one: object) -> bool:
    """Return whether an object is a sample of ``/metrics`` with its time: ours, or aiperf's ``server_metrics_export.jsonl``."""
    held = _object(one)
    return held.get("format") == OWN_METRICS or (
        ("timestamp_ns" in held or "time_s" in held) and isinstance(held.get("metrics"), Mapping)
    )


def _read_metric_samples(objects: Iterable[Object], content: EngineContent) -> None:
    """Read samples; values of several label sets are added up."""
    for one in objects:
        if one.get("format") == OWN_METRICS:
            continue
        at = (
            time_or_nan(one.get("timestamp_ns"), 1e-9)
            if "timestamp_ns" in one
            else time_or_nan(one.get("time_s"))
        )
        values: dict[str, float] = {}
        for name, value in _object(one.get("metrics")).items():
            held = value if isinstance(value, list) else [{"value": value}]
            numbers = [_object(item).get("value") for item in held]
            known = [float(item) for item in numbers if is_number(item)]  # type: ignore[arg-type]
            if known:
                values[str(name)] = sum(known)
        if at != at or not values:
            content.skipped += 1
            continue
        content.samples.append((at, values))


def sample_table(samples: Sequence[tuple[float, Mapping[str, float]]]) -> Samples:
    """Return samples as columns, in time order."""
    ordered = sorted(samples, key=lambda one: one[0])
    columns = {
        column: np.array(
            [next((values[name] for name in names if name in values), NAN) for _, values in ordered],
            np.float64,
        )
        for column, names in _GAUGES.items()
    }
    transfers = {
        name: np.array([values.get(name, NAN) for _, values in ordered], np.float64)
        for base in _TRANSFERS
        for name in (base, f"{base}_sum", f"{base}_count")
        if any(name in values for _, values in ordered)
    }
    return Samples(time_s=np.array([at for at, _ in ordered], np.float64), transfers=transfers, **columns)


_StepReader = Callable[[Iterable[Any], EngineContent], None]
ENGINE_FORMATS: dict[str, tuple[Callable[[object], bool], _StepReader]] = {
    "vLLM statistics": (_is_vllm_steps, _read_vllm_steps),
    "forward-pass metrics": (_is_forward_pass, _read_forward_pass),
    "metric samples": (_is_metric_samples, _read_metric_samples),
}
"""Format → what recognises its first object, and what reads its objects; our own steps are read line by line."""
