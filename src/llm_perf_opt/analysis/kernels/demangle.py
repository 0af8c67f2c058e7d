"""Readable C++ names for kernels whose recorder left them mangled."""

from __future__ import annotations

import re
from functools import lru_cache

from llm_perf_opt.analysis.kernels.mangling.grammar import Parser
from llm_perf_opt.analysis.kernels.mangling.text import NotMangled

_ENDING = re.compile(r"(?:\s*\[clone [^\]]*\]|\.kd|\.(?:cold|part|isra|constprop|llvm|intern)\b[\w.]*)+$")
"""What linkers and ROCm write behind a mangled name."""
_LONGEST = 20_000
"""Characters; a longer name is not read."""


@lru_cache(maxsize=65536)
def demangled(name: str) -> str:
    """Return the readable form of a mangled name; any other name, and one that cannot be read, as it is.

    One reading per distinct name: callers need not remember which they have seen.
    """
    if not name.startswith("_Z") or len(name) > _LONGEST:
        return name
    try:
        return Parser(_ENDING.sub("", name)).whole()
    except (NotMangled, RecursionError):
        return name
