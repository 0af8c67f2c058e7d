"""``improve --plan``: what would be tried, and about how long that takes. Runs nothing."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.core import units
from llm_perf_opt.core.escape import one_line
from llm_perf_opt.core.secrets import mask_arguments
from llm_perf_opt.improve import baseline, page
from llm_perf_opt.improve.improve import Request, from_best, make_plan, resumed, start_of, total_s
from llm_perf_opt.improve.plan import Candidate, Planned
from llm_perf_opt.remedies.base import conflicting_key, this_machine
from llm_perf_opt.remedies.data import Effect, load_improvement
from llm_perf_opt.summary import Summary

# As measured for model=llama_tiny and for the default workload on two cores (docs/improve.md).
_TYPICAL_PAIRS = 30
_START_S = 8.0
"""Two processes' worth of imports and loading, for a small model."""
_COMPILE_S = 20.0
_STEPS_TRIED = 2
"""Of a remedy that goes step by step: the search ends where the next is no better."""
_KEPT_SHARE = 0.25
"""Of the remedies, which are then tried together."""


def show_plan(request: Request, *, as_json: bool) -> int:
    """Print what would be tried and the estimated time, based on an existing run of this configuration if there is one."""
    request = from_best(request)
    if request.resume is not None:
        out = request.resume.expanduser().absolute()
        earlier = load_improvement(out)
        request = resumed(request, earlier)
        _print_taken_over(earlier.baseline.overrides, out, as_json=as_json)
        start: baseline.Start | None = start_of(request, out, earlier)
    elif request.run is not None:
        _print_taken_over(baseline.read_run(request.run).overrides, request.run, as_json=as_json)
        start = baseline.from_run(request.run, request.overrides)
    else:
        start = baseline.newest_like(request.overrides)
    planned = make_plan(request, start, this_machine())
    seconds = expected_s(request, planned, start.summary if start is not None else None)
    if as_json:
        print(json.dumps(_document(planned, seconds, request, start), indent=2))
        return 0
    if start is None:
        print("baseline: one run with its diagnosis first; its findings decide the order\n")
    elif request.run is None and request.resume is None:
        print(f"baseline: one run with its diagnosis first; order and times are those of {start.run}\n")
    for number, candidate in enumerate(planned.candidates, 1):
        finding = candidate.finding
        why = f"addresses {finding.id}" if finding is not None else "no finding suggests it"
        expected = page.describe_expected(
            candidate.gain_s,
            candidate.predicted_by,
            candidate.predicted.measured_share_ratio if candidate.predicted is not None else None,
            candidate.predicted.source if candidate.predicted is not None else None,
        )
        why += f", {expected}" if expected else ""
        print(
            f"{number:3}  {candidate.name}   {candidate.remedy.title}; {why}; output: {candidate.remedy.effect}"
        )
    for item in planned.not_tried:
        print(f"  -  {item.remedy}: {item.reason}")
    for line in describe_combinations(planned, request.settings.allow):
        print(line)
    print(f"\n{_describe_order(request, planned)}: {_format_duration(seconds, request.budget_s)}")
    return 0


def _print_taken_over(stored: Sequence[str], source: Path, *, as_json: bool) -> None:
    """Print the settings of a file before they are used."""
    if not as_json:
        shown = one_line(shlex.join(mask_arguments(stored))) if stored else "nothing (the default workload)"
        print(f"settings from {source}: {shown}\n")


def describe_combinations(planned: Planned, allow: Effect) -> list[str]:
    """Describe which remedies exclude each other, and how those that may reduce quality are handled."""
    by_name: dict[str, Candidate] = {}
    for candidate in planned.candidates:
        by_name.setdefault(candidate.remedy.name, candidate)
    excluded: dict[str, list[str]] = {}
    for one, two in itertools.combinations(by_name.values(), 2):
        key = conflicting_key(one.overrides, two.overrides)
        if key is not None:
            names = excluded.setdefault(key, [])
            names += [each.remedy.name for each in (one, two) if each.remedy.name not in names]
    lines = [f"not combined ({key}): {', '.join(names)}" for key, names in excluded.items()]
    quality = [name for name, each in by_name.items() if each.remedy.effect == "quality"]
    if quality and allow == "quality":
        lines.append(
            f"may make answers worse, kept and combined like the others (--allow quality): {', '.join(quality)}"
        )
    elif quality:
        lines.append(
            f"may make answers worse, measured but not combined (--allow quality does): {', '.join(quality)}"
        )
    return lines


def _describe_order(request: Request, planned: Planned) -> str:
    if request.settings.search == "optuna":
        return f"at most {request.trials} combinations that Optuna proposes, then the best once more"
    count = len(planned.candidates)
    settings = "1 setting" if count == 1 else f"{count} settings"
    return f"{settings} alone, then the kept ones together, then once more"


def _format_duration(seconds: float | None, budget_s: float) -> str:
    limit = f"{units.number(budget_s / 60)} min"
    if seconds is None:
        return f"how long is known after the baseline (--budget {limit} ends it)"
    if seconds <= budget_s:
        return f"about {units.number(seconds / 60)} min (--budget {limit})"
    return (
        f"about {units.number(seconds / 60)} min in all, of which --budget {limit} allows the most promising"
    )


def expected_s(request: Request, planned: Planned, summary: Summary | None) -> float | None:
    """Return about how long all experiments take without a budget; ``None``: the time of an answer is not known."""
    answer_s = total_s(summary) if summary is not None else None
    if summary is None or answer_s is None:
        return None
    samples = min(summary.workload.samples or 1, request.settings.most_samples)
    # Each side warms up once and answers every sample before the pairs are measured.
    each = (
        _START_S
        + 2 * (1 + samples) * answer_s
        + 2 * min(_TYPICAL_PAIRS, request.settings.most_blocks) * answer_s
    )
    compiled = sum(any("compile" in item for item in candidate.overrides) for candidate in planned.candidates)
    return each * expected_experiments(request, planned) + _COMPILE_S * compiled


def expected_experiments(request: Request, planned: Planned) -> int:
    """Return about how many experiments a search makes; :attr:`Planned.tests` is the maximum."""
    if request.settings.search == "optuna":
        return request.trials + 1
    options: dict[str, int] = {}
    for candidate in planned.candidates:
        name = candidate.remedy.name
        most = _STEPS_TRIED if candidate.remedy.grows == "steps" else len(planned.candidates)
        options[name] = min(options.get(name, 0) + 1, most)
    together = round(_KEPT_SHARE * max(0, len(options) - 1))
    return sum(options.values()) + together + 1


def _document(
    planned: Planned, seconds: float | None, request: Request, start: baseline.Start | None
) -> dict[str, Any]:
    return {
        "candidates": [
            {
                "remedy": candidate.remedy.name,
                "overrides": list(candidate.overrides),
                "finding": candidate.finding.id if candidate.finding else None,
                "predicted_gain_s": candidate.gain_s,
                "predicted_by": candidate.predicted_by,
                "predicted_source": candidate.predicted.source if candidate.predicted else None,
                "bound_gain_s": candidate.bound_s,
                "effect": candidate.remedy.effect,
            }
            for candidate in planned.candidates
        ],
        "not_tried": [{"remedy": item.remedy, "reason": item.reason} for item in planned.not_tried],
        "expected_s": seconds,
        "expected_experiments": expected_experiments(request, planned),
        "budget_s": request.budget_s,
        "tests": planned.tests,
        "settings": mask_arguments(start.overrides) if start is not None else None,
    }
