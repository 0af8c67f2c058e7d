"""``llm-perf-opt ingest``: the same analysis and reports for captures taken elsewhere."""

from __future__ import annotations

import argparse
import functools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.analysis.ranks.names import rank_in_name
from llm_perf_opt.analysis.summarise import Subject
from llm_perf_opt.core.clock import now_text
from llm_perf_opt.core.console.logs import Verbosity, console_logging
from llm_perf_opt.core.dtypes import dtype_bytes, known_dtypes
from llm_perf_opt.core.errors import ConfigError, InputError, ToolError
from llm_perf_opt.core.files import explain_os_errors, is_there
from llm_perf_opt.core.nearest import nearest_key
from llm_perf_opt.core.secrets import mask_arguments
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.model.summary import RunInfo
from llm_perf_opt.runs.assemble import DeviceChoice, assemble, shown_sources
from llm_perf_opt.runs.directory.output_directory import hold_output
from llm_perf_opt.runs.finish import print_result, save_and_render
from llm_perf_opt.stages.facts.collect import Part, collect
from llm_perf_opt.stages.facts.ncu import ncu_facts
from llm_perf_opt.stages.facts.nsys import nsys_facts
from llm_perf_opt.stages.facts.static import static_facts
from llm_perf_opt.stages.facts.timings import timings_facts
from llm_perf_opt.stages.facts.trace import trace_facts
from llm_perf_opt.stages.facts.traces import exports_facts, traces_facts

LOGGER = logging.getLogger("llm_perf_opt.ingest")

_EXPORT_TIMEOUT_S = 1800.0
_TRACE_SUFFIXES = (".json", ".json.gz")
_NSYS_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")


def ingest(options: argparse.Namespace) -> int:
    """Read the named sources, analyse them together, write summary and reports to ``--out``."""
    console_logging(Verbosity.quiet if options.json else Verbosity.normal)
    given = _given(options)
    if not given:
        raise ConfigError(
            "nothing to ingest", hint="give at least one of --trace, --nsys, --ncu, --timings, --static"
        )
    _require_existing(given)
    if options.dtype is not None and dtype_bytes(options.dtype) is None:
        near = nearest_key(options.dtype, known_dtypes())
        raise ConfigError(
            f"--dtype {options.dtype} is not a data type",
            hint=f"did you mean {near}?" if near else f"data types: {', '.join(known_dtypes())}",
        )
    out = options.out.expanduser().absolute()
    if is_there(out) and not out.is_dir():
        raise ConfigError(
            f"--out {out} is not a directory", hint="give a directory; it is created when absent"
        )
    with hold_output(out):
        return _ingest_into(out, options, given)


def _ingest_into(out: Path, options: argparse.Namespace, given: Given) -> int:
    """Read, analyse and write; the caller holds the directory."""
    started, began = now_text(), time.monotonic()
    command = [
        "llm-perf-opt",
        "ingest",
        *(f"--{kind}={path}" for kind, path in given),
        *(
            f"--{name}={value}"
            for name in ("device", "dtype", "catalogue")
            if (value := getattr(options, name))
        ),
        f"--out={out}",
    ]
    if options.device:  # a misspelt name is found before any work
        load_catalogue(options.catalogue).named(options.device)
    facts = _read(given, out)
    subject = Subject(
        run=RunInfo(
            id=out.name,
            status="ok",
            started=started,
            seconds=None,
            command=mask_arguments(command),
        ),
        dtype=options.dtype,
        sources=shown_sources(facts),
    )
    assembled = assemble(subject, facts, DeviceChoice(options.device, options.catalogue))
    summary = assembled.summary
    summary.run.seconds = time.monotonic() - began
    report = save_and_render(summary, assembled.facts, out)
    print_result(summary, report, quiet=False, as_json=options.json)
    return 0


_KINDS: dict[str, tuple[str, str, Callable[[Path], Facts]]] = {
    "timings": ("timings", "timings", timings_facts),
    "static": ("static_analysis", "static model", static_facts),
    "trace": ("torch_profiler", "torch trace", trace_facts),
    "nsys": ("nsys", "nsys capture", nsys_facts),
    "ncu": ("ncu", "ncu capture", ncu_facts),
}
"""Option → folder of its pages, what it is, and what reads it."""


Given = Sequence[tuple[str, Path]]


def _given(options: argparse.Namespace) -> Given:
    """Every named source, in the order of the kinds; one that was named twice is the same source."""
    found: list[tuple[str, Path]] = []
    for kind in _KINDS:
        value = getattr(options, kind)
        paths = value if isinstance(value, list) else [value] if value is not None else []
        found += [(kind, path) for path in dict.fromkeys(paths)]
    return found


