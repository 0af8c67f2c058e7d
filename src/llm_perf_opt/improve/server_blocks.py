"""One experiment on two servers that differ in their options: starts, blocks of load in turns, answers, and the test.

A block of load is the load point of the search, sent once. Both sides of a pair get the same requests. Where two servers fit
(a CPU with enough memory), both run at the same time and blocks alternate A B B A; otherwise one server runs at a time and the
starts alternate A B B A. A server may be faster or slower for as long as it runs (placement of memory and threads), and pairs
of one start share that. So a side is started at least twice, and a gain must also hold over the starts.

Starting a server takes much longer than a block. Where four servers fit, both starts of both sides are made at the same time,
and the servers of A are kept for the next experiments with the same A. Only one server has requests at any time, and the others are
paused: an idle server may use the processor (vLLM workers busy-wait after their last step).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_perf_opt.analysis.statistics import DROP_ERROR, SequentialTest
from llm_perf_opt.core.console.signals import acknowledge_interruption, raise_if_interrupted
from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.improve import costs
from llm_perf_opt.improve.experiment import Outcome, as_measured
from llm_perf_opt.improve.measuring import OUT_OF_BUDGET, PASSES, SIDES, Failure, GivenUpError, Letter, Spec
from llm_perf_opt.improve.outputs import first_difference
from llm_perf_opt.remedies.data import SERVING_METRICS, Metric, OutputCheck
from llm_perf_opt.stages.serve.config import ServeConfig, parsed_slo
from llm_perf_opt.stages.serve.engines import make_engine
from llm_perf_opt.stages.serve.load import PlannedRequest, Vocabulary, plan_loads, warm_up
from llm_perf_opt.stages.serve.server import Server, free_port, prepare
from llm_perf_opt.stages.serve.stage import server_settings
from llm_perf_opt.summary.codec import to_plain
from llm_perf_opt.summary.statistics import TrialVerdict, student_quantile

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig
    from llm_perf_opt.stages.serve.client import LoadResult, RequestRecord

LEAST_STARTS = 2
"""Of each side."""
PAIRS_PER_START = 8
_LEAST_PAIRS = 4
"""Of a start, whatever those before it showed."""
_LEAST_GOOD = 0.5
"""Requests within the limits that a block without any counts as, so that a ratio exists."""
_ANSWERS_SEED, _BLOCKS_SEED = 500_009, 1_000_003
_MOST_PAIRS = 10_000
"""Of one experiment: those of the next one have other seeds."""
_PREFIX = re.compile(r"\x1b\[[0-9;]*m|^\(\w+ pid=\d+\) ?")
_MOST_REASON = 300


@dataclass(slots=True)
class Block:
    """One block of load."""

    side: Letter
    start: int
    pair: int
    seconds: float
    requests: int
    values: dict[str, float] = field(default_factory=dict)
    """Metric → its value; only those that the block has."""


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What both sides of every experiment have in common."""

    app: AppConfig
    serve: ServeConfig
    checkpoint: str
    vocabulary: Vocabulary
    together: bool
    """Whether both servers run at the same time."""
    api_key: str | None = field(default=None, repr=False)
    starts_at_once: int = 1
    """Starts of both sides that are made at the same time, where ``together``."""


@dataclass(frozen=True, slots=True)
class _Started:
    """A server that is healthy, and its answers."""

    server: Server
    answers: dict[str, str]


