"""``torch_profiler/profile.json``: what was profiled, and its operators as they were ranked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.model.codec import decode_file
from llm_perf_opt.model.limits import Count, SummedSeconds
from llm_perf_opt.model.summary import Operator


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """How the pass was profiled, as far as a reader needs it."""

    active_passes: Count | None = None


@dataclass(frozen=True, slots=True)
class TorchProfile:
    """The profiled pass of a run."""

    operators: list[Operator]
    """By phase, ranked by ``rank_by``, at most ``max_operators`` of each phase."""
    rank_by: str
    max_operators: Count | None
    sample_ids: list[str]
    prompt_tokens: Count
    new_tokens: Count
    profiled_s: SummedSeconds
    """Wall-clock under the profiler; not a measurement of speed."""
    notes: list[str]
    flops_by_operator: dict[str, Count]
    """torch's own count, when it was asked for."""
    trace: str | None
    """Name of the trace beside this file, when it was kept; else ``operators`` has what it said."""
    device: str | None = None
    options: ProfileOptions | None = None

    @property
    def active_passes(self) -> int:
        """How often the same work was recorded."""
        return (self.options.active_passes if self.options is not None else None) or 1


def read_profile(path: Path) -> TorchProfile:
    """Read ``profile.json``; :class:`InputError` when it is not one."""
    return decode_file(
        path, TorchProfile, hint="give the profile.json of a run, or run the torch profiler stage again"
    )
