#!/usr/bin/env python3
"""List the top kernels of an nsys kernel summary, for ncu-profile-kernels --kernel-config.

The package need not be installed: from a checkout, Python 3.11 and PyYAML are enough.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

if __name__ == "__main__":
    try:
        from llm_perf_opt.commands.top_kernels import extract_main

        code = extract_main(prog="extract-top-kernels.py")
    except ImportError as error:
        sys.exit(
            f"error: {error}; fix: run it from a checkout with Python 3.11 or later, or: pip install llm-perf-opt"
        )
    sys.exit(code)
