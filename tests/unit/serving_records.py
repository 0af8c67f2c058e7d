"""Serving records with known answers: a small discrete-event simulation of continuous batching.

The simulated engine serves first come, first served: every step decodes one token of each running request and fills the rest of its
token budget with prompts, in chunks. Truth is kept by the definitions of ``analysis.serving.parts``, from the real events.
"""

from __future__ import annotations

import bisect
import json
import random
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PARTS = ("client", "network", "queue", "own_prefill", "other_prefill", "decode", "other")
BASE_S = 1_700_000_000.0


@dataclass
class Plan:
    """What to simulate; the defaults are a healthy server."""

    seed: int = 0
    requests: int = 200
    rate_per_s: float = 4.0
    prompt: tuple[int, int] = (100, 300)
    output: tuple[int, int] = (20, 60)
    long_prompt_every: int = 0
    """Every so many requests a prompt of ``long_prompt`` tokens."""
    long_prompt: int = 6000
    step_s: float = 0.010
    prefill_token_s: float = 2e-5
    decode_request_s: float = 1e-4
    most_running: int = 64
    token_budget: int = 8192
    kv_tokens: int = 200_000
    network_s: float = 0.002
    client_lag_s: float = 0.0
    gap_s: float = 0.0003
    waves: bool = False
    """Requests enter only when all others have ended (static batching)."""
    stall_every: int = 0
    stall_s: float = 0.5
    offset_s: float = 0.0
    """Client clock − server clock."""
    noise: float = 0.0


@dataclass
class Job:
    number: int
    scheduled: float
    sent: float
    arrival: float
    prompt: int
    output: int
    need: int = 0
    """Prompt tokens still to be computed."""
    made: list[float] = field(default_factory=list)
    delivered: list[float] = field(default_factory=list)
    queued: float = -1.0
    started: float = -1.0
    own_prefill: float = 0.0
    recompute: float = 0.0
    preemptions: int = 0
    preempted_at: float = -1.0
    waited: float = 0.0
    waits: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Step:
    start: float
    end: float
    prefill: dict[int, int]
    decode: list[int]
    prefill_s: float
    running: int
    waiting: int
    kv: float
    preempted: int
    evicted: int = 0
    first: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)


