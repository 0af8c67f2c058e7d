"""What changed about the kernels: how long a launch takes, how often they are launched, which came and which went.

The effects of a kernel add up to the change of its time: its launches are counted at A's time per launch first, what is
left is the time per launch. Kernels that changed alike are told as one: a whole family, or all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llm_perf_opt.core import units
from llm_perf_opt.model.comparison import KernelChange
from llm_perf_opt.model.conclusion import Cause, CauseKind

Factor = Callable[[str | None], float | None]
"""Phase → factor that puts B's times at A's work."""

_ALIKE_RATIO = 0.02
"""Times per launch this near to one another changed alike."""
_ALIKE_SHARE = 0.9
_LEAST_CHANGE = 0.02
_LEAST_KERNELS = 3
_ONE_OF_FAMILY = 0.7
"""Share of a family's change that makes one kernel the one to name."""
_MOST_CAUSES = 8


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that changed about one kernel, or about several together."""

    kind: CauseKind
    label: str
    family: str
    phase: str | None
    a_s: float
    b_s: float
    ratio: float | None
    """Time per launch, or launches: B ÷ A at equal work."""
    kernels: int = 1

    @property
    def change_s(self) -> float:
        """What it adds."""
        return self.b_s - self.a_s


def kernel_effects(
    rows: Sequence[KernelChange], factor: Factor, *, devices: tuple[int, int] = (1, 1)
) -> list[Effect]:
    """Return the effects of all kernels, per device, at A's work; they add up to the change of the kernel time."""
    found: list[Effect] = []
    for row in rows:
        scale = factor(row.phase)
        if scale is None or (row.a_s is None and row.b_s is None):
            continue
        found += _effects_of(row, scale, devices)
    return [effect for effect in found if effect.change_s != 0.0]


def _effects_of(row: KernelChange, scale: float, devices: tuple[int, int]) -> list[Effect]:
    before, after = (row.a_s or 0.0) / devices[0], (row.b_s or 0.0) * scale / devices[1]

    def effect(kind: CauseKind, a_s: float, b_s: float, ratio: float | None = None) -> Effect:
        return Effect(kind, row.label, row.family, row.phase, a_s, b_s, ratio)

    if row.matched == "only in A":
        return [effect("vanished", before, 0.0)]
    if row.matched == "only in B":
        return [effect("appeared", 0.0, after)]
    if row.matched == "family":
        return [effect("replaced", before, after)]
    if not row.a_launches or not row.b_launches or not before or not after:
        return [effect("device", before, after)]
    often = row.b_launches * scale / row.a_launches * devices[0] / devices[1]
    between = before * often
    return [
        effect("launches", before, between, often),
        effect("time per launch", between, after, after / between),
    ]


def kernel_causes(effects: Sequence[Effect], *, phases: bool = False) -> list[Cause]:
    """Tell effects as causes, the largest first; ``phases``: say in which phase.

    What changed alike is told together, and the smallest changes are summed into one last row.
    """
    told = [*_all_alike(effects)]
    if not told:
        told = [merged for group in _groups(effects) for merged in _family(group)]
    else:
        rest = [effect for effect in effects if effect.kind != "time per launch"]
        told += [merged for group in _groups(rest) for merged in _family(group)]
    told.sort(key=lambda effect: (-abs(effect.change_s), effect.label, effect.kind))
    causes = [_cause(effect, phases=phases) for effect in told[:_MOST_CAUSES]]
    small = told[_MOST_CAUSES:]
    if small:
        a_s, b_s = math.fsum(e.a_s for e in small), math.fsum(e.b_s for e in small)
        name = f"{len(small)} smaller changes of kernels"
        causes.append(Cause(name, a_s, b_s, b_s - a_s, kind="many small", text=name))
    return causes


