"""Output writer of a stage: predictions as they arrive, then the gallery."""

from __future__ import annotations

import json
import logging
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from llm_perf_opt.core.files import atomic_write_bytes, explain_os_errors, refuse_link
from llm_perf_opt.workloads.outputs.config import (
    DEFAULT_PREDICTION_DIR,
    DEFAULT_VISUALIZATION_DIR,
    OutputConfig,
    model_output_options,
    resolve_output_dir,
)
from llm_perf_opt.workloads.outputs.gallery import Entry, GalleryHeader, write_gallery
from llm_perf_opt.workloads.outputs.records import Outcome, make_record, outcome_of, workload_fingerprint

if TYPE_CHECKING:
    from llm_perf_opt.workloads.base import Sample, WorkloadConfig
    from llm_perf_opt.workloads.engine.results import SampleResult


# ``predictions.jsonl``: one line per request, on disk as soon as it is known.
#
# Every line is written whole and synchronised before the next request starts, so a crash loses at most the line
# being written. Opening the file again drops an incomplete line, and returns which requests need not be run again.


LOGGER = logging.getLogger(__name__)
FILE_NAME = "predictions.jsonl"
Record = Mapping[str, Any]


class PredictionLog:
    """The file, open for appending; lines of another ``workload`` are set aside."""

    def __init__(self, path: Path, workload: str) -> None:
        self.path = path
        self._earlier: dict[str, Record] = {}
        with explain_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            refuse_link(path)
            self._recover(workload)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            self._descriptor: int | None = os.open(path, flags, 0o644)

    def record(self, sample_id: str, sha256: str | None) -> Record | None:
        """Return the line of an earlier run for this request, if there is one."""
        found = self._earlier.get(sample_id)
        return found if found is not None and found.get("sha256") == sha256 else None

    def append(self, record: Record) -> None:
        """Write one line and sync it to disk."""
        if self._descriptor is None:
            raise ValueError(f"{self.path} is closed")
        line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        # A lone surrogate cannot be UTF-8; written as \udcXX it is the same JSON string.
        data = line.encode("utf-8", errors="backslashreplace")
        with explain_os_errors(self.path):
            size = os.fstat(self._descriptor).st_size
            try:
                _write_all(self._descriptor, data)
                os.fsync(self._descriptor)
            except OSError:
                # A full disk may have truncated the line; it is removed so that the file stays readable.
                os.ftruncate(self._descriptor, size)
                raise

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _recover(self, workload: str) -> None:
        """Keep the whole lines of the same workload; set the file aside when it has others."""
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        unreadable = 0
        kept: list[bytes] = []
        for line, record in _whole_lines(content):
            if record.get("workload") == workload:
                kept.append(line + b"\n")
                self._earlier[record["id"]] = record
            else:
                unreadable += 1
        if unreadable:
            aside = _free_name(self.path)
            self.path.rename(aside)
            LOGGER.info("%s contains predictions of another workload: kept as %s", self.path, aside.name)
        clean = b"".join(kept)
        if clean != content:
            if not unreadable:
                LOGGER.info("%s: an incomplete line is dropped", self.path)
            atomic_write_bytes(self.path, clean)
        if kept:
            LOGGER.info("%s: %d predictions of an earlier run are kept", self.path, len(kept))


