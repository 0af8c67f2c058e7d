"""``python -m llm_perf_opt``."""

import sys

from llm_perf_opt.cli import main

sys.exit(main())
