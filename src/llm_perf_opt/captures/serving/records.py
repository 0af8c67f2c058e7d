"""The common form of serving records: requests as seen by the client, steps of the engine, samples of ``/metrics``.

Definitions, whatever the tool:

- **TTFT**: first token − sending. Where a record names the scheduled time of sending and is ours, TTFT begins there.
- **TPOT**: (last token − first token) ÷ (output tokens − 1), one value per request.
- **ITL**: each gap between two chunks of a request, all requests together. A chunk may hold several tokens.
- **E2E**: last chunk − sending.
- Tokens are counted by the server's ``usage``, not by chunks.

Everything is columnar. Missing times are NaN, missing counts −1.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from llm_perf_opt.core.limits import LATEST_NS, MOST_COUNT, MOST_SECONDS, is_number
from llm_perf_opt.summary.serving import LoadPoint

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]
OK, ERROR, TIMEOUT, DISCONNECTED, REJECTED, CANCELLED = range(6)
STATUS_NAMES = ("ok", "error", "timeout", "disconnected", "rejected", "cancelled")
LATEST_S = LATEST_NS / 1e9
NAN = float("nan")


_LAG_S = 0.010
"""A 99th percentile of lateness above this means that the client limited an open loop."""
_LAG_SHARE = 0.1
"""… and this share of the p99 of the time to first token: less than that hardly changes what was measured."""


def is_late(lag_s: float | None, ttft_s: float | None) -> bool:
    """Whether the client's p99 send delay limited a load point with this p99 TTFT."""
    return lag_s is not None and lag_s > _LAG_S and (ttft_s is None or lag_s > _LAG_SHARE * ttft_s)


@dataclass(slots=True)
class LoadRecord:
    """One load point as a file describes it; percentiles are filled in where the file has no single requests."""

    point: LoadPoint
    from_schedule: bool = False
    """Whether latencies begin at the scheduled time of sending."""
    is_complete: bool = True
    """``False``: the tool itself says that the measurement did not finish."""
    incomplete_reason: str | None = None
    engine: str | None = None
    model: str | None = None
    is_total: bool = False
    """Whether it sums up other load points of the same run; it is used only where those are not given."""


@dataclass(slots=True, eq=False)
class Requests:
    """Requests as seen by the client; times are seconds on the client's clock, latencies count from sending."""

    id: list[str]
    load: Int32
    """Place of the load point."""
    scheduled_s: Float64
    sent_s: Float64
    ttft_s: Float64
    answer_ttft_s: Float64
    """To the first token that is not reasoning; NaN: the same, or not recorded."""
    e2e_s: Float64
    prompt_tokens: Int64
    output_tokens: Int64
    cached_tokens: Int64
    status: npt.NDArray[np.int8]
    token_s: Float64
    """Arrival of every chunk since sending, all requests one after the other."""
    token_offset: Int64
    """Where each request begins in ``token_s``; one more than there are requests."""
    tpot_s: Float64
    """As the tool states it, where it does not keep what it is computed from."""
    server_queue_s: Float64
    """Queue time that the server states for the request."""
    server_prefill_s: Float64
    """From being scheduled to the first token, as the server states it."""

    def __len__(self) -> int:
        return len(self.id)

    @property
    def completed(self) -> Bool:
        """Requests that ended well and have a first token."""
        return np.asarray((self.status == OK) & ~np.isnan(self.ttft_s), np.bool_)


@dataclass(slots=True, eq=False)
class Finished:
    """Engine records of finished requests."""

    id: list[str]
    step: Int64
    """Row of the step that made the last token."""
    e2e_s: Float64
    """Since the request's arrival at the server."""
    queue_s: Float64
    prefill_s: Float64
    decode_s: Float64
    prompt_tokens: Int64
    cached_tokens: Int64
    output_tokens: Int64
    preemptions: Int64


