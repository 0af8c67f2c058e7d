"""``llm-perf-opt ingest``: the same analysis and reports for captures taken elsewhere."""

from __future__ import annotations

import argparse
import functools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.analysis.ranks import rank_in_name, require_one_device, require_one_job
from llm_perf_opt.analysis.summarise import Subject
from llm_perf_opt.core.arrays import reuse_freed_memory
from llm_perf_opt.core.console.command_line import verb_parser
from llm_perf_opt.core.console.logs import Verbosity, console_logging
from llm_perf_opt.core.errors import ConfigError, InputError, ToolError, nearest_key
from llm_perf_opt.core.files import explain_os_errors, hint_other_directory, is_there
from llm_perf_opt.core.secrets import mask_arguments
from llm_perf_opt.core.units import dtype_bytes, known_dtypes, timestamp
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.reporting.render import MOST_EVENTS
from llm_perf_opt.runs.assemble import DeviceChoice, assemble, shown_sources
from llm_perf_opt.runs.directory import lock_output
from llm_perf_opt.runs.finish import print_result, save_and_render
from llm_perf_opt.stages.facts import Part, collect, timings_facts
from llm_perf_opt.stages.ncu.facts import ncu_facts
from llm_perf_opt.stages.nsys.facts import nsys_facts
from llm_perf_opt.stages.torch_profiler.facts import (
    compile_log_facts,
    exports_facts,
    trace_facts,
    traces_facts,
)
from llm_perf_opt.summary import RunInfo

LOGGER = logging.getLogger("llm_perf_opt.captures")
_EXPORT_TIMEOUT_S = 1800.0
_TRACE_SUFFIXES = (".json", ".json.gz")
_NSYS_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")


def ingest(options: argparse.Namespace) -> int:
    """Read the named sources, analyse them, write summary and reports to ``--out``."""
    console_logging(Verbosity.quiet if options.json else Verbosity.normal)
    given = _given(options)
    if not given:
        raise ConfigError(
            "nothing to ingest",
            hint="give at least one of --trace, --nsys, --ncu, --timings, --static, --compile-log, --serving",
        )
    _require_existing(given)
    slo = _slo(options)
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
    reuse_freed_memory()
    with lock_output(out):
        return _ingest_into(out, options, given, slo)


def _ingest_into(out: Path, options: argparse.Namespace, given: _Given, slo: dict[str, float]) -> int:
    """Read, analyse and write; the caller holds the directory."""
    started, began = timestamp(), time.monotonic()
    command = [
        "llm-perf-opt",
        "ingest",
        *(f"--{kind}={path}" for kind, path in given),
        *(
            f"--{name}={value}"
            for name in ("device", "dtype", "catalogue", "slo")
            if (value := getattr(options, name))
        ),
        f"--out={out}",
    ]
    if options.device:  # a misspelt name is found before any work
        load_catalogue(options.catalogue).named(options.device)
    facts = _read(given, out, slo)
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
    report = save_and_render(summary, assembled.facts, out, perfetto=options.perfetto)
    print_result(summary, report, quiet=False, as_json=options.json)
    return 0


def _static_facts(path: Path) -> Facts:
    from llm_perf_opt.stages.static_analysis import static_facts  # imports the interface of models

    return static_facts(path)


_KINDS: dict[str, tuple[str, str, Callable[[Path], Facts]]] = {
    "timings": ("timings", "timings", timings_facts),
    "static": ("static_analysis", "static model", _static_facts),
    "trace": ("torch_profiler", "torch trace", trace_facts),
    "nsys": ("nsys", "nsys capture", nsys_facts),
    "ncu": ("ncu", "ncu capture", ncu_facts),
    "compile-log": ("torch_compile", "log of torch.compile", compile_log_facts),
}
"""Option → folder of its pages, what it is, and what reads it."""
_SERVING = ("serving", "serving-steps", "serving-metrics")
"""Options whose files are read together."""
_Given = Sequence[tuple[str, Path]]


def _given(options: argparse.Namespace) -> _Given:
    """Every named source, in the order of the kinds; one that was named twice is the same source."""
    found: list[tuple[str, Path]] = []
    for kind in (*_KINDS, *_SERVING):
        value = getattr(options, kind.replace("-", "_"))
        paths = value if isinstance(value, list) else [value] if value is not None else []
        found += [(kind, path) for path in dict.fromkeys(paths)]
    return found


def _slo(options: argparse.Namespace) -> dict[str, float]:
    """Limits of latencies; rejected without serving results."""
    for name in ("slo", "serving_steps", "serving_metrics"):
        if getattr(options, name) and not options.serving:
            raise ConfigError(
                f"--{name.replace('_', '-')} needs --serving",
                hint="give the requests too: --serving requests.jsonl",
            )
    if not options.slo:
        return {}
    from llm_perf_opt.analysis.serving.latency import parse_slo

    return parse_slo(options.slo)


