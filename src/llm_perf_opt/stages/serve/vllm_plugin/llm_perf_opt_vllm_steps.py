"""A statistics plug-in for vLLM: one JSON line per engine step, written by a separate thread.

It needs nothing but vLLM and the standard library. It is found through its metadata next to this file when this folder is on
``PYTHONPATH`` of the server; ``LLM_PERF_OPT_VLLM_STEPS`` names the file to write, and without it nothing is recorded. It can
neither stop nor slow down the server: the step's thread only puts numbers into a bounded queue (a full one drops steps and
counts them), and an error ends the recording with a line in ``<file>.log``.
"""

import json
import os
import threading
import time
import traceback
from collections import deque

from vllm.v1.metrics.loggers import StatLoggerBase

VARIABLE = "LLM_PERF_OPT_VLLM_STEPS"
_LIMIT_VARIABLE = "LLM_PERF_OPT_VLLM_STEPS_BYTES"
MOST_BYTES = 2 << 30
"""The recording ends when its file is this large."""
QUEUE = 65536
"""Steps that wait to be written; more are dropped."""
_FLUSH_S = 0.2
_DETAILS = (
    "iteration_index",
    "num_ctx_requests",
    "num_ctx_tokens",
    "num_generation_requests",
    "num_generation_tokens",
    "elapsed_ms",
    "is_dummy",
)
_FINISHED = (
    "request_id",
    "e2e_latency",
    "num_prompt_tokens",
    "num_generation_tokens",
    "num_cached_tokens",
    "num_preemptions",
    "queued_time",
    "prefill_time",
    "decode_time",
    "inference_time",
)


def _fields(held, names):
    return {name: getattr(held, name) for name in names if getattr(held, name, None) is not None}


def _number(value):
    return value if isinstance(value, (int, float)) else None


class StepWriter:
    """Receives steps from the server's thread and writes them in a separate one."""

    def __init__(self, path, most_bytes=MOST_BYTES, queue=QUEUE):
        self.path = path
        self.dropped = 0
        self.failed = False
        self._most_bytes = most_bytes
        self._queue = deque()
        self._most_queued = queue
        self._over = threading.Event()
        self._thread = None

    def put(self, line):
        """Queue one step; never blocks, never raises."""
        if self.failed:
            return
        if len(self._queue) >= self._most_queued:
            self.dropped += 1
            return
        self._queue.append(line)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="llm-perf-opt-steps", daemon=True)
            self._thread.start()

    def close(self):
        """Write queued lines and stop."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(5)

    def fail(self):
        """Keep the error in the log of the plug-in and stop recording."""
        self.failed = True
        self._queue.clear()
        self._note(traceback.format_exc()[-4000:])

    def _note(self, text):
        try:
            with open(f"{self.path}.log", "a", encoding="utf-8") as stream:
                stream.write(text + "\n")
        except OSError:
            pass

    def _run(self):
        try:
            written = noted = 0
            with open(self.path, "ab", buffering=0) as stream:
                while True:
                    last = self._over.wait(_FLUSH_S)
                    lines = []
                    while self._queue:
                        lines.append(json.dumps(self._queue.popleft(), separators=(",", ":"), default=str))
                    if lines:
                        data = ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")
                        written += len(data)
                        if written > self._most_bytes:
                            raise OSError(
                                f"{self.path} has reached {self._most_bytes} bytes: no more steps are recorded"
                            )
                        stream.write(data)
                    if self.dropped > noted:
                        noted = self.dropped
                        self._note(f"{noted} steps were dropped: they came faster than they could be written")
                    if last and not self._queue:
                        return
        except Exception:  # nothing in here may stop the server
            self.fail()


def _step_record(scheduler_stats, iteration_stats, engine_idx=0):
    """Return the record of one step; ``None`` for a call without a step."""
    details = getattr(scheduler_stats, "iteration_details", None)
    if scheduler_stats is None or (details is None and iteration_stats is None):
        return None
    line = {
        "t": time.time(),
        "e": engine_idx,
        "run": _number(getattr(scheduler_stats, "num_running_reqs", None)),
        "wait": _number(getattr(scheduler_stats, "num_waiting_reqs", None)),
        "kv": _number(getattr(scheduler_stats, "kv_cache_usage", None)),
        "it": _fields(details, _DETAILS) if details is not None else {},
    }
    drafts = getattr(scheduler_stats, "spec_decoding_stats", None)
    if drafts is not None:
        line["spec"] = _fields(drafts, ("num_drafts", "num_draft_tokens", "num_accepted_tokens"))
    if iteration_stats is not None:
        prompt = getattr(iteration_stats, "prompt_token_stats", None)
        line["is"] = {
            "iteration_timestamp": getattr(iteration_stats, "iteration_timestamp", None),
            "num_generation_tokens": getattr(iteration_stats, "num_generation_tokens", None),
            "num_preempted_reqs": getattr(iteration_stats, "num_preempted_reqs", None),
            "prompt_token_stats": _fields(prompt, ("computed", "cached_tokens", "total"))
            if prompt is not None
            else None,
            # Copied: the lists belong to the server.
            "time_to_first_tokens_iter": list(getattr(iteration_stats, "time_to_first_tokens_iter", ())),
            "finished_requests": [
                _fields(one, _FINISHED) for one in getattr(iteration_stats, "finished_requests", ())
            ],
        }
    return line


class StepLogger(StatLoggerBase):
    """The stat logger that vLLM loads."""

    def __init__(self, vllm_config, engine_index=0):
        self._writer = None
        try:
            path = os.environ.get(VARIABLE)
            if path:
                most = os.environ.get(_LIMIT_VARIABLE, "")
                self._writer = StepWriter(path, int(most) if most.isdigit() else MOST_BYTES)
        except Exception:  # as above: the server starts without step records
            self._writer = None

    def record(self, scheduler_stats=None, iteration_stats=None, mm_cache_stats=None, engine_idx=0, **_):
        """Record one step; called by the server's own thread."""
        writer = self._writer
        if writer is None or writer.failed:
            return
        try:
            line = _step_record(scheduler_stats, iteration_stats, engine_idx)
            if line is not None:
                writer.put(line)
        except Exception:  # as above
            writer.fail()

    def log_engine_initialized(self):
        """Do nothing."""

    def log(self):
        """Do nothing: steps are written immediately."""
