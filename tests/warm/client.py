"""Stands in for the interpreter: ``client.py FACTS [-u] -m MODULE …`` or ``SCRIPT.py …`` has a server fork the command.

What the server cannot run the same way (other options, an environment that is read while importing) is run by the real interpreter.
The command has the streams, directory and environment of this process, meets its signals and dies with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

READ_AT_THE_START = (
    "PYTHON", "LD_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "ATEN_", "CUDA_", "NVTX_", "TORCH",
    "PYTORCH_", "KINETO_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "POLARS_", "HYDRA_", "HOME", "XDG_", "TMP", "TEMP", "TZ",
    "LANG", "LC_",
)  # fmt: skip
"""How the names of variables begin that the interpreter or a library reads once and for all."""
READ_LATER = ("TORCHELASTIC_", "TORCH_NCCL_", "TORCHINDUCTOR_CACHE_DIR", "XDG_STATE_HOME")
"""Read when they are needed: what torchrun sets for its ranks, what a library sets in the process that uses it, our own state."""
FOLDERS = "PYTHONPATH"
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Have the command run, and end as it did."""
    facts = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    arguments, environment = sys.argv[2:], dict(os.environ)
    target = what_to_run(arguments)
    if target is None or read_by_then(environment, facts["environment"], facts["defaults"]):
        os.execv(facts["python"], [facts["python"], *arguments])
    kind, name, words = target
    request = {
        kind: name,
        "arguments": words,
        "cwd": str(Path.cwd()),
        "environment": environment,
        "folders": added_folders(environment, facts["environment"]) or [],
        "python": facts["stand_in"],
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(facts["address"])
        # Signals wait until there is a process to forward them to.
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        forward_signals(json.loads(connection.recv(4096))["pid"], connection)
        status = json.loads(connection.recv(4096))["status"]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def forward_signals(pid: int, connection: socket.socket) -> None:
    """Forward signals until the connection has data.

    Not by handlers: one that becomes pending right before a blocking call would run only after it.
    """
    arrived, wake_up = socket.socketpair()
    wake_up.setblocking(False)
    signal.set_wakeup_fd(wake_up.fileno())
    for number in FORWARDED:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    while connection not in select.select([connection, arrived], [], [])[0]:
        for number in arrived.recv(64):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    signal.set_wakeup_fd(-1)


def what_to_run(arguments: Sequence[str]) -> tuple[str, str, Sequence[str]] | None:
    """Return the module or script and its arguments; none when there are options of the interpreter."""
    words = arguments[1:] if list(arguments[:1]) == ["-u"] else arguments
    if (
        len(words) >= 2
        and words[0] == "-m"
        and words[1].startswith(("llm_perf_opt", "torch.distributed.run"))
    ):
        return "module", words[1], words[2:]
    if words and words[0].endswith(".py"):
        return "script", words[0], words[1:]
    return None


def added_folders(environment: Mapping[str, str], known: Mapping[str, str]) -> list[str] | None:
    """Return what was put before a known ``PYTHONPATH``, packages to be found at need; none when that was changed."""
    wanted, ours = (
        list(filter(None, found.get(FOLDERS, "").split(os.pathsep))) for found in (environment, known)
    )
    count = len(wanted) - len(ours)
    return wanted[:count] if count >= 0 and wanted[count:] == ours else None


def read_by_then(
    environment: Mapping[str, str], known: Mapping[str, str], defaults: Mapping[str, str]
) -> list[str]:
    """Return the variables whose other value a process would not notice that has imported everything already."""
    wanted, ours = ({**defaults, **found} for found in (environment, known))
    changed = {name for name in {*wanted, *ours} if wanted.get(name) != ours.get(name)}
    if added_folders(environment, known) is not None:
        changed.discard(FOLDERS)
    return sorted(
        name for name in changed if name.startswith(READ_AT_THE_START) and not name.startswith(READ_LATER)
    )


if __name__ == "__main__":
    main()