class KeptServers:
    """Servers of A that go on running between experiments; a context manager that ends them."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._args: list[str] | None = None
        self._running: dict[int, _Started] = {}
        self._experiments = 0

    def begin_experiment(self) -> int:
        """Return the number of this experiment: its prompts must differ from those that a kept server has cached."""
        self._experiments += 1
        return self._experiments

    def __enter__(self) -> KeptServers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            acknowledge_interruption()  # the servers are being ended; do not interrupt this
        self.close()

    def close(self) -> None:
        """End all servers."""
        for one in self._running.values():
            one.server.request_stop()
        self._running, self._args = {}, None
        self._stack.close()

    def with_arguments(self, args: Sequence[str]) -> dict[int, _Started]:
        """Return the servers with these arguments by start; those of other arguments are ended, and all if one has ended."""
        if self._args != list(args) or not all(one.server.is_alive for one in self._running.values()):
            self.close()
        return dict(self._running)

    def keep(self, args: Sequence[str], start: int, started: _Started, owned: contextlib.ExitStack) -> None:
        """Take over a server from the stack that would have ended it."""
        self._args = list(args)
        self._running[start] = started
        self._stack.push(owned.pop_all())


def block_values(result: LoadResult, slo: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a load point; latencies of an open loop begin at the scheduled time."""
    done = [one for one in result.records if one.status == "ok" and one.token_s and one.end_s is not None]
    if not done or result.seconds <= 0:
        return {}
    tokens = [one.output_tokens or len(one.token_s) for one in done]
    latencies: dict[str, list[float]] = {
        "ttft": [one.token_s[0] - one.scheduled_s for one in done],
        "tpot": [
            (one.token_s[-1] - one.token_s[0]) / (count - 1) if count > 1 else math.nan
            for one, count in zip(done, tokens, strict=True)
        ],
        "e2e": [(one.end_s or 0.0) - one.scheduled_s for one in done],
        "itl": [max((b - a for a, b in itertools.pairwise(one.token_s)), default=math.nan) for one in done],
    }
    found = {"tokens_per_s": sum(tokens) / result.seconds}
    for name in ("ttft", "tpot", "e2e"):
        known = [value for value in latencies[name] if value == value]
        for share in (50, 90, 99) if known else ():
            found[f"{name}_p{share}"] = float(np.quantile(known, share / 100))
    if slo:
        # A request of one token has no time per output token and meets that limit.
        good = sum(
            all(not latencies[name][place] > limit for name, limit in slo.items())
            for place in range(len(done))
        )
        found["goodput"] = max(good, _LEAST_GOOD) / result.seconds
    return found


def log_ratio(a: Block, b: Block, metric: Metric) -> float | None:
    """Return the log ratio of the metric as a cost; ``None`` where a side has none."""
    first, second = a.values.get(metric), b.values.get(metric)
    if not first or not second or first <= 0 or second <= 0:
        return None
    ratio = math.log(second / first)
    return -ratio if metric in costs.HIGHER_IS_BETTER else ratio


def holds_over_starts(ratios: Sequence[float]) -> bool:
    """Return whether the starts, each with its median log ratio, show a gain (one-sided t-test at 5 %)."""
    if len(ratios) < LEAST_STARTS:
        return False
    quantile = student_quantile(1 - DROP_ERROR, len(ratios) - 1)
    return fmean(ratios) < 0 and -fmean(ratios) >= quantile * stdev(ratios) / math.sqrt(len(ratios))


def compare_answers(a: Sequence[Mapping[str, str]], b: Sequence[Mapping[str, str]]) -> OutputCheck | None:
    """Compare the answers of both sides, of each start; those that vary between starts of A are not held against B."""
    if not a or not b:
        return None
    stable = {name: text for name, text in a[0].items() if all(each.get(name) == text for each in a)}
    places = {
        name: place
        for name, text in stable.items()
        for each in b
        if (place := _first_word(text, each.get(name, ""))) is not None
    }
    first = min(places, key=lambda name: (places[name], name)) if places else None
    varying = len(a[0]) - len(stable)
    notes = ["answers are compared as text, word by word"]
    if varying:
        notes.append(
            f"{varying} of {len(a[0])} answers differ between starts of the baseline and are not compared"
        )
    return OutputCheck(
        tokens_equal=not places if stable else None,
        samples=len(stable),
        differing_samples=len(places),
        first_difference=places[first] if first is not None else None,
        first_sample=first,
        reason="; ".join(notes),
    )


