"""Capture with an nsys whose session list was left half made. Run in a mount namespace of its own: what it breaks is private.

usage: poisoned_nsys.py NSYS VERSION FOLDER
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

from llm_perf_opt.stages.nsys.run import SHARED_MEMORY, CaptureRequest, capture
from llm_perf_opt.stages.workload import Workload


def main(nsys: str, version: str, folder: Path) -> None:
    locks = Path("/tmp/nvidia")
    locks.mkdir(exist_ok=True)
    for place in (SHARED_MEMORY, locks):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=True)
    # The first word of the list tells its state; 1: somebody is making it, wait.
    registry = SHARED_MEMORY / f"NSys-{version}"
    registry.write_bytes(b"\1" + bytes(179_487))
    logging.basicConfig(level=logging.WARNING)
    (folder / "out").mkdir()
    request = CaptureRequest(
        executable=nsys,
        base=folder / "out" / "run",
        workload=Workload(("/bin/true",), cwd=folder / "cwd", built_in=False),
        trace="nvtx",
        timeout_s=60.0,
    )
    result = capture(request, scratch=folder / "scratch", log_dir=folder / "logs")
    fault = result.fault and result.fault.kind
    print(json.dumps({"fault": fault, "attempts": result.attempts, "reports": len(result.reports)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
