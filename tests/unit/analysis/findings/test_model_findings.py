"""Rules about the model and the measurement: cache, vision, modules, padding, noise."""

from __future__ import annotations

from typing import cast

import pytest

from llm_perf_opt.analysis.findings import attention, conditions, model
from llm_perf_opt.summary import LedgerRow, Prediction, Stat, StaticPhase
from llm_perf_opt.summary.phases import CpuPart, CpuPartName, CpuWork
from tests.text_facts import any_mentions, mentions, mentions_in_order
from tests.unit.summaries import one, static, summary, timings, verdict

# cache, vision, padding


def _decode(kv_bytes: float, weight_bytes: float) -> StaticPhase:
    return StaticPhase(1e9, weight_bytes, None, kv_bytes, None)


def test_kv_cache_by_bytes_and_by_growth() -> None:
    by_bytes = summary(static=static(decode=_decode(4e8, 6e8)), timings=timings(prefill=0.1, decode=1.0))
    (found,) = attention.find_kv_cache_growth(by_bytes)
    assert found.gain_upper_s == pytest.approx(0.4)
    growing = summary(timings=timings(prefill=0.1, decode=1.0), metrics={"tpot_growth_ratio": 1.5})
    (grown,) = attention.find_kv_cache_growth(growing)
    assert grown.gain_upper_s == pytest.approx(1 - 2 / 2.5)
    assert (
        attention.find_kv_cache_growth(
            summary(static=static(decode=_decode(1e8, 9e8)), metrics={"tpot_growth_ratio": 1.05})
        )
        == []
    )
    (untimed,) = attention.find_kv_cache_growth(summary(static=static(decode=_decode(4e8, 6e8))))
    assert untimed.gain_upper_s is None


def test_vision_dominated_first_token_names_a_vision_component() -> None:
    timed = timings(vision=0.8, prefill=0.2, decode=1.0)
    timed.components = {"sam_s": one(0.5), "clip_s": one(0.2), "language_model_prefill_s": one(0.7)}
    floor = Prediction(0.3, "compute", 0.8 / 0.3)
    (found,) = model.find_vision_share(summary(timings=timed, predictions={"vision": floor}))
    assert found.gain_upper_s == pytest.approx(0.5)
    assert "sam" in found.evidence[1]
    assert mentions_in_order(found.arithmetic, "800 ms", "300 ms", "500 ms")
    # The whole encoder can never go: without a floor nothing says how much of it could.
    (unbounded,) = model.find_vision_share(summary(timings=timed))
    assert unbounded.gain_upper_s is None
    assert unbounded.confidence == "medium"
    assert model.find_vision_share(summary(timings=timings(vision=0.3, prefill=0.7, decode=1.0))) == []
    assert model.find_vision_share(summary(timings=timings(prefill=0.7, decode=1.0))) == []


def _on_a_processor(**shares: float) -> dict[str, CpuWork]:
    parts = [
        CpuPart(cast("CpuPartName", name.replace("_", "-")), 0.8 * part, part, 10)
        for name, part in shares.items()
    ]
    return {"vision": CpuWork(0.8, parts, "wall-clock")}


def test_on_a_processor_compiling_an_encoder_promises_only_what_it_can_take_out() -> None:
    """Tried on the default workload: with all of vision above the floor promised, compiling gave less than a fifth of it."""
    floor = {"vision": Prediction(0.3, "compute", None)}
    timed = timings(vision=0.8, prefill=0.2, decode=1.0)
    data = summary(timings=timed, predictions=floor)
    data.cpu_work = _on_a_processor(matrix=0.6, movement=0.15, element_wise=0.15, dispatch=0.1)
    (found,) = model.find_vision_share(data)
    assert found.gain_upper_s == pytest.approx(0.8 * 0.25)
    assert found.confidence == "low" and mentions_in_order(found.arithmetic, "800 ms", "25.0 %", "200 ms")
    data.cpu_work = _on_a_processor(matrix=0.1, element_wise=0.5, dispatch=0.4)
    (found,) = model.find_vision_share(data)
    assert found.gain_upper_s == pytest.approx(0.5), "never more than there is above the floor"


def test_a_processor_is_not_advised_settings_that_failed_there() -> None:
    timed = timings(vision=0.8, prefill=0.2, decode=1.0)
    rows = [_part("model.layers.0.attn", 0.7, 0.1)]
    data = summary(timings=timed, ledger=rows)
    data.hardware.kind = "cpu"
    (gap,), (share,) = model.find_module_gap(data), model.find_vision_share(data)
    assert gap.confidence == "low"
    assert not any(
        word in gap.advice + share.advice for word in ("bfloat16", "attn_implementation", "channels_last")
    )
    data.hardware.kind = "gpu"
    (gap,), (share,) = model.find_module_gap(data), model.find_vision_share(data)
    assert all(
        word in gap.advice + share.advice for word in ("bfloat16", "attn_implementation", "channels_last")
    )


