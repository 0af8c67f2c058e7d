"""What one experiment is, as a file: written by the search, read by the process that measures."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llm_perf_opt.analysis.improve.sequential import Rule, SequentialTest
from llm_perf_opt.core.files import explain_os_errors, refuse_link
from llm_perf_opt.model.codec import decode_file, save_json
from llm_perf_opt.model.improve import Metric

SPEC = "spec.json"
PASSES = "passes.jsonl"
"""One line per pass, written when it is over: a crash loses nothing that was measured."""
FAILURE = "failure.json"
ANSWERS = "answers-{}.json"
LOGITS = "logits-{}.npz"
CHECK = "output.json"
READY = "ready-{}.json"
"""A side in a process of its own writes it once it is warm."""
TURN = "turn-{}.json"
"""Asks a waiting side for its next unit."""
STOP = "stop"
"""A file of this name in the folder tells a waiting process to end."""

Letter = Literal["a", "b"]
SIDES: tuple[Letter, Letter] = ("a", "b")


@dataclass(slots=True)
class Spec:
    """Both configurations and how to compare them."""

    a: list[str]
    """All overrides of A: the baseline, and what is kept already."""
    b: list[str]
    metric: Metric
    alpha: float
    least_gain_ratio: float
    most_blocks: int
    limit_s: float
    """Measuring ends after this time, unless a gain is in sight by then."""
    seed: int
    most_samples: int
    more_s: float = 0.0
    """Further time to show a gain that is in sight."""
    widest_ratio: float | None = None
    """How narrow the interval of a gain must be, in shares of it."""
    patch: str | None = None
    """``package.module:function``, called with B's model once it is built."""
    checks_text: bool = True
    """Whether distances to references and perplexity are computed."""
    environment: dict[str, dict[str, str]] = field(default_factory=dict)
    """Side → environment variables that its process needs."""
    answer_s: float | None = None
    """What one answer of the baseline takes; ``None``: not known."""
    fixed: bool = False
    """Measure ``most_blocks`` pairs, whatever the first ones show."""

    def rule(self) -> Rule:
        """Return when the experiment ends."""
        return Rule(self.alpha, self.least_gain_ratio, self.most_blocks, self.widest_ratio, self.fixed)

    @property
    def longest_s(self) -> float:
        """Return the most time that measuring may take."""
        return self.limit_s + self.more_s

    def time_is_over(self, used_s: float, test: SequentialTest) -> bool:
        """Return whether measuring ends."""
        return used_s >= (self.longest_s if test.in_sight() else self.limit_s)

    def overrides(self, side: Letter) -> list[str]:
        """Return the overrides of one side."""
        return self.a if side == "a" else self.b

    def save(self, folder: Path) -> Path:
        """Write it into the experiment's folder."""
        return save_json(folder / SPEC, self)


def new_folder(folder: Path) -> None:
    """Make the folder of an experiment, without anything that an earlier one left there.

    Passes of two experiments would be read as one; a process that is ready, or told to stop, would be an old one's.
    """
    with explain_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # Folders of these names are ours only beside a specification.
        if (folder / SPEC).is_file():
            for letter in SIDES:
                refuse_link(folder / letter)
                if (folder / letter).is_dir():
                    shutil.rmtree(folder / letter)
        of_sides = (name.format(letter) for name in (ANSWERS, LOGITS, READY, TURN) for letter in SIDES)
        for name in (PASSES, FAILURE, CHECK, STOP, *of_sides):
            (folder / name).unlink(missing_ok=True)


def load_spec(folder: Path) -> Spec:
    """Read it back."""
    return decode_file(folder / SPEC, Spec)
