"""The schema as OmegaConf nodes.

A module of its own: shell completion reads the schema without importing OmegaConf.
"""

from __future__ import annotations

import functools
from typing import Any

from omegaconf import DictConfig, OmegaConf

from llm_perf_opt.config.schema import SECTIONS, WorkloadCommandConfig
from llm_perf_opt.core.stage import stage_types

# The schema as OmegaConf nodes, under the YAML presets of ``conf/``.


SCHEMA_NAME = "base_schema"


def _typed_node(cls: type) -> DictConfig:
    """A typed node that takes unknown keys for now: they are reported, all at once, after composition."""
    node: DictConfig = OmegaConf.structured(cls)
    OmegaConf.set_struct(node, False)
    return node


@functools.cache
def schema_node() -> DictConfig:
    """Return the root: one typed node per section, and one per registered stage under ``pipeline``.

    It is shared: not to be changed.
    """
    pipeline: dict[str, Any] = {name: _typed_node(kind.config_type) for name, kind in stage_types().items()}
    pipeline["workload"] = _typed_node(WorkloadCommandConfig)
    return OmegaConf.create(
        {**{name: _typed_node(cls) for name, cls in SECTIONS.items()}, "pipeline": pipeline}
    )
