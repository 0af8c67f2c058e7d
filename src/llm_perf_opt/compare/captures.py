"""Causes of the time difference of two captures at equal work: by budget part, kernel and device.

The parts of the budget add up to the span, so their changes add up to its change. Compute is taken apart further into
kernel changes; the remainder, due to overlapping kernels, has a row of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.compare.data import (
    Cause,
    CauseKind,
    Conclusion,
    DeviceChange,
    KernelChange,
    MovedTime,
    Work,
)
from llm_perf_opt.compare.sentences import captured_sentence, verdict_of
from llm_perf_opt.compare.work import Scaling, Scope, find_scopes
from llm_perf_opt.core import units
from llm_perf_opt.summary import Budget, BudgetPart, Summary
from llm_perf_opt.summary.devices import Communication, DeviceUse, IdleOwner, RankUse

# Kernel changes: time per launch, number of launches, added and removed kernels.
#
# The effects of a kernel add up to the change of its time: its launches are counted at A's time per launch first, what is
# left is the time per launch. Kernels with the same change are reported as one: a whole family, or all of them.


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
    """One change of one kernel or of a group."""

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
        """The added time."""
        return self.b_s - self.a_s


def _kernel_effects(
    rows: Sequence[KernelChange],
    factor: Factor,
    *,
    devices: tuple[int, int] = (1, 1),
    families: bool = False,
) -> list[Effect]:
    """Return the effects of all kernels, per device, at A's work; they add up to the change of the kernel time.

    ``families``: the sides differ so much that only whole families are compared.
    """
    found, rows = _fusion_effects(rows, factor, devices)
    rows, whole = _split_off_families(rows, everything=families)
    for row, kernels in whole:
        scale = factor(row.phase)
        if scale is not None:
            found += [replace(effect, kernels=kernels) for effect in _effects_of(row, scale, devices)]
    for row in rows:
        scale = factor(row.phase)
        if scale is None or (row.a_s is None and row.b_s is None):
            continue
        found += _effects_of(row, scale, devices)
    return [effect for effect in found if effect.change_s != 0.0]


_OPPOSED = 2.0
"""Kernels of a family that gain and lose this many times what the family does were exchanged for one another."""


def _split_off_families(
    rows: Sequence[KernelChange], *, everything: bool
) -> tuple[list[KernelChange], list[tuple[KernelChange, int]]]:
    """Return the rows to report individually, and families to report as a whole, with how many kernels each has.

    A library that chooses other kernels launches some of them far more often and others no more; only the family's
    counts measure the work.
    """
    groups: dict[tuple[str, str | None], list[KernelChange]] = {}
    for row in rows:
        groups.setdefault((row.family, row.phase), []).append(row)
    single: list[KernelChange] = []
    whole: list[tuple[KernelChange, int]] = []
    for group in groups.values():
        changes = [(row.b_s or 0.0) - (row.a_s or 0.0) for row in group]
        exchanged = any(row.matched != "exact" for row in group) and math.fsum(
            map(abs, changes)
        ) >= _OPPOSED * abs(math.fsum(changes))
        counted = all(row.a_launches or row.b_launches for row in group)
        if (
            len(group) > 1
            and counted
            and (everything or exchanged)
            and any(r.a_s for r in group)
            and any(r.b_s for r in group)
        ):
            one = _as_one(group)
            whole.append((one, max(len(set(one.a_names)), len(set(one.b_names)))))
        else:
            single += group
    return single, whole


def _as_one(group: Sequence[KernelChange]) -> KernelChange:
    first = group[0]
    return replace(
        first,
        label=f"{first.family} kernels",
        matched="renamed",
        a_names=[name for row in group for name in row.a_names],
        b_names=[name for row in group for name in row.b_names],
        a_s=math.fsum(row.a_s or 0.0 for row in group),
        b_s=math.fsum(row.b_s or 0.0 for row in group),
        a_launches=sum(row.a_launches or 0 for row in group),
        b_launches=sum(row.b_launches or 0 for row in group),
    )


_FUSED = {
    "attention": ("softmax", "gemm", "elementwise", "reduce", "copy"),
    "norm": ("elementwise", "reduce", "copy"),
}
"""Family of a fused kernel → families of the kernels that do the same without it."""
_GONE = 0.1


def _fusion_effects(
    rows: Sequence[KernelChange], factor: Factor, devices: tuple[int, int]
) -> tuple[list[Effect], list[KernelChange]]:
    """Find fused kernels replaced by separate ones, or the reverse; return their effect and the remaining rows."""
    found: list[Effect] = []
    rest = list(rows)
    for family, pieces in _FUSED.items():
        own = [row for row in rest if row.family == family]
        one, two = (
            (
                sum(launches or 0 for launches in each)
                for each in zip(*((r.a_launches, r.b_launches) for r in own), strict=True)
            )
            if own
            else (0, 0)
        )
        if max(one, two) <= 0 or min(one, two) > _GONE * max(one, two):
            continue
        came = "only in B" if one > two else "only in A"
        instead = [row for row in rest if row.family in pieces and row.matched == came]
        if sum((row.b_launches if one > two else row.a_launches) or 0 for row in instead) < max(one, two):
            continue
        used = [*own, *instead]
        scale = factor(own[0].phase)
        if scale is None:
            continue
        a_s = math.fsum(row.a_s or 0.0 for row in used) / devices[0]
        b_s = math.fsum(row.b_s or 0.0 for row in used) * scale / devices[1]
        kind: CauseKind = "unfused" if one > two else "fused"
        found.append(Effect(kind, family, family, own[0].phase, a_s, b_s, None, len(used)))
        rest = [row for row in rest if all(row is not each for each in used)]
    return found, rest


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


def _kernel_causes(effects: Sequence[Effect], *, phases: bool = False) -> list[Cause]:
    """Convert effects to causes, the largest first; ``phases``: include the phase.

    Equal changes are reported together, and the smallest changes are summed into one last row.
    """
    merged_effects = [*_all_alike(effects)]
    if not merged_effects:
        merged_effects = [merged for group in _groups(effects) for merged in _family(group)]
    else:
        rest = [effect for effect in effects if effect.kind != "time per launch"]
        merged_effects += [merged for group in _groups(rest) for merged in _family(group)]
    merged_effects.sort(key=lambda effect: (-abs(effect.change_s), effect.label, effect.kind))
    causes = [_cause(effect, phases=phases) for effect in merged_effects[:_MOST_CAUSES]]
    small = merged_effects[_MOST_CAUSES:]
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
    """Group changes by family, phase, kind and direction."""
    found: dict[tuple[str, str, str, bool], list[Effect]] = {}
    for effect in effects:
        key = (effect.family, effect.phase or "", effect.kind, effect.change_s > 0)
        found.setdefault(key, []).append(effect)
    return list(found.values())


def _family(group: Sequence[Effect]) -> list[Effect]:
    """Report a family as one, unless one kernel causes most of the change."""
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
    if effect.kind in ("fused", "unfused"):
        return _fusion_cause(effect, phases=phases)
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


def _fusion_cause(effect: Effect, *, phases: bool) -> Cause:
    what = {"attention": "attention", "norm": "normalisation"}.get(effect.family, effect.family)
    where = f" in {effect.phase}" if phases and effect.phase else ""
    came = effect.kind == "fused"
    return Cause(
        name=f"{what}{where}: {'fused' if came else 'no longer fused'}",
        a_s=effect.a_s,
        b_s=effect.b_s,
        change_s=effect.change_s,
        kind=effect.kind,
        phase=effect.phase,
        text=f"a fused kernel does {what}{where} in place of separate ones"
        if came
        else f"separate kernels do {what}{where} in place of a fused one",
    )


_SHORT = {"device": "device time", "replaced": "replaced by other kernels"}


def _became(effect: Effect, *, many: bool) -> str:
    take, are = ("take", "are") if many else ("takes", "is")
    match effect.kind:
        case "time per launch":
            return f"{take} {_more_or_less_time(effect.ratio)} per launch"
        case "launches":
            return f"{are} launched {_describe_launch_count(effect.ratio)}"
        case "appeared":
            return f"{are} new"
        case "vanished":
            return f"{are} gone"
        case _:
            return f"{take} {'more' if effect.change_s > 0 else 'less'} time"


def _more_or_less_time(ratio: float | None) -> str:
    """``1.3`` → ``30.0 % longer``."""
    if ratio is None:
        return "another time"
    if ratio >= 2:
        return f"{units.number(ratio)} times as long"
    return f"{units.percent(abs(ratio - 1))} {'longer' if ratio > 1 else 'less time'}"


def _describe_launch_count(ratio: float | None) -> str:
    """``2.0`` → ``2.00 times as often``; ``0.9`` → ``10.0 % less often``."""
    if ratio is None:
        return "another number of times"
    if ratio >= 1.9:
        return f"{units.number(ratio)} times as often"
    return f"{units.percent(abs(ratio - 1))} {'more' if ratio > 1 else 'less'} often"


# Changes other than kernels: exposed communication, copies and idle time.


_COMPUTE = "compute"
_LABELS = {
    "communication": "exposed communication",
    "copy": "exposed copies",
    "sync": "waiting in synchronisation",
    "launch": "waiting for launch calls",
    "host": "waiting for the host",
    "data": "waiting for input",
    "allocation": "waiting for memory to be allocated",
    "queue": "waiting in the queue",
    "one-off": "one-off costs",
}
_WAITS = {
    "sync": "in synchronisation",
    "launch": "for launch calls",
    "host": "for the host",
    "data": "for its input",
    "allocation": "for memory to be allocated",
    "queue": "in the queue",
    "one-off": "for one-off costs",
}
_DISPATCH = ("launch", "host")
"""Two names for one wait: a gap that grows beyond dispatch changes from the one to the other."""
_SAME_LENGTH = 0.2
"""Of the change of exposed communication: collectives whose length changed by less are as long as before."""


def _part_causes(scope: Scope, a: Summary, b: Summary, *, phases: bool) -> list[Cause]:
    """Return the change of every part of a budget but compute; idle parts name their owner."""
    where = f" in {scope.phase}" if phases and scope.phase else ""
    left, right = _by_name(scope.a), _by_name(scope.b)
    _joined_dispatch(left, right, scope.factor)
    causes = []
    for name in dict.fromkeys((*left, *right)):
        if name == _COMPUTE:
            continue
        for key, one, two in _by_owner(left.get(name, []), right.get(name, [])):
            before = math.fsum(part.seconds for part in one)
            after = math.fsum(part.seconds for part in two) * scope.factor
            owner = _owner(two if after >= before else one) or _owner(one if after >= before else two)
            text = _text(name, before, after, owner, scope, a, b, where)
            label = f"{_LABELS.get(name, name)}{f' ({key})' if key else ''}{where}"
            cause = Cause(label, before, after, after - before, kind=_kind(name), phase=scope.phase)
            cause.text = text
            causes.append(cause)
    return causes


def _by_name(budget: Budget) -> dict[str, list[BudgetPart]]:
    found: dict[str, list[BudgetPart]] = {}
    for part in budget.parts:
        found.setdefault(part.name, []).append(part)
    return found


def _joined_dispatch(a: dict[str, list[BudgetPart]], b: dict[str, list[BudgetPart]], factor: float) -> None:
    """Where launching and other host work change in opposite directions, combine them."""
    change = {
        name: math.fsum(part.seconds for part in b.get(name, [])) * factor
        - math.fsum(part.seconds for part in a.get(name, []))
        for name in _DISPATCH
    }
    if change["launch"] * change["host"] >= 0:
        return
    for side in (a, b):
        parts = [part for name in _DISPATCH for part in side.pop(name, [])]
        if parts:
            seconds = math.fsum(part.seconds for part in parts)
            share = math.fsum(part.share_ratio for part in parts)
            side["host"] = [BudgetPart("host", seconds, share, max(parts, key=lambda one: one.seconds).owner)]


def _by_owner(
    a: Sequence[BudgetPart], b: Sequence[BudgetPart]
) -> list[tuple[str | None, list[BudgetPart], list[BudgetPart]]]:
    """Separate parts of one name by owner if a side does."""
    if max(len(a), len(b)) < 2:
        return [(None, list(a), list(b))]
    kinds = dict.fromkeys(part.owner.what if part.owner else None for part in (*a, *b))

    def of(parts: Sequence[BudgetPart], what: str | None) -> list[BudgetPart]:
        return [part for part in parts if (part.owner.what if part.owner else None) == what]

    return [(what, of(a, what), of(b, what)) for what in kinds]


def _owner(parts: Sequence[BudgetPart]) -> IdleOwner | None:
    owned = [part for part in parts if part.owner is not None]
    return max(owned, key=lambda part: part.seconds).owner if owned else None


def _kind(name: str) -> CauseKind:
    return "communication" if name == "communication" else "copy" if name == "copy" else "idle"


def _text(
    name: str,
    before: float,
    after: float,
    owner: IdleOwner | None,
    scope: Scope,
    a: Summary,
    b: Summary,
    where: str,
) -> str:
    longer = "longer" if after > before else "less"
    if name == "communication":
        text = _communication(a.communication, b.communication, scope.factor)
        return f"communication that nothing overlaps{where} takes {'longer' if after > before else 'less time'}{text}"
    if name == "copy":
        return f"copies that nothing overlaps{where} take {'longer' if after > before else 'less time'}{_copies(a, b, scope.factor)}"
    return f"the device{where} waits {longer} {_WAITS.get(name, f'({name})')}{_owned(owner)}"


def _owned(owner: IdleOwner | None) -> str:
    if owner is None:
        return ""
    inside = f" in `{owner.range}`" if owner.range else ""
    return f" ({owner.what}{inside})"


def _communication(a: Communication | None, b: Communication | None, factor: float) -> str:
    """Describe whether collectives became longer or are merely overlapped less, and which."""
    if a is None or b is None:
        return "" if a is b else f": only {'B' if a is None else 'A'} has collectives"
    left = {row.name: row for row in a.collectives}
    right = {row.name: row for row in b.collectives}
    changes = {
        name: (right[name].exposed_s * factor if name in right else 0.0)
        - (left[name].exposed_s if name in left else 0.0)
        for name in dict.fromkeys((*left, *right))
    }
    named = f"`{max(changes, key=lambda name: abs(changes[name]))}`" if changes else "the collectives"
    exposed, total = b.exposed_s * factor - a.exposed_s, b.total_s * factor - a.total_s
    if abs(total) <= _SAME_LENGTH * abs(exposed):
        return f" ({named}; the collectives are as long as before, but overlap {'less' if exposed > 0 else 'more'})"
    ratio = b.total_s * factor / a.total_s if a.total_s else None
    return f" ({named}; the collectives take {_more_or_less_time(ratio)} in all)"


def _copies(a: Summary, b: Summary, factor: float) -> str:
    """Describe the copied bytes, if both captures have them."""
    one, two = a.metrics.get("copy_bytes"), b.metrics.get("copy_bytes")
    if not one or not two:
        return ""
    ratio = two * factor / one
    if abs(ratio - 1) < 0.01:
        return " (as many bytes)"
    return f" ({units.size(two * factor)} instead of {units.size(one)})"


# Devices and ranks side by side: time that only moved between them is not a gain.


_LEAST_SHARE = 0.01
"""Of the longest span: less is not worth a sentence."""
_MOVED_RATIO = 0.5
"""What the smaller of loss and gain must be of the larger to be called a move."""
_NAMES = {
    "communication": "communication (NCCL) time",
    "exposed communication": "exposed communication time",
    "waiting for other ranks": "waiting for other ranks",
    "copy": "copy time",
    "compute": "compute time",
    "idle": "idle time",
}
"""The most telling first."""
_HIDDEN_BY = {
    "exposed communication": ("communication",),
    "idle": ("communication", "exposed communication", "compute", "copy", "waiting for other ranks"),
}
"""Quantity → those that tell the same move better: a device idles because something left it."""
_SAME_SIZE = 0.9
Place = tuple[int | None, int | None]
"""(Rank, device)."""
Figures = dict[Place, dict[str, float]]


def _compare_devices(a: Summary, b: Summary, factor: float) -> list[DeviceChange]:
    """Return the time of each device and rank by what it did, B at A's work; empty where they cannot be paired."""
    pairs = ((_device_figures(a.devices), _device_figures(b.devices)), (_waiting(a.ranks), _waiting(b.ranks)))
    rows = [row for one, two in pairs for row in _paired(one, two, factor)]
    if not a.devices and not b.devices:
        rows = [*_paired(_rank_figures(a.ranks), _rank_figures(b.ranks), factor), *rows]
    return rows


