"""Adapters of which one rank does not come to its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.workloads.base import Batch, Sample
from llm_perf_opt.workloads.models.hf_causal_lm import HfCausalLmAdapter

NO_WEIGHTS = "the weights of this rank are not here"

_SECOND = os.environ.get("RANK") == "1"


class Killed(HfCausalLmAdapter):
    """Its second rank is killed before the first pass."""

    doomed = "1"

    def prepare(self, samples: Sequence[Sample], device: str, dtype: Any) -> Batch:
        if os.environ.get("RANK") == self.doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().prepare(samples, device, dtype)


class FirstKilled(Killed):
    """Its first rank is."""

    doomed = "0"


class Failing(HfCausalLmAdapter):
    """Its second rank cannot load the model."""

    def build(self, device: str, dtype: Any) -> Any:
        if _SECOND and device != "meta":
            raise InputError(NO_WEIGHTS, hint="copy them")
        return super().build(device, dtype)
