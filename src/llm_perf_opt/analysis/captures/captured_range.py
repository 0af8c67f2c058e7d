"""Which range a table of kernels is of: such a table has no time axis, but its file or its configuration may tell."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.timeline.range_meaning import meaning_of
from llm_perf_opt.core.phases import DECODE, PHASES
from llm_perf_opt.model.captured import CaptureConfiguration, CapturedRange
from llm_perf_opt.model.timeline import KernelTotals, RangeTotals

if TYPE_CHECKING:
    from llm_perf_opt.analysis.timeline.summary import TimelineFacts

_WHOLE_NAMES = re.compile(r"\ball[-_ ]?stages?\b|\bwhole[-_ ]?(run|program)\b", re.IGNORECASE)


def captured_range(path: Path, configuration: CaptureConfiguration | None) -> CapturedRange | None:
    """Return the range of a table; ``None`` when nothing tells, or its name holds several ranges."""
    by_name = _of_name(path.name) if path.suffix else None
    if configuration is None:
        return by_name
    if by_name is not None:
        same = configuration.label is not None and configuration.label.casefold() == by_name.name.casefold()
        passes = configuration.passes if same else None
        return CapturedRange(by_name.name, by_name.phase, by_name.component, passes, by_name.source)
    if configuration.label is None:
        return CapturedRange("all", None, None, None, configuration.source)
    meaning = meaning_of(configuration.label)
    if meaning.phase is None:
        return None
    return CapturedRange(
        configuration.label, meaning.phase, meaning.component, configuration.passes, configuration.source
    )


def _of_name(name: str) -> CapturedRange | None:
    """Read ``per-stage-sam.cuda_gpu_kern_sum.csv`` and the like. Only plain names of phases and components count."""
    source = "the file's name"
    if _WHOLE_NAMES.search(name.replace(".", " ")):
        return CapturedRange("all", None, None, None, source)
    found: dict[tuple[str, str | None], str] = {}
    for word in re.split(r"[^A-Za-z0-9]+", name.casefold()):
        meaning = meaning_of(word)
        if meaning.phase is not None and (word in PHASES or meaning.role == "component"):
            found[meaning.phase, meaning.component] = word
    if len(found) != 1:
        return None
    ((phase, component), word) = next(iter(found.items()))
    return CapturedRange(word, phase, component, None, source)


def split_by_phase(found: KernelTotals) -> list[tuple[KernelTotals, CapturedRange]]:
    """Return a table for each phase that the column of ranges names; nothing where it names none.

    Ranges of one phase may be nested (``decode`` around ``decode_step``) and then count a launch twice, so that of each
    phase the one name with the most time is taken.
    """
    best: dict[str, RangeTotals] = {}
    for each in found.by_range:
        meaning = meaning_of(each.name)
        if meaning.role != "phase" or meaning.phase is None:
            continue
        known = best.get(meaning.phase)
        if known is None or _time(each) > _time(known):
            best[meaning.phase] = each
    return [
        (
            replace(found, kernels=each.kernels, by_range=()),
            CapturedRange(each.name, phase, None, _passes(phase, each), "the column NVTX Range"),
        )
        for phase, each in best.items()
    ]


def _passes(phase: str, each: RangeTotals) -> int | None:
    """A range around one step of decode says nothing of passes."""
    return None if phase == DECODE and "step" in each.name.casefold() else each.instances


def _time(each: RangeTotals) -> int:
    return sum(kernel.total_ns for kernel in each.kernels)


def place_in_range(facts: TimelineFacts, found: CapturedRange | None) -> None:
    """Put the kernels of a table into the phase of its range, and say so."""
    if found is None or found.phase is None:
        return
    for kernel in facts.kernels:
        kernel.phase, kernel.module = found.phase, kernel.module or found.component
    facts.families = {(found.phase, family): total for (_, family), total in facts.families.items()}
    part = f", of which {found.component} is a part" if found.component else ""
    facts.warnings.append(
        f"the kernel table is of the range {found.name} alone (by {found.source}): its kernels stand in "
        f"{found.phase}{part}, and nothing is said of other phases"
    )
