"""``python -m llm_perf_opt``, and the entry of the ``llm-perf-opt`` script."""

from __future__ import annotations

import signal
import sys

from llm_perf_opt.core import collect_garbage_rarely

collect_garbage_rarely()

from llm_perf_opt.cli import main  # noqa: E402

# Until our own handlers are there, Ctrl-C would end in a traceback through half-imported modules.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