def read_predictions(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a predictions file, incomplete lines left out."""
    for _, record in _whole_lines(path.read_bytes()):
        yield record


def _whole_lines(content: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    # Split at "\n" only: JSON text may hold other line separators. What follows the last one is torn.
    for line in content.split(b"\n")[:-1]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("id"), str):
            yield line, record


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _free_name(path: Path) -> Path:
    number = 1
    while (candidate := path.with_name(f"{path.stem}.old-{number}{path.suffix}")).exists():
        number += 1
    return candidate


class OutputWriter:
    """Predictions and gallery of one stage. Use it as a context manager; ``finish`` writes the gallery.

    Only the first result of a request is kept; repeats and warm-ups are ignored.
    """

    def __init__(self, output: OutputConfig, stage: str, stage_dir: Path, workload: WorkloadConfig) -> None:
        self._options = model_output_options(
            output.extra, workload.model.adapter, f"pipeline.{stage}.output.extra"
        )
        self._workload = workload
        self._fingerprint = workload_fingerprint(workload)
        self._entries: list[Entry] = []
        self._distances: list[float] = []
        self._seen: set[str] = set()
        self._model: dict[str, str | None] = {"weights": None, "dtype": None}
        self._decode: Callable[[Sequence[int]], str] | None = None
        self._stage_dir = stage_dir
        self._viz_dir: Path | None = None
        self._log: PredictionLog | None = None
        if output.visualization.enable:
            self._viz_dir = resolve_output_dir(
                output.visualization.save_dir, DEFAULT_VISUALIZATION_DIR, stage_dir
            )
        if output.prediction.enable:
            folder = resolve_output_dir(output.prediction.save_dir, DEFAULT_PREDICTION_DIR, stage_dir)
            self._log = PredictionLog(folder / FILE_NAME, self._fingerprint)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def describe(
        self, *, weights: str | None, dtype: str | None, decode: Callable[[Sequence[int]], str] | None = None
    ) -> None:
        """Set the description of the run for every record; ``decode`` (tokens to text without special ones) is the tokenizer's own.

        Without it, special tokens are recognised by their form.
        """
        self._model = {"weights": weights, "dtype": dtype}
        self._decode = decode

    def pending(self, samples: Iterable[Sample]) -> list[Sample]:
        """Return the samples an interrupted run has not finished; the finished ones join the gallery."""
        left: list[Sample] = []
        for sample in samples:
            record = self._log.record(sample.id, sample.sha256) if self._log is not None else None
            if record is None:
                left.append(sample)
            else:
                self._remember(sample, record)
        return left

    def __call__(self, result: SampleResult) -> None:
        """Add one answer of the engine, as callback of ``run_workload(on_result=…)``."""
        self.add(outcome_of(result, self._decode(result.token_ids) if self._decode is not None else None))

    def add(self, outcome: Outcome) -> None:
        """Add one result; it is on disk on return."""
        sample = outcome.sample
        if sample.id in self._seen:
            return
        if outcome.prompt is None and sample.prompt is None and sample.synthetic_tokens is None:
            outcome = replace(outcome, prompt=self._workload.infer.prompt)
        record = make_record(
            outcome, self._fingerprint, strip_tokens=self._options.prediction.strip_special_tokens
        )
        record.update(self._model, device=self._workload.device)
        if self._log is not None and self._log.record(sample.id, sample.sha256) is None:
            self._log.append(record)
        self._remember(sample, record)

    def finish(self, warnings: Sequence[str] = ()) -> list[Path]:
        """Write the gallery; return every file of the outputs."""
        files = [self._log.path] if self._log is not None else []
        if self._viz_dir is not None:
            header = GalleryHeader(
                title="Predictions",
                facts=self._facts(),
                warnings=[*self._random_weights(), *warnings],
                total=len(self._seen),
                predictions_file=self._shown_path(),
            )
            width = self._options.visualization.thumbnail_width
            files += write_gallery(self._viz_dir, header, self._entries, width)
        self.close()
        return files

    def close(self) -> None:
        """Close the predictions file."""
        if self._log is not None:
            self._log.close()

    def _remember(self, sample: Sample, record: Mapping[str, Any]) -> None:
        self._seen.add(sample.id)
        if record.get("edit_distance_ratio") is not None:
            self._distances.append(record["edit_distance_ratio"])
        limit = self._options.visualization.max_images
        # Only what the gallery shows is kept: a run over thousands of pages must not hold all their texts.
        if self._viz_dir is not None and (limit is None or len(self._entries) < limit):
            self._entries.append(Entry(record, sample.path, sample.reference))

    def _facts(self) -> dict[str, str]:
        facts = {"Model": self._workload.model.name, "Device": self._workload.device}
        for label, key in (("Weights", "weights"), ("Data type", "dtype")):
            values = {entry.record.get(key) for entry in self._entries} - {None}
            if values:
                facts[label] = ", ".join(sorted(map(str, values)))
        if self._distances:
            median = f"{statistics.median(self._distances):.3f}"
            facts["Edit distance"] = (
                f"median {median} over {len(self._distances)} (0 equal, 1 nothing in common)"
            )
        return facts

    def _random_weights(self) -> list[str]:
        # Taken from the records: a resumed gallery shows results of an earlier run.
        found = any(entry.record.get("weights") == "random" for entry in self._entries)
        return ["Random weights: the timings are real, the text is meaningless."] if found else []

    def _shown_path(self) -> str | None:
        if self._log is None:
            return None
        inside = self._log.path.is_relative_to(self._stage_dir.absolute())
        return str(self._log.path.relative_to(self._stage_dir.absolute())) if inside else str(self._log.path)