def _find_moved(rows: Sequence[DeviceChange], span_s: float) -> list[MovedTime]:
    """Return time that moved from one device to another, the largest first."""
    found = []
    for what in dict.fromkeys(row.what for row in rows):
        same = [row for row in rows if row.what == what]
        source, target = (
            min(same, key=lambda row: row.change_s),
            max(same, key=lambda row: row.change_s),
        )
        left, came = -source.change_s, target.change_s
        if min(left, came) < max(_LEAST_SHARE * span_s, _MOVED_RATIO * max(left, came)):
            continue
        net = math.fsum(row.change_s for row in same)
        found.append(_moved(what, source, target, left, came, net))
    moved = {move.what for move in found}
    found = [move for move in found if not moved.intersection(_HIDDEN_BY.get(move.what, ()))]
    largest = max((move.came_s for move in found), default=0.0)
    # Less of one activity means more of another; of moves of equal size the more informative one comes first.
    order = list(_NAMES)
    return sorted(
        found, key=lambda move: (move.came_s < _SAME_SIZE * largest, order.index(move.what), -move.came_s)
    )


def _moved(
    what: str, source: DeviceChange, target: DeviceChange, left: float, came: float, net: float
) -> MovedTime:
    small = abs(net) <= 0.1 * max(left, came)
    result = (
        "in sum nothing gained"
        if small
        else f"in sum {units.seconds(abs(net))} {'more' if net > 0 else 'less'}"
    )
    text = (
        f"{_NAMES.get(what, what)} moved from {source.where} to {target.where}: +{units.seconds(came)} there, "
        f"−{units.seconds(left)} here; {result}"
    )
    return MovedTime(what, source.where, target.where, left, came, net, text)


