"""Tables whose times are not of what they name: nobody may read them as what they say."""

from __future__ import annotations

from collections.abc import Mapping

MISLABELLED: Mapping[str, str] = {
    "a100_sxm/attention/trtllm/1.0.0/generation_attention_perf.parquet": (
        "its caches of 16 bits were read at 1.7 times the memory's bandwidth: they are of eight bits"
    ),
}
"""Path below the data directory → what is wrong (``benchmarks/catalogue_floors.py`` holds every table against the memory)."""
