"""Whether nsys can be kept from seeing, and storing, what other programs have in their environments."""

from __future__ import annotations

import functools

from llm_perf_opt.process.isolate import isolated
from llm_perf_opt.process.launch import run_probe
from llm_perf_opt.vendor.nsys.config import NsysConfig

SEES_ALL = (
    "nsys stores the environment of every process of this user in its report: do not pass it on before you have "
    "read docs/security.md (pipeline.nsys.isolate=true prevents it where the machine allows)"
)


SECRET_ARGUMENTS = (
    "an argument of the program looks like a secret, and nsys stores arguments in its report: hand it over in a file, "
    "or as a variable that the program reads from one"
)


@functools.cache
def can_isolate() -> bool:
    """Tell whether programs can be run in a namespace of their own here (:mod:`llm_perf_opt.process.isolate`)."""
    return run_probe(isolated(["true"])).ok


def isolates(config: NsysConfig) -> bool:
    """Tell whether a capture is isolated: as configured, else where possible and nothing is sampled system-wide."""
    if config.isolate is not None:
        return config.isolate
    return "system-wide" not in (config.sample, config.cpuctxsw) and can_isolate()
