#!/usr/bin/env python3
"""Profile kernels of any program with Nsight Compute.

    ncu-profile-kernels.py --kernel-regex 'flash_fwd.*' -- ./bench --size 2048

The same as ``llm-perf-opt ncu-profile``: the sections of the preset ``ncu.default`` (SpeedOfLight,
MemoryWorkloadAnalysis, Occupancy, SchedulerStats), no --metrics unless asked for (``--metrics preset``: those of
``ncu.default``), provenance beside the report. Presets are not read. The package need not be installed: from a
checkout, Python 3.11 and its standard library are enough (``--kernel-config`` also needs PyYAML).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

if __name__ == "__main__":
    try:
        from llm_perf_opt.commands.ncu_profile import profile_main

        code = profile_main(prog="ncu-profile-kernels.py")
    except ImportError as error:
        sys.exit(
            f"error: {error}; fix: run it from a checkout with Python 3.11 or later, or: pip install llm-perf-opt"
        )
    sys.exit(code)
