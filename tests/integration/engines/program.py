"""The program that jobs of these tests measure: cheap (no torch), and it leaves a trace of where it ran.

``program.py FOLDER NAME``: while ``FOLDER/hold-NAME`` exists it waits, or fails where its name begins with "crash". Every start is a
line of ``FOLDER/starts``; two at a time on one device, as the kernel's locks see it, are a line of ``FOLDER/collisions``.
"""

import fcntl
import os
import sys
import time
from pathlib import Path


def node() -> str:
    """Return the node of Slurm; measured programs are not told, their parents are."""
    pid = os.getppid()
    while pid > 1:
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"SLURMD_NODENAME="):
                return variable.partition(b"=")[2].decode()
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return "here"


folder, name = Path(sys.argv[1]), sys.argv[2]
device = f"{node()}-{os.environ.get('CUDA_VISIBLE_DEVICES', 'processor')}"
with (folder / "starts").open("a") as starts:
    starts.write(f"{name} {device}\n")
in_use = os.open(folder / f"in-use-{device}", os.O_RDWR | os.O_CREAT)
try:
    fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    with (folder / "collisions").open("a") as collisions:
        collisions.write(f"{name} on {device}\n")
hold = folder / f"hold-{name}"
if name.startswith("crash") and hold.exists():
    sys.exit("planned to crash")
while hold.exists():
    time.sleep(0.1)
time.sleep(0.2)
