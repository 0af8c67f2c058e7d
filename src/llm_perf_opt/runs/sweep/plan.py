"""``sweep_plan.json``: the jobs of a sweep, written before the first of them starts.

With it a job that never began is missed, and ``--resume`` knows what to go on with. What became of the jobs is not in
it: that is in their own directories.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.core.clock import now_text
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.core.secrets import mask_tree
from llm_perf_opt.model.codec import decode_file, to_plain


@dataclass(slots=True)
class PlannedJob:
    """One job."""

    number: int
    directory: str
    """Below the sweep's."""
    overrides: list[str]
    config_hash: str | None = None


@dataclass(slots=True)
class SweepPlan:
    """All jobs, and the command that asked for them."""

    id: str
    created: str
    launcher: str
    overrides: list[str]
    """The user's own, lists of values included."""
    switches: list[str] = field(default_factory=list)
    """``--config-dir DIR`` and the like."""
    config_dir: str | None = None
    config_name: str = "config"
    jobs: list[PlannedJob] = field(default_factory=list)
    """Empty: a sweeper chose them as it went."""
    resumed: list[str] = field(default_factory=list)
    """When it was gone on with (ISO 8601)."""

    @property
    def command(self) -> list[str]:
        """The command line that began it."""
        return ["llm-perf-opt", "run", "--multirun", *self.switches, *self.overrides]


def new_plan(launcher: str, overrides: list[str], switches: list[str], jobs: list[PlannedJob]) -> SweepPlan:
    """Begin a plan with an identity of its own."""
    return SweepPlan(uuid.uuid4().hex, now_text(), launcher, overrides, switches, jobs=jobs)


def write_plan(directory: Path, plan: SweepPlan) -> Path:
    """Write the plan; what looks like a secret is masked."""
    return atomic_write_json(directory / layout.SWEEP_PLAN, mask_tree(to_plain(plan)))


def read_plan(directory: Path) -> SweepPlan | None:
    """Read the plan of a directory; ``None``: it has none."""
    path = directory / layout.SWEEP_PLAN
    return decode_file(path, SweepPlan, hint="remove the damaged file") if path.is_file() else None