@dataclass
class Simulated:
    plan: Plan
    jobs: list[Job]
    steps: list[Step]
    ends: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ends = [step.end for step in self.steps]

    def truth_ttft(self) -> np.ndarray:
        """(requests, parts) of the TTFT."""
        return np.array([self._ttft(job) for job in self.jobs])

    def truth_decode(self) -> np.ndarray:
        return np.array([self._decode(job) for job in self.jobs])

    def _split(self, low: float, high: float) -> tuple[float, float, float, float]:
        """(prefill, decode, host gaps, idle) between two times."""
        prefill = decode = host = busy = 0.0
        place = max(0, bisect.bisect_right(self.ends, low) - 1)
        while place < len(self.steps) and (place == 0 or self.ends[place - 1] <= high):
            step = self.steps[place]
            if place and step.decode:
                host += max(0.0, min(high, step.start) - max(low, self.ends[place - 1]))
            inside = max(0.0, min(high, step.end) - max(low, step.start))
            busy += inside
            share = step.prefill_s / (step.end - step.start)
            prefill += inside * share
            decode += inside * (1 - share)
            place += 1
        return prefill, decode, host, max(0.0, high - low - busy - host)

    def _ttft(self, job: Job) -> list[float]:
        prefill, decode, host, idle = self._split(job.arrival, job.queued)
        inner, inner_decode, inner_host, inner_idle = self._split(job.started, job.made[0])
        return [
            job.sent - job.scheduled,
            (job.arrival - job.sent) + idle + (job.delivered[0] - job.made[0]),
            job.started - job.queued,
            job.own_prefill,
            prefill + inner - job.own_prefill,
            decode + inner_decode,
            host + inner_host + inner_idle,
        ]

    def _decode(self, job: Job) -> list[float]:
        prefill, decode, host, idle = self._split(job.made[0], job.made[-1])
        for low, high in job.waits:
            a, b, c, d = self._split(low, high)
            prefill, decode, host, idle = prefill - a, decode - b, host - c, idle - d
        late = (job.delivered[-1] - job.made[-1]) - (job.delivered[0] - job.made[0])
        waited = sum(high - low for low, high in job.waits)
        return [0.0, max(0.0, late), waited, job.recompute, prefill - job.recompute, decode, host + idle]

    # Files.

    def chunk_records(self) -> list[dict[str, Any]]:
        """Requests as a plain client logs them, on the client's clock."""
        shift = BASE_S + self.plan.offset_s
        return [
            {
                "i": job.number,
                "t0": job.sent + shift,
                "tok": [at + shift for at in job.delivered],
                "t1": job.delivered[-1] + shift,
                "status": 200,
                "last": {
                    "id": f"cmpl-req-{job.number}",
                    "usage": {"prompt_tokens": job.prompt, "completion_tokens": job.output},
                },
            }
            for job in self.jobs
        ]

    def own_requests(self) -> list[dict[str, Any]]:
        """``serve/requests.jsonl``."""
        shift = BASE_S + self.plan.offset_s
        header = {
            "format": "llm-perf-opt.serve.requests",
            "version": 1,
            "engine": "vllm",
            "loads": [{"kind": "open", "rate_per_s": self.plan.rate_per_s}],
        }
        return [
            header,
            *(
                {
                    "id": f"req-{job.number}",
                    "load": 0,
                    "scheduled_s": job.scheduled + shift,
                    "sent_s": job.sent + shift,
                    "first_token_s": job.delivered[0] + shift,
                    "end_s": job.delivered[-1] + shift,
                    "token_s": [at + shift for at in job.delivered],
                    "prompt_tokens": job.prompt,
                    "output_tokens": job.output,
                    "status": "ok",
                }
                for job in self.jobs
            ),
        ]

    def vllm_steps(self, *, ids: bool = True) -> list[dict[str, Any]]:
        """Lines of a stat-logger plug-in; finished requests as the text of their records."""
        return [self._vllm_step(number, step, ids) for number, step in enumerate(self.steps)]

    def _vllm_step(self, number: int, step: Step, ids: bool) -> dict[str, Any]:
        finished = [self.jobs[k] for k in step.finished]
        records = ", ".join(
            f"FinishedRequestStats(finish_reason=<FinishReason.LENGTH: 1>, request_id='cmpl-req-{job.number}-0', "
            f"e2e_latency={step.end - job.arrival}, num_prompt_tokens={job.prompt}, num_preemptions={job.preemptions}, "
            f"num_generation_tokens={job.output}, queued_time={job.started - job.queued}, prefill_time={job.made[0] - job.started}, "
            f"decode_time={job.made[-1] - job.made[0]})"
            for job in finished
        )
        return {
            "t": step.end + BASE_S + 1e-4,
            "e": 0,
            "run": step.running,
            "wait": step.waiting,
            "kv": step.kv,
            "it": {
                "iteration_index": number,
                "num_ctx_requests": len(step.prefill),
                "num_ctx_tokens": sum(step.prefill.values()),
                "num_generation_requests": len(step.decode),
                "num_generation_tokens": len(step.decode),
                "elapsed_ms": (step.end - step.start) * 1e3,
                "is_dummy": False,
            },
            "is": {
                "iteration_timestamp": step.end + BASE_S,
                "num_preempted_reqs": step.preempted,
                "finished_requests": f"[{records}]" if ids and finished else [],
                "time_to_first_tokens_iter": [step.end - self.jobs[k].arrival for k in step.first],
            },
        }

    def own_steps(self) -> list[dict[str, Any]]:
        """``serve/steps.jsonl`` with the requests of every step."""
        header: dict[str, Any] = {"format": "llm-perf-opt.serve.steps", "version": 1, "engine": "vllm"}
        return [
            header,
            *(
                {
                    "end_s": step.end + BASE_S,
                    "duration_s": step.end - step.start,
                    "prefill": {f"req-{k}": tokens for k, tokens in step.prefill.items()},
                    "decode": [f"req-{k}" for k in step.decode],
                    "running": step.running,
                    "waiting": step.waiting,
                    "kv_ratio": step.kv,
                    "preempted": step.preempted,
                }
                for step in self.steps
            ),
        ]

    def forward_pass(self) -> list[dict[str, Any]]:
        """Forward-pass metrics with the time they were received: positional, no ids, no arrivals."""
        return [
            {
                "time_s": step.end + BASE_S,
                "fpm": [
                    1, "worker", 0, number, step.end - step.start,
                    [len(step.prefill), sum(step.prefill.values()), 0.0, 0, len(step.decode), 0, 0.0],
                    [step.waiting - step.evicted, 0, 0.0, step.evicted, 0, 0.0],
                ],
            }
            for number, step in enumerate(self.steps)
        ]  # fmt: skip


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def simulate(plan: Plan) -> Simulated:
    """Run the plan to the end of its last request."""
    draw = random.Random(plan.seed)
    jobs: list[Job] = []
    at = 1.0
    for number in range(plan.requests):
        at += draw.expovariate(plan.rate_per_s)
        prompt = draw.randint(*plan.prompt)
        if plan.long_prompt_every and number % plan.long_prompt_every == plan.long_prompt_every - 1:
            prompt = plan.long_prompt
        sent = at + (draw.expovariate(1 / plan.client_lag_s) if plan.client_lag_s else 0.0)
        arrival = sent + plan.network_s * (1 + draw.random())
        jobs.append(Job(number, at, sent, arrival, prompt, draw.randint(*plan.output), need=prompt))
    coming = deque(sorted(jobs, key=lambda job: job.arrival))
    waiting: deque[Job] = deque()
    running: list[Job] = []
    steps: list[Step] = []
    now = 0.0
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0].arrival)
        while coming and coming[0].arrival <= now:
            job = coming.popleft()
            job.queued = now
            waiting.append(job)
        now = _step(plan, draw, now, waiting, running, steps)
    return Simulated(plan, jobs, steps)


