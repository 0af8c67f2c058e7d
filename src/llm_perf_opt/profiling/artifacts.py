"""The run directory, at the module path of the specification; defined in :mod:`llm_perf_opt.core.artifacts`."""

from llm_perf_opt.core.artifacts import Artifacts, create_stage2_root

__all__ = ["Artifacts", "create_stage2_root"]