def _all_alike(effects: Sequence[Effect]) -> list[Effect]:
    """Return one effect in place of those of all kernels when their times per launch changed by one factor."""
    timed = [effect for effect in effects if effect.kind == "time per launch" and effect.ratio is not None]
    whole = math.fsum(effect.a_s for effect in timed)
    if len(timed) < _LEAST_KERNELS or len({effect.family for effect in timed}) < 2 or whole <= 0:
        return []
    ratio = math.fsum(effect.b_s for effect in timed) / whole
    near = math.fsum(e.a_s for e in timed if e.ratio and abs(e.ratio / ratio - 1) <= _ALIKE_RATIO)
    if abs(ratio - 1) < _LEAST_CHANGE or near < _ALIKE_SHARE * whole:
        return []
    return [_together("all kernels", timed)]


def _groups(effects: Sequence[Effect]) -> list[list[Effect]]:
    """Put together what changed in one family, phase, way and direction."""
    found: dict[tuple[str, str, str, bool], list[Effect]] = {}
    for effect in effects:
        key = (effect.family, effect.phase or "", effect.kind, effect.change_s > 0)
        found.setdefault(key, []).append(effect)
    return list(found.values())


def _family(group: Sequence[Effect]) -> list[Effect]:
    """Tell a family as one, unless one kernel makes most of the change."""
    whole = math.fsum(effect.change_s for effect in group)
    largest = max(group, key=lambda effect: abs(effect.change_s))
    if len(group) < 2 or abs(largest.change_s) >= _ONE_OF_FAMILY * abs(whole):
        return list(group)
    return [_together(f"{group[0].family} kernels", group)]


def _together(label: str, group: Sequence[Effect]) -> Effect:
    a_s, b_s = math.fsum(e.a_s for e in group), math.fsum(e.b_s for e in group)
    first = group[0]
    phase = first.phase if len({effect.phase for effect in group}) == 1 else None
    return Effect(first.kind, label, first.family, phase, a_s, b_s, b_s / a_s if a_s else None, len(group))


def _cause(effect: Effect, *, phases: bool) -> Cause:
    many = effect.kernels > 1
    name = f"the {effect.kernels} {effect.label}" if many and effect.label != "all kernels" else effect.label
    named = name if many else f"`{name}`"
    where = f" in {effect.phase}" if phases and effect.phase else ""
    return Cause(
        name=f"{effect.label}{f' ({effect.kernels})' if many else ''}: {_SHORT.get(effect.kind, effect.kind)}{where}",
        a_s=effect.a_s,
        b_s=effect.b_s,
        change_s=effect.change_s,
        kind=effect.kind,
        phase=effect.phase,
        text=f"other {effect.family} kernels{where} do the work"
        if effect.kind == "replaced"
        else f"{named}{where} {_became(effect, many=many)}",
    )


_SHORT = {"device": "device time", "replaced": "replaced by other kernels"}


def _became(effect: Effect, *, many: bool) -> str:
    take, are = ("take", "are") if many else ("takes", "is")
    match effect.kind:
        case "time per launch":
            return f"{take} {more_or_less_time(effect.ratio)} per launch"
        case "launches":
            return f"{are} launched {how_often(effect.ratio)}"
        case "appeared":
            return f"{are} new"
        case "vanished":
            return f"{are} gone"
        case _:
            return f"{take} {'more' if effect.change_s > 0 else 'less'} time"


def more_or_less_time(ratio: float | None) -> str:
    """``1.3`` → ``30.0 % longer``."""
    if ratio is None:
        return "another time"
    if ratio >= 2:
        return f"{units.number(ratio)} times as long"
    return f"{units.percent(abs(ratio - 1))} {'longer' if ratio > 1 else 'less time'}"


def how_often(ratio: float | None) -> str:
    """``2.0`` → ``2.00 times as often``; ``0.9`` → ``10.0 % less often``."""
    if ratio is None:
        return "another number of times"
    if ratio >= 1.9:
        return f"{units.number(ratio)} times as often"
    return f"{units.percent(abs(ratio - 1))} {'more' if ratio > 1 else 'less'} often"
