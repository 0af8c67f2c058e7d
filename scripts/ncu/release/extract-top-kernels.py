#!/usr/bin/env python3
"""List the top kernels of an nsys kernel summary, for ncu-profile-kernels --kernel-config."""

import sys

from llm_perf_opt.runs.ncu_tools import extract_main

if __name__ == "__main__":
    sys.exit(extract_main(prog="extract-top-kernels.py"))