def _require_existing(given: _Given) -> None:
    """Reject missing paths, before any work."""
    for kind, path in given:
        if not is_there(path):
            raise InputError(f"--{kind} {path} does not exist", hint="check the path", path=str(path))


def _read(given: _Given, out: Path, slo: dict[str, float]) -> list[Facts]:
    """Read every named source once; one that cannot be read is an error, because the user named it."""
    found = []
    for kind, (stage, what, read) in _KINDS.items():
        named = [path for each, path in given if each == kind]
        files = [file for path in named for file in _files(kind, path, out)]
        if files:
            facts = collect(stage, _parts(kind, what, read, list(dict.fromkeys(files))), strict=True)
            require_one_job(facts.origins, kind)
            found.append(facts)
    require_one_device([one for facts in found for one in facts.origins])
    results, steps, metrics = ([path for kind, path in given if kind == name] for name in _SERVING)
    if results:
        from llm_perf_opt.stages.serve.facts import serving_facts

        served = functools.partial(serving_facts, results, steps, metrics, slo)
        found.append(collect("serve", [Part("serving records", served)], strict=True))
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
            f"{folder} contains no torch profiler trace (.json or .json.gz)",
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
    from llm_perf_opt.stages.nsys.run import find_nsys_summary, is_old_place

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
    """Turn an nsys report into SQLite with the installed tool; other files are returned unchanged."""
    if path.suffix not in _NSYS_REPORTS:
        return path
    from llm_perf_opt.process.launch import run_process
    from llm_perf_opt.process.tools import find_tool, missing_tool
    from llm_perf_opt.stages.nsys.command import build_export_cmd

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
        # An export of an earlier report must not be used for this one if nsys fails.
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


# ``llm-perf-opt ingest``: the command line; what it does is in :mod:`llm_perf_opt.commands.ingest`.


def main(arguments: Sequence[str]) -> int:
    """Analyse captures; return the exit code."""
    parser = verb_parser(
        "ingest",
        "Analyse captures from other machines or tools: any mix of sources, one summary, the same reports.",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        action="append",
        help="torch profiler trace (Kineto JSON or .json.gz), or a folder of them; one per rank: give it several times",
    )
    parser.add_argument(
        "--nsys",
        type=Path,
        action="append",
        help="nsys SQLite export, kernel-summary CSV, .nsys-rep (needs nsys), or a run directory; one per rank: give it "
        "several times",
    )
    parser.add_argument(
        "--ncu", type=Path, help="ncu CSV, .ncu-rep (needs the ncu extra), or a folder of them"
    )
    parser.add_argument(
        "--timings",
        type=Path,
        help='wall-clock JSON: {"samples": 20, "new_tokens": 64, "prefill_s": 0.1, "decode_s": 0.7}',
    )
    parser.add_argument(
        "--compile-log",
        type=Path,
        action="append",
        help="what torch.compile logged of the same run: output with TORCH_LOGS=graph_breaks,recompiles, a file or folder of "
        "TORCH_TRACE, or the folder that tlparse wrote; repeatable",
    )
    parser.add_argument("--static", type=Path, help="static_compute.json of the same model")
    parser.add_argument(
        "--serving",
        type=Path,
        action="append",
        help="results of a load client (vllm bench, sglang, aiperf, guidellm, inference-perf, …), or a folder of them; repeatable",
    )
    parser.add_argument(
        "--serving-steps",
        type=Path,
        action="append",
        help="step records of the engine (vLLM statistics or log, forward-pass metrics); repeatable",
    )
    parser.add_argument(
        "--serving-metrics", type=Path, action="append", help="samples of the server's /metrics; repeatable"
    )
    parser.add_argument("--slo", metavar="ttft:500ms,tpot:50ms", help="latency limits for goodput")
    parser.add_argument(
        "--device", help="device name in the hardware catalogue, if the captures do not contain it"
    )
    parser.add_argument("--dtype", help="data type of the peak, if the captures do not contain it (bfloat16)")
    parser.add_argument("--catalogue", type=Path, help="YAML file with further devices")
    parser.add_argument(
        "--perfetto",
        action="store_true",
        help=f"write timeline.perfetto.json.gz also of captures with more than {MOST_EVENTS:,} operations and ranges",
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for summary.json and the reports")
    parser.add_argument("--json", action="store_true", help="print summary.json")
    options = parser.parse_args(arguments)

    with hint_other_directory("another directory: --out DIR"):
        return ingest(options)
