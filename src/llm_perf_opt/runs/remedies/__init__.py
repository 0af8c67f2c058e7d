"""Deprecated: the module path of earlier releases. Use :mod:`llm_perf_opt.remedies`."""
