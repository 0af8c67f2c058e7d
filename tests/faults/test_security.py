"""The security table, but for checks that take long; ``python -m tests.faults.security`` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.security.all_checks import CHECKS
from tests.faults.security.check import Check

QUICK = [check for check in CHECKS if not check.slow]
GROUPS = {
    "escaping", "CSV formulas", "terminal escapes", "links", "paths", "caches", "permissions", "secrets", "environment",
    "Hydra", "unpickling", "trust_remote_code", "execution", "decompression", "depth",
}  # fmt: skip


def test_there_are_enough_checks_of_every_group_and_no_two_are_the_same() -> None:
    assert len(CHECKS) >= 77
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert {check.group for check in CHECKS} == GROUPS


@pytest.mark.parametrize("check", QUICK, ids=[check.id for check in QUICK])
def test_it_does_not_happen(check: Check, tmp_path: Path) -> None:
    check.run(tmp_path)
