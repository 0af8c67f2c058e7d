"""``torch_profiler/profile.json``: what was profiled, and its operators as they were ranked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.model.codec import from_plain
from llm_perf_opt.model.summary import Operator


@dataclass(frozen=True, slots=True)
class TorchProfile:
    """The profiled pass of a run."""

    operators: list[Operator]
    """By phase, ranked by ``rank_by``, at most ``max_operators`` of each phase."""
    rank_by: str
    max_operators: int | None
    sample_ids: list[str]
    prompt_tokens: int
    new_tokens: int
    profiled_s: float
    """Wall-clock under the profiler; not a measurement of speed."""
    notes: list[str]
    flops_by_operator: dict[str, int]
    """torch's own count, when it was asked for."""
    trace: str | None
    """Name of the trace beside this file, when it was kept."""
    active_passes: int = 1
    """How often the same work was recorded."""


def read_profile(path: Path) -> TorchProfile:
    """Read ``profile.json``; :class:`InputError` when it is not one."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return TorchProfile(
            operators=[from_plain(Operator, row, "operators") for row in document["operators"]],
            active_passes=int((document.get("options") or {}).get("active_passes") or 1),
            **{
                key: document[key]
                for key in (
                    "rank_by",
                    "max_operators",
                    "sample_ids",
                    "prompt_tokens",
                    "new_tokens",
                    "profiled_s",
                    "notes",
                    "flops_by_operator",
                    "trace",
                )
            },
        )
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", hint="give the profile.json of a run"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not a profile of this tool: {error}", hint="run the torch profiler stage again"
        ) from error