@dataclass(slots=True, eq=False)
class Steps:
    """Steps of an engine in order of their end; times are seconds on the server's clock."""

    engine: Int32
    """Number of the engine (data-parallel rank)."""
    end_s: Float64
    """NaN: the record has durations only."""
    duration_s: Float64
    prefill_requests: Int64
    prefill_tokens: Int64
    decode_requests: Int64
    decode_tokens: Int64
    running: Int64
    waiting: Int64
    kv_ratio: Float64
    preempted: Int64
    cached_tokens: Int64
    """Prompt tokens of this step that came from the prefix cache."""
    first_tokens: Int64
    """Requests that got their first token in this step; −1: not recorded."""
    wait_step: Int64
    """Row of the step, for each entry of ``wait_s``."""
    wait_s: Float64
    """For each first token the time since the request's arrival at the server."""
    member_step: Int64
    """Row of the step, for each entry of ``member_id``."""
    member_id: list[str]
    member_tokens: Int64
    """Prompt tokens of the request in the step; 0: it decoded."""
    finished: Finished
    placement_s: float = 0.0
    """Uncertainty of where the steps lie on their own clock."""
    spec_step: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Row of the step, for each entry of ``spec_counts``: steps that verified drafts."""
    spec_counts: Int64 = field(default_factory=lambda: np.empty((0, 3), np.int64))
    """Drafts (one per request), draft tokens, accepted draft tokens."""

    def __len__(self) -> int:
        return len(self.duration_s)

    @property
    def is_placed(self) -> bool:
        """Whether the steps have times."""
        return bool(len(self)) and not bool(np.isnan(self.end_s).any())


@dataclass(slots=True, eq=False)
class Samples:
    """Samples of ``/metrics`` in time order; counters are totals since the server started."""

    time_s: Float64
    running: Float64
    waiting: Float64
    kv_ratio: Float64
    preemptions: Float64
    prefix_queries: Float64
    prefix_hits: Float64
    drafts: Float64
    """Verifications of speculative decoding, one per request and step."""
    draft_tokens: Float64
    accepted_tokens: Float64
    transfers: dict[str, Float64] = field(default_factory=dict)
    """Metric of KV transfers between prefill and decode workers, as its engine names it → values; empty: not reported."""

    def __len__(self) -> int:
        return len(self.time_s)


@dataclass(slots=True, eq=False)
class ArrivalTrace:
    """A load to replay: when requests arrive, how long they are and what prefixes they share."""

    time_s: Float64
    prompt_tokens: Int64
    output_tokens: Int64
    blocks: list[list[int]]
    """Prefix block hashes of each request."""
    block_tokens: int = 512


@dataclass(slots=True)
class ServingRecords:
    """The combined records of all files."""

    loads: list[LoadRecord] = field(default_factory=list)
    requests: Requests | None = None
    steps: list[Steps] = field(default_factory=list)
    """One per file."""
    samples: list[Samples] = field(default_factory=list)
    trace: ArrivalTrace | None = None
    engine: str | None = None
    version: str | None = None
    client_capacity_per_s: float | None = None
    slo: dict[str, float] = field(default_factory=dict)
    """Limits in seconds that the load was sent with."""
    definitions: dict[str, str] = field(default_factory=dict)
    disaggregated: int = 0
    """Requests whose prompt and answer were computed by different workers."""
    transfers_s: list[float] = field(default_factory=list)
    """Estimated times in which their KV cache was sent."""
    notes: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    """Formats that were found, in the order of the files."""


# Numbers from files: invalid values are missing, never an error.


def seconds_or_nan(value: object, scale: float = 1.0) -> float:
    """Return a duration in seconds; NaN for anything that is not one."""
    if not is_number(value):
        return NAN
    found = float(value) * scale  # type: ignore[arg-type]
    return found if 0.0 <= found <= MOST_SECONDS else NAN


def time_or_nan(value: object, scale: float = 1.0) -> float:
    """Return a time stamp in seconds; NaN for anything that is not one."""
    if not is_number(value):
        return NAN
    found = float(value) * scale  # type: ignore[arg-type]
    return found if -1e-3 <= found <= LATEST_S else NAN


def count_or_missing(value: object) -> int:
    """Return a count; −1 for anything that is not one."""
    if not is_number(value) or not 0 <= value <= MOST_COUNT:  # type: ignore[operator]
        return -1
    return int(value)  # type: ignore[call-overload, no-any-return]


class RequestRows:
    """Collects requests one by one."""

    def __init__(self) -> None:
        self.id: list[str] = []
        self._int: list[tuple[int, int, int, int, int]] = []
        self._float: list[tuple[float, float, float, float, float, float, float, float]] = []
        self._tokens: list[float] = []
        self._offset: list[int] = [0]
        self.bad_times = 0

    def __len__(self) -> int:
        return len(self.id)

    def add(
        self,
        request_id: str,
        *,
        load: int = 0,
        scheduled_s: float = NAN,
        sent_s: float = NAN,
        ttft_s: float = NAN,
        answer_ttft_s: float = NAN,
        e2e_s: float = NAN,
        prompt_tokens: int = -1,
        output_tokens: int = -1,
        cached_tokens: int = -1,
        status: int = OK,
        tokens_s: Sequence[float] = (),
        tpot_s: float = NAN,
        server_queue_s: float = NAN,
        server_prefill_s: float = NAN,
    ) -> None:
        """Add a request; chunk times that go backwards are put in order."""
        times = [value for value in tokens_s if value == value and 0.0 <= value <= MOST_SECONDS]
        self.bad_times += len(tokens_s) - len(times)
        if any(b < a for a, b in itertools.pairwise(times)):
            times.sort()
            self.bad_times += 1
        ttft_s, e2e_s, answer_ttft_s = map(seconds_or_nan, (ttft_s, e2e_s, answer_ttft_s))
        if times and ttft_s != ttft_s:
            ttft_s = times[0]
        if e2e_s != e2e_s or e2e_s < ttft_s:
            e2e_s = times[-1] if times else NAN
        self.id.append(request_id)
        self._int.append((load, prompt_tokens, output_tokens, cached_tokens, status))
        self._float.append(
            (scheduled_s, sent_s, ttft_s, answer_ttft_s, e2e_s, tpot_s, server_queue_s, server_prefill_s)
        )
        self._tokens.extend(times)
        self._offset.append(len(self._tokens))

    def table(self) -> Requests:
        """Return the collected rows as columns."""
        whole = np.array(self._int, np.int64).reshape(-1, 5)
        real = np.array(self._float, np.float64).reshape(-1, 8)
        return Requests(
            id=self.id,
            load=whole[:, 0].astype(np.int32),
            scheduled_s=real[:, 0].copy(),
            sent_s=real[:, 1].copy(),
            ttft_s=real[:, 2].copy(),
            answer_ttft_s=real[:, 3].copy(),
            e2e_s=real[:, 4].copy(),
            prompt_tokens=whole[:, 1].copy(),
            output_tokens=whole[:, 2].copy(),
            cached_tokens=whole[:, 3].copy(),
            status=whole[:, 4].astype(np.int8),
            token_s=np.array(self._tokens, np.float64),
            token_offset=np.array(self._offset, np.int64),
            tpot_s=real[:, 5].copy(),
            server_queue_s=real[:, 6].copy(),
            server_prefill_s=real[:, 7].copy(),
        )


def join_requests(tables: Sequence[Requests], load_offsets: Sequence[int]) -> Requests | None:
    """Return the requests of several files as one table; their load points are renumbered."""
    if not tables:
        return None
    bases = np.cumsum([0, *(len(one.token_s) for one in tables)])

    def joined(name: str) -> npt.NDArray[np.float64]:
        return np.concatenate([getattr(one, name) for one in tables])

    return Requests(
        id=[name for one in tables for name in one.id],
        load=np.concatenate(
            [one.load + shift for one, shift in zip(tables, load_offsets, strict=True)]
        ).astype(np.int32),
        scheduled_s=joined("scheduled_s"),
        sent_s=joined("sent_s"),
        ttft_s=joined("ttft_s"),
        answer_ttft_s=joined("answer_ttft_s"),
        e2e_s=joined("e2e_s"),
        prompt_tokens=joined("prompt_tokens").astype(np.int64),
        output_tokens=joined("output_tokens").astype(np.int64),
        cached_tokens=joined("cached_tokens").astype(np.int64),
        status=joined("status").astype(np.int8),
        token_s=joined("token_s"),
        token_offset=np.concatenate(
            [[0], *(one.token_offset[1:] + base for one, base in zip(tables, bases, strict=False))]
        ).astype(np.int64),
        tpot_s=joined("tpot_s"),
        server_queue_s=joined("server_queue_s"),
        server_prefill_s=joined("server_prefill_s"),
    )


_StepCounts = tuple[int, int, int, int, int, int, int, int, int, int]
"""Engine; requests and tokens of prefill, and of decode; running, waiting, preempted, cached tokens, first tokens."""


class StepRows:
    """Collects steps one by one."""

    def __init__(self) -> None:
        self._int: list[_StepCounts] = []
        self._float: list[tuple[float, float, float]] = []
        self._waits: list[tuple[int, float]] = []
        self._members: list[tuple[int, int]] = []
        self._member_id: list[str] = []
        self._speculation: list[tuple[int, int, int, int]] = []
        self._finished_id: list[str] = []
        self._finished_int: list[tuple[int, int, int, int, int]] = []
        self._finished_float: list[tuple[float, float, float, float]] = []

    def __len__(self) -> int:
        return len(self._int)

    def add(
        self,
        *,
        end_s: float,
        duration_s: float,
        engine: int = 0,
        prefill: tuple[int, int] = (0, 0),
        decode: tuple[int, int] = (0, 0),
        running: int = -1,
        waiting: int = -1,
        kv_ratio: float = NAN,
        preempted: int = 0,
        cached_tokens: int = -1,
        first_tokens: int = -1,
        waits_s: Sequence[float] = (),
    ) -> int:
        """Add a step (requests and tokens of prefill and decode); return its row."""
        return self.add_row(
            (engine, *prefill, *decode, running, waiting, preempted, cached_tokens, first_tokens),
            (end_s, duration_s, kv_ratio),
            waits_s,
        )

    def add_row(
        self, whole: _StepCounts, real: tuple[float, float, float], waits_s: Sequence[float] = ()
    ) -> int:
        """Add a step in stored form: counts, (end, duration, KV usage), waits for first tokens; return its row."""
        self._int.append(whole)
        self._float.append(real)
        row = len(self._int) - 1
        if waits_s:
            self._waits.extend((row, wait) for wait in waits_s)
        return row

    def add_member(self, row: int, request_id: str, prompt_tokens: int) -> None:
        """Record that a request took part in a step."""
        self._members.append((row, prompt_tokens))
        self._member_id.append(request_id)

    def add_speculation(self, row: int, drafts: int, draft_tokens: int, accepted: int) -> None:
        """Record what a step verified; impossible counts are left out."""
        if drafts > 0 and 0 <= accepted <= draft_tokens:
            self._speculation.append((row, drafts, draft_tokens, accepted))

    def add_finished(
        self,
        row: int,
        request_id: str,
        *,
        e2e_s: float = NAN,
        queue_s: float = NAN,
        prefill_s: float = NAN,
        decode_s: float = NAN,
        prompt_tokens: int = -1,
        cached_tokens: int = -1,
        output_tokens: int = -1,
        preemptions: int = -1,
    ) -> None:
        """Record that a request ended with a step."""
        self._finished_id.append(request_id)
        self._finished_int.append((row, prompt_tokens, cached_tokens, output_tokens, preemptions))
        self._finished_float.append((e2e_s, queue_s, prefill_s, decode_s))

    def table(self) -> Steps:
        """Return the collected rows as columns, in the order the steps ended."""
        whole = np.array(self._int, np.int64).reshape(-1, 10)
        real = np.array(self._float, np.float64).reshape(-1, 3)
        order = np.argsort(real[:, 0], kind="stable")  # NaN last, as recorded
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        whole, real = whole[order], real[order]
        waits = np.array([row for row, _ in self._waits], np.int64)
        members = np.array(self._members, np.int64).reshape(-1, 2)
        drafts = np.array(self._speculation, np.int64).reshape(-1, 4)
        ends = np.array(self._finished_int, np.int64).reshape(-1, 5)
        times = np.array(self._finished_float, np.float64).reshape(-1, 4)
        return Steps(
            engine=whole[:, 0].astype(np.int32),
            end_s=real[:, 0].copy(),
            duration_s=real[:, 1].copy(),
            prefill_requests=whole[:, 1].copy(),
            prefill_tokens=whole[:, 2].copy(),
            decode_requests=whole[:, 3].copy(),
            decode_tokens=whole[:, 4].copy(),
            running=whole[:, 5].copy(),
            waiting=whole[:, 6].copy(),
            kv_ratio=real[:, 2].copy(),
            preempted=whole[:, 7].copy(),
            cached_tokens=whole[:, 8].copy(),
            first_tokens=whole[:, 9].copy(),
            wait_step=place[waits],
            wait_s=np.array([wait for _, wait in self._waits], np.float64),
            member_step=place[members[:, 0]],
            member_id=self._member_id,
            member_tokens=members[:, 1].copy(),
            spec_step=place[drafts[:, 0]],
            spec_counts=drafts[:, 1:].copy(),
            finished=Finished(
                id=self._finished_id,
                step=place[ends[:, 0]],
                e2e_s=times[:, 0].copy(),
                queue_s=times[:, 1].copy(),
                prefill_s=times[:, 2].copy(),
                decode_s=times[:, 3].copy(),
                prompt_tokens=ends[:, 1].copy(),
                cached_tokens=ends[:, 2].copy(),
                output_tokens=ends[:, 3].copy(),
                preemptions=ends[:, 4].copy(),
            ),
        )
