"""``transformers serve`` with a line per step: ``python -m llm_perf_opt.stages.serve.transformers_steps serve MODEL …``.

The loop of continuous batching has no statistics, so three of its methods are wrapped. ``LLM_PERF_OPT_TRANSFORMERS_STEPS``
names the file. The step's thread only puts numbers into a bounded queue; errors end the recording with a line in
``<file>.log`` and never reaches the server.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llm_perf_opt.captures.serving import OWN_ROUTING, OWN_STEPS

VARIABLE = "LLM_PERF_OPT_TRANSFORMERS_STEPS"
ROUTING_VARIABLE = "LLM_PERF_OPT_TRANSFORMERS_ROUTING"
"""Names the file of the routers' choices; without it they are not recorded."""
_ROUTING_S = 0.5
"""Seconds of a window of choices."""
_MOST_QUEUED = 65536
_MOST_BYTES = 2 << 30
_FLUSH_S = 0.2


class StepFile:
    """Writes lines in a separate thread."""

    def __init__(self, path: Path) -> None:
        self.path, self.failed, self.dropped = path, False, 0
        self.before_close: Callable[[], None] = lambda: None
        self._lines: deque[dict[str, Any]] = deque()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="llm-perf-opt-steps", daemon=True)
        self._thread.start()

    def put(self, line: dict[str, Any]) -> None:
        """Queue one line; a full queue drops it."""
        if len(self._lines) >= _MOST_QUEUED:
            self.dropped += 1
        elif not self.failed:
            self._lines.append(line)

    def close(self) -> None:
        """Write queued lines and stop."""
        self.before_close()
        self._over.set()
        self._thread.join(5)

    def fail(self, reason: str) -> None:
        """Stop recording."""
        self.failed = True
        self._lines.clear()
        try:
            with Path(f"{self.path}.log").open("a", encoding="utf-8") as stream:
                stream.write(reason[-4000:] + "\n")
        except OSError:
            pass

    def _run(self) -> None:
        try:
            with self.path.open("ab", buffering=0) as stream:
                written = 0
                while not self.failed:
                    last = self._over.wait(_FLUSH_S)
                    held = [json.dumps(self._lines.popleft()) for _ in range(len(self._lines))]
                    if held:
                        written += stream.write(("\n".join(held) + "\n").encode())
                    if written > _MOST_BYTES:
                        self.fail(f"the file reached {_MOST_BYTES} bytes")
                    if last:
                        break
            if self.dropped:
                self.fail(f"{self.dropped} steps were dropped: they came faster than they could be written")
        except (OSError, ValueError, TypeError):
            self.fail(traceback.format_exc())


class StepRecorder:
    """Converts calls of the loop to step records."""

    def __init__(self, put: Callable[[dict[str, Any]], None], fail: Callable[[str], None]) -> None:
        self._put, self._fail = put, fail
        self._base = time.time() - time.perf_counter()
        self._starts: deque[float] = deque(maxlen=16)
        self._line: dict[str, Any] | None = None
        self._batch: list[Any] = []
        self._last_end = 0.0
        self._answered: set[str] = set()
        """Running requests that have their first token."""

    def guarded(self, method: Callable[..., None]) -> Callable[..., None]:
        """Return a method that cannot raise into the server's loop."""

        @functools.wraps(method)
        def call(*arguments: Any) -> None:
            try:
                method(*arguments)
            except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError):
                # Another release of transformers may differ here: the server continues.
                self._put = lambda _: None
                self._fail(traceback.format_exc())

        return call

    def began(self, at: float) -> None:
        """A batch was scheduled; its preparation began at a time."""
        self._starts.append(at)

    def computed(self, batch: list[Any], end: float) -> None:
        """The tokens of a batch are on the host; requests are still as they were before it."""
        start = max(self._starts.popleft() if self._starts else end, self._last_end)
        self._last_end = end
        prefill, decode, waits = {}, [], []
        for one in batch:
            state = one.state
            if state.request_id in self._answered:
                decode.append(state.request_id)
                continue
            prefill[state.request_id] = int(one.query_length)
            if one.has_new_token:
                waits.append(max(end - state.created_time, 0.0))
                self._answered.add(state.request_id)
        self._batch = batch
        self._line = {
            "end_s": self._base + end,
            "duration_s": end - start,
            "prefill": prefill,
            "decode": decode,
            "first_waits_s": waits,
        }

    def updated(self, processor: Any) -> None:
        """The requests of the batch have their tokens."""
        line, self._line = self._line, None
        if line is None:
            return
        scheduler = processor.scheduler
        line["running"], line["waiting"] = len(scheduler.active_requests), len(scheduler.waiting_requests)
        line["kv_ratio"] = min(max(1.0 - processor.cache.compute_free_capacity(), 0.0), 1.0)
        line["finished"] = finished = []
        for one in self._batch:
            state = one.state
            if state.lifespan[1] < 0 or state.request_id not in self._answered:
                continue
            self._answered.discard(state.request_id)
            finished.append(
                {
                    "request_id": state.request_id,
                    "e2e_s": state.lifespan[1] - state.created_time,
                    "queue_s": max(state.lifespan[0] - state.created_time, 0.0),
                    "output_tokens": state.generated_len(),
                }
            )
        self._put(line)


