"""Deprecated: the module path of earlier releases. Use :mod:`llm_perf_opt.remedies.base`."""

from llm_perf_opt.remedies.base import Machine, Remedy, Situation

__all__ = ["Machine", "Remedy", "Situation"]