def _require_existing(given: Given) -> None:
    """Refuse paths that are not there, before any work."""
    for kind, path in given:
        if not is_there(path):
            raise InputError(f"--{kind} {path} does not exist", hint="check the path", path=str(path))


def _read(given: Given, out: Path) -> list[Facts]:
    """Read every named source once; one that cannot be read is an error, because the user asked for it."""
    found = []
    for kind, (stage, what, read) in _KINDS.items():
        named = [path for each, path in given if each == kind]
        files = [file for path in named for file in _files(kind, path, out)]
        if files:
            found.append(collect(stage, _parts(kind, what, read, list(dict.fromkeys(files))), strict=True))
    return found


def _parts(kind: str, what: str, read: Callable[[Path], Facts], files: list[Path]) -> list[Part]:
    if kind == "trace" and len(files) > 1:
        return [Part(what, functools.partial(traces_facts, files))]
    if kind == "nsys" and len(files) > 1:
        return [Part(what, functools.partial(exports_facts, files))]
    return [Part(what, functools.partial(read, file)) for file in files]


def _files(kind: str, path: Path, out: Path) -> list[Path]:
    if kind == "nsys":
        return [_nsys_source(one, out) for one in _rank_exports(path)]
    if kind == "trace" and path.is_dir():
        return _traces_in(path)
    return [path]


def _traces_in(folder: Path) -> list[Path]:
    """Return the traces of a folder: one per rank, as ``tensorboard_trace_handler`` and engines write them."""
    found = sorted(one for one in folder.iterdir() if one.is_file() and one.name.endswith(_TRACE_SUFFIXES))
    if not found:
        raise InputError(
            f"{folder} holds no torch profiler trace (.json or .json.gz)",
            hint="give the folder that the profiler wrote its traces to, or a trace itself",
            path=str(folder),
        )
    return found


def _rank_exports(path: Path) -> list[Path]:
    """Return the captures of several ranks in one folder; a run directory, or any other path, as it is.

    Of a report that was exported already, the export.
    """
    if not path.is_dir():
        return [path]
    by_stem: dict[str, Path] = {}
    for pattern in ("*.sqlite", "*.nsys-rep"):
        for one in sorted(path.glob(pattern)):
            if one.is_file() and rank_in_name(one) is not None:
                by_stem.setdefault(one.stem, one)
    return [by_stem[stem] for stem in sorted(by_stem)] if len(by_stem) > 1 else [path]


def _nsys_source(path: Path, out: Path) -> Path:
    return _summary_of_earlier_release(path) if path.is_dir() else _exported(path, out)


def _summary_of_earlier_release(run_dir: Path) -> Path:
    """Return the kernel summary that an earlier release left elsewhere; the directory itself where it has one."""
    from llm_perf_opt.vendor.nsys.files import find_nsys_summary, is_old_place

    found = find_nsys_summary(run_dir)
    if found is None or not is_old_place(run_dir, found):
        return run_dir
    LOGGER.info(
        "the nsys summary is where earlier releases put it, and is found there for this release only: %s "
        "(llm-perf-opt migrate %s moves it)",
        found,
        run_dir,
    )
    return found


def _exported(path: Path, out: Path) -> Path:
    """Turn an nsys report into SQLite with the installed tool; other files are read as they are."""
    if path.suffix not in _NSYS_REPORTS:
        return path
    from llm_perf_opt.process.launch import run_process
    from llm_perf_opt.process.tools import find_tool, missing_tool
    from llm_perf_opt.vendor.nsys.command import build_export_cmd

    tool = find_tool("nsys")
    if tool is None:
        missing = missing_tool("nsys")
        raise ToolError(
            f"{path.name} is an nsys report, and nsys, which exports it, cannot be used: {missing.message}",
            hint=f"{missing.hint}, or export it where nsys is: nsys export --type sqlite {path.name}",
        )
    target = out / "nsys" / f"{path.stem}.sqlite"
    with explain_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        # An export of an earlier report must not be taken for this one's when nsys fails.
        target.unlink(missing_ok=True)
    result = run_process(
        build_export_cmd(path, target, executable=str(tool)),
        log_dir=target.parent,
        name=f"{path.stem}.export",
        timeout_s=_EXPORT_TIMEOUT_S,
    )
    if not result.ok or not target.is_file() or target.stat().st_size == 0:
        raise ToolError(
            f"nsys could not export {path}: {result.tail(3)}",
            hint="the report may be newer than this nsys, or damaged",
        )
    return target