class RoutingRecorder:
    """Counts the choices of routers: every module of experts gets the indices of the chosen ones."""

    def __init__(self, put: Callable[[dict[str, Any]], None], clock: Callable[[], float] = time.time) -> None:
        self._put, self._clock = put, clock
        self._layers: dict[int, int] = {}
        """Module → layer, in the order of the first pass."""
        self._counts: dict[int, Any] = {}
        self._since = clock()

    def hook(self, module: Any, arguments: tuple[Any, ...]) -> None:
        """Count the choices of one call; called before every module's own forward."""
        experts = getattr(module, "num_experts", None)
        if not isinstance(experts, int) or len(arguments) < 2 or "Experts" not in type(module).__name__:
            return
        chosen = arguments[1]
        if getattr(chosen, "is_floating_point", lambda: True)():
            return
        layer = self._layers.setdefault(id(module), len(self._layers))
        if layer == 0 and self._clock() - self._since >= _ROUTING_S:
            self.flush()  # between two passes, so that a window has all layers of each
        # Choices beyond the experts of this rank mark those of others.
        counts = chosen.flatten().bincount(minlength=experts)[:experts]
        held = self._counts.get(layer)
        self._counts[layer] = counts if held is None else held + counts

    def flush(self) -> None:
        """Write the choices since the last window."""
        if self._counts:
            counts = [self._counts[layer].tolist() for layer in sorted(self._counts)]
            self._put({"begin_s": self._since, "end_s": self._clock(), "counts": counts})
        self._counts, self._since = {}, self._clock()


def install_routing(path: Path) -> StepFile:
    """Record the choices of all routers of this process."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    file = StepFile(path)
    file.put({"format": OWN_ROUTING, "version": 1, "engine": "transformers"})
    recorder = RoutingRecorder(file.put)
    handle: Any = None

    def count(module: Any, arguments: tuple[Any, ...]) -> None:
        try:
            recorder.hook(module, arguments)
        except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
            handle.remove()
            file.fail(traceback.format_exc())

    handle = register_module_forward_pre_hook(count)
    file.before_close = recorder.flush
    return file


def install(path: Path) -> StepFile:
    """Wrap the loop of continuous batching."""
    from importlib.metadata import version

    from transformers.generation.continuous_batching import continuous_api, input_outputs

    file = StepFile(path)
    file.put(
        {
            "format": OWN_STEPS,
            "version": 1,
            "engine": "transformers",
            "engine_version": version("transformers"),
        }
    )
    recorder = StepRecorder(file.put, file.fail)
    began, computed = recorder.guarded(recorder.began), recorder.guarded(recorder.computed)
    updated = recorder.guarded(recorder.updated)
    processor: Any = continuous_api.ContinuousBatchProcessor
    prepare, update = processor.prepare_next_batch, processor.update_batch

    def prepare_next_batch(self: Any) -> bool:
        at = time.perf_counter()
        ready: bool = prepare(self)
        if ready:
            began(at)
        return ready

    def update_batch(self: Any) -> None:
        update(self)
        updated(self)

    processor.prepare_next_batch, processor.update_batch = prepare_next_batch, update_batch
    tensors: Any = input_outputs.ContinuousBatchingIOs
    results = tensors.prepare_batch_update

    def prepare_batch_update(self: Any) -> Any:
        found = results(self)
        computed(found[0], time.perf_counter())
        return found

    tensors.prepare_batch_update = prepare_batch_update
    return file


def main() -> None:
    """Run the command line of transformers, with the recording where a file is named."""
    files = []
    for variable, start in ((VARIABLE, install), (ROUTING_VARIABLE, install_routing)):
        path = os.environ.get(variable)
        if not path:
            continue
        try:
            files.append(start(Path(path)))
        except (ImportError, AttributeError):
            Path(f"{path}.log").write_text(traceback.format_exc())
    from transformers.cli.transformers import main as transformers_main

    try:
        transformers_main()
    finally:
        for file in files:
            file.close()


if __name__ == "__main__":
    main()
