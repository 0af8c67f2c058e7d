"""Analysis of serving records: every part against simulated truth, planted causes, statistics and hostile input."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt.analysis.roofline.demand import demand, own_point
from llm_perf_opt.analysis.serving.findings import find_serving
from llm_perf_opt.analysis.serving.latency import describe_latency, find_knee, parse_slo, quantile_ranks
from llm_perf_opt.analysis.serving.section import Analysed, add_step_floors, analyse_serving
from llm_perf_opt.captures.serving.reader import read_serving
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.summary.serving import PART_NAMES, LatencyStat, LoadPoint, Speculation, StepGroup
from tests.unit.analysis.roofline.test_what_if import decoder
from tests.unit.serving_records import Plan, Simulated, simulate, write_lines

CAUSES = {
    "healthy": None,
    "batch": "serving-batch-limit",
    "waves": "serving-small-batches",
    "overload": "serving-queue",
    "prefill": "serving-prefill",
    "preemption": "serving-preemption",
    "client": "serving-client",
    "host": "serving-host",
    "stalls": "serving-stalls",
    "front-end": "serving-front-end",
}
SEEDS = 6


def planted(cause: str, seed: int) -> Plan:
    draw = random.Random(f"{cause} {seed}")
    plan = Plan(
        seed=seed,
        requests=draw.randint(110, 180),
        noise=draw.choice((0.0, 0.05, 0.1)),
        step_s=draw.uniform(0.005, 0.02),
        prefill_token_s=draw.uniform(1e-5, 4e-5),
        decode_request_s=draw.uniform(5e-5, 2e-4),
        network_s=draw.uniform(0.0005, 0.004),
        rate_per_s=draw.uniform(1, 4),
        offset_s=draw.choice((0.0, 3.0, -1200.0)),
    )
    changes: dict[str, dict[str, float]] = {
        "batch": {"rate_per_s": draw.uniform(25, 50), "most_running": draw.randint(4, 10)},
        "waves": {
            "waves": True,
            "rate_per_s": draw.uniform(6, 12),
            "most_running": draw.randint(16, 32),
            "step_s": draw.uniform(0.015, 0.03),
        },
        "overload": {
            "rate_per_s": draw.uniform(50, 80),
            "most_running": 400,
            "token_budget": draw.choice((256, 512)),
            "prefill_token_s": draw.uniform(1e-4, 2e-4),
        },
        "prefill": {
            "rate_per_s": draw.uniform(1.5, 2.5),
            "long_prompt_every": draw.randint(3, 5),
            "long_prompt": draw.randint(6000, 12000),
            "prefill_token_s": draw.uniform(8e-5, 1.5e-4),
            "token_budget": draw.choice((2048, 8192)),
        },
        "preemption": {"rate_per_s": draw.uniform(15, 30), "kv_tokens": draw.randint(3000, 6000)},
        "client": {"client_lag_s": draw.uniform(0.1, 0.5)},
        "host": {"gap_s": plan.step_s * draw.uniform(0.5, 1.5)},
        "stalls": {"stall_every": draw.randint(80, 200), "stall_s": draw.uniform(0.5, 2.0)},
        "front-end": {"network_s": draw.uniform(0.05, 0.2)},
    }
    plan = dataclasses.replace(plan, **changes.get(cause, {}))
    if cause == "overload":
        plan.prompt, plan.output = (400, 800), (10, 20)
    if cause == "preemption":
        plan.output = (60, 160)
    if cause == "waves":
        plan.output = (10, 200)
    return plan


@functools.cache
def simulated_of(cause: str, seed: int) -> Simulated:
    return simulate(planted(cause, seed))


def analysed(simulated: Simulated, folder: Path, steps: str = "vllm") -> Analysed:
    lines = {
        "vllm": simulated.vllm_steps,
        "own": simulated.own_steps,
        "forward-pass": simulated.forward_pass,
        "no ids": lambda: simulated.vllm_steps(ids=False),
    }[steps]()
    requests = write_lines(folder / "requests.jsonl", simulated.own_requests())
    return analyse_serving(read_serving([requests, write_lines(folder / "steps.jsonl", lines)]))


@pytest.mark.parametrize("cause", CAUSES)
def test_parts_and_cause_of_planted_records(cause: str, tmp_path: Path) -> None:
    named = 0
    for seed in range(SEEDS):
        simulated = simulated_of(cause, seed)
        found = analysed(simulated, tmp_path)
        assert found.parts is not None and found.serving.coverage_ratio == 1.0
        for truth, ours in (
            (simulated.truth_ttft(), found.parts.ttft),
            (simulated.truth_decode(), found.parts.decode),
        ):
            expected, got = truth.mean(axis=0), ours.mean(axis=0)
            # 5 % of the part; parts of less than 1 % of the whole are known to 1 % of the whole.
            allowed = 0.05 * expected + 0.01 * expected.sum()
            assert (np.abs(got - expected) <= allowed).all(), (
                cause,
                seed,
                dict(zip(PART_NAMES, zip(expected, got, strict=True), strict=True)),
            )
        # Each request's parts sum to what its client measured.
        np.testing.assert_allclose(found.parts.ttft.sum(axis=1), found.ttft_s, atol=1e-6)
        findings = find_serving(found)
        first = findings[0].id if findings else None
        named += first == CAUSES[cause]
        if cause == "healthy":
            assert not findings
    assert named == SEEDS


@pytest.mark.parametrize("steps", ["own", "forward-pass", "no ids"])
@pytest.mark.parametrize("cause", ["batch", "prefill", "host", "stalls"])
def test_other_step_records_name_the_same_cause(cause: str, steps: str, tmp_path: Path) -> None:
    for seed in range(2):
        simulated = simulated_of(cause, seed)
        found = analysed(simulated, tmp_path, steps)
        assert found.serving.coverage_ratio == 1.0
        findings = find_serving(found)
        # Without the usage of the KV cache its limit is not known to be the batch limit.
        accepted = {CAUSES[cause], "serving-small-batches" if cause == "batch" else None}
        assert findings and findings[0].id in accepted
        point = found.serving.load[0]
        assert point.ttft_parts_s is not None and point.ttft_s is not None
        total = sum(getattr(point.ttft_parts_s, name) for name in PART_NAMES)
        assert total == pytest.approx(point.ttft_s.mean, rel=1e-6)


@pytest.mark.parametrize(("requests", "confidence"), [(150, "high"), (12, "medium"), (3, "low")])
def test_few_requests_are_never_of_high_confidence(requests: int, confidence: str, tmp_path: Path) -> None:
    plan = dataclasses.replace(planted("host", 1), requests=requests)
    assert [one.confidence for one in find_serving(analysed(simulate(plan), tmp_path))] == [confidence]


def test_small_batches_need_a_step_time_that_hardly_grows_with_the_batch(tmp_path: Path) -> None:
    """The same waves, but a step costs by request: a larger batch would gain nothing, so it is a queue."""
    plan = dataclasses.replace(planted("waves", 1), step_s=0.004, decode_request_s=4e-3)
    assert [one.id for one in find_serving(analysed(simulate(plan), tmp_path))] == ["serving-queue"]


def test_gain_of_larger_batches_is_bounded_by_the_queue(tmp_path: Path) -> None:
    found = analysed(simulated_of("waves", 1), tmp_path)
    (finding,) = find_serving(found)
    parts = found.serving.load[0].ttft_parts_s
    assert parts is not None and parts.queue is not None and finding.gain_upper_s is not None
    assert 0 < finding.gain_upper_s <= parts.queue
    assert "--max-num-seqs" in finding.advice


def test_steps_of_a_log_with_the_time_of_each_line_are_placed(tmp_path: Path) -> None:
    """The fallback without the plug-in: the same cause, and parts that sum to the TTFT."""
    simulated = simulated_of("prefill", 1)
    requests = write_lines(tmp_path / "requests.jsonl", simulated.own_requests())
    lines = []
    for step in simulated.vllm_steps():
        held = step["it"]
        lines.append(
            f"{step['is']['iteration_timestamp']:.6f} (APIServer) INFO Engine 000: Iteration({held['iteration_index']}): {held['num_ctx_requests']} "
            f"context requests, {held['num_ctx_tokens']} context tokens, {held['num_generation_requests']} generation requests, "
            f"{held['num_generation_tokens']} generation tokens, iteration elapsed time: {held['elapsed_ms']:.2f} ms, CPU KV cache usage: 1.0%"
        )
    (tmp_path / "steps.log").write_text("\n".join(lines))
    found = analyse_serving(read_serving([requests, tmp_path / "steps.log"]))
    assert found.serving.coverage_ratio == 1.0
    assert find_serving(found)[0].id == "serving-prefill"
    point = found.serving.load[0]
    assert point.ttft_parts_s is not None and point.ttft_s is not None
    assert sum(getattr(point.ttft_parts_s, name) for name in PART_NAMES) == pytest.approx(
        point.ttft_s.mean, rel=1e-6
    )


def test_steps_that_are_recorded_late_are_not_taken_for_those_of_the_warm_up(tmp_path: Path) -> None:
    """Received records lie after the tokens of their step; two at a time are prompted, after a warm-up that is not in the requests."""
    base, late, steps, requests = 1_700_000_000.0, (0.0, 0.003, 0.0, 0.009, 0.0, 0.015), [], []

    def step(end: float, prompts: int, decodes: int) -> None:
        fpm = [
            1,
            "w",
            0,
            len(steps),
            0.025 if prompts else 0.005,
            [prompts, 64 * prompts, 0, 0, decodes, 0, 0],
            [0] * 6,
        ]
        steps.append({"time_s": base + end + late[len(steps) % 6 - 4], "fpm": fpm})

    for place in range(4):
        step(0.03 * (place + 1), 1, 0)
    for number in range(6):
        sent = 0.3 + 0.07 * (number // 2) + 0.001 * (number % 2)
        end = 0.3 + 0.07 * (number // 2) + 0.026 * (number % 2 + 1)
        step(end, 1, number % 2)
        tokens = [base + end + 0.001, base + end + 0.012]
        requests.append({"i": number, "t0": base + sent, "tok": tokens, "t1": tokens[-1], "status": 200,
                         "last": {"usage": {"prompt_tokens": 64, "completion_tokens": 2}}})  # fmt: skip
    files = [write_lines(tmp_path / "r.jsonl", requests), write_lines(tmp_path / "s.jsonl", steps)]
    found = analyse_serving(read_serving(files))
    assert found.matches is not None and found.matches.first_step.tolist() == [4, 5, 6, 7, 8, 9]


def test_clock_offset_is_found_within_its_uncertainty(tmp_path: Path) -> None:
    for offset in (0.0, 0.5, -1200.0, 40.0):
        found = analysed(simulate(Plan(offset_s=offset, requests=120)), tmp_path)
        serving = found.serving
        assert serving.clock_offset_s is not None and serving.clock_uncertainty_s is not None
        assert abs(serving.clock_offset_s - offset) <= serving.clock_uncertainty_s + 1e-6
        assert serving.clock_uncertainty_s < 0.02


def test_steps_of_another_day_are_not_matched(tmp_path: Path) -> None:
    simulated = simulate(Plan(requests=120))
    requests = write_lines(tmp_path / "requests.jsonl", simulated.own_requests())
    lines = simulated.vllm_steps(ids=False)[:-400]
    for line in lines:
        line["is"]["iteration_timestamp"] *= 0.9
    found = analyse_serving(read_serving([requests, write_lines(tmp_path / "steps.jsonl", lines)]))
    if found.parts is None:
        assert any("matched" in note for note in found.serving.notes)
    else:  # an offset that explains the records was found: it must then be right
        assert found.serving.coverage_ratio is not None and found.serving.coverage_ratio < 1.0


def test_shared_step_is_never_charged_in_full(tmp_path: Path) -> None:
    """Requests prefilled in one step share it: their own prefills and what one sees of the others sum to the step."""
    simulated = simulate(Plan(requests=120, rate_per_s=40, prefill_token_s=1e-4))
    found = analysed(simulated, tmp_path)
    assert found.matches is not None and found.parts is not None and found.steps is not None
    for step in np.unique(found.matches.first_step)[:50]:
        group = np.flatnonzero(found.matches.first_step == step)
        assert found.parts.ttft[group, 3].sum() <= found.steps.duration_s[step] * 1.0001


def test_slowest_request_names_who_delayed_it(tmp_path: Path) -> None:
    found = analysed(simulated_of("prefill", 1), tmp_path)
    slow = found.serving.slowest[0]
    assert slow.ttft_s == pytest.approx(float(np.nanmax(found.ttft_s)))
    assert any("prompt" in cause or "queue" in cause for cause in slow.delayed_by)
    assert found.serving.timeline["lanes"][0]["name"] == "engine steps"


def test_unmatched_requests_are_under_other_and_lower_coverage(tmp_path: Path) -> None:
    simulated = simulate(Plan(requests=120))
    requests = write_lines(tmp_path / "requests.jsonl", simulated.own_requests())
    lines = simulated.vllm_steps()
    kept = lines[: int(len(lines) * 0.8)]
    found = analyse_serving(read_serving([requests, write_lines(tmp_path / "steps.jsonl", kept)]))
    point = found.serving.load[0]
    assert found.serving.coverage_ratio is not None and 0.6 < found.serving.coverage_ratio < 1.0
    assert point.ttft_parts_s is not None and point.ttft_s is not None
    total = sum(getattr(point.ttft_parts_s, name) for name in PART_NAMES)
    assert total == pytest.approx(point.ttft_s.mean, rel=1e-6)


# Statistics.


def test_order_statistics_cover_the_quantile() -> None:
    draw = np.random.default_rng(1)
    inside = 0
    true = -math.log(0.01)
    for _ in range(400):
        stat = describe_latency(draw.exponential(size=1000))
        assert stat is not None and stat.p99_low is not None and stat.p99_high is not None
        inside += stat.p99_low <= true <= stat.p99_high
    assert inside >= 372  # 95 % of 400 are 380; three standard deviations below


@pytest.mark.parametrize(
    ("n", "has_high"), [(71, False), (367, False), (368, True), (5000, True), (200_000, True)]
)
def test_upper_end_of_a_p99_needs_368_values(n: int, has_high: bool) -> None:
    low, high = quantile_ranks(n, 0.99)
    assert low is not None and 1 <= low <= n
    assert (high is not None) == has_high
    assert high is None or low < high <= n


def test_p99_of_71_requests_is_labelled_the_maximum(tmp_path: Path) -> None:
    found = analysed(simulate(Plan(requests=71)), tmp_path)
    point = found.serving.load[0]
    assert any("p99 of 71 requests is their maximum" in note for note in point.notes)
    assert point.ttft_s is not None and point.ttft_s.p99_high is None


def test_slo_and_goodput(tmp_path: Path) -> None:
    assert parse_slo("ttft:500ms,tpot:50ms") == {"ttft": 0.5, "tpot": 0.05}
    for wrong in ("", "ttft", "ttft:0", "speed:3s", "ttft:-1s", "ttft:1m"):
        with pytest.raises(ConfigError):
            parse_slo(wrong)
    simulated = simulate(Plan(requests=120))
    requests = write_lines(tmp_path / "r.jsonl", simulated.own_requests())
    point = analyse_serving(read_serving([requests]), {"ttft": 1e-6}).serving.load[0]
    assert point.goodput_per_s == 0.0
    point = analyse_serving(read_serving([requests]), {"ttft": 100.0}).serving.load[0]
    assert point.goodput_per_s == pytest.approx(point.completed_per_s)


def _point(rate: float, p50: float, done: float | None = None, **more: float) -> LoadPoint:
    stat = LatencyStat(p50=p50, p99=2 * p50, mean=p50, n=1000)
    e2e = LatencyStat(p50=p50 + 1, p99=p50 + 1, mean=p50 + 1, n=1000)
    return LoadPoint(
        "open",
        rate,
        seconds=100.0,
        completed=1000,
        requests=1000,
        ttft_s=stat,
        e2e_s=e2e,
        completed_per_s=done or rate,
    )


def test_knee() -> None:
    knee = find_knee([_point(1, 0.03), _point(2, 0.04), _point(4, 0.05), _point(8, 2.0, 5.0)])
    assert knee is not None and knee.rate_per_s == 4 and "8" in knee.reason
    assert find_knee([_point(1, 0.03)]) is None
    # Random arrivals that came at 1.4 requests/s where 2 were asked for: the server kept up.
    slower = _point(2, 0.03, 1.4)
    slower.offered_per_s = 1.4
    kept = find_knee([_point(1, 0.03), slower])
    assert kept is not None and kept.rate_per_s is None
    flat = find_knee([_point(1, 0.03), _point(2, 0.03)])
    assert flat is not None and flat.rate_per_s is None and "No load" in flat.reason


def test_failures_are_separated(tmp_path: Path) -> None:
    simulated = simulate(Plan(requests=120))
    lines = simulated.own_requests()
    for line, status in zip(
        lines[1:], ("timeout", "error", "rejected", "disconnected", "cancelled"), strict=False
    ):
        line.update(status=status, token_s=[], first_token_s=None)
    found = analyse_serving(read_serving([write_lines(tmp_path / "r.jsonl", lines)]))
    point = found.serving.load[0]
    assert point.failures == {"error": 1, "timeout": 1, "disconnected": 1, "rejected": 1, "cancelled": 1}
    assert (point.requests, point.completed, point.failed) == (120, 115, 4)
    assert [one.id for one in find_serving(found)] == ["serving-failures"]


def test_failures_are_certain_however_few_requests_complete(tmp_path: Path) -> None:
    lines = simulate(Plan(requests=120)).own_requests()
    for line in lines[3:]:
        line.update(status="error", token_s=[], first_token_s=None)
    found = analyse_serving(read_serving([write_lines(tmp_path / "r.jsonl", lines)]))
    (failures,) = [one for one in find_serving(found) if one.id == "serving-failures"]
    assert failures.confidence == "high"


def test_per_token_time_that_contradicts_the_latencies_is_replaced() -> None:
    """Some releases of inference-perf count every chunk twice."""
    from llm_perf_opt.analysis.serving.latency import load_points
    from llm_perf_opt.captures.serving.records import LoadRecord

    point = _point(1, 0.1)
    point.tool, point.output_tokens = "inference-perf", 11.0
    point.tpot_s = LatencyStat(mean=0.05, p50=0.05, n=1000)
    (found,) = load_points([LoadRecord(point)], None, {})
    assert found.tpot_s is not None and found.tpot_s.mean == pytest.approx(0.1) and found.tpot_s.p50 is None
    assert any("contradicts" in note for note in found.notes)


@pytest.mark.parametrize(("sent", "named"), [(60.0, True), (290.0, False), (None, False)])
def test_a_chat_template_that_lengthens_prompts_is_named(
    sent: float | None, named: bool, tmp_path: Path
) -> None:
    simulated = simulate(Plan(requests=120, prompt=(300, 300), prefill_token_s=2e-4, rate_per_s=1.0))
    lines = simulated.own_requests()
    lines[0]["loads"][0]["planned_prompt_tokens"] = sent
    requests = write_lines(tmp_path / "r.jsonl", lines)
    found = analyse_serving(
        read_serving([requests, write_lines(tmp_path / "s.jsonl", simulated.vllm_steps())])
    )
    findings = {one.id: one for one in find_serving(found)}
    assert ("serving-template" in findings) == named
    if named:
        own = found.serving.load[0].ttft_parts_s
        assert own is not None and own.own_prefill is not None
        assert findings["serving-template"].gain_upper_s == pytest.approx(own.own_prefill * 240 / 300)


# The roofline of steps.


def test_batch_and_context_of_steps_are_those_simulated(tmp_path: Path) -> None:
    simulated = simulate(planted("healthy", 1))
    found = analysed(simulated, tmp_path)
    (point,) = found.serving.load
    jobs = {job.number: job for job in simulated.jobs}
    decoding: dict[int, list[tuple[int, float]]] = {}
    for step in simulated.steps:
        if step.decode and not step.prefill:
            made = [sum(end < step.end - 1e-9 for end in jobs[one].made) for one in step.decode]
            cached = [jobs[one].prompt + count - 1 for one, count in zip(step.decode, made, strict=True)]
            decoding.setdefault(int(math.log2(len(step.decode))), []).append((len(step.decode), sum(cached)))
    groups = {group.batch: group for group in point.steps if group.kind == "decode"}
    assert {1 << bucket for bucket in decoding} == {*groups}
    for bucket, steps in decoding.items():
        group, requests = groups[1 << bucket], sum(count for count, _ in steps)
        assert group.decoding == pytest.approx(requests / len(steps)) and group.prompts == 0
        assert group.context_tokens == pytest.approx(sum(held for _, held in steps) / requests, abs=2)
    prefill = [group for group in point.steps if group.kind != "decode"]
    tokens = sum((group.prompt_tokens or 0) * group.count for group in prefill)
    assert tokens == pytest.approx(sum(job.prompt for job in simulated.jobs))


def test_the_floor_of_a_step_is_that_of_its_batch_and_context(tmp_path: Path) -> None:
    found = analysed(simulate(planted("batch", 1)), tmp_path)
    serving, static = found.serving, decoder()
    hardware = load_catalogue().named("NVIDIA H100 SXM5 80GB").to_hardware()
    add_step_floors(serving, static, hardware, "bfloat16")
    assert all(group.floor_s is None for group in serving.load[0].steps)  # another model may have run
    serving.has_counted_model = True
    add_step_floors(serving, static, hardware, "bfloat16")
    own, peak, bandwidth = (
        own_point(static, "bfloat16"),
        hardware.peak_flops_per_s["bfloat16"].dense,
        hardware.bandwidth_bytes_per_s,
    )
    assert own is not None and bandwidth is not None and serving.steps is not None
    for group in (*serving.load[0].steps, *serving.steps.groups):
        assert group.floor_s is not None and group.floor_distance_ratio is not None
        mean = group.total_s / group.count
        assert group.floor_distance_ratio == pytest.approx(mean / group.floor_s)
        if group.kind == "decode":
            point = dataclasses.replace(
                own,
                batch_size=math.floor(group.decoding or 0),
                context_tokens=math.floor(group.context_tokens or 0),
            )
            flops, moved = demand(static, point).step or (0.0, 0.0)
            assert group.floor_s == pytest.approx(max(flops / peak, moved / bandwidth))
    floors = {
        kind: max(group.floor_s or 0.0 for group in serving.load[0].steps if group.kind == kind)
        for kind in ("decode", "mixed")
    }
    assert floors["mixed"] > floors["decode"]  # the same batch, and prompts


@pytest.mark.parametrize("change", ["no limits", "no contexts", "speculation"])
def test_a_floor_that_cannot_be_known_is_not_given(change: str, tmp_path: Path) -> None:
    found = analysed(simulate(planted("healthy", 1)), tmp_path)
    serving, hardware = found.serving, load_catalogue().named("NVIDIA H100 SXM5 80GB").to_hardware()
    serving.has_counted_model = True
    groups: list[StepGroup] = serving.load[0].steps
    if change == "no limits":
        hardware.bandwidth_bytes_per_s = None
    elif change == "no contexts":
        for group in groups:
            group.context_tokens = None
    else:
        serving.speculation = Speculation("steps", 1, 1, 1, 2.0)
    add_step_floors(serving, decoder(), hardware, "bfloat16")
    assert all(group.floor_s is None for group in groups if group.decoding)