def _part(module: str, measured: float | None, floor: float | None, phase: str = "vision") -> LedgerRow:
    return LedgerRow(
        module, phase, module.count(".") + 1, measured_s=measured, floor_s=floor, measured_source="profiler"
    )


def test_module_gap_names_the_innermost_module_that_explains_the_loss() -> None:
    rows = [
        _part("model", 0.8, 0.2),
        _part("model.proj", 0.1, 0.05),
        _part("model.layers", 0.7, 0.15),
        _part("model.layers.0", 0.2, 0.05),
        _part("model.layers.0.attn", 0.15, 0.02),
        _part("model.layers.1", 0.5, 0.1),
        _part("model.layers.1.attn", 0.4, 0.06),
        _part("model.layers.1.attn.qkv", 0.1, 0.05),
        LedgerRow("component", "vision", 0, measured_s=9.0, floor_s=0.1),
    ]
    data = summary(timings=timings(vision=1.0, prefill=0.2, decode=0.8), ledger=rows)
    (found,) = model.find_module_gap(data)
    assert (found.id, found.phase) == ("module-gap", "vision")
    assert mentions(found.title, "layers.*.attn", "vision")
    assert found.gain_upper_s == pytest.approx(0.55 - 0.08)
    assert mentions_in_order(found.evidence[0], "550 ms", "80.0 ms") and mentions(
        found.evidence[0], "55.0 %", "vision"
    )
    assert mentions(found.evidence[1], "2", "model.layers.1.attn", "400 ms")


def test_module_gap_counts_every_decode_step_and_ignores_small_gaps() -> None:
    rows = [_part("lm", 0.01, 0.002, "decode"), _part("x", 0.05, 0.04)]
    data = summary(timings=timings(vision=0.1, prefill=0.1, decode=0.5, tpot=0.02), ledger=rows)
    (found,) = model.find_module_gap(data)
    assert (found.phase, found.gain_upper_s) == ("decode", pytest.approx(0.008 * 25))
    assert model.find_module_gap(summary(timings=timings(decode=0.5), ledger=[_part("lm", 0.01, None)])) == []
    unknown = summary(timings=timings(prefill=0.1, tpot=0.02), ledger=rows[:1])
    assert model.find_module_gap(unknown) == []  # one step of how many?
    data.verdicts = {"decode": verdict("launch")}
    assert model.find_module_gap(data) == []  # it waits; the launch rule says so


def test_padding_waste() -> None:
    (found,) = model.find_padding(summary(timings=timings(prefill=2.0), metrics={"padding_ratio": 0.25}))
    assert found.gain_upper_s == pytest.approx(0.5)
    assert model.find_padding(summary(timings=timings(prefill=2.0), metrics={"padding_ratio": 0.05})) == []


# measurement


def test_pollution() -> None:
    data = summary(metrics={"first_repeat_ratio": 2.0, "profiled_over_unprofiled_ratio": 3.0})
    found = conditions.find_pollution(data)
    assert [finding.id for finding in found] == ["warm-up-pollution", "profiler-pollution"]
    assert all(finding.gain_upper_s is None for finding in found)
    calm = summary(metrics={"first_repeat_ratio": 1.1, "profiled_over_unprofiled_ratio": 1.2})
    assert conditions.find_pollution(calm) == []


def test_noise() -> None:
    data = summary(
        repeat_spread={
            "decode": Stat(1.0, 0.8, 1.4, 1.0, 0.2, 9),
            "prefill": Stat(1.0, 0.99, 1.01, 1.0, 0.0, 9),
        },
        metrics={"last_over_first_repeat_ratio": 1.3},
        environment={"load_average": [9.0, 8.0, 7.0], "cpu": {"cores": 2}},
    )
    (found,) = conditions.find_noise(data)
    assert mentions(found.evidence[0], "decode", "60.0 %")
    assert not any("prefill" in line for line in found.evidence)
    assert any_mentions(found.evidence, "9.0", "2")
    few = summary(repeat_spread={"decode": Stat(1.0, 0.5, 2.0, 1.0, 0.2, 2)})
    assert conditions.find_noise(few) == []
    busy_but_calm = summary(environment=data.environment)
    assert conditions.find_noise(busy_but_calm) == []
