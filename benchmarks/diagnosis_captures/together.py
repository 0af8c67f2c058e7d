"""Several ranks at once: they meet in collectives and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from .machine import Program


def run_together(programs: Sequence[Program]) -> None:
    """Run the ranks' programs: each to its next collective, then all together on."""
    entered = [next(program, None) for program in programs]
    while any(one is not None for one in entered):
        times = [one for one in entered if one is not None]
        if len(times) != len(programs):
            raise ValueError("the ranks do not enter the same number of collectives")
        last = max(times)
        entered = [_resume(program, last) for program in programs]


def _resume(program: Program, last: int) -> int | None:
    try:
        return program.send(last)
    except StopIteration:
        return None