def _first_word(one: str, other: str) -> int | None:
    return None if one == other else first_difference(one.split(), other.split()) or len(one.split())


def run_on_servers(
    spec: Spec,
    folder: Path,
    load: ServerLoad,
    *,
    kept: KeptServers | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Measure both sides; what was measured before a failure is kept. ``spec.a`` and ``spec.b``: the servers' arguments.

    ``kept``: servers of A that are used if they run, and go on running; ``None``: all servers are new and ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    began = clock()
    run = _Run(spec, folder, load, clock, began, kept)
    failure: Failure | None = None
    try:
        run.measure()
    except GivenUpError as error:
        failure = error.failure
    except ToolError as error:  # of a server that was being ended
        raise_if_interrupted()
        if _replaced_interruption(error):
            raise KeyboardInterrupt from error
        failure = Failure(error.message)
    outcome = run.outcome()
    if failure is not None:
        outcome.failure, outcome.failure_kind = failure.message, failure.kind
    outcome.how, outcome.seconds = "own processes", clock() - began
    outcome.out_of_budget = outcome.failure_kind == "budget" and outcome.measured is None
    return outcome


class _Run:
    """The state of one experiment."""

    def __init__(
        self,
        spec: Spec,
        folder: Path,
        load: ServerLoad,
        clock: Callable[[], float],
        began: float,
        kept: KeptServers | None = None,
    ) -> None:
        self.spec, self.folder, self.load = spec, folder, load
        self._clock, self._began, self._start_s = clock, began, 0.0
        self._kept = kept if load.together and load.starts_at_once > 1 else None
        self._test = SequentialTest(spec.rule())
        self._chance = random.Random(spec.settings.seed)
        self._pairs: list[tuple[Block, Block]] = []
        self._answers: dict[Letter, list[dict[str, str]]] = {"a": [], "b": []}
        self._starts, self._pair = 0, 0
        self._slo = parsed_slo(load.serve)
        self._first_seed = _BLOCKS_SEED + _MOST_PAIRS * (self._kept.begin_experiment() if self._kept else 0)

    # When to stop.

    def _left_s(self) -> float:
        used = self._clock() - self._began
        limit = self.spec.longest_s if self._test.in_sight() else self.spec.limit_s
        if self.spec.total_s is not None:
            limit = min(limit, self.spec.total_s) if self._starts >= LEAST_STARTS else self.spec.total_s
        return limit - used

    def _start_ratios(self) -> list[float]:
        by_start: dict[int, list[float]] = {}
        for a, b in self._pairs:
            ratio = log_ratio(a, b, self.spec.metric)
            if ratio is not None:
                by_start.setdefault(a.start, []).append(ratio)
        return [median(values) for values in by_start.values()]

    def _settled(self) -> bool:
        verdict = self._test.verdict()
        if verdict == "gain":
            return holds_over_starts(self._start_ratios())
        return verdict is not None

    def _verdict(self) -> TrialVerdict:
        found = self._test.verdict_at_the_end()
        return "not shown" if found == "gain" and not holds_over_starts(self._start_ratios()) else found

    # The order of starts and blocks.

    def measure(self) -> None:
        """Start the servers and send blocks until the test has a verdict or the time is over."""
        while self._starts < LEAST_STARTS or not self._settled():
            if self._left_s() < self._start_s or self._test.count >= self.spec.settings.most_blocks:
                break
            if self.load.together:
                self._starts_of_both()
            else:
                self._starts_in_turns()
        if self._starts < LEAST_STARTS:
            raise GivenUpError(OUT_OF_BUDGET, "budget")

    def _starts_of_both(self) -> None:
        """Start both sides, as often as is done at the same time, and send blocks to the starts in turns."""
        count = min(self.load.starts_at_once, LEAST_STARTS) if not self._starts else 1
        starts = range(self._starts, self._starts + count)
        with self._servers([(letter, start) for start in starts for letter in SIDES]) as servers:
            for draw in range(count * PAIRS_PER_START // 2):
                start, first = starts[draw % count], self._chance.choice(SIDES)
                for order in ((first, _other(first)), (_other(first), first)):
                    both = {
                        letter: self._block(servers[letter, start].server, letter, start, self._pair)
                        for letter in order
                    }
                    self._add(both["a"], both["b"])
                    self._pair += 1
                enough = 2 * (draw + 1) >= count * _LEAST_PAIRS
                if enough and (self._settled_here(starts[-1]) or self._left_s() <= 0):
                    break
        self._starts += count

    def _settled_here(self, start: int) -> bool:
        """Whether more pairs of this start would change nothing; the first start is followed by another in any case."""
        if start + 1 < LEAST_STARTS:
            return self._test.in_sight() or self._test.loss_in_sight() or self._test.verdict() is not None
        return self._settled()

    def _starts_in_turns(self) -> None:
        """Two starts of each side: the second in the opposite order, and one pair of each start next to the other."""
        first = self._chance.choice(SIDES)
        halves: list[list[tuple[Block, Block]]] = []
        for half, order in enumerate(((first, _other(first)), (_other(first), first))):
            begin = self._pair
            found: dict[Letter, list[Block]] = {}
            for letter in order:
                start = self._starts + half
                with self._servers([(letter, start)]) as servers:
                    found[letter] = [
                        self._block(servers[letter, start].server, letter, start, begin + place)
                        for place in range(PAIRS_PER_START)
                    ]
            halves.append(list(zip(found["a"], found["b"], strict=True)))
            self._pair += PAIRS_PER_START
        for a, b in itertools.chain.from_iterable(zip(*halves, strict=True)):
            self._add(a, b)
        self._starts += 2

    def _add(self, a: Block, b: Block) -> None:
        ratio = log_ratio(a, b, self.spec.metric)
        if ratio is None:
            raise GivenUpError(f"the metric '{self.spec.metric}' was not measured")
        self._pairs.append((a, b))
        self._test.add(ratio)

    # Servers.

    @contextlib.contextmanager
    def _servers(self, wanted: Sequence[tuple[Letter, int]]) -> Iterator[dict[tuple[Letter, int], _Started]]:
        """Start servers, wait for all of them, take their answers and warm them up; those not kept end with the block."""
        began = self._clock()
        with contextlib.ExitStack() as stack:
            try:
                found: dict[tuple[Letter, int], _Started] = {}
                launched: dict[tuple[Letter, int], tuple[Server, contextlib.ExitStack]] = {}
                kept = self._kept.with_arguments(self.spec.a) if self._kept is not None else {}
                for letter, start in wanted:
                    if letter == "a" and start in kept:
                        found[letter, start] = kept[start]
                        continue
                    owned = stack.enter_context(contextlib.ExitStack())
                    server = self._launch(letter, start, owned)
                    launched[letter, start] = server, owned
                for (letter, _), (server, _) in launched.items():
                    self._await(letter, server)
                if self.load.together:
                    for server, _ in launched.values():
                        server.pause()
                for (letter, start), (server, owned) in launched.items():
                    started = found[letter, start] = _Started(server, self._ask(letter, server))
                    if self._kept is not None and letter == "a" and start < LEAST_STARTS:
                        self._kept.keep(self.spec.a, start, started, owned)
                    else:
                        stack.callback(server.request_stop)  # all at the same time, then each is waited for
                for letter, start in wanted:
                    self._answers[letter].append(found[letter, start].answers)
                    self._warm_up(letter, found[letter, start].server)
                self._start_s = max(self._start_s, self._clock() - began)
                yield found
            except KeyboardInterrupt:
                acknowledge_interruption()  # the servers are being ended; do not interrupt this
                raise

    def _launch(self, letter: Letter, start: int, owned: contextlib.ExitStack) -> Server:
        load = self.load
        serve = replace(
            load.serve, args=self.spec.overrides(letter), step_records=False, profile=False, port=None
        )
        engine = make_engine(serve)
        logs = self.folder / f"{letter}{start}"
        logs.mkdir(parents=True, exist_ok=True)
        settings = server_settings(load.app, serve, load.checkpoint, free_port(None), logs / "steps.jsonl")
        prepared = prepare(engine, settings)
        server = Server(engine, f"http://127.0.0.1:{settings.port}", api_key=load.api_key)
        try:
            owned.enter_context(server.running(prepared.argv, prepared.env, logs, serve, logs, wait=False))
        except ToolError as error:
            raise self._failed(letter, f": {error.message}") from error
        return server

    def _await(self, letter: Letter, server: Server) -> None:
        limit = self.load.serve.start_timeout_s
        if self.spec.total_s is not None:
            limit = min(limit, max(1.0, self.spec.total_s - (self._clock() - self._began)))
        try:
            server.wait_until_healthy(limit)
        except ToolError as error:
            if server.is_alive and limit < self.load.serve.start_timeout_s:
                raise GivenUpError(OUT_OF_BUDGET, "budget") from error
            how = "did not become healthy" if server.is_alive else "did not start"
            raise self._failed(letter, f" {how}: {_described_end(server)}") from error

    def _failed(self, letter: Letter, why: str) -> GivenUpError:
        """Return the error of a side; if it is A, its servers are not used again."""
        if self._kept is not None and letter == "a":
            self._kept.close()
        return GivenUpError(f"{_side(letter)}{why}")

    # Load.

    def _send(
        self, server: Server, level: Any, requests: Sequence[PlannedRequest], *, one_at_a_time: bool = False
    ) -> LoadResult:
        from llm_perf_opt.stages.serve.client import LoadClient, LoadResult, RequestRecord, Target

        serve = self.load.serve
        target = Target(
            server.url,
            server.engine.model_name(self.load.checkpoint),
            serve.endpoint,
            server.engine.request_fields(),
            self.load.api_key,
            serve.request_timeout_s,
        )

        if self.load.together:
            server.resume()

        async def send() -> LoadResult:
            async with LoadClient(target) as client:
                if not one_at_a_time:
                    return await client.run(
                        level, iter(requests), duration_s=serve.duration_s, is_alive=lambda: server.is_alive
                    )
                result = LoadResult(level)
                for planned in requests:
                    record = RequestRecord(planned.id, 0, client.clock.now())
                    result.records.append(await client.send(planned, record))
                return result

        try:
            return asyncio.run(send())
        finally:
            if self.load.together:
                server.pause()

    def _planned(self, seed: int, count: int | None = None) -> tuple[Any, list[PlannedRequest]]:
        """Return the last load point with other words, the same for both sides."""
        serve = replace(self.load.serve, seed=self.load.serve.seed + seed)
        planned = plan_loads(serve, self.load.vocabulary)[-1]
        return planned.level, list(itertools.islice(planned.requests, count))

    def _check(self, letter: Letter, server: Server, records: Sequence[RequestRecord], what: str) -> None:
        failed = [one for one in records if one.status not in ("ok", "cancelled")]
        if not failed:
            return
        server.resume()
        if _has_ended(server):
            raise self._failed(letter, f" ended during {what}: {_described_end(server)}")
        raise self._failed(
            letter, f": {len(failed)} of {len(records)} requests of {what} failed: {failed[0].reason}"
        )

    def _ask(self, letter: Letter, server: Server) -> dict[str, str]:
        """Return answers at temperature 0 to a few requests that are sent one at a time."""
        level, requests = self._planned(_ANSWERS_SEED, self.spec.settings.most_samples)
        # Texts are kept for conversations; each of these is one request long.
        asked = [
            replace(one, id=f"answer-{place}", conversation=place, cancel_after=None)
            for place, one in enumerate(requests)
        ]
        result = self._send(server, level, asked, one_at_a_time=True)
        self._check(letter, server, result.records, "the answers")
        return {one.id: one.text for one in result.records}

    def _warm_up(self, letter: Letter, server: Server) -> None:
        """Send the warm-up requests and one block that is not kept."""
        level, requests = self._planned(_BLOCKS_SEED - 1 - len(self._answers[letter]))
        first = warm_up(self.load.serve, self.load.vocabulary)
        for sent in filter(None, (first, requests)):
            result = self._send(server, level, [replace(one, offset_s=one.offset_s or 0.0) for one in sent])
            self._check(letter, server, result.records, "the warm-up")

    def _block(self, server: Server, letter: Letter, start: int, pair: int) -> Block:
        level, requests = self._planned(self._first_seed + pair)
        if self.load.serve.reset_prefix_cache:
            server.resume()
            server.reset_prefix_cache()
        result = self._send(server, level, requests)
        self._check(letter, server, result.records, "a load block")
        block = Block(
            letter, start, pair, result.seconds, len(result.records), block_values(result, self._slo)
        )
        with (self.folder / PASSES).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(to_plain(block)) + "\n")
        return block

    # The result.

    def outcome(self) -> Outcome:
        """Return what was measured so far."""
        check = compare_answers(self._answers["a"], self._answers["b"])
        metric = self.spec.metric
        a, b = (
            median([both[place].values[metric] for both in self._pairs]) if self._pairs else None
            for place in (0, 1)
        )
        outcome = Outcome(as_measured(self._test, self._verdict(), a, b, self.spec), check)
        outcome.total_change = b / a - 1 if a and b else None
        starts = self._start_ratios()
        if self._test.verdict_at_the_end() == "gain" and not holds_over_starts(starts):
            each = ", ".join(f"{100 * costs.as_change(ratio, metric):+.1f} %" for ratio in starts)
            outcome.note = f"inconclusive: the change differs too much between {len(starts)} starts ({each})"
        for name in SERVING_METRICS:
            ratios = [r for both in self._pairs if (r := log_ratio(*both, name)) is not None]
            if name == metric or not ratios:
                continue
            outcome.metrics[name] = costs.as_change(median(ratios), name)
            test = SequentialTest(self.spec.rule())
            for ratio in ratios:
                test.add(ratio)
            change = test.change(DROP_ERROR)
            if change is not None:
                low, high = sorted(costs.as_change(end, name) for end in (change.low, change.high))
                outcome.intervals[name] = (low, min(high, math.e**4))
        return outcome


def _replaced_interruption(error: BaseException) -> bool:
    """Return whether an error was raised while an interruption (Ctrl-C) ended the servers."""
    while error.__context__ is not None:
        error = error.__context__
        if isinstance(error, KeyboardInterrupt):
            return True
    return False


def _other(letter: Letter) -> Letter:
    return "b" if letter == "a" else "a"


def _side(letter: Letter) -> str:
    return "the baseline's server" if letter == "a" else "the server"


def _has_ended(server: Server) -> bool:
    """Whether the server has ended, which is known with a delay after its connections broke."""
    for _ in range(30):
        if not server.is_alive:
            return True
        if server.get("/health", timeout_s=1.0)[0] is not None:
            return False
        time.sleep(0.1)
    return not server.is_alive


def _described_end(server: Server) -> str:
    """Return the line of the log that says most about why the server ended, and where the log is."""
    lines = [_PREFIX.sub("", line).strip() for line in server.last_lines().splitlines()]
    errors = [line for line in lines if re.search(r"error", line, re.IGNORECASE)]
    reason = (errors or [line for line in lines if line] or ["its log is empty"])[-1][:_MOST_REASON]
    return f"{reason} (log: {server.log_dir / 'server.stderr.log'})" if server.log_dir else reason
