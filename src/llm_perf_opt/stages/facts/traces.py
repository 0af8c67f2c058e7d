"""Several captures together: ranks of one program, and, for torch traces, the recording of graphs beside the run that launches them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llm_perf_opt.analysis.facts import Facts, merge_facts
from llm_perf_opt.analysis.ranks.slim import kept_in_bounds
from llm_perf_opt.stages.facts.nsys import nsys_facts
from llm_perf_opt.stages.facts.trace import trace_facts


def traces_facts(paths: Sequence[Path]) -> Facts:
    """Read the traces; ranks are joined later, with all captures."""
    found = list(kept_in_bounds(_kept_small(trace_facts(path)) for path in paths))
    runs = [each for each in found if not each.recordings]
    recordings = [each for each in found if each.recordings]
    if runs:
        for each in recordings:  # what the host did while it recorded is not part of the run
            each.operators, each.metrics, each.sections = [], {}, []
    merged = merge_facts("", [*runs, *recordings])
    _add_up_operators(merged)
    _name_graphs(merged)
    return merged


def exports_facts(paths: Sequence[Path]) -> Facts:
    """Read the nsys captures of several ranks, one after the other."""
    return merge_facts("", list(kept_in_bounds(map(nsys_facts, paths))))


def _kept_small(facts: Facts) -> Facts:
    """Forget what a trace's analysis no longer needs: eight ranks must not hold eight times everything."""
    from llm_perf_opt.model.timeline import Timeline, no_spans

    for capture in facts.captures:
        if isinstance(capture.found, Timeline):
            capture.found = replace(capture.found, operators=no_spans(), frames=no_spans())
    return facts


def _add_up_operators(facts: Facts) -> None:
    from llm_perf_opt.analysis.operators.table import add_up

    if facts.operators:
        facts.operators = add_up(facts.operators)


def _name_graphs(facts: Facts) -> None:
    """Give the kernels behind graph launches the operators that recorded them."""
    from llm_perf_opt.analysis.operators.graph_join import graph_operator_times, join_graphs, join_note
    from llm_perf_opt.analysis.operators.table import add_up
    from llm_perf_opt.ingest.kineto.recorded import read_recorded
    from llm_perf_opt.model.summary import Operator
    from llm_perf_opt.model.timeline import Timeline

    recorded = [run for path in facts.recordings for run in read_recorded(path)]
    for capture in facts.captures if recorded else []:
        if not isinstance(capture.found, Timeline) or capture.attribution is None:
            continue
        join = join_graphs(capture.found, recorded)
        times = graph_operator_times(capture.found, capture.attribution, join)
        named = [
            Operator(one.operator, one.kernels, 0.0, 0.0, one.device_s, one.device_s, one.phase)
            for one in times
        ]
        facts.operators = add_up([*facts.operators, *named])
        note = join_note(join)
        facts.notes += [note] if note else []