def _paired(a: Figures, b: Figures, factor: float) -> list[DeviceChange]:
    """Pair places by rank and number; where the numbers differ but not how many there are, by their order."""
    if len(a) != len(b) or not a:
        return []
    places = list(zip(a, a, strict=True)) if a.keys() == b.keys() else list(zip(a, b, strict=True))
    rows = []
    for first, second in places:
        for what, before in a[first].items():
            if (measured := b[second].get(what)) is not None and (before or measured):
                after = measured * factor
                rows.append(DeviceChange(_describe_scope(first), what, before, after, after - before))
    return rows


def _device_figures(devices: Sequence[DeviceUse]) -> Figures:
    found: Figures = {}
    for use in sorted(devices, key=lambda use: (use.rank is not None, use.rank or 0, use.device)):
        compute = (
            use.busy_s - (use.exposed_communication_s or 0.0) - (use.copy_s or 0.0)
            if use.busy_s is not None
            else None
        )
        found[use.rank, use.device] = _known(
            {
                "compute": compute,
                "communication": use.communication_s,
                "exposed communication": use.exposed_communication_s,
                "copy": use.copy_s,
                "idle": use.idle_s,
            }
        )
    return found


def _rank_figures(ranks: Sequence[RankUse]) -> Figures:
    return {
        (use.rank, None): _known(
            {
                "compute": use.compute_s,
                "communication": use.communication_s,
                "exposed communication": use.exposed_communication_s,
                "idle": use.idle_s,
            }
        )
        for use in sorted(ranks, key=lambda use: use.rank)
    }


