"""The devices a report shows: this run's own with its measurement, a dozen others, and where the model fits."""

from __future__ import annotations

from llm_perf_opt.analysis.roofline.demand import Point
from llm_perf_opt.analysis.roofline.what_if import devices_that_fit, is_static_only, on_other_devices, price
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.summary import Prediction, Summary
from tests.text_facts import mentions
from tests.unit.analysis.roofline.test_what_if import decoder
from tests.unit.summaries import cpu, gpu, summary, timings

POINT = Point("bfloat16", 1, 1000, 1000)


def priced() -> Summary:
    model = decoder()
    model.resident_bytes["total"] = 30 * 2.0**30
    return summary(
        static=model,
        what_if=price(model, load_catalogue().devices, [POINT]),
        predictions={"tpot": Prediction(0.5, "memory", 2.0), "ttft": Prediction(2.0, "compute", 2.0)},
        timings=timings(prefill=4.0, decode=1.0, ttft=4.0, tpot=1.0),
    )


def test_a_device_outside_the_catalogue_is_among_them_with_its_measurement() -> None:
    data = priced()
    data.hardware = cpu(bfloat16=1e11)
    data.hardware.name = "Some CPU"
    shown = on_other_devices(data)
    assert len(shown) == 12
    (own,) = [each for each in shown if each.is_own]
    assert (own.device, own.tpot_floor_s, own.tpot_measured_s, own.ttft_measured_s) == (
        "Some CPU",
        0.5,
        1.0,
        4.0,
    )
    assert [each.tpot_floor_s for each in shown] == sorted(each.tpot_floor_s or 0.0 for each in shown)
    assert all(each.tpot_measured_s is None for each in shown if not each.is_own)


def test_a_device_of_the_catalogue_is_shown_once() -> None:
    data = priced()
    data.hardware = gpu(bfloat16=2e14)
    data.hardware.name = "NVIDIA GeForce RTX 5090"
    shown = on_other_devices(data)
    assert [each.device for each in shown].count("NVIDIA GeForce RTX 5090") == 1
    assert sum(each.is_own for each in shown) == 1
    assert "NVIDIA GB200" not in {each.device for each in shown}


def test_where_it_fits_starts_with_the_smallest() -> None:
    data = priced()
    fit = devices_that_fit(data)
    assert fit is not None and fit.fitting and len(fit.fitting) <= fit.known
    sizes = [row.memory_bytes or 0.0 for row in fit.fitting]
    assert sizes == sorted(sizes)
    assert devices_that_fit(summary()) is None


def test_a_report_is_static_only_when_nothing_ran() -> None:
    assert is_static_only(summary(static=decoder()))
    assert not is_static_only(summary())


def test_memory_bound_names_the_memory() -> None:
    devices = [each for each in load_catalogue().devices if each.name == "NVIDIA GeForce RTX 5090"]
    (short,) = price(decoder(), devices, [Point("bfloat16", 1, 10, 10)])
    (long,) = price(decoder(), devices, [Point("bfloat16", 64, 10_000_000, 10)])
    assert short.floor_term == long.floor_term == "memory"
    assert mentions(short.note, "weights") and not mentions(short.note, "KV cache")
    assert mentions(long.note, "KV cache") and not mentions(long.note, "weights")
