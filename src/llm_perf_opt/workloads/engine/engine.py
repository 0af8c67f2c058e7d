"""The inference loop: vision, prefill and decode, each measured separately, under named ranges.

It gives the same greedy tokens as ``generate()`` on the same inputs, with less host time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.phases import BEFORE_PREFILL, REQUEST_PHASES, VISION
from llm_perf_opt.hardware.accelerator import Accelerator, open_accelerator
from llm_perf_opt.workloads.base import Batch, ModelAdapter, Reference, Sample, WorkloadConfig
from llm_perf_opt.workloads.devices import resolve_dtype
from llm_perf_opt.workloads.engine.compilations import CompilationLog
from llm_perf_opt.workloads.engine.memory import Attempt, Release, explained, release_model
from llm_perf_opt.workloads.engine.nvtx import module_ranges, stage
from llm_perf_opt.workloads.engine.results import EngineInfo, PassResult, PassTimings
from llm_perf_opt.workloads.engine.speculation import Proposer, make_proposer
from llm_perf_opt.workloads.memory_estimate import predicted_bytes
from llm_perf_opt.workloads.registry import load_adapter

if TYPE_CHECKING:
    import torch


# Time of single components (SAM, CLIP, projector, …) by forward hooks that exist only while a phase runs.


class _ComponentTimers:
    """Marks before and after every call of each component, under a range of the component's name."""

    def __init__(
        self,
        model: torch.nn.Module,
        paths: Mapping[str, str],
        clock: Clock,
        ranges: Callable[[str], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._modules = {label: _submodule(model, path, label) for label, path in paths.items()}
        self._clock = clock
        self._ranges = ranges
        self._marks: dict[str, list[tuple[Any, Any]]] = {}

    @contextlib.contextmanager
    def watch(self, phase: str) -> Iterator[None]:
        """Hook every component while a phase runs; the hooks are removed before decoding, where they would cost time."""
        handles: list[Any] = []
        for label, module in self._modules.items():
            # Components of the vision phase keep their plain name; those of the language model include the phase.
            key = f"{label}_s" if phase == "vision" else f"{label}_{phase}_s"
            handles.extend(self._hook(module, label, key))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, module: torch.nn.Module, label: str, key: str) -> list[Any]:
        opened: list[tuple[Any, contextlib.AbstractContextManager[None]]] = []

        def before(_module: Any, _inputs: Any) -> None:
            named = self._ranges(label)
            named.__enter__()
            opened.append((self._clock.mark(), named))

        def after(_module: Any, _inputs: Any, _output: Any) -> None:
            start, named = opened.pop()
            self._marks.setdefault(key, []).append((start, self._clock.mark()))
            named.__exit__(None, None, None)

        return [
            module.register_forward_pre_hook(before),
            module.register_forward_hook(after, always_call=True),
        ]

    def seconds(self) -> dict[str, float]:
        """Return the summed time of each component that ran; call after synchronising the device."""
        return {key: sum(self._clock.seconds(*pair) for pair in pairs) for key, pairs in self._marks.items()}


def _submodule(model: torch.nn.Module, path: str, label: str) -> torch.nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise ConfigError(
            f"component {label!r} names a module that does not exist: {path}",
            hint="components() must give paths inside the built model",
            key="model.adapter",
        ) from error


# The no-repeated-n-gram rule as tensor operations: no data leaves the device, so there is no synchronisation.


def ban_repeated_ngrams(logits: torch.Tensor, tokens: torch.Tensor, size: int) -> torch.Tensor:
    """Set the logits of tokens that would complete an n-gram already in ``tokens`` to minus infinity.

    ``tokens`` is ``[batch, length]`` and holds the prompt (padding and image positions included) and what was
    generated, as ``transformers``' ``no_repeat_ngram_size`` counts. ``logits`` is changed in place.
    """
    import torch

    length = tokens.shape[1]
    if size <= 0 or length < size:
        return logits
    windows = tokens.unfold(1, size, 1)
    last = tokens[:, length - size + 1 :].unsqueeze(1)
    repeated = (windows[..., :-1] == last).all(-1)
    following = windows[..., -1]
    limit = torch.where(repeated, float("-inf"), float("inf")).to(logits.dtype)
    return logits.scatter_reduce_(1, following, limit, "amin")


# The answers of a batch as they grow, and whether all have ended, without synchronising at every token.


_Observe = Callable[["torch.Tensor"], None]


class StopCheck:
    """Check whether all sequences have ended, ``lag`` steps late, to avoid synchronising with an accelerator."""

    def __init__(self, accelerator: Accelerator, lag: int | None = None) -> None:
        """Default lag: one step for asynchronous devices, none otherwise."""
        self._accelerator = accelerator
        self._lag = int(accelerator.is_asynchronous) if lag is None else lag
        self._pending: deque[tuple[torch.Tensor, Any]] = deque()

    def push(self, finished: torch.Tensor) -> bool:
        """Add this step's flags; return the answer of ``lag`` steps ago."""
        flag, event = finished.all(), None
        if self._accelerator.is_asynchronous:
            flag = flag.to("cpu", non_blocking=True)
            # The copy is on the stream of the flag's device, which need not be the current one.
            event = self._accelerator.record()
        self._pending.append((flag, event))
        if len(self._pending) <= self._lag:
            return False
        oldest, done = self._pending.popleft()
        if done is not None:
            self._accelerator.wait(done)
        return bool(oldest)


class Sequences:
    """Tokens of a batch as they grow, on the device; chooses the next token and detects when all have ended."""

    def __init__(
        self,
        batch: Batch,
        limit: int,
        accelerator: Accelerator,
        *,
        device: str,
        stop_ids: Sequence[int],
        no_repeat_ngram_size: int,
        observe: _Observe | None = None,
    ) -> None:
        """Make room for ``limit`` tokens behind each prompt; ``observe`` is called with the logits of every step."""
        import torch

        self._observe = observe
        prompt = batch.inputs.get("input_ids")
        self._ngram = no_repeat_ngram_size if prompt is not None else 0
        self._stop = torch.tensor(stop_ids, device=device) if stop_ids else None
        self._pad = next(iter(stop_ids), 0)
        self._start = 0 if prompt is None else prompt.shape[1]
        self._all = torch.zeros(len(batch.sample_ids), self._start + limit, dtype=torch.long, device=device)
        if prompt is not None:
            self._all[:, : self._start] = prompt
        self._finished: torch.Tensor | None = None
        self._check = StopCheck(accelerator)
        self.count = 0
        self.stopped = False
        self.last: torch.Tensor = self._all[:, :0]

    def choose(self, logits: torch.Tensor) -> None:
        """Choose the most likely allowed token of each sequence."""
        import torch

        end = self._start + self.count
        if self._observe is not None:
            self._observe(logits)
        if self._ngram:
            logits = ban_repeated_ngrams(logits.float(), self._all[:, :end], self._ngram)
        tokens = logits.argmax(-1)
        if self._stop is not None:
            if self._finished is not None:
                tokens = torch.where(self._finished, self._pad, tokens)
            ended = torch.isin(tokens, self._stop)
            self._finished = ended if self._finished is None else self._finished | ended
            self.stopped = self._check.push(self._finished)
        self._all[:, end] = tokens
        self.last = self._all[:, end : end + 1]
        self.count += 1

    def whole(self) -> list[int]:
        """Return prompt and answer of the first sequence so far."""
        found: list[int] = self._all[0, : self._start + self.count].tolist()
        return found

    def drop_tokens_after_stop(self) -> int:
        """Drop tokens generated after the last sequence ended; return how many remain."""
        if self._stop is not None:
            self.count = max(len(ids) for ids in self.token_ids())
        return self.count

    def token_ids(self) -> list[list[int]]:
        """Return each sequence's tokens, up to and including its end."""
        rows: list[list[int]] = self._all[:, self._start : self._start + self.count].tolist()
        if self._stop is None:
            return rows
        stop = set(self._stop.tolist())
        return [
            row[: next((place + 1 for place, token in enumerate(row) if token in stop), len(row))]
            for row in rows
        ]


# Time on the device: the host's clock on a CPU, events on an accelerator. Reading the time never synchronises.


class Clock:
    """Marks in time on one device. ``synchronize`` before turning marks into seconds.

    A mark is an event in the device's stream: a sync per token would drain the queue and distort the measurement.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def mark(self) -> Any:
        """Note the moment when all work queued so far is done."""
        return self._accelerator.record(timed=True)

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        self._accelerator.synchronize()

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time between two marks."""
        return self._accelerator.seconds(start, end)


def intervals(clock: Clock, marks: Sequence[Any]) -> list[float]:
    """Return the seconds between consecutive marks."""
    return [clock.seconds(start, end) for start, end in itertools.pairwise(marks)]


Ranges = Callable[[str], contextlib.AbstractContextManager[None]]
_PhaseMode = Callable[[], contextlib.AbstractContextManager[None]]
_COMPILED_WARMUP_ROUNDS = 2
_WATCHED = ("preprocess", *REQUEST_PHASES)
"""Ranges that begin and end with an idle device; components and steps lie inside them."""


class Engine:
    """A loaded model and the loop around it."""

    def __init__(
        self,
        workload: WorkloadConfig,
        adapter: ModelAdapter | None = None,
        accelerator: Accelerator | None = None,
    ) -> None:
        """Build the model of ``workload`` on its device; adapter and accelerator are looked up unless given."""
        import torch

        self.workload = workload
        self.adapter = adapter or load_adapter(workload.model, workload.infer)
        self.device = workload.device
        self.accelerator = accelerator or open_accelerator(self.device)
        self.accelerator.use()
        self._memory_at_start = self.accelerator.memory()
        if workload.threads is not None:
            torch.set_num_threads(workload.threads)
        self.dtype: torch.dtype = resolve_dtype(workload.model.dtype, self.device)
        started = time.perf_counter()
        with explained(self._attempt("loading")):
            self.model = self.adapter.build(self.device, self.dtype)
        self.load_s = time.perf_counter() - started
        self.compilations = CompilationLog() if self._compiles else None
        if workload.model.compile_prefill:
            self.adapter.compile_prefill(self.model)
        if workload.model.compile:
            self.adapter.compile_decode(self.model)
        if workload.model.cuda_graphs:
            self.adapter.graph_decode(self.model, self.device)
        self.clock = Clock(self.accelerator)
        ignore = workload.infer.ignore_eos
        self.ignore_eos = self.adapter.weights() == "random" if ignore is None else ignore
        self._stop_ids = () if self.ignore_eos else tuple(self.adapter.eos_token_ids())
        self._ranges: Ranges = stage
        self._phase_modes: dict[str, list[_PhaseMode]] = {}
        self.proposer = make_proposer(self.adapter, workload.model, workload.infer, self.device, self.dtype)

    @property
    def _compiles(self) -> bool:
        model = self.workload.model
        return model.compile or model.compile_vision or model.compile_prefill

    def release(self) -> Release | None:
        """Release the model and its memory; the engine cannot be used afterwards. ``None``: memory is not counted."""
        before = self.accelerator.memory()
        del self.model, self.adapter, self.proposer
        after = release_model(self.accelerator)
        if self._memory_at_start is None or before is None or after is None:
            return None
        return Release(self.device, self._memory_at_start, before, after)

    def info(self) -> EngineInfo:
        """Describe model and device."""
        import torch

        return EngineInfo(
            model=self.workload.model.name,
            weights=self.adapter.weights(),
            architecture=self.adapter.architecture or type(self.model).__name__,
            device=self.device,
            dtype=str(self.dtype).removeprefix("torch."),
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            load_s=self.load_s,
            threads=torch.get_num_threads() if self.device == "cpu" else None,
            cache=self.workload.model.cache.value,
            compiled=self.workload.model.compile,
            cuda_graphs=self.workload.model.cuda_graphs,
        )

    def _attempt(self, phase: str, batch: Batch | None = None, limit: int = 0) -> Attempt:
        """Describe the attempt, for out-of-memory errors."""
        size = 0 if batch is None else len(batch.sample_ids)
        tokens = 0 if batch is None else batch.prompt_tokens + limit
        return Attempt(
            phase,
            self.device,
            self.workload.model,
            size or None,
            None if batch is None else batch.prompt_tokens,
            None if batch is None else limit,
            lambda: predicted_bytes(self.workload.model, self.dtype.itemsize, size, tokens),
        )

    def prepare(self, samples: Sequence[Sample]) -> Batch:
        """Read and preprocess requests onto the device."""
        return self.adapter.prepare(samples, self.device, self.dtype)

    def new_token_limit(self, batch: Batch, wanted: int | None = None) -> int:
        """Return how many tokens are generated: as configured, or what the model's context leaves."""
        limit = wanted if wanted is not None else self.workload.max_new_tokens
        context = self.adapter.context_tokens
        return limit if context is None else max(1, min(limit, context - batch.prompt_tokens))

    def warm_up(self, samples: Sequence[Sample], rounds: int | None = None) -> float:
        """Run unmeasured passes without ranges, so that captures do not start here."""
        wanted = self.workload.infer.warmup_rounds if rounds is None else rounds
        if self.settles_per_shape:
            wanted = max(wanted, _COMPILED_WARMUP_ROUNDS)
        started = time.perf_counter()
        before, self._ranges = self._ranges, _no_range
        try:
            with stage("warmup"), self._warming_up():
                for _ in range(wanted):
                    self.run_prepared(self.prepare(samples))
        finally:
            self._ranges = before
        return time.perf_counter() - started

    @property
    def settles_per_shape(self) -> bool:
        """Whether every new shape needs a compilation or a capture, and therefore a separate warm-up."""
        return self._compiles or self.workload.model.cuda_graphs

    def decode_shape(self, batch: Batch) -> tuple[int, ...]:
        """Return a key that is equal for batches with the same decode shape."""
        return self.adapter.decode_shape(batch, self.new_token_limit(batch))

    def settled_shape(self, batch: Batch) -> tuple[object, ...]:
        """Return a key that is equal for batches that share a warm-up: shapes of the decode step and the pages."""
        if self.workload.model.compile_prefill:
            return (*self.decode_shape(batch), batch.prompt_tokens, *self._page_shapes(batch))
        return (*self.decode_shape(batch), *self._page_shapes(batch))

    def _page_shapes(self, batch: Batch) -> tuple[str, ...]:
        if not self.workload.model.compile_vision:
            return ()
        pages = self.adapter.shapes(batch, batch.prompt_tokens).vision
        return (json.dumps(pages, sort_keys=True, default=str),)

    @contextlib.contextmanager
    def _warming_up(self) -> Iterator[None]:
        if self.compilations is not None:
            self.compilations.warming_up = True
        try:
            yield
        finally:
            if self.compilations is not None:
                self.compilations.warming_up = False

    @contextlib.contextmanager
    def watched(self, watch: Ranges) -> Iterator[None]:
        """Enter ``watch(phase)`` around preprocessing and every phase of the measured passes, while the device is idle."""
        before = self._ranges

        @contextlib.contextmanager
        def both(name: str) -> Iterator[None]:
            with before(name), watch(name):
                yield

        self._ranges = lambda name: both(name) if name in _WATCHED else before(name)
        try:
            yield
        finally:
            self._ranges = before

    def run_sample(self, samples: Sequence[Sample]) -> tuple[Batch, PassResult]:
        """Preprocess and run one batch of requests once."""
        self.clock.synchronize()
        started = time.perf_counter()
        with self._ranges("preprocess"):
            batch = self.prepare(samples)
            self.clock.synchronize()
        seconds = time.perf_counter() - started
        result = self.run_prepared(batch)
        result.timings.preprocess_s = seconds
        return batch, result

    def run_prepared(
        self,
        batch: Batch,
        *,
        max_new_tokens: int | None = None,
        components: bool = True,
        stop_after: int | None = None,
        observe: _Observe | None = None,
    ) -> PassResult:
        """Run one pass over a prepared batch: the part that a profiler wraps.

        ``stop_after`` ends it early at the shapes of a whole pass; ``observe`` gets the logits of every token.
        """
        import torch

        limit = self.new_token_limit(batch, max_new_tokens)
        stop = min(limit, stop_after or limit)
        if self.settles_per_shape:  # a shorter pass keeps the shape of a whole one, which is already compiled
            limit = max(limit, self.new_token_limit(batch))
        timers = _ComponentTimers(
            self.model, self.adapter.components() if components else {}, self.clock, self._ranges
        )
        log = self.compilations
        with (
            torch.no_grad(),
            self._module_ranges(),
            log.watch() if log is not None else contextlib.nullcontext(),
        ):
            with explained(self._attempt("making the cache", batch, limit)):
                cache = self.adapter.make_cache(self.model, batch, limit)
                sequence = Sequences(
                    batch,
                    limit,
                    self.accelerator,
                    device=self.device,
                    stop_ids=self._stop_ids,
                    no_repeat_ngram_size=self.workload.infer.no_repeat_ngram_size,
                    observe=observe,
                )
            with explained(self._attempt(self._phase_before_prefill() or "prefill", batch, limit)):
                features, before = self._before_prefill(batch, timers)
            with explained(self._attempt("prefill", batch, limit)):
                prefill_s = self._prefill(batch, features, cache, sequence, timers)
            with explained(self._attempt("decode", batch, limit)):
                decode_s, token_s, passes = self._decode(batch, cache, sequence, stop)
        timings = PassTimings(
            None,
            before.get("vision"),
            prefill_s,
            decode_s,
            token_s,
            timers.seconds(),
            encode_s=before.get("encode"),
        )
        return PassResult(timings, sequence.token_ids(), sequence.count, passes)

    def reference(self, samples: Sequence[Sample], count: int) -> Reference | None:
        """Return the first tokens of ``samples`` from the model's own generation; ``None``: it has none."""
        import torch

        infer = self.workload.infer
        with torch.no_grad():
            return self.adapter.reference(
                self.model,
                self.prepare(samples),
                count,
                stop_ids=self._stop_ids,
                no_repeat_ngram_size=infer.no_repeat_ngram_size,
            )

    def _module_ranges(self) -> contextlib.AbstractContextManager[Any]:
        wanted = self.workload.nvtx_modules and self._ranges is not _no_range
        return module_ranges(self.model) if wanted else contextlib.nullcontext()

    def add_phase_mode(self, phase: str, mode: _PhaseMode) -> None:
        """Enter ``mode()`` around every run of a phase, outside of what is timed."""
        self._phase_modes.setdefault(phase, []).append(mode)

    @contextlib.contextmanager
    def _in_modes(self, phase: str) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for mode in self._phase_modes.get(phase, ()):
                stack.enter_context(mode())
            yield

    @contextlib.contextmanager
    def _phase(self, name: str, marks: list[Any]) -> Iterator[None]:
        """Run a phase with the device idle before and after, so that kernels do not overlap the next phase."""
        self.clock.synchronize()
        self._enter_phase(name)
        with self._in_modes(name), self._ranges(name):
            marks.append(self.clock.mark())
            yield
            marks.append(self.clock.mark())
            self.clock.synchronize()

    def _enter_phase(self, name: str) -> None:
        if self.compilations is not None:
            self.compilations.phase = name

    def _phase_before_prefill(self) -> str | None:
        return next((phase for phase in BEFORE_PREFILL if phase in self.adapter.phases), None)

    def _before_prefill(self, batch: Batch, timers: _ComponentTimers) -> tuple[Any, dict[str, float]]:
        """Run the vision tower or the encoder, where the model has one; return its result and time by phase."""
        name = self._phase_before_prefill()
        if name is None:
            return None, {}
        run = self.adapter.vision if name == VISION else self.adapter.encode
        marks: list[Any] = []
        with timers.watch(name), self._phase(name, marks):
            features = run(self.model, batch)
        return features, {name: self.clock.seconds(*marks)}

    def _prefill(
        self, batch: Batch, features: Any, cache: Any, sequence: Sequences, timers: _ComponentTimers
    ) -> float:
        marks: list[Any] = []
        with timers.watch("prefill"), self._phase("prefill", marks):
            sequence.choose(self.adapter.prefill(self.model, batch, features, cache))
        return self.clock.seconds(*marks)

    def _decode(
        self, batch: Batch, cache: Any, sequence: Sequences, limit: int
    ) -> tuple[float | None, list[float], int]:
        """Run the decode steps; return their time, that of each token, and the number of forward passes."""
        if limit == 1 or sequence.stopped:
            return None, [], 0
        clock, adapter, model, ranges = self.clock, self.adapter, self.model, self._ranges
        clock.synchronize()
        self._enter_phase("decode")
        if self.proposer is not None:
            self.proposer.begin()
        counts: list[int] = []
        with self._in_modes("decode"), ranges("decode"), adapter.decode_mode(model):
            marks = [clock.mark()]
            while sequence.count < limit and not sequence.stopped:
                before = sequence.count
                with ranges("decode_step"):
                    if self.proposer is not None:
                        self._checked_step(batch, cache, sequence, limit, self.proposer)
                    else:
                        step = sequence.count - 1
                        sequence.choose(adapter.decode_step(model, batch, sequence.last, step, cache))
                marks.append(clock.mark())
                counts.append(sequence.count - before)
            clock.synchronize()
        # The time of a pass is spread over the tokens it gave. A late stop leaves steps that belong to no answer.
        token_s = [
            seconds / count
            for seconds, count in zip(intervals(clock, marks), counts, strict=True)
            for _ in range(count)
        ][: sequence.drop_tokens_after_stop() - 1]
        return (sum(token_s), token_s, len(counts)) if token_s else (None, [], 0)

    def _checked_step(
        self, batch: Batch, cache: Any, sequence: Sequences, limit: int, proposer: Proposer
    ) -> None:
        """Guess tokens, run them in one pass behind the last one, and keep those that the model chooses itself."""
        import torch

        step = sequence.count - 1
        drafted = proposer.propose(sequence.whole(), min(proposer.most, limit - sequence.count - 1))
        fed = (
            torch.cat([sequence.last, sequence.last.new_tensor([drafted])], dim=1)
            if drafted
            else sequence.last
        )
        logits = self.adapter.decode_several(self.model, batch, fed, step, cache)
        for place in range(len(drafted) + 1):
            sequence.choose(logits[:, place])
            if sequence.stopped or place == len(drafted) or int(sequence.last) != drafted[place]:
                self.adapter.crop_cache(cache, len(drafted) - place)
                return


def _no_range(name: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()
