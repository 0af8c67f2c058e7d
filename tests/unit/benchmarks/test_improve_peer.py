"""The grid that `improve` is compared with: every combination once, none of two settings of one key."""

from __future__ import annotations

import itertools

import pytest
from benchmarks import improve_peer

from llm_perf_opt.improve.plan import Candidate, Planned
from llm_perf_opt.remedies.base import Remedy, fixed


def planned(*remedies: tuple[str, tuple[str, ...], str]) -> Planned:
    """Remedies by name, settings and effect."""
    return Planned(
        [
            Candidate(Remedy(name=name, title="", options=fixed(), effect=effect), tuple(setting.split()))  # type: ignore[arg-type]
            for name, settings, effect in remedies
            for setting in settings
        ]
    )


CACHES = (
    ("compile", ("model.compile=true model.cache=static",), "rounding"),
    ("preallocated", ("model.cache=preallocated",), "nothing"),
    ("threads", ("run.threads=2", "run.threads=1"), "rounding"),
    ("mode", ("infer.inference_mode=true",), "nothing"),
    ("pixels", ("infer.mode=tiny",), "quality"),
)


@pytest.mark.parametrize("number", [1, 3, 4, 5])
def test_all_combinations_are_counted_and_come_once(number: int) -> None:
    groups = improve_peer.groups_of(planned(*CACHES[:number]))
    chosen = [improve_peer.without_clash(each) for each in itertools.product(*groups)]
    whole = sorted(tuple(c.name for c in picked) for picked in chosen if picked)
    assert improve_peer.count_combinations(groups) == len(whole)
    order = [tuple(c.name for c in picked) for picked in improve_peer.shuffled(groups, len(whole), seed=1)]
    assert sorted(order) == whole


def test_settings_of_one_key_are_no_combination_and_quality_is_left_out() -> None:
    groups = improve_peer.groups_of(planned(*CACHES))
    assert len(groups) == 4
    # (compile, preallocated or neither) × (two numbers of threads or none) × (mode or not), without nothing at all
    assert improve_peer.count_combinations(groups) == 3 * 3 * 2 - 1
