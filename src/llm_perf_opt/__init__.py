"""Where does LLM and VLM inference time go, how far is it from the hardware, what to change first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.version import __version__

if TYPE_CHECKING:
    from llm_perf_opt.api import Run, load_improvement, load_run, try_remedy


__all__ = ["Run", "__version__", "load_improvement", "load_run", "try_remedy"]


def __getattr__(name: str) -> Any:
    """Load the Python API when it is first used: the command line starts without it."""
    if name in ("Run", "load_improvement", "load_run", "try_remedy"):
        from llm_perf_opt import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
