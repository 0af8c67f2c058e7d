"""Files of the stage ``serve``, and the facts in them; also those that ``ingest --serving`` is given."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.core.errors import InputError, LlmPerfError
from llm_perf_opt.core.files import read_document
from llm_perf_opt.core.layout import own_files
from llm_perf_opt.stages.facts import Part, collect
from llm_perf_opt.stages.serve.config import NAME
from llm_perf_opt.stages.serve.profile_window import PROFILE, PROFILED_REQUESTS, PROFILED_STEPS, TRACES
from llm_perf_opt.summary.serving import ColdStart, ProfiledWindow

REQUESTS = "requests.jsonl"
METRICS = "metrics.jsonl"
STEPS = "steps.jsonl"
STEPS_LOG = "steps.log"
ROUTING = "routing.jsonl"
SERVER = "server.json"
_OTHER_CLIENTS = ("aiperf", "guidellm", "vllm_bench")
"""How result files of other clients begin."""


def read_facts(run_dir: Path) -> Facts:
    """Return the facts of a run directory; unreadable files give a note."""
    folder = run_dir / NAME
    others = sorted(folder.glob("*.json*")) if folder.is_dir() else []
    results = own_files(
        run_dir, NAME, [folder / REQUESTS, *(path for path in others if path.name.startswith(_OTHER_CLIENTS))]
    )
    steps = own_files(run_dir, NAME, [folder / STEPS, folder / STEPS_LOG])
    metrics = own_files(run_dir, NAME, [folder / METRICS])
    parts = []
    documents = own_files(run_dir, NAME, [folder / SERVER])
    if results:
        start = _cold_start(documents[0]) if documents else None
        read = functools.partial(serving_facts, results, steps, metrics, tolerant=True, cold_start=start)
        parts.append(Part("serving records", functools.partial(_with_window, read, run_dir, steps)))
    parts += [Part("description of the server", functools.partial(_server_facts, path)) for path in documents]
    return collect(NAME, parts)


def _with_window(read: Callable[[], Facts], run_dir: Path, steps: Sequence[Path]) -> Facts:
    """Add the routers' choices and the profiled window to the facts of the unprofiled load; problems give a note."""
    facts = read()
    folder = run_dir / NAME
    choices = own_files(run_dir, NAME, [folder / ROUTING])
    if facts.serving is not None and choices:
        from llm_perf_opt.analysis.serving.routing import describe_routing
        from llm_perf_opt.captures.serving.engines import read_routing

        facts.serving.routing = describe_routing(read_routing(read_document(choices[0]).splitlines()))
    documents = own_files(run_dir, NAME, [folder / PROFILE])
    if facts.serving is None:
        return facts
    server = own_files(run_dir, NAME, [run_dir / NAME / SERVER])
    facts.serving.has_counted_model = bool(server) and _has_counted_model(server[0])
    if not documents:
        return facts
    try:
        facts.serving.profile = _read_window(run_dir, documents[0], steps)
    except LlmPerfError as error:
        facts.serving.profile = ProfiledWindow(notes=[f"The profiled window cannot be read: {error.message}"])
    return facts


def _read_window(run_dir: Path, path: Path, steps: Sequence[Path]) -> ProfiledWindow:
    from llm_perf_opt.analysis.serving.kernels import describe_window
    from llm_perf_opt.analysis.serving.matching import merge_steps
    from llm_perf_opt.captures.kineto.reader import read_kineto
    from llm_perf_opt.captures.serving.reader import read_serving

    document = _json_document(path)
    folder = run_dir / NAME
    names = [
        name for name in document.get("traces") or [] if isinstance(name, str) and Path(name).name == name
    ]
    traces = own_files(run_dir, NAME, [folder / TRACES / name for name in sorted(names)])
    window = ProfiledWindow()
    if traces:
        profiled_steps, requests = (
            own_files(run_dir, NAME, [folder / name]) for name in (PROFILED_STEPS, PROFILED_REQUESTS)
        )
        records = read_serving([*requests], optional=[*profiled_steps])
        usual = read_serving([], optional=list(steps)[:1])
        timelines = [read_kineto(trace).timeline for trace in traces]
        window = describe_window(
            timelines, merge_steps(records.steps), records.requests, merge_steps(usual.steps)
        )
    label, stop = document.get("label"), document.get("stop_s")
    window.label = label if isinstance(label, str) else None
    window.stop_s = float(stop) if isinstance(stop, int | float) and 0 <= stop < 1e7 else None
    window.is_salvaged = bool(document.get("salvaged"))
    notes = [document.get("problem"), *(document.get("notes") or [])]
    window.notes = [str(note)[:500] for note in notes if note] + window.notes
    return window


def serving_facts(
    results: Sequence[Path],
    steps: Sequence[Path] = (),
    metrics: Sequence[Path] = (),
    slo: Mapping[str, float] | None = None,
    *,
    tolerant: bool = False,
    cold_start: ColdStart | None = None,
) -> Facts:
    """Read results of load clients, step records and samples of ``/metrics``, and analyse them.

    ``tolerant``: damaged steps or metrics are noted and left out; the requests are still analysed.
    """
    from llm_perf_opt.analysis.serving.findings import find_serving
    from llm_perf_opt.analysis.serving.section import analyse_serving
    from llm_perf_opt.captures.serving.reader import read_serving

    others = [*steps, *metrics]
    records = read_serving(results, optional=others) if tolerant else read_serving([*results, *others])
    if steps and not records.steps and not tolerant:
        raise InputError(
            f"{steps[0]} contains no step records",
            hint="give steps.jsonl of the vLLM plug-in, a server log with iteration details, or forward-pass metrics",
            path=str(steps[0]),
        )
    found = analyse_serving(records, slo)
    found.serving.cold_start = cold_start
    named = {"serving": results, "serving_steps": steps, "serving_metrics": metrics}
    return Facts(
        sources={kind: tuple(paths) for kind, paths in named.items() if paths},
        serving=found.serving,
        findings=find_serving(found),
        notes=[f"Serving: {note}" for note in found.serving.notes],
    )


def _has_counted_model(path: Path) -> bool:
    try:
        return _json_document(path).get("has_counted_model") is True
    except InputError:
        return False  # the file is reported where the cold start is read


def _cold_start(path: Path) -> ColdStart | None:
    try:
        held = _json_document(path).get("cold_start")
    except InputError:
        return None  # reported by the part that reads the document
    known = {
        name: float(value)
        for name, value in (held.items() if isinstance(held, dict) else ())
        if isinstance(value, int | float) and 0 <= value < 1e7
    }
    names = {field.name for field in fields(ColdStart)}
    return ColdStart(**{name: known[name] for name in names & known.keys()}) if "total_s" in known else None


def _json_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_document(path))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}", path=str(path)) from error
    if not isinstance(document, dict):
        raise InputError(f"{path} is not an object", path=str(path))
    return document


def _server_facts(path: Path) -> Facts:
    document = _json_document(path)
    notes = [str(note)[:500] for note in document.get("notes") or [] if isinstance(note, str)]
    certificate = document.get("certificate")
    held = certificate if isinstance(certificate, dict) else {}
    named = {
        "server_ready_s": document.get("ready_s"),
        "client_event_s": held.get("event_s"),
        "client_stamp_error_p99_s": held.get("stamp_error_p99_s"),
    }
    metrics: dict[str, float | None] = {
        name: float(value)
        for name, value in named.items()
        if isinstance(value, int | float) and 0 <= value < 1e7
    }
    return Facts(notes=notes, metrics=metrics)
