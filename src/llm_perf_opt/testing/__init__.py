"""Conformance suites for models and data sets, used by our own tests and by plug-in authors. Needs pytest."""

from __future__ import annotations

import pytest

# pytest rewrites assertions only in modules registered before their import.
pytest.register_assert_rewrite(
    "llm_perf_opt.testing.datasets", "llm_perf_opt.testing.models", "llm_perf_opt.testing.sinks"
)
