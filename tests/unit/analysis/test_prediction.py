"""What a phase needs in memory, by hand."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.facts import join_memory
from llm_perf_opt.analysis.telemetry import predict_memory
from llm_perf_opt.summary import Coverage, KvPart, MemoryUse, Params, Scaling, Static, StaticPhase, Workload

PHASE = StaticPhase(1.0, 1.0, 1.0, 1.0, 1.0)


def static(*phases: str) -> Static:
    kv = [KvPart(2, 10.0), KvPart(1, 10.0, window=4)]
    return Static(
        Params(10, None, {}),
        30.0,
        dict.fromkeys(phases, PHASE),
        [],
        Coverage(None, []),
        {},
        resident_bytes={"weights": 1000.0, "kv_cache": 1.0, "activations": 50.0, "total": 1051.0},
        scaling=Scaling(1, 8, 10, 2.0, kv=kv),
    )


def workload(device: str = "cuda:0") -> Workload:
    return Workload(device=device, batch_size=2, prompt_tokens=8, new_tokens=5)


def all_phases(counts: str | None = "allocator") -> dict[str, MemoryUse]:
    return {name: MemoryUse(1.0, counts=counts) for name in ("vision", "prefill", "decode", "all")}  # type: ignore[arg-type]


def test_a_text_model_by_hand() -> None:
    memory = all_phases()
    predict_memory(memory, static("prefill", "decode"), workload())
    # Two sequences: 2 layers × 10 × positions, and one layer that keeps 4 positions.
    assert memory["prefill"].predicted == {"weights": 1000.0, "kv_cache": 2 * (160 + 40), "activations": 50.0}
    assert memory["decode"].predicted == {"weights": 1000.0, "kv_cache": 2 * (240 + 40)}
    assert memory["all"].predicted_bytes == 1000 + 560 + 50


def test_the_largest_operator_of_a_vision_model_is_not_put_down_to_its_prompt() -> None:
    memory = all_phases()
    predict_memory(memory, static("vision", "prefill", "decode"), workload())
    assert memory["vision"].predicted == {"weights": 1000.0, "activations": 50.0}
    assert "activations" not in memory["prefill"].predicted


@pytest.mark.parametrize(("device", "expected"), [("cpu", None), ("cuda:0", 1450.0)])
def test_what_a_profiler_counts_on_a_cpu_has_no_weights_in_it(device: str, expected: float | None) -> None:
    memory = all_phases(None)
    predict_memory(memory, static("prefill", "decode"), workload(device))
    assert memory["prefill"].predicted_bytes == expected


def test_nothing_is_predicted_from_nothing() -> None:
    memory = all_phases()
    predict_memory(memory, None, workload())
    assert all(use.predicted_bytes is None for use in memory.values())
    predict_memory(memory, static("prefill"), Workload(device="cuda:0"))
    assert all(use.predicted_bytes is None for use in memory.values())


def test_of_two_sources_the_one_that_counts_everything_is_kept() -> None:
    for first, second in ((None, "process"), ("process", None)):
        one = {"decode": MemoryUse(1.0, counts=first)}  # type: ignore[arg-type]
        other = {"decode": MemoryUse(2.0, counts=second), "prefill": MemoryUse(3.0)}  # type: ignore[arg-type]
        joined = join_memory(one, other)
        assert joined["decode"].counts == "process"
        assert joined["prefill"].peak_bytes == 3.0