def _kv(running: list[Job]) -> int:
    return sum([job.prompt + len(job.made) - job.need for job in running])


def _preempt(plan: Plan, waiting: deque[Job], running: list[Job]) -> int:
    """Take the place of the latest requests while the cache cannot hold one more token of each."""
    preempted = 0
    while len(running) > 1 and _kv(running) + len(running) > plan.kv_tokens:
        victim = running.pop()
        preempted += 1
        if victim.made:
            victim.preemptions += 1
            victim.preempted_at = victim.made[-1]
        victim.need = victim.prompt + len(victim.made)
        waiting.appendleft(victim)
    return preempted


def _admit(
    plan: Plan, now: float, budget: int, waiting: deque[Job], running: list[Job]
) -> list[tuple[Job, int]]:
    """Continue prompts that were begun, then admit who waits, while budget, batch and cache allow it."""
    chunks: list[tuple[Job, int]] = []
    busy = bool(running)
    for job in running:
        if job.need and budget > 0:
            chunks.append((job, min(job.need, budget)))
            budget -= chunks[-1][1]
    while waiting and budget > 0 and len(running) < plan.most_running and not (plan.waves and busy):
        job = waiting[0]
        if running and _kv(running) + job.need + len(running) > plan.kv_tokens:
            break
        running.append(waiting.popleft())
        job.started = now if job.started < 0 else job.started
        if job.preempted_at >= 0:
            job.waits.append((job.preempted_at, now))
            job.preempted_at = -1.0
        chunks.append((job, min(job.need, budget)))
        budget -= chunks[-1][1]
    return chunks


def _step(
    plan: Plan, draw: random.Random, now: float, waiting: deque[Job], running: list[Job], steps: list[Step]
) -> float:
    preempted = _preempt(plan, waiting, running)
    decode = [job for job in running if job.need == 0]
    chunks = _admit(plan, now, 0 if preempted else plan.token_budget - len(decode), waiting, running)
    total = sum(tokens for _, tokens in chunks)
    cost = plan.step_s + plan.prefill_token_s * total + plan.decode_request_s * len(decode)
    scale = 1 + plan.noise * draw.uniform(-1, 1)
    stalled = (
        plan.stall_every and len(steps) % plan.stall_every == plan.stall_every - 1 and decode and not chunks
    )
    prefill_s = (plan.prefill_token_s * total if decode else cost) * scale
    end = now + cost * scale + (plan.stall_s if stalled else 0.0)
    numbers = {job.number: tokens for job, tokens in chunks}
    kv = _kv(running) / plan.kv_tokens
    step = Step(now, end, numbers, [job.number for job in decode], prefill_s, 0, 0, kv, preempted)
    for job, tokens in chunks:
        job.need -= tokens
        share = prefill_s * tokens / total
        if job.made:
            job.recompute += share
        else:
            job.own_prefill += share
    for job in [*decode, *(job for job, _ in chunks if job.need == 0)]:
        if not job.made:
            step.first.append(job.number)
        job.made.append(end)
        arrives = end + plan.network_s * (1 + 0.2 * draw.random())
        job.delivered.append(max(arrives, *job.delivered[-1:]) if job.delivered else arrives)
        if len(job.made) >= job.output:
            step.finished.append(job.number)
            running.remove(job)
    step.running, step.waiting = len(running), len(waiting)
    step.evicted = sum(bool(job.made) for job in waiting)
    steps.append(step)
    return end + plan.gap_s
