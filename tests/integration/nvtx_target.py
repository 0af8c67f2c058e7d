"""A small program with named ranges, to be watched by the real nsys. No torch: it starts in a tenth of a second."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from llm_perf_opt.workloads.engine import nvtx


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--labels", nargs="*", default=["prefill", "decode"])
    parser.add_argument("--after", default="exit", choices=["exit", "code", "segv", "hang", "chatter"])
    parser.add_argument("--pid-file", type=Path)
    options = parser.parse_args()
    if options.pid_file:
        options.pid_file.write_text(str(os.getpid()))
    print(f"target started in {Path.cwd()}", flush=True)
    print(f"register_only={os.environ.get('NSYS_NVTX_PROFILER_REGISTER_ONLY')}", flush=True)
    print(f"attached={nvtx.is_attached()}", flush=True)
    for _ in range(options.rounds):
        for label in options.labels:
            with nvtx.stage(label):
                time.sleep(0.01)
    if options.after == "code":
        print("something went wrong in the target", file=sys.stderr, flush=True)
        return 3
    if options.after == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if options.after == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("target hangs", flush=True)
        while True:
            time.sleep(1)
    if options.after == "chatter":
        for number in range(40000):
            print(f"line {number} " + "x" * 40)
    print("target done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
