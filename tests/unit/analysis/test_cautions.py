"""Cautions appear when work, time and limits do not belong together, and only then."""

from __future__ import annotations

from llm_perf_opt.analysis.cautions import below_floor, cautions
from llm_perf_opt.model.summary import (
    Hardware,
    Prediction,
    Scaling,
    StaticPhase,
    Utilisation,
    Workload,
)
from tests.unit.summaries import static, summary, timings


def test_nothing_to_say_of_nothing() -> None:
    assert cautions(summary()) == []


def test_a_model_that_does_not_fit() -> None:
    model = static()
    model.resident_bytes = {"weights": 40 * 2.0**30, "kv_cache": 2.0**30, "total": 41 * 2.0**30}
    card = Hardware("Card", "gpu", {}, None, "catalogue", memory_bytes=32 * 2.0**30)
    data = summary(static=model, hardware=card, predictions={"tpot": Prediction(0.1, "memory", None)})
    assert cautions(data) == [
        "The model needs 41.0 GiB of memory, and Card has 32.0 GiB: its floors are those of a device with enough memory."
    ]
    card.memory_bytes = 48 * 2.0**30
    assert cautions(data) == []


def test_work_and_times_of_different_prompts() -> None:
    model = static()
    model.scaling = Scaling(1.0, 1212.0, 1467.0, 2.0)
    data = summary(static=model, timings=timings(prefill=0.1), workload=Workload(prompt_tokens=913.0))
    (said,) = cautions(data)
    assert "a prompt of 1,212 tokens, the times are of prompts of 913" in said
    data.workload.prompt_tokens = 1210.0
    assert cautions(data) == []


def test_a_beaten_ceiling() -> None:
    (said,) = cautions(summary(utilisation={"prefill": Utilisation(mfu_ratio=1.2)}))
    assert said.startswith("Utilisation above 100 % in prefill")


def test_limits_measured_beside_other_work() -> None:
    data = summary(utilisation={"prefill": Utilisation(mfu_ratio=0.8)})
    data.hardware = Hardware("AMD EPYC", "cpu", {}, None, "probe", measured_under_load=True, measurements=1)
    data.hardware.measured_other_load_ratio = 0.53
    (said,) = cautions(data)
    assert said.startswith(
        "The limits of AMD EPYC are measured while other programs used 53.0 % of the processor"
    )
    data.hardware.measurements = 3
    assert "the best of 3 measurements" in cautions(data)[0]
    data.hardware.measured_under_load = False
    assert cautions(data) == []


def test_limits_of_a_data_sheet_or_limits_nobody_divides_by_need_no_word_about_load() -> None:
    data = summary()
    data.hardware = Hardware("AMD EPYC", "cpu", {}, None, "probe", measured_under_load=True)
    assert cautions(data) == []
    data.utilisation = {"prefill": Utilisation(mfu_ratio=0.8)}
    data.hardware.source = "catalogue"
    assert cautions(data) == []


def test_times_that_stayed_wide() -> None:
    data = summary(timings=timings(prefill=0.1))
    data.timings.repeats, data.timings.interval_ratio, data.timings.stopped = 4, 0.121, "time"
    (said,) = cautions(data)
    assert said.startswith(
        "The time of a pass is known to 12.1 % (width of its 95 % interval) after 4 repeats; run.max_measure_s was used up"
    )
    for ended in ("asked", "narrow", None):
        data.timings.stopped = ended
        assert cautions(data) == []


def test_a_working_set_that_fits_a_cache_is_named_as_the_cause() -> None:
    model = static(decode=StaticPhase(1e6, 20 * 2.0**20, None, None, None))
    data = summary(
        static=model,
        hardware=Hardware("CPU", "cpu", {}, 1e10, "probe"),
        utilisation={"decode": Utilisation(mfu_ratio=0.1, mbu_ratio=1.6)},
    )
    (said,) = cautions(data)
    assert said.startswith(
        "Bandwidth used above 100 % in decode: the 20.0 MiB it reads likely stay in a cache"
    )
    assert "20.0 MiB likely stays in a cache" in below_floor(20 * 2.0**20)
    assert "bandwidth is likely too low" in below_floor(2.0**35)
    assert "peak is likely too low" in below_floor(None)
