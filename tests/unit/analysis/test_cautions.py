"""Cautions appear when work, time and limits do not belong together, and only then."""

from __future__ import annotations

from llm_perf_opt.analysis.validation import beaten_ceilings, below_floor, cautions
from llm_perf_opt.summary import (
    Compilations,
    Hardware,
    Prediction,
    Scaling,
    StaticPhase,
    Utilisation,
    Workload,
)
from tests.text_facts import mentions
from tests.unit.summaries import static, summary, timings


def test_nothing_to_report_of_nothing() -> None:
    assert cautions(summary()) == []


def test_a_model_that_does_not_fit() -> None:
    model = static()
    model.resident_bytes = {"weights": 40 * 2.0**30, "kv_cache": 2.0**30, "total": 41 * 2.0**30}
    card = Hardware("Card", "gpu", {}, None, "catalogue", memory_bytes=32 * 2.0**30)
    data = summary(static=model, hardware=card, predictions={"tpot": Prediction(0.1, "memory", None)})
    (text,) = cautions(data)
    assert mentions(text, "41.0 GiB", "Card", "32.0 GiB")
    card.memory_bytes = 48 * 2.0**30
    assert cautions(data) == []


def test_work_and_times_of_different_prompts() -> None:
    model = static()
    model.scaling = Scaling(1.0, 1212.0, 1467.0, 2.0)
    data = summary(static=model, timings=timings(prefill=0.1), workload=Workload(prompt_tokens=913.0))
    (text,) = cautions(data)
    assert mentions(text, "1,212", "913")
    data.workload.prompt_tokens = 1210.0
    assert cautions(data) == []


def test_a_beaten_ceiling() -> None:
    data = summary(utilisation={"prefill": Utilisation(mfu_ratio=1.2), "decode": Utilisation(mfu_ratio=0.2)})
    (text,) = cautions(data)
    assert beaten_ceilings(data) == ["prefill"]
    assert mentions(text, "100 %", "prefill") and not mentions(text, "decode")


def test_limits_measured_next_to_other_work() -> None:
    data = summary(utilisation={"prefill": Utilisation(mfu_ratio=0.8)})
    data.hardware = Hardware("AMD EPYC", "cpu", {}, None, "probe", measured_under_load=True, measurements=1)
    data.hardware.measured_other_load_ratio = 0.53
    (text,) = cautions(data)
    assert mentions(text, "AMD EPYC", "53.0 %", "processor") and not mentions(text, "3")
    data.hardware.measurements = 3
    assert mentions(cautions(data)[0], "AMD EPYC", "53.0 %", "3")
    data.hardware.measured_under_load = False
    assert cautions(data) == []


def test_limits_of_a_data_sheet_or_unused_limits_need_no_note_about_load() -> None:
    data = summary()
    data.hardware = Hardware("AMD EPYC", "cpu", {}, None, "probe", measured_under_load=True)
    assert cautions(data) == []
    data.utilisation = {"prefill": Utilisation(mfu_ratio=0.8)}
    data.hardware.source = "catalogue"
    assert cautions(data) == []


def test_times_that_stayed_wide() -> None:
    data = summary(timings=timings(prefill=0.1))
    data.timings.repeats, data.timings.interval_ratio, data.timings.stopped = 4, 0.121, "time"
    (text,) = cautions(data)
    assert mentions(text, "12.1 %", "95 %", "4", "run.max_measure_s", "run.repeats")
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
    (text,) = cautions(data)
    assert mentions(text, "100 %", "decode", "20.0 MiB", "cache")
    assert mentions(below_floor(20 * 2.0**20), "20.0 MiB", "cache")
    assert mentions(below_floor(2.0**35), "bandwidth") and not mentions(below_floor(2.0**35), "cache")
    assert mentions(below_floor(None), "peak") and not mentions(below_floor(None), "bandwidth")


def test_exactly_the_ceiling_is_not_beaten() -> None:
    full = {"prefill": Utilisation(mfu_ratio=1.0, mbu_ratio=1.0)}
    assert cautions(summary(utilisation=full)) == []
    two = {"prefill": Utilisation(mbu_ratio=1.01), "decode": Utilisation(mfu_ratio=0.2, mbu_ratio=1.5)}
    assert beaten_ceilings(summary(utilisation=full)) == []
    assert beaten_ceilings(summary(utilisation=two)) == ["prefill", "decode"]
    (text,) = cautions(summary(utilisation=two))
    assert mentions(text, "100 %", "prefill", "decode", "data type")
    probed = Hardware("CPU", "cpu", {}, None, "probe")
    (text,) = cautions(summary(utilisation=two, hardware=probed))
    assert mentions(text, "100 %", "prefill", "decode") and not mentions(text, "data type"), (
        "a probe may have been disturbed"
    )


def test_a_model_that_just_fits_and_one_without_floors() -> None:
    model = static()
    model.resident_bytes = {"total": 32 * 2.0**30}
    card = Hardware(None, "gpu", {}, None, "catalogue", memory_bytes=32 * 2.0**30)
    floors = {"tpot": Prediction(0.1, "memory", None)}
    assert cautions(summary(static=model, hardware=card, predictions=floors)) == []
    card.memory_bytes = 31 * 2.0**30
    (text,) = cautions(summary(static=model, hardware=card, predictions=floors))
    assert mentions(text, "32.0 GiB", "31.0 GiB") and not mentions(text, "None")
    assert cautions(summary(static=model, hardware=card)) == []
    assert cautions(summary(hardware=card, predictions=floors)) == []


def test_prompts_may_differ_by_a_twentieth() -> None:
    model = static()
    data = summary(static=model, timings=timings(prefill=0.1), workload=Workload(prompt_tokens=100.0))
    for counted, text in ((104.0, 0), (106.0, 1), (96.0, 0), (94.0, 1)):
        model.scaling = Scaling(1.0, counted, 0.0, 2.0)
        assert len(cautions(data)) == text, counted
    model.scaling = Scaling(1.0, 200.0, 0.0, 2.0)
    assert len(cautions(data)) == 1
    data.timings.prefill_s = None
    assert cautions(data) == []  # no time to mix with


def test_a_compilation_in_a_measured_pass_is_reported_with_its_seconds() -> None:
    plain = summary()
    plain.workload.compilations = Compilations(2, 8.0, 0, 0.0)
    assert cautions(plain) == []
    plain.workload.compilations = Compilations(2, 8.0, 1, 37.0, {"decode": 1})
    (found,) = cautions(plain)
    assert mentions(found, "1", "37.0 s", "decode", "infer.warmup_rounds")
