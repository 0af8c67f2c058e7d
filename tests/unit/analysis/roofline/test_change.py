"""Two runs, and what tables predict of the change between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.analysis.roofline.expected_times import Target
from llm_perf_opt.compare.compare import compare
from llm_perf_opt.compare.data import ExpectedChange
from llm_perf_opt.compare.expected import expected_change
from llm_perf_opt.compare.page import comparison_console, comparison_html, comparison_markdown
from llm_perf_opt.compare.tables import describe_expected
from llm_perf_opt.hardware.silicon import AllReduce, Operator, Timing
from llm_perf_opt.hardware.silicon.installation import describe_absence
from llm_perf_opt.summary import RunInfo, Summary
from tests.text_facts import mentions
from tests.unit.analysis.roofline.runs_with_operators import H100, PEAKS, TABLES, HalfInEight, run


def change(a: Summary, b: Summary, **options: object) -> ExpectedChange | None:
    sides = [Side("a", ["a"], [a], [None]), Side("b", ["b"], [b], [None])]
    metrics = compare(*sides).metrics
    return expected_change(*sides, metrics, options.get("tables", TABLES), options.get("limits"))  # type: ignore[arg-type]


def quantised(summary: Summary) -> Summary:
    arguments = ["llm-perf-opt", "run", "model.quantise_weights=int8"]
    summary.run = RunInfo("q", "ok", "2026-01-01T00:00:00+00:00", 1.0, arguments)
    return summary


def test_a_larger_batch_is_shown_next_to_what_was_measured() -> None:
    found = change(run(batch=1, tpot=0.0125), run(batch=8, tpot=0.0130))
    assert found is not None and found.reason is None and found.by == "measured operators"
    assert [(one.what, one.a, one.b) for one in found.changed] == [("batch size", "1", "8")]
    by_name = {one.name: one for one in found.metrics}
    assert set(by_name) == {"ttft", "tpot", "tokens_per_s"}
    assert by_name["tpot"].ratio == pytest.approx(1.0, abs=0.01)
    assert by_name["tpot"].measured_ratio == pytest.approx(1.04)
    assert by_name["tokens_per_s"].ratio == pytest.approx(8 / by_name["tpot"].ratio)
    assert found.source == "vllm 1.0" and found.measured_share_ratio is not None
    assert found.measured_share_ratio > 0.9


def test_weights_quantised_at_loading_are_known_by_their_setting() -> None:
    found = change(run(), quantised(run()))
    assert found is not None and [(one.a, one.b) for one in found.changed] == [("bfloat16", "int8")]
    tpot = next(one for one in found.metrics if one.name == "tpot")
    assert tpot.a - tpot.b == pytest.approx(8 * 0.5e-3, rel=0.05), "heads and attention stay in 16 bits"


def test_32_bits_are_in_no_table_and_labelled_roofline() -> None:
    found = change(run(dtype="float32"), run())
    assert found is not None and found.by == "roofline" and found.metrics
    assert found.measured_share_ratio == 0


@pytest.mark.parametrize("name", [None, "cuda:0"])
def test_ranks_of_a_run_whose_device_is_in_its_environment(name: str | None) -> None:
    two = run(ranks=2)
    two.hardware.name, two.hardware.peak_flops_per_s, two.hardware.bandwidth_bytes_per_s = name, {}, None
    two.environment["devices"] = [H100, H100]
    found = change(run(), two, limits={H100: Target(H100, PEAKS, 3e12)})
    assert found is not None and found.reason is None
    assert [(one.what, one.a, one.b) for one in found.changed] == [("ranks", "1", "2")]
    assert found.metrics[1].ratio < 1


@pytest.mark.parametrize("listed", [True, False])
def test_sums_over_ranks_that_nobody_timed_take_as_long_as_the_links(listed: bool) -> None:
    class WithoutSums(HalfInEight):
        def time(self, operator: Operator, device: str, *, framework: str | None = None) -> Timing | None:
            known = super().time(operator, device, framework=framework)
            return None if isinstance(operator, AllReduce) else known

    tables = replace(TABLES, times=WithoutSums())
    sides = [run(), run(ranks=2)]
    limits = {H100: Target(H100, PEAKS, 3e12, 4.5e11)} if listed else None
    for side in sides:
        side.hardware.link_bytes_per_s = None if listed else 4.5e11
    found = change(*sides, tables=tables, limits=limits)
    assert found is not None and found.reason is None and found.metrics[1].ratio < 1
    for side in sides:
        side.hardware.link_bytes_per_s = None
    without = change(*sides, tables=tables)
    assert without is not None and without.reason is not None, "without links there is nothing to go by"


@pytest.mark.parametrize(
    ("a", "b", "side", "facts"),
    [
        (run("Some CPU", "float32"), run("Some CPU"), "A", ["Some CPU"]),
        (run(), run("NVIDIA H100 MIG 1g.10gb"), "B", ["NVIDIA H100 MIG 1g.10gb"]),
        (run(), run(batch=4, static=None), "B", ["operators"]),
        (run(), run(ranks=3), "B", ["8", "heads", "3"]),
        (run(None), run(None, batch=4), "A", ["device"]),
    ],
)
def test_where_tables_do_not_reach_there_is_a_reason_and_no_number(
    a: Summary, b: Summary, side: str, facts: list[str]
) -> None:
    found = change(a, b)
    assert found is not None and not found.metrics and found.reason is not None
    assert found.reason.startswith(f"{side}: ") and mentions(found.reason, *facts)


def test_without_tables_there_is_a_note_and_for_the_same_settings_none() -> None:
    found = change(run(), run(batch=8), tables=None)
    assert found is not None and found.reason == describe_absence()
    assert change(run(tpot=0.02), run(tpot=0.03)) is None
    untold = run()
    untold.workload.dtype = None
    assert change(run(), untold) is None, "what one side does not tell is no difference"


def test_pages_show_both_changes_or_the_reason() -> None:
    sides = [Side("a", ["a"], [run()], [None]), Side("b", ["b"], [run(batch=8)], [None])]
    result = compare(*sides)
    result.expected = expected_change(*sides, result.metrics, TABLES)
    for page in (comparison_html(result), comparison_markdown(result), comparison_console(result)):
        assert "predicted change" in page and "vllm 1.0" in page and "batch size 1 → 8" in page
    result.expected = ExpectedChange(result.differences[:1], reason="because <b>")
    page = comparison_html(result)
    assert "no prediction (because &lt;b&gt;)" in page and "predicted change" not in page
    assert "no prediction" in comparison_markdown(result) and "no prediction" in comparison_console(result)


def test_a_further_setting_that_no_table_knows_leaves_a_reason() -> None:
    a, b = run(), run(batch=8)
    sides = [
        Side("a", ["a"], [a], [None], ["model.path=/x"]),
        Side("b", ["b"], [b], [None], ["model.path=/y"]),
    ]
    metrics = compare(*sides).metrics
    sides[1].overrides = ["model.path=/y", "infer.batch_size=8", "pipeline.nsys.enable=true", "hydra/x=y"]
    found = expected_change(*sides, metrics, TABLES)
    assert found is not None and found.reason is None, (
        "where a run lies and what is captured changes no kernel"
    )
    sides[1].overrides = ["infer.batch_size=8", "model.compile=true"]
    found = expected_change(*sides, metrics, TABLES)
    assert found is not None and mentions(found.reason, "model.compile")
    assert not found.metrics and [one.what for one in found.changed] == ["batch size"]


def test_steps_as_graphs_are_called_so_and_one_side_alone_is_a_further_setting() -> None:
    a, b = run(), run(batch=8)
    a.workload.cuda_graphs = True
    found = change(a, b)
    assert found is not None and found.reason is not None and "model.cuda_graphs" in found.reason
    b.workload.cuda_graphs = True
    found = change(a, b)
    assert found is not None and found.launched == "steps as graphs"
    assert describe_expected(found) != describe_expected(replace(found, launched="one by one"))
