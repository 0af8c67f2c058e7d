"""A discrete-event simulation of continuous batching: chunked prefill, limits of batch, tokens and KV memory, arrivals.

The unit is the engine step. A step decodes one token of every running request and computes prompt chunks of others with what is
left of its token budget, as vLLM schedules: running requests first, then waiting ones in the order of arrival. All requests have
the same lengths. Steps without prompt chunks are advanced together, so that a load point takes milliseconds.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

BLOCK_TOKENS = 16
"""Positions per KV block: on average half a block per request is unused."""
_LEAP = 32
"""Decode steps advanced at once at most."""
_WAVES = 6
_WARM_WAVES = 2
"""Closed loop: completions per request slot, and how many of them are not measured."""
_LEAST_OPEN = 300
_MOST_OPEN = 6000
"""Open loop: requests simulated."""
_WARM_SHARE = 0.2
_MOST_STEPS = 400_000
_BACKLOG_SHARE = 0.05
"""A load is sustained if of the second half of its requests not more than this share is added to those in flight."""


@dataclass(frozen=True, slots=True)
class Step:
    """The work of one engine step."""

    decoding: int
    """Requests that decode one token."""
    context_tokens: float
    """Cached positions of those requests together."""
    chunks: tuple[tuple[int, int], ...] = ()
    """(New prompt tokens, positions cached before them), one per request."""
    sampled: int = 0
    """Requests that get a token."""
    arrivals: int = 0
    """Requests that arrive during the step: the front end's work for them, where it shares cores with the engine."""

    @property
    def tokens(self) -> int:
        """Positions computed."""
        return self.decoding + sum(new for new, _ in self.chunks)


class StepTimes(Protocol):
    """How long steps take, and what a request spends outside of the engine's steps."""

    def seconds(self, step: Step) -> float:
        """Return the time from the begin of a step to the begin of the next one."""

    def before_s(self, prompt_tokens: int) -> float:
        """Return the time from sending to the scheduler: HTTP, chat template, tokenising."""

    def intake_s(self, prompt_tokens: int) -> float:
        """Return the part of it that the front end spends on one request after the other."""

    def after_s(self) -> float:
        """Return the time from the end of a step to the client."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the engine."""

    most_tokens: int
    """Token budget of a step (``max_num_batched_tokens``)."""
    most_sequences: int
    """Running requests (``max_num_seqs``)."""
    kv_tokens: float | None = None
    """Positions that the KV cache holds; ``None``: not known, and not limited."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of clients: a number of requests in flight, or a rate of Poisson arrivals."""

    prompt_tokens: int
    new_tokens: int
    concurrency: int | None = None
    rate_per_s: float | None = None
    is_spread: bool = False
    """Closed loop: whether the first requests are sent over the length of one request, not all at once."""
    requests: int | None = None
    """Closed loop: exactly so many, sent as a benchmark does and all measured; ``None``: the steady state."""
    seed: int = 7


@dataclass(slots=True, eq=False)
class _Request:
    sent_s: float
    arrived_s: float
    target: int
    """Positions to compute before the next token: the prompt, after a preemption also what was generated."""
    computed: int = 0
    generated: int = 0
    start: int = 0
    """Decode step at which it began to decode; with ``generated`` its progress."""
    first_s: float | None = None
    is_decoding: bool = False


