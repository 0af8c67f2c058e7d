"""Hostile serving records: whatever a file holds, the answer is a summary or an InputError, never a traceback."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.serving.findings import find_serving
from llm_perf_opt.analysis.serving.section import analyse_serving
from llm_perf_opt.captures.serving.reader import read_serving
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.summary.codec import from_plain, to_plain
from llm_perf_opt.summary.serving import Serving
from tests.unit.captures.serving.test_readers import (
    AIPERF_SUMMARY,
    OTLP,
    SGLANG_BENCH,
    VLLM_BENCH,
    aiperf_record,
    guidellm_report,
    lifecycle,
)
from tests.unit.serving_records import Plan, simulate

STRANGE: list[Any] = [
    None, True, "", "x" * 300, -1, 0, 1e308, -1e308, 10**40, float("nan"), float("inf"), [], {}, [[]], {"a": {}}, "1", [None], 1e-320,
]  # fmt: skip


def records() -> dict[str, list[Any]]:
    small = simulate(Plan(requests=12, kv_tokens=1500))
    return {
        "vllm": [VLLM_BENCH],
        "sglang": [SGLANG_BENCH],
        "aiperf": [AIPERF_SUMMARY],
        "aiperf-records": [aiperf_record(k) for k in range(5)],
        "guidellm": [guidellm_report()],
        "otlp": [OTLP],
        "stage_1_lifecycle": [lifecycle()],
        "chunks": small.chunk_records(),
        "own": small.own_requests(),
        "steps": small.vllm_steps()[:60],
        "own-steps": small.own_steps()[:60],
        "forward-pass": small.forward_pass()[:60],
        "mooncake": [
            {"timestamp": k, "input_length": 5, "output_length": 3, "hash_ids": [k]} for k in range(5)
        ],
    }


def damaged(value: Any, draw: random.Random) -> Any:
    """Replace, remove or repeat something at a random depth."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        if draw.random() < 0.15:
            del value[key]
        else:
            value[key] = damaged(value[key], draw)
        return value
    if isinstance(value, list) and value and draw.random() < 0.85:
        place = draw.randrange(len(value))
        if draw.random() < 0.1:
            value.append(copy.deepcopy(value[place]))
        else:
            value[place] = damaged(value[place], draw)
        return value
    return copy.deepcopy(draw.choice(STRANGE))


@pytest.mark.parametrize("kind", sorted(records()))
def test_damaged_records_never_crash(kind: str, tmp_path: Path) -> None:
    draw = random.Random(kind)
    whole = records()
    requests = tmp_path / "requests.jsonl"
    requests.write_text("\n".join(map(json.dumps, whole["own"])))
    for _ in range(100):
        rows = copy.deepcopy(whole[kind])
        for _ in range(draw.randint(1, 6)):
            rows = damaged(rows, draw)
            if not isinstance(rows, list):
                rows = [rows]
        text = "\n".join(map(json.dumps, rows))
        if draw.random() < 0.3:
            text = text[: draw.randrange(len(text) + 1)]
        path = tmp_path / f"{kind}.json"
        path.write_text(text)
        paths = [requests, path] if "steps" in kind or kind == "forward-pass" else [path]
        try:
            found = analyse_serving(read_serving(paths), {"ttft": 0.5})
        except InputError:
            continue
        find_serving(found)
        # What is written can be read again: no NaN, no value outside the limits.
        from_plain(Serving, to_plain(found.serving))
