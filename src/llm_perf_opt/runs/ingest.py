"""``llm-perf-opt ingest``: the same analysis and reports for captures taken elsewhere."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.core.files import explain_os_errors
from llm_perf_opt.core.logs import Verbosity, console_logging
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.model.summary import RunInfo
from llm_perf_opt.runs.assemble import Request, assemble
from llm_perf_opt.runs.finish import print_result, save_and_render
from llm_perf_opt.runs.sources import Sources
from llm_perf_opt.runs.tables import write_capture_tables

_EXPORT_TIMEOUT_S = 1800.0
_NSYS_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")


def ingest(options: argparse.Namespace) -> int:
    """Read the named sources, analyse them together, write summary and reports to ``--out``."""
    console_logging(Verbosity.quiet if options.json else Verbosity.normal)
    sources = Sources(
        timings=options.timings,
        static=options.static,
        trace=options.trace,
        nsys=(options.nsys,) if options.nsys is not None else (),
        ncu=options.ncu,
    )
    if not sources.shown():
        raise ConfigError(
            "nothing to ingest", hint="give at least one of --trace, --nsys, --ncu, --timings, --static"
        )
    sources.require_existing()
    out = options.out.expanduser().absolute()
    if out.exists() and not out.is_dir():
        raise ConfigError(
            f"--out {out} is not a directory", hint="give a directory; it is created when absent"
        )
    began = datetime.now(UTC)
    command = [
        "llm-perf-opt",
        "ingest",
        *(f"--{kind}={path}" for kind, path in sources.shown().items()),
        *(
            f"--{name}={value}"
            for name in ("device", "dtype", "catalogue")
            if (value := getattr(options, name))
        ),
        f"--out={out}",
    ]
    if options.device:  # a misspelt name is found before any work
        load_catalogue(options.catalogue).named(options.device)
    sources.nsys = tuple(_exported(path, out) for path in sources.nsys)
    summary = assemble(
        Request(
            run=RunInfo(
                id=out.name,
                status="ok",
                started=began.astimezone().isoformat(timespec="seconds"),
                seconds=None,
                command=command,
            ),
            sources=sources,
            device=options.device,
            dtype=options.dtype,
            catalogue=options.catalogue,
            strict=True,
        )
    )
    with explain_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    summary.run.seconds = (datetime.now(UTC) - began).total_seconds()
    report = save_and_render(summary, out)
    write_capture_tables(summary, sources, out)
    print_result(summary, report, quiet=False, as_json=options.json)
    return 0


def _exported(path: Path, out: Path) -> Path:
    """Turn an nsys report into SQLite with the installed tool; other files are read as they are."""
    if path.suffix not in _NSYS_REPORTS:
        return path
    from llm_perf_opt.process.launch import run_process
    from llm_perf_opt.process.tools import find_tool, install_hint
    from llm_perf_opt.vendor.nsys.command import build_export_cmd

    tool = find_tool("nsys")
    if tool is None:
        raise ToolError(
            f"{path.name} is an nsys report, and nsys is not installed to export it",
            hint=f"{install_hint('nsys')}, or export it where nsys is: nsys export --type sqlite {path.name}",
        )
    target = out / "nsys" / f"{path.stem}.sqlite"
    with explain_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        # An export of an earlier report must not be taken for this one's when nsys fails.
        target.unlink(missing_ok=True)
    result = run_process(
        build_export_cmd(path, target, executable=str(tool)),
        log_dir=target.parent,
        name="export",
        timeout_s=_EXPORT_TIMEOUT_S,
    )
    if not target.is_file() or target.stat().st_size == 0:
        raise ToolError(
            f"nsys could not export {path}: {result.tail(3)}",
            hint="the report may be newer than this nsys, or damaged",
        )
    return target
