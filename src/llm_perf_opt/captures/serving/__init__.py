"""Records of servers under load: a common form (``records``) and a reader for each tool's files (``reader``).

What the stage that starts servers needs is here, so that it does not import the readers.
"""

from __future__ import annotations

import re

OWN_REQUESTS = "llm-perf-opt.serve.requests"
"""Value of ``format`` in the first line of ``serve/requests.jsonl``."""
OWN_STEPS = "llm-perf-opt.serve.steps"
"""Value of ``format`` in the first line of ``serve/steps.jsonl``."""
OWN_METRICS = "llm-perf-opt.serve.metrics"
OWN_ROUTING = "llm-perf-opt.serve.routing"
INITIALISES = re.compile(
    r"Initializing a V\d LLM engine|Init torch distributed begin|^\[transformers\] Loading "
)
"""Line of vLLM, SGLang or transformers after imports and configuration."""
