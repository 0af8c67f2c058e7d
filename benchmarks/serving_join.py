"""Joining 100,000 requests with 1,000,000 steps: at most 10 s of processor time and 1 GB. Run: ``python -m benchmarks.serving_join``.

Two parts: the join of records in memory, and reading and joining a tenth of it from files.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from llm_perf_opt.analysis.serving.findings import find_serving
from llm_perf_opt.analysis.serving.section import analyse_serving
from llm_perf_opt.captures.serving.reader import read_serving
from llm_perf_opt.captures.serving.records import Finished, LoadRecord, Requests, ServingRecords, Steps
from llm_perf_opt.summary.serving import LoadPoint

REQUESTS, STEPS = 100_000, 1_000_000
JOIN_S, MEMORY_MB = 10.0, 1024.0
BASE_S = 1_700_000_000.0
TOKENS = 8


def records(requests: int, steps: int) -> ServingRecords:
    """A load in which every tenth step computes a prompt and requests decode in the steps that follow."""
    draw = np.random.default_rng(0)
    every = steps // requests
    duration = draw.uniform(0.008, 0.012, steps)
    end = BASE_S + np.cumsum(duration + 0.0005)
    first = np.arange(requests) * every
    prefill = np.zeros(steps, np.int64)
    prefill[first] = 1
    tokens = prefill * 200
    wait = draw.uniform(0.012, 0.05, requests)
    last = np.minimum(first + TOKENS - 1, steps - 1)
    sent = end[first] - wait - 0.002
    rows = np.minimum(first[:, None] + np.arange(TOKENS)[None, :], steps - 1)
    token = end[rows] + 0.001 - sent[:, None]
    nothing = np.full(requests, np.nan)
    named = range(0, requests, 10)  # a part of the requests is named when it ends
    finished = np.array(named)
    return ServingRecords(
        loads=[LoadRecord(LoadPoint(kind="open"))],
        requests=Requests(
            id=[f"req-{k}" for k in range(requests)],
            load=np.zeros(requests, np.int32),
            scheduled_s=sent.copy(),
            sent_s=sent,
            ttft_s=token[:, 0].copy(),
            answer_ttft_s=nothing.copy(),
            e2e_s=token[:, -1].copy(),
            prompt_tokens=np.full(requests, 200),
            output_tokens=np.full(requests, TOKENS),
            cached_tokens=np.full(requests, -1),
            status=np.zeros(requests, np.int8),
            token_s=token.ravel(),
            token_offset=np.arange(requests + 1) * TOKENS,
            tpot_s=nothing.copy(),
            server_queue_s=nothing.copy(),
            server_prefill_s=nothing.copy(),
        ),
        steps=[
            Steps(
                engine=np.zeros(steps, np.int32),
                end_s=end,
                duration_s=duration,
                prefill_requests=prefill,
                prefill_tokens=tokens,
                decode_requests=np.ones(steps, np.int64),
                decode_tokens=np.ones(steps, np.int64),
                running=np.ones(steps, np.int64),
                waiting=np.zeros(steps, np.int64),
                kv_ratio=np.full(steps, 0.2),
                preempted=np.zeros(steps, np.int64),
                cached_tokens=np.full(steps, -1),
                first_tokens=prefill.copy(),
                wait_step=first,
                wait_s=wait,
                member_step=np.empty(0, np.int64),
                member_id=[],
                member_tokens=np.empty(0, np.int64),
                finished=Finished(
                    id=[f"cmpl-req-{k}-0" for k in named],
                    step=last[finished],
                    e2e_s=(end[last] - end[first] + wait)[finished],
                    queue_s=np.zeros(len(finished)),
                    prefill_s=duration[first][finished],
                    decode_s=(end[last] - end[first])[finished],
                    prompt_tokens=np.full(len(finished), 200),
                    cached_tokens=np.full(len(finished), 0),
                    output_tokens=np.full(len(finished), TOKENS),
                    preemptions=np.zeros(len(finished), np.int64),
                ),
            )
        ],
    )


def from_files(folder: Path, requests: int, steps: int) -> tuple[float, int]:
    """Write a smaller load as our own files; return (seconds to read and join them, their bytes)."""
    made = records(requests, steps)
    table, held = made.requests, made.steps[0]
    if table is None:
        raise RuntimeError("no requests were made")
    with (folder / "requests.jsonl").open("w") as stream:
        stream.write(
            json.dumps({"format": "llm-perf-opt.serve.requests", "version": 1, "loads": [{"kind": "open"}]})
            + "\n"
        )
        for k in range(requests):
            times = (table.sent_s[k] + table.token_s[k * TOKENS : (k + 1) * TOKENS]).tolist()
            line = {
                "id": table.id[k],
                "sent_s": table.sent_s[k],
                "first_token_s": times[0],
                "end_s": times[-1],
                "token_s": times,
            }
            stream.write(
                json.dumps({**line, "prompt_tokens": 200, "output_tokens": TOKENS, "status": "ok"}) + "\n"
            )
    with (folder / "steps.jsonl").open("w") as stream:
        stream.write(json.dumps({"format": "llm-perf-opt.serve.steps", "version": 1}) + "\n")
        for k in range(steps):
            line = {
                "end_s": held.end_s[k],
                "duration_s": held.duration_s[k],
                "prefill_requests": int(held.prefill_requests[k]),
                "prefill_tokens": int(held.prefill_tokens[k]),
                "decode_requests": 1,
                "running": 1,
                "waiting": 0,
            }
            stream.write(json.dumps(line) + "\n")
    paths = [folder / "requests.jsonl", folder / "steps.jsonl"]
    began = time.monotonic()
    analyse_serving(read_serving(paths))
    return time.monotonic() - began, sum(path.stat().st_size for path in paths)


def main() -> int:
    made = records(REQUESTS, STEPS)
    began, cpu = time.monotonic(), time.process_time()
    found = analyse_serving(made)
    findings = find_serving(found)
    took, wall = time.process_time() - cpu, time.monotonic() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{REQUESTS} requests × {STEPS} steps: {took:.1f} s of processor time ({wall:.1f} s), {memory:.0f} MB at most, coverage "
        f"{found.serving.coverage_ratio}, {len(findings)} findings"
    )
    with tempfile.TemporaryDirectory() as folder:
        read_s, size = from_files(Path(folder), REQUESTS // 10, STEPS // 10)
    print(f"a tenth of it from files ({size / 1e6:.0f} MB): {read_s:.1f} s with reading")
    return int(took > JOIN_S or memory > MEMORY_MB)


if __name__ == "__main__":
    sys.exit(main())
