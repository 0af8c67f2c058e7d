"""Cautions appear when work, time and limits do not belong together, and only then."""

from __future__ import annotations

from llm_perf_opt.analysis.cautions import cautions
from llm_perf_opt.model.summary import (
    Hardware,
    Prediction,
    Scaling,
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


def test_exactly_the_ceiling_is_not_beaten() -> None:
    full = {"prefill": Utilisation(mfu_ratio=1.0, mbu_ratio=1.0)}
    assert cautions(summary(utilisation=full)) == []
    two = {"prefill": Utilisation(mbu_ratio=1.01), "decode": Utilisation(mfu_ratio=0.2, mbu_ratio=1.5)}
    (said,) = cautions(summary(utilisation=two))
    assert said == (
        "Utilisation above 100 % in prefill, decode: the ceiling is too low, probably because the device or data"
        " type is not the one assumed."
    )
    probed = Hardware("CPU", "cpu", {}, None, "probe")
    (said,) = cautions(summary(utilisation=two, hardware=probed))
    assert "the machine was busy while it was probed" in said


def test_a_model_that_just_fits_and_one_without_floors() -> None:
    model = static()
    model.resident_bytes = {"total": 32 * 2.0**30}
    card = Hardware(None, "gpu", {}, None, "catalogue", memory_bytes=32 * 2.0**30)
    floors = {"tpot": Prediction(0.1, "memory", None)}
    assert cautions(summary(static=model, hardware=card, predictions=floors)) == []
    card.memory_bytes = 31 * 2.0**30
    assert (
        "and the device has 31.0 GiB" in cautions(summary(static=model, hardware=card, predictions=floors))[0]
    )
    assert cautions(summary(static=model, hardware=card)) == []
    assert cautions(summary(hardware=card, predictions=floors)) == []


def test_prompts_may_differ_by_a_twentieth() -> None:
    model = static()
    data = summary(static=model, timings=timings(prefill=0.1), workload=Workload(prompt_tokens=100.0))
    for counted, said in ((104.0, 0), (106.0, 1), (96.0, 0), (94.0, 1)):
        model.scaling = Scaling(1.0, counted, 0.0, 2.0)
        assert len(cautions(data)) == said, counted
    model.scaling = Scaling(1.0, 200.0, 0.0, 2.0)
    assert len(cautions(data)) == 1
    data.timings.prefill_s = None
    assert cautions(data) == []  # no time to mix with
