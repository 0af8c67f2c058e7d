"""Deprecated: the module path of earlier releases. Use :mod:`llm_perf_opt.summary`."""

from llm_perf_opt.summary import *  # noqa: F403
