"""A server under load: latency at each load point, where the time of a request went, and the steps of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from llm_perf_opt.core.limits import Amount, Count, Number, PerSecond, Ratio, Share, SummedSeconds

LoadKind = Literal["open", "closed"]
PART_NAMES = ("client", "network", "queue", "own_prefill", "other_prefill", "decode", "other")
"""The parts of a request's time, in the order in which they are shown."""


@dataclass(slots=True)
class LatencyStat:
    """Percentiles of one latency over the completed requests of a load point."""

    p50: SummedSeconds | None = None
    p90: SummedSeconds | None = None
    p95: SummedSeconds | None = None
    p99: SummedSeconds | None = None
    """With fewer than 100 values this is the maximum, apart from interpolation; ``notes`` says so."""
    mean: SummedSeconds | None = None
    n: Count | None = None
    """Values; for ``itl_s`` the gaps between tokens, otherwise requests."""
    p99_low: SummedSeconds | None = None
    """Lower end of the 95 % interval of the p99 (order statistics)."""
    p99_high: SummedSeconds | None = None
    """Upper end; ``None`` where there are too few values for one (fewer than 368)."""


@dataclass(slots=True)
class TimeParts:
    """Where the time of a request went; a part that the records cannot decide is ``None``."""

    client: SummedSeconds | None = None
    """Between the scheduled and the real time of sending."""
    network: SummedSeconds | None = None
    """To the engine and back: connection, HTTP server, tokenising, delivery of the token to the client."""
    queue: SummedSeconds | None = None
    """In the waiting queue of the engine's scheduler; in decode parts: preempted."""
    own_prefill: SummedSeconds | None = None
    """The request's own share of steps that computed its prompt."""
    other_prefill: SummedSeconds | None = None
    """Prompts of other requests: in steps shared with them, or in the step the request had to wait for."""
    decode: SummedSeconds | None = None
    """Decode work; in TTFT parts that of other requests, in decode parts the steps that made the request's tokens."""
    other: SummedSeconds | None = None
    """Time between steps (host), and what could not be decided."""


@dataclass(slots=True)
class StepGroup:
    """Steps of one kind and batch size."""

    kind: Literal["prefill", "decode", "mixed"]
    batch: Count
    """Lower end of a range of batch sizes that ends below twice as many."""
    count: Count
    duration_s: SummedSeconds
    """Median."""
    total_s: SummedSeconds
    decoding: Amount | None = None
    """Mean requests per step that decode."""
    prompts: Amount | None = None
    """Mean requests per step with prompt tokens."""
    prompt_tokens: Amount | None = None
    """Mean prompt tokens per step."""
    context_tokens: Amount | None = None
    """Mean cached positions of a request that decodes; ``None``: the requests were not matched to steps."""
    floor_s: SummedSeconds | None = None
    """Roofline of the mean step: the least time its work can take; ``None``: the model was not counted, or a limit is not known."""
    floor_bound: Literal["compute", "memory"] | None = None
    floor_distance_ratio: Ratio | None = None
    """Mean duration ÷ ``floor_s``."""