def _waiting(ranks: Sequence[RankUse]) -> Figures:
    return {
        (use.rank, None): _known({"waiting for other ranks": use.waits_s})
        for use in sorted(ranks, key=lambda use: use.rank)
    }


def _known(values: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _describe_scope(place: Place) -> str:
    rank, device = place
    parts = [f"rank {rank}" if rank is not None else "", f"GPU {device}" if device is not None else ""]
    return " ".join(part for part in parts if part)


COMMUNICATION = "communication"
"""Family of the kernels and name of the budget's part."""
_LEAST_OF_COMPUTE, _MOST_OF_COMPUTE = 0.5, 3.0
"""Kernel time ÷ compute time of captures whose kernels miss a little, or overlap a lot."""
_ROUNDING = 1e-6
"""Of the whole: changes below this are left to the remainder."""
_OVERLAP_SHARE = 0.001
"""Of the whole: less overlap than this is rounding, and goes to the remainder."""


def conclude_captures(
    a: Summary, b: Summary, kernels: Sequence[KernelChange], work: Work
) -> Conclusion | None:
    """Conclude from the captures of both sides; ``None`` where a side has none."""
    if not (a.kernels and b.kernels):
        return None
    scaling = Scaling(work)
    scopes = find_scopes(a, b, scaling, kernels)
    if scopes:
        found = _from_budgets(a, b, scopes, work)
    elif work.basis is not None and not (a.budget and b.budget):
        found = _from_kernels(kernels, scaling, work)
    else:
        return Conclusion(
            "captured_time", "undecided", f"No conclusion from the captures. {work.text}.", work
        )
    found.verdict = verdict_of(found)
    _rank(found)
    _add_devices(found, a, b, scaling)
    found.sentence = captured_sentence(found)
    return found


def _from_budgets(a: Summary, b: Summary, scopes: Sequence[Scope], work: Work) -> Conclusion:
    devices = (max(1, len(a.devices)), max(1, len(b.devices)))
    phases = len(scopes) > 1
    causes: list[Cause] = []
    for scope in scopes:
        causes += _part_causes(scope, a, b, phases=phases)
        causes += _compute_causes(scope, devices, phases=phases, families=_unlike(a, b))
    before, after = math.fsum(s.a_s for s in scopes), math.fsum(s.b_s for s in scopes)
    measured = math.fsum(scope.b.span_s for scope in scopes)
    return Conclusion(
        "captured_time",
        "undecided",
        "",
        work,
        a_s=before,
        b_s=after,
        b_measured_s=measured,
        change_s=after - before,
        ratio=after / before if before else None,
        causes=causes,
    )


def _unlike(a: Summary, b: Summary) -> bool:
    """Whether single kernels of the sides cannot be compared: other devices, or another number of ranks."""
    names = (a.hardware.name, b.hardware.name)
    sizes = (a.metrics.get("world_size"), b.metrics.get("world_size"))
    return any(None not in pair and pair[0] != pair[1] for pair in (names, sizes))


def _compute_causes(
    scope: Scope, devices: tuple[int, int], *, phases: bool, families: bool = False
) -> list[Cause]:
    """Split the change of the time in which kernels run; without kernels in the table it stays one cause."""
    a_s, b_s = (
        math.fsum(part.seconds for part in budget.parts if part.name == "compute")
        for budget in (scope.a, scope.b)
    )
    b_s *= scope.factor
    apart = any(part.name == COMMUNICATION for budget in (scope.a, scope.b) for part in budget.parts)
    rows = [row for row in scope.kernels if not (apart and row.family == COMMUNICATION)]
    where = f" in {scope.phase}" if phases and scope.phase else ""
    sum_a = math.fsum(row.a_s or 0.0 for row in rows) / devices[0]
    sum_b = math.fsum(row.b_s or 0.0 for row in rows) * scope.factor / devices[1]
    if not _explains(sum_a, a_s) or not _explains(sum_b, b_s):
        longer = "longer" if b_s > a_s else "shorter"
        cause = Cause(f"compute{where}", a_s, b_s, b_s - a_s, kind="device", phase=scope.phase)
        cause.text = f"kernels{where} run {longer}"
        return [cause]
    effects = _kernel_effects(rows, lambda _: scope.factor, devices=devices, families=families)
    causes = _kernel_causes(effects, phases=phases)
    saved_a, saved_b = a_s - sum_a, b_s - sum_b
    if abs(saved_b - saved_a) > _OVERLAP_SHARE * max(scope.a_s, scope.b_s):
        causes.append(
            Cause(
                f"overlap of kernels{where}",
                saved_a,
                saved_b,
                saved_b - saved_a,
                kind="overlap",
                phase=scope.phase,
                text=f"kernels{where} overlap {'less' if saved_b > saved_a else 'more'}",
            )
        )
    return causes


def _explains(kernels_s: float, compute_s: float) -> bool:
    """Whether a kernel table is consistent with the compute time: it may come from another capture."""
    return _LEAST_OF_COMPUTE * compute_s <= kernels_s <= _MOST_OF_COMPUTE * compute_s


def _from_kernels(kernels: Sequence[KernelChange], scaling: Scaling, work: Work) -> Conclusion:
    """Conclude from kernel tables without a time axis: their total is the whole."""
    known = [row for row in kernels if scaling.factor(row.phase) is not None]
    before = math.fsum(row.a_s or 0.0 for row in known)
    after = math.fsum((row.b_s or 0.0) * (scaling.factor(row.phase) or 1.0) for row in known)
    phases = len({row.phase for row in known}) > 1
    return Conclusion(
        "kernel_time",
        "undecided",
        "",
        work,
        a_s=before,
        b_s=after,
        b_measured_s=math.fsum(row.b_s or 0.0 for row in known),
        change_s=after - before,
        ratio=after / before if before else None,
        causes=_kernel_causes(_kernel_effects(known, scaling.factor), phases=phases),
    )


def _rank(found: Conclusion) -> None:
    """Sort by change, set the shares, and add the remainder."""
    change = found.change_s or 0.0
    found.causes = sorted(
        (cause for cause in found.causes if abs(cause.change_s) > _ROUNDING * (found.a_s or 0.0)),
        key=lambda cause: (-abs(cause.change_s), cause.name),
    )
    for cause in found.causes:
        cause.share_ratio = cause.change_s / change if found.verdict != "no change" else None
    found.remainder_s = change - math.fsum(cause.change_s for cause in found.causes)


def _add_devices(found: Conclusion, a: Summary, b: Summary, scaling: Scaling) -> None:
    factor = scaling.factor(None)
    if factor is None or found.whole != "captured_time":
        return
    found.devices = _compare_devices(a, b, factor)
    found.moved = _find_moved(found.devices, max(found.a_s or 0.0, found.b_s or 0.0))
    one, two = (side.communication.straggler if side.communication else None for side in (a, b))
    if one is not None and two is not None and one != two:
        found.details.append(f"The ranks now wait most for rank {two}; in A they waited for rank {one}.")
