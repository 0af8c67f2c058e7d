"""Whatever the machine offers, remedies are planned as on one with a compiler."""

import pytest

from llm_perf_opt.remedies import conditions
from llm_perf_opt.workloads import setup


@pytest.fixture(autouse=True)
def with_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled here; whether a compiler is missing is asked by its own test."""
    for module in (conditions, setup):
        monkeypatch.setattr(module, "missing_compiler", lambda device: None)
