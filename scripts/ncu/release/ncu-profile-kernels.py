#!/usr/bin/env python3
"""Profile kernels of any program with Nsight Compute.

    ncu-profile-kernels.py --kernel-regex 'flash_fwd.*' -- ./bench --size 2048

The same as ``llm-perf-opt ncu-profile``: sections SpeedOfLight, MemoryWorkloadAnalysis, Occupancy and
SchedulerStats, no --metrics unless asked for, provenance beside the report. Presets are not read.
"""

import sys

from llm_perf_opt.runs.ncu_tools import profile_main

if __name__ == "__main__":
    sys.exit(profile_main(prog="ncu-profile-kernels.py"))