@dataclass(slots=True)
class LoadPoint:
    """One level of load, and what was measured there."""

    kind: LoadKind | None = None
    """``open``: requests are sent by a schedule; ``closed``: a fixed number is in flight."""
    rate_per_s: PerSecond | None = None
    """Requests per second that were to be sent; measured where the record names none."""
    offered_per_s: PerSecond | None = None
    """Requests per second by the times at which they were scheduled; random arrivals differ from ``rate_per_s``."""
    concurrency: Amount | None = None
    """Requests in flight: the limit set, for closed loops; otherwise the mean."""
    seconds: SummedSeconds | None = None
    """From the first request sent to the last answer."""
    requests: Count | None = None
    completed: Count | None = None
    failed: Count | None = None
    ttft_s: LatencyStat | None = None
    tpot_s: LatencyStat | None = None
    itl_s: LatencyStat | None = None
    token_itl_s: LatencyStat | None = None
    """Gaps between chunks ÷ the request's tokens per chunk, where chunks hold several tokens (speculative decoding); else ``None``."""
    e2e_s: LatencyStat | None = None
    goodput_per_s: PerSecond | None = None
    """Completed requests per second that met every limit of ``slo``; ``None`` without limits."""
    slo: dict[str, SummedSeconds] = field(default_factory=dict)
    """``ttft``, ``tpot``, ``itl``, ``e2e`` → limit in seconds."""
    tokens_per_s: PerSecond | None = None
    """Output tokens of completed requests per second."""
    ttft_parts_s: TimeParts | None = None
    """Means over completed requests; they sum to ``ttft_s.mean``."""
    decode_parts_s: TimeParts | None = None
    """Means over completed requests, from the first to the last token."""
    answer_ttft_s: LatencyStat | None = None
    """To the first token of the answer, where reasoning comes before it."""
    failures: dict[str, Count] = field(default_factory=dict)
    """``error``, ``timeout``, ``disconnected``, ``rejected`` (429), ``cancelled`` → requests."""
    completed_per_s: PerSecond | None = None
    prompt_tokens: Amount | None = None
    """Mean per completed request."""
    output_tokens: Amount | None = None
    """Mean per completed request."""
    planned_prompt_tokens: Amount | None = None
    """Mean tokens of the text that was sent, where the client knows it exactly (chat); the rest of ``prompt_tokens`` is the chat
    template's."""
    cached_ratio: Share | None = None
    """Share of prompt tokens that came from the prefix cache."""
    lag_s: SummedSeconds | None = None
    """99th percentile of how late the client sent its requests."""
    client_bound: bool = False
    """Whether the client could not send on schedule; such a point is left out of conclusions."""
    parts_coverage_ratio: Share | None = None
    """Completed requests whose first token was matched to a step ÷ completed requests."""
    steps: list[StepGroup] = field(default_factory=list)
    """The engine's steps during the point; empty: its requests were not matched to steps."""
    server: dict[str, Number] = field(default_factory=dict)
    """What the server's own metrics say of the point: ``mean_waiting``, ``kv_usage_ratio``, ``preemptions``, ``prefix_hit_ratio``,
    ``ttft_mean_s``, ``tpot_mean_s``."""
    tool: str | None = None
    """Which tool measured it."""
    label: str | None = None
    """How the record names the point."""
    is_complete: bool = True
    """``False``: the measurement did not finish; such a point is refused in comparisons."""
    blocks: dict[str, list[Ratio]] = field(default_factory=dict)
    """Metric (``ttft_p99``, ``goodput``, …) → its value in each tenth of the requests, in the order they were sent."""
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class StepStats:
    """The steps of the engine."""

    count: Count
    prefill: Count
    decode: Count
    mixed: Count
    duration_s: LatencyStat | None = None
    batch: Amount | None = None
    """Mean requests per step."""
    gap_s: LatencyStat | None = None
    """Between the end of a step and the begin of the next one while requests were running."""
    gap_ratio: Share | None = None
    """Such gaps ÷ time from the first to the last step in which requests were running."""
    groups: list[StepGroup] = field(default_factory=list)
    preemptions: Count | None = None
    most_waiting: Count | None = None
    most_running: Count | None = None
    kv_usage_max_ratio: Share | None = None


@dataclass(slots=True)
class ClientUse:
    """Whether the load client kept up."""

    capacity_per_s: PerSecond | None = None
    """Events per second that the client handled against a stub server; ``None``: not measured."""
    lag_s: SummedSeconds | None = None
    """99th percentile of how late it sent, over all load points that were not limited by it."""
    bottleneck: bool = False


@dataclass(slots=True)
class Knee:
    """The highest load that the server sustained."""

    rate_per_s: PerSecond | None = None
    reason: str = ""
    concurrency: Amount | None = None
    """For closed loops, where the load is a number of requests in flight."""


@dataclass(slots=True)
class SlowRequest:
    """One of the slowest requests, and who delayed it."""

    id: str
    load: Count
    """Place of its load point in ``load``."""
    ttft_s: SummedSeconds
    parts_s: TimeParts | None = None
    delayed_by: list[str] = field(default_factory=list)
    """Causes, the largest first."""