@dataclass(slots=True)
class Outcome:
    """What clients would measure, over the requests of the measured window."""

    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    gaps_s: list[tuple[float, int]] = field(default_factory=list)
    """(Time between two tokens, how many requests saw it)."""
    seconds: float = 0.0
    """Length of the measured window."""
    completed: int = 0
    preemptions: int = 0
    most_running: int = 0
    burst_ttft_s: float | None = None
    """Closed loop: mean of the first wave, when all requests arrive at once."""
    is_sustained: bool = True
    """Open loop: ``False`` when the queue grew without end, so that latencies depend on how long the load lasts."""

    def requests_per_s(self) -> float | None:
        """Return completed requests per second."""
        return self.completed / self.seconds if self.seconds > 0 else None

    def itl_percentile(self, share: float) -> float | None:
        """Return a percentile of the gaps between tokens, interpolated as those that are measured."""
        ordered = sorted(self.gaps_s)
        place = share * (sum(weight for _, weight in ordered) - 1)
        reached = 0
        for number, (gap, weight) in enumerate(ordered):
            reached += weight
            if reached > place:
                # Between the last of these gaps and the first of the next ones.
                following = ordered[min(number + 1, len(ordered) - 1)][0]
                return gap + (following - gap) * max(0.0, place - (reached - 1))
        return None

    def good_ratio(self, slo: Mapping[str, float]) -> float | None:
        """Return the share of requests within every limit (``ttft``, ``tpot``, ``itl`` as ``tpot``, ``e2e``)."""
        if not self.ttft_s:
            return None
        limits = {name: slo.get(name, math.inf) for name in ("ttft", "tpot", "itl", "e2e")}
        tpot = min(limits["tpot"], limits["itl"])
        good = sum(
            first <= limits["ttft"] and each <= tpot and whole <= limits["e2e"]
            for first, each, whole in zip(self.ttft_s, self.tpot_s, self.e2e_s, strict=True)
        )
        return good / len(self.ttft_s)


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; ``None`` of nothing."""
    return math.fsum(values) / len(values) if values else None


def simulate(load: Load, limits: Limits, times: StepTimes) -> Outcome:
    """Return what a load would measure at a server with these limits and step times."""
    found = _Server(load, limits, times)
    outcome = found.run()
    while load.rate_per_s is not None and found.total < _MOST_OPEN and outcome.completed < found.total / 2:
        # Too few answers before the last arrival: requests take longer under this load than alone.
        found = _Server(load, limits, times, found.total * 3)
        outcome = found.run()
    return outcome


class _Server:
    """State of one simulation."""

    def __init__(self, load: Load, limits: Limits, times: StepTimes, total: int | None = None) -> None:
        self.load, self.limits, self.times = load, limits, times
        self.random = random.Random(load.seed)
        self.now = 0.0
        self.serial = itertools.count()
        self.arrivals: list[tuple[float, int, _Request]] = []
        self.waiting: deque[_Request] = deque()
        self.prefilling: deque[_Request] = deque()
        self.decoding: list[_Request] = []
        """In the order of admission: the last one is preempted first."""
        self.finishes: list[tuple[int, int, _Request]] = []
        self.steps_done = 0
        self.context = 0.0
        self.cached = 0.0
        """Positions in the KV cache, those of prompts being computed included."""
        self.intake_free_s = 0.0
        self.outcome = Outcome()
        self.first_wave: list[float] = []
        self.done = 0
        if load.concurrency is not None:
            self.total = load.requests or load.concurrency * _WAVES
        else:
            self.total = min(_MOST_OPEN, total or self._open_requests())
        self.in_flight_before = 0
        self.sent: list[float] = []
        """Open loop: when requests are sent; some may still wait for the front end."""
        self.warm = load.concurrency * _WARM_WAVES if load.concurrency and load.requests is None else 0
        self.sent_count = 0
        self.window_start: float | None = None if self.warm else 0.0

    def _open_requests(self) -> int:
        """Return the number of requests for a steady state: ten times those in flight."""
        in_flight = 1.5 * (self.load.rate_per_s or 1.0) * self._alone_s()
        return min(_MOST_OPEN, max(_LEAST_OPEN, round(10 * in_flight)))

    def _alone_s(self) -> float:
        """Return the approximate time of a single request."""
        load = self.load
        decode = self.times.seconds(Step(1, float(load.prompt_tokens), (), 1)) * load.new_tokens
        return decode + self.times.seconds(Step(0, 0.0, ((load.prompt_tokens, 0),), 1))

    def run(self) -> Outcome:
        """Run to the last measured request."""
        self._send_first()
        for _ in range(_MOST_STEPS):
            self._take_arrivals()
            if not (self.waiting or self.prefilling or self.decoding):
                if not self.arrivals:
                    break
                self.now = max(self.now, self.arrivals[0][0])
                continue
            if not self._step() or self._is_over():
                break
        self.outcome.burst_ttft_s = mean(self.first_wave)
        if self.window_start is not None:
            self.outcome.seconds = max(self.now - self.window_start, 0.0)
        return self.outcome

    def _is_over(self) -> bool:
        if self.load.concurrency is not None:
            return self.done >= self.total
        in_flight = bisect.bisect_right(self.sent, self.now) - self.done
        if self.now <= self.sent[len(self.sent) // 2]:
            self.in_flight_before = in_flight
        if self.now < self.sent[-1]:
            return False
        grown = in_flight - self.in_flight_before
        self.outcome.is_sustained = grown <= max(8, _BACKLOG_SHARE * self.total / 2)
        # Requests still running after the last arrival would be measured at a falling load.
        return True

    def _send_first(self) -> None:
        if self.load.concurrency is not None:
            length = self._alone_s() if self.load.is_spread else 0.0
            for place in range(min(self.load.concurrency, self.total)):
                self._send(length * place / self.load.concurrency)
            return
        at = 0.0
        rate = self.load.rate_per_s or 1.0
        for _ in range(self.total):
            at += self.random.expovariate(rate)
            self.sent.append(at)
            self._send(at)

    def _send(self, at: float) -> None:
        self.sent_count += 1
        # Half of it varies: clients and the front end do not run in lock-step with the engine.
        before = self.times.before_s(self.load.prompt_tokens) * (0.5 + self.random.expovariate(2.0))
        self.intake_free_s = max(self.intake_free_s, at) + self.times.intake_s(self.load.prompt_tokens)
        arrived = max(at + before, self.intake_free_s)
        heapq.heappush(
            self.arrivals, (arrived, next(self.serial), _Request(at, arrived, self.load.prompt_tokens))
        )

    def _take_arrivals(self) -> int:
        before = len(self.waiting)
        while self.arrivals and self.arrivals[0][0] <= self.now:
            self.waiting.append(heapq.heappop(self.arrivals)[2])
        return len(self.waiting) - before

    def _room(self) -> float:
        if self.limits.kv_tokens is None:
            return math.inf
        running = len(self.decoding) + len(self.prefilling)
        return self.limits.kv_tokens - self.cached - running * (BLOCK_TOKENS - 1) / 2

    def _step(self) -> bool:
        """Run one step, or several that only decode; return whether anything could run."""
        while self.decoding and self._room() < len(self.decoding):
            if len(self.decoding) + len(self.prefilling) == 1:
                return False
            self._preempt()
        chunks = self._schedule_prompts()
        count = len(self.decoding)
        if not chunks and not count:
            return False
        self.outcome.most_running = max(self.outcome.most_running, count + len(chunks))
        ready = sum(one.computed + new >= one.target for one, new in chunks)
        work = tuple((new, one.computed) for one, new in chunks)
        repeat = 1 if chunks or self.prefilling else self._leap()
        middle = self.context + count * (repeat - 1) / 2
        step = Step(count, middle, work, count + ready)
        took = self.times.seconds(step)
        if repeat > 1 and self.arrivals:
            repeat = max(1, min(repeat, math.ceil((self.arrivals[0][0] - self.now) / took)))
        self.now += took * repeat
        last = took
        if arrived := self._take_arrivals():
            last = self.times.seconds(replace(step, arrivals=arrived))
            self.now += last - took
        if count:
            self.steps_done += repeat
            self.context += count * repeat
            self.cached += count * repeat
            if self.window_start is not None:
                gaps = [(took, count * (repeat - 1)), (last, count)]
                self.outcome.gaps_s += gaps[repeat == 1 :]
        self._finish_decoding()
        for one, new in chunks:
            one.computed += new
            if one.computed >= one.target:
                self._begin_decoding(one)
        return True

    def _leap(self) -> int:
        if self.waiting:
            return 1
        to_finish = self.finishes[0][0] - self.steps_done
        room = self._room() / max(len(self.decoding), 1)
        return int(max(1, min(_LEAP, to_finish, room)))

    def _schedule_prompts(self) -> list[tuple[_Request, int]]:
        budget = self.limits.most_tokens - len(self.decoding)
        chunks: list[tuple[_Request, int]] = []
        for one in self.prefilling:
            if budget <= 0:
                break
            new = min(one.target - one.computed, budget)
            chunks.append((one, new))
            budget -= new
        while self.waiting and budget > 0:
            one = self.waiting[0]
            running = len(self.decoding) + len(self.prefilling)
            alone = running == 0
            # Running requests must also have room for one more step.
            needed = one.target + len(self.decoding) + BLOCK_TOKENS
            if running >= self.limits.most_sequences or (self._room() < needed and not alone):
                break
            self.waiting.popleft()
            self.prefilling.append(one)
            self.cached += one.target
            new = min(one.target, budget)
            chunks.append((one, new))
            budget -= new
        return chunks

    def _begin_decoding(self, one: _Request) -> None:
        self.prefilling.remove(one)
        one.generated += 1
        if one.first_s is None:
            one.first_s = self.now + self.times.after_s()
            if len(self.first_wave) < (self.load.concurrency or 0):
                self.first_wave.append(one.first_s - one.sent_s)
        if one.generated >= self.load.new_tokens:
            self.cached -= one.target
            self._complete(one)
            return
        one.is_decoding, one.start = True, self.steps_done
        self.decoding.append(one)
        self.context += one.target
        heapq.heappush(
            self.finishes,
            (self.steps_done + self.load.new_tokens - one.generated, next(self.serial), one),
        )

    def _finish_decoding(self) -> None:
        ended = []
        while self.finishes and self.finishes[0][0] <= self.steps_done:
            ended.append(heapq.heappop(self.finishes)[2])
        if not ended:
            return
        gone = {id(one) for one in ended}
        self.decoding = [one for one in self.decoding if id(one) not in gone]
        for one in ended:
            held = one.target + self.steps_done - one.start
            self.context -= held
            self.cached -= held
            self._complete(one)

    def _preempt(self) -> None:
        """Free the memory of the request that was admitted last; its tokens are computed again later."""
        if self.prefilling and self.prefilling[-1].computed == 0:
            one = self.prefilling.pop()
            self.cached -= one.target
        elif self.decoding:
            one = self.decoding.pop()
            made = self.steps_done - one.start
            self.context -= one.target + made
            self.cached -= one.target + made
            one.generated += made
            # The newest token is not in the cache yet.
            one.target += made + 1
            one.is_decoding = False
            self.finishes = [entry for entry in self.finishes if entry[2] is not one]
            heapq.heapify(self.finishes)
            self.outcome.preemptions += 1
        else:
            one = self.prefilling.pop()
            self.cached -= one.target
            self.outcome.preemptions += 1
        one.computed = 0
        self.waiting.appendleft(one)

    def _complete(self, one: _Request) -> None:
        self.done += 1
        end = self.now + self.times.after_s()
        if self._is_measured():
            first = one.first_s if one.first_s is not None else end
            self.outcome.completed += 1
            self.outcome.ttft_s.append(first - one.sent_s)
            self.outcome.e2e_s.append(end - one.sent_s)
            steps = self.load.new_tokens - 1
            self.outcome.tpot_s.append((end - first) / steps if steps else 0.0)
        if self.load.concurrency is not None and (
            self.load.requests is None or self.sent_count < self.load.requests
        ):
            self._send(end)

    def _is_measured(self) -> bool:
        if self.load.concurrency is None:
            if self.done <= _WARM_SHARE * self.total:
                self.window_start = self.now
                return False
            return True
        if self.done <= self.warm:
            if self.done == self.warm:
                self.window_start = self.now
            return False
        return True
