"""Processes are signalled here, however the tests were started."""

import pytest


@pytest.fixture(autouse=True)
def _signals(signals_arrive: None) -> None:
    """For every test of this folder."""