@dataclass(slots=True)
class ColdStart:
    """From the start of the server until it was healthy, as its log tells; a part that it does not tell is ``None``."""

    total_s: SummedSeconds
    imports_s: SummedSeconds | None = None
    """Until the engine begins to initialise: start of its processes, imports, configuration."""
    weights_s: SummedSeconds | None = None
    compilation_s: SummedSeconds | None = None
    graph_capture_s: SummedSeconds | None = None
    kv_cache_s: SummedSeconds | None = None
    """Memory profiling, allocation of the KV cache and warm-up, without compilation and graph capture."""
    other_s: SummedSeconds | None = None
    """What is left."""


@dataclass(slots=True)
class FamilyTime:
    """Kernels of one family; on a CPU operators of one class."""

    family: str
    seconds: SummedSeconds
    share_ratio: Share | None = None


@dataclass(slots=True)
class ProfiledRequest:
    """A request of the profiled window, and its share of the kernels by tokens."""

    id: str
    steps: Count
    """Steps it took part in."""
    traced_steps: Count
    """Those of them that are in the trace."""
    step_seconds: SummedSeconds
    """Their time, which it shared with other requests."""
    own_seconds: SummedSeconds
    """Its share of it by tokens."""
    families: list[FamilyTime] = field(default_factory=list)


@dataclass(slots=True)
class ProfiledRank:
    """The steps of one rank of the profiled window."""

    rank: Count | None = None
    steps: Count = 0
    seconds: SummedSeconds = 0.0
    """Of its steps in the trace."""
    host_gap_ratio: Share | None = None
    communication_ratio: Share | None = None


@dataclass(slots=True)
class ProfiledWindow:
    """A window of load under the engine's profiler, after the load that was measured without it."""

    label: str | None = None
    """The load point that was repeated."""
    steps: Count = 0
    """Engine steps in the trace of the first rank."""
    matched_steps: Count = 0
    """Those that were found among the step records."""
    seconds: SummedSeconds | None = None
    """Of these steps in the trace."""
    ranks: Count = 0
    """Traces, one per rank."""
    cost_ratio: Ratio | None = None
    """Profiled ÷ unprofiled time of decode steps of the same size; ``None``: too few of them."""
    host_gap_ratio: Share | None = None
    """Time of the steps in which no kernel ran, at least ÷ time of the steps."""
    communication_ratio: Share | None = None
    """Time of collectives; of the host's (gloo) where no operator works meanwhile."""
    by_rank: list[ProfiledRank] = field(default_factory=list)
    """Each rank's steps, where there are several."""
    families: dict[str, list[FamilyTime]] = field(default_factory=dict)
    """``prefill``, ``decode``, ``mixed`` → kernels in such steps."""
    groups: list[StepGroup] = field(default_factory=list)
    """The step records of the window by kind and batch size."""
    requests: list[ProfiledRequest] = field(default_factory=list)
    is_salvaged: bool = False
    """Whether a trace ended early and was read up to there."""
    stop_s: SummedSeconds | None = None
    """How long the engine took to stop its profiler and write the traces."""
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Disaggregation:
    """Prefill and decode on different workers, as far as the engine reports it."""

    source: Literal["Dynamo request trace", "SGLang metrics"]
    requests: Count | None = None
    """Whose prompt and answer were computed by different workers."""
    transfer_s: LatencyStat | None = None
    """Of the KV cache, per request; Dynamo's are estimates. Of metrics the mean only."""
    bytes_per_s: PerSecond | None = None
    transfer_bytes: Amount | None = None
    """Mean per transfer."""
    alloc_s: SummedSeconds | None = None
    """Mean time until the decode worker has room."""
    bootstrap_s: SummedSeconds | None = None
    """Mean time until both workers are connected."""


