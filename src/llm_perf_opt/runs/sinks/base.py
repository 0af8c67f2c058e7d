"""Deprecated: the module path of earlier releases. Use :mod:`llm_perf_opt.runs.sinks`."""

from llm_perf_opt.runs.sinks import Sink

__all__ = ["Sink"]