@dataclass(slots=True)
class RankBalance:
    """Load of the busiest rank if the experts of each layer were spread over so many ranks."""

    ranks: Count
    busiest_ratio: Ratio
    """Busiest ÷ mean rank with experts in their order, mean over layers. It bounds the gain: balanced is 1."""
    rebalanced_ratio: Ratio | None = None
    """The same in the second half of the load with a placement from its first half; ``None``: too few windows."""
    gain_ratio: Ratio | None = None
    """Share of the time of the busiest rank's experts that this placement saves in the second half."""


@dataclass(slots=True)
class Routing:
    """Which experts the routers chose under load."""

    layers: Count
    experts: Count
    choices: Count
    """Of all layers together."""
    windows: Count
    busiest_ratio: list[Ratio] = field(default_factory=list)
    """Busiest ÷ mean expert of each layer."""
    unused: list[Count] = field(default_factory=list)
    """Experts of each layer that were never chosen."""
    drift_ratio: Share | None = None
    """Share of choices that went to other experts in the second half than in the first (total variation, mean over layers)."""
    ranks: list[RankBalance] = field(default_factory=list)
    verdict: str = ""


@dataclass(slots=True)
class Speculation:
    """Speculative decoding: what is drafted, verified and accepted, and from which batch size on it does not pay."""

    source: Literal["steps", "metrics"]
    """Step records, or counters of ``/metrics`` between the first and the last sample."""
    drafts: Count
    """Verifications: one per request and step."""
    draft_tokens: Count
    accepted_tokens: Count
    accepted_length: Amount
    """Tokens per verification, the one that the model adds itself included."""
    acceptance_ratio: Share | None = None
    """Accepted ÷ drafted tokens."""
    draft_length: Amount | None = None
    """Draft tokens per verification."""
    batch: Amount | None = None
    """Mean requests per decode step."""
    step_s: SummedSeconds | None = None
    """Part of a decode step that does not depend on its positions (fit over decode steps)."""
    position_s: SummedSeconds | None = None
    """Cost of one more verified position; ``None``: the steps do not tell."""
    position_low_s: Number | None = None
    position_high_s: Number | None = None
    """95 % interval of the fit."""
    speedup_ratio: Ratio | None = None
    """Tokens per second with ÷ without drafts at the measured batch size, by the fit. Time of the draft model that is inside the
    steps is not saved by the comparison, so this is a lower bound."""
    break_even_batch: Amount | None = None
    """Requests per step from which verifying costs more than it saves; ``None``: not known, or never."""
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Serving:
    """The server under load."""

    engine: str | None = None
    version: str | None = None
    load: list[LoadPoint] = field(default_factory=list)
    steps: StepStats | None = None
    client: ClientUse | None = None
    knee: Knee | None = None
    cold_start: ColdStart | None = None
    """Of a server that the stage started."""
    clock_uncertainty_s: SummedSeconds | None = None
    """Half the width of the range in which the difference of the two clocks lies."""
    clock_offset_s: Number | None = None
    """Client clock − server clock."""
    coverage_ratio: Share | None = None
    """Completed requests whose first token was matched to a step ÷ completed requests."""
    slowest: list[SlowRequest] = field(default_factory=list)
    timeline: dict[str, Any] = field(default_factory=dict)
    """Steps and requests around the slowest request, in the form of ``Summary.timeline``."""
    occupancy: list[tuple[Ratio, Ratio | None, Ratio | None, Ratio | None]] = field(default_factory=list)
    """(Seconds since the first sample, running requests, waiting requests, KV cache usage), thinned."""
    profile: ProfiledWindow | None = None
    """Kernels inside the steps; ``None``: no profiled window."""
    has_counted_model: bool = False
    """Whether the server ran the configured model on one device in the configured data type, so that the static analysis of the run
    describes its steps."""
    disaggregation: Disaggregation | None = None
    """``None``: the engine reports no transfers between prefill and decode workers."""
    routing: Routing | None = None
    """Choices of routers (mixture of experts); ``None``: not recorded."""
    speculation: Speculation | None = None
    """``None``: no drafts were reported."""
    definitions: dict[str, str] = field(default_factory=dict)
    """What the tools that made the records call TTFT, TPOT, ITL and E2E, where it differs from ours."""
    notes: list[str] = field(default_factory=list)
