"""``llm-perf-opt ncu-profile``, also shipped as a script: Nsight Compute over any program, without the pipeline.

It profiles a list of kernels, as ``top-kernels`` writes it, or whatever a regular expression matches, in one run of
the program, and writes report, CSV pages and provenance. The standard library is enough, but for reading a list.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llm_perf_opt.commands.top_kernels import KernelList, read_kernel_list
from llm_perf_opt.config.workload_env import named_variables
from llm_perf_opt.core.artifacts import reserve_directory
from llm_perf_opt.core.console.command_line import (
    VerbParser,
    exit_codes,
    print_error,
    time_limit,
    whole_number,
)
from llm_perf_opt.core.errors import ConfigError, LlmPerfError, ToolError
from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.core.secrets import mask_tree
from llm_perf_opt.core.version import __version__
from llm_perf_opt.process import tools as checks
from llm_perf_opt.stages.ncu.command import (
    DEFAULT_METRICS,
    DEFAULT_SECTIONS,
    accept_sections,
    estimated_passes,
)
from llm_perf_opt.stages.ncu.probe import NcuCapabilities, probe_ncu
from llm_perf_opt.stages.ncu.run import NcuRequest, NcuRunResult, export_pages, run_ncu
from llm_perf_opt.stages.ncu.targets import missing_targets
from llm_perf_opt.stages.workload import Workload, replay_lines

_FIXES = {
    "timeout": "profile fewer kernels (--topk, --launch-count) or sections, or raise --timeout",
    "no-kernels": "check --kernel-regex, --nvtx-include and that the program launches kernels",
    "no-metrics": "check --extra-sections and --metrics (ncu --list-sections, ncu --query-metrics)",
    "section": "list them with ncu --list-sections and correct --extra-sections",
    "metric": "list them with ncu --query-metrics and correct --metrics",
    "nvtx": "correct --nvtx-include (a range name, a glob, or ncu's own syntax)",
    "exists": "choose another --output-dir",
    "unwritable": "check space and permissions of --output-dir",
    "program": "check the program after --, without ncu first; its output is in {folder}/logs",
    "option": "this ncu is too old or too new for an option of the command; choose another with --ncu",
    "no-report": "run the command in {folder}/cmd.txt by hand",
}
"""Kind of fault → what to do, in the options of this tool (the pipeline's own fixes name configuration keys)."""
_OPTIONS = {
    "pipeline.ncu.executable": "--ncu",
    "artifacts.runs_dir=/some/dir": "--output-dir DIR",
    "artifacts.runs_dir": "--output-dir",
}
"""Configuration keys in hints of shared code → this tool's options."""
_PRESET = "preset"
_PROFILE_USAGE = "%(prog)s [options] -- PROGRAM [ARGUMENT …]"


def profile_main(argv: Sequence[str] | None = None, prog: str = "llm-perf-opt ncu-profile") -> int:
    """Profile kernels of any program; return an exit code (see ``llm_perf_opt.core.errors``)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    own, program = _split_program(arguments)
    try:
        options = _profile_parser(prog).parse_args(own)
        return _profile(options, program)
    except LlmPerfError as error:
        for key, option in _OPTIONS.items():
            error.hint = error.hint and error.hint.replace(key, option)
        return print_error(error)


def _split_program(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return list(arguments), []
    place = list(arguments).index("--")
    return list(arguments[:place]), list(arguments[place + 1 :])


def _profile_parser(prog: str) -> argparse.ArgumentParser:
    parser = VerbParser(
        prog=prog,
        usage=_PROFILE_USAGE,
        description="Profile chosen kernels of any program with Nsight Compute, without the pipeline.",
        epilog=exit_codes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--kernel-regex", metavar="REGEX", help="profile kernels whose name matches")
    chosen.add_argument(
        "--kernel-config", type=Path, metavar="YAML", help="kernels as top-kernels writes them"
    )
    parser.add_argument(
        "--topk", type=whole_number(1), metavar="N", help="only the first N of --kernel-config"
    )
    parser.add_argument(
        "--extra-sections", nargs="+", default=[], metavar="SECTION", action="extend",
        help=f"besides {', '.join(DEFAULT_SECTIONS)}",
    )  # fmt: skip
    parser.add_argument(
        "--metrics",
        help="also these metrics, comma-separated; 'preset': those of the preset ncu.default (default: none)",
    )
    parser.add_argument(
        "--launch-skip", type=whole_number(0), metavar="N", help="matching launches to leave out first"
    )
    parser.add_argument(
        "--launch-count", type=whole_number(1), metavar="N", help="most launches to profile (default: 1)"
    )
    parser.add_argument("--kernel-name-base", choices=["function", "demangled", "mangled"])
    parser.add_argument(
        "--nvtx-include", action="append", default=[], metavar="RANGE", help="only inside this range"
    )
    parser.add_argument("--output-dir", type=Path, metavar="DIR", help="default: ncu-<time>")
    parser.add_argument("--ncu", metavar="PATH", help="which ncu")
    parser.add_argument("--timeout", type=time_limit, metavar="SECONDS", default=1800.0)
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]",
        help="hand this variable to the program; it gets an allow-listed environment otherwise",
    )  # fmt: skip
    parser.add_argument("--no-csv", action="store_true", help="write only the report")
    parser.add_argument("--dry-run", action="store_true", help="print the command and stop")
    return parser


def _profile(options: argparse.Namespace, program: list[str]) -> int:
    if not program:
        raise ConfigError("no program to profile", hint="put it after --: … -- ./bench --size 2048")
    kernels = _kernels(options)
    executable = checks.find_tool("ncu", options.ncu)
    if executable is None:
        raise checks.missing_tool("ncu", options.ncu)
    capabilities = probe_ncu(executable)
    folder = _folder(options)
    request, warnings = _request(options, program, capabilities, kernels, folder)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    passes = estimated_passes(None, request.sections, request.metrics)
    what = f"{len(kernels.names)} kernels" if kernels.names else "kernels that match"
    print(f"cost: {what}, each launch replayed about {passes} times, in one run of the program")
    print(f"command: {replay_lines(request.command())}")
    if options.dry_run:
        return 0
    started = datetime.now(UTC)
    result = run_ncu(request)
    files: list[Path] = []
    if result.report is not None and not options.no_csv:
        files, _, problems = export_pages(
            capabilities, result.report, request.sections, folder=folder, log_dir=folder / "logs"
        )
        warnings += problems
    _write_provenance(folder, request, capabilities, kernels, result, started, warnings, files)
    return _conclude(result, folder, kernels)


def _folder(options: argparse.Namespace) -> Path:
    """Return the directory of this start; without ``--output-dir`` a unique one, also within the same second."""
    if options.output_dir is not None:
        return Path(options.output_dir).absolute()
    wanted = Path(f"ncu-{datetime.now():%Y%m%d-%H%M%S}").absolute()
    return wanted if options.dry_run else reserve_directory(wanted)


def _kernels(options: argparse.Namespace) -> KernelList:
    if options.kernel_config is not None:
        return read_kernel_list(options.kernel_config, options.topk)
    if options.topk is not None:
        raise ConfigError("--topk needs --kernel-config", hint="make one with: top-kernels summary.csv")
    return KernelList([], options.kernel_regex)


def _request(
    options: argparse.Namespace,
    program: list[str],
    capabilities: NcuCapabilities,
    kernels: KernelList,
    folder: Path,
) -> tuple[NcuRequest, list[str]]:
    sections = accept_sections([*DEFAULT_SECTIONS, *options.extra_sections], capabilities.sections)
    base = options.kernel_name_base or ("demangled" if kernels.names else None)
    several = bool(kernels.names) and options.launch_count is None
    count = options.launch_count or (1 if not several else None)
    per_config = several and capabilities.per_launch_config
    request = NcuRequest(
        executable=capabilities.executable,
        folder=folder,
        workload=Workload(
            argv=tuple(program), cwd=Path.cwd(), named=named_variables(options.env), built_in=False
        ),
        nvtx_include=tuple(options.nvtx_include),
        use_nvtx=bool(options.nvtx_include),
        kernel_regex=kernels.regex,
        kernel_name_base=base,
        sections=tuple(sections.names),
        metrics=_metrics(options.metrics),
        filter_mode="per-launch-config" if per_config else None,
        launch_skip=options.launch_skip,
        launch_count=1 if per_config else count or 20 * len(kernels.names),
        timeout_s=options.timeout,
    )
    return request, list(sections.warnings)


def _metrics(given: str | None) -> tuple[str, ...]:
    if given == _PRESET:
        return DEFAULT_METRICS
    return tuple(part for part in (given or "").split(",") if part)


def _write_provenance(
    folder: Path,
    request: NcuRequest,
    capabilities: NcuCapabilities,
    kernels: KernelList,
    result: NcuRunResult,
    started: datetime,
    warnings: list[str],
    files: list[Path],
) -> None:
    """Record command, tool and outcome."""
    record: dict[str, Any] = {
        "command": request.command(),
        "program": list(request.workload.argv),
        "directory": str(request.workload.cwd),
        "ncu": {"path": capabilities.executable, "version": capabilities.version_text},
        "llm_perf_opt": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "started": started.isoformat(),
        "seconds": round(result.process.seconds, 3),
        "exit_code": result.process.returncode,
        "sections": list(request.sections),
        "metrics": list(request.metrics),
        "kernel_regex": request.kernel_regex,
        "kernels": kernels.names,
        "profiled_launches": None if result.kernels is None else len(result.kernels),
        "fault": result.fault.message if result.fault else None,
        "warnings": warnings,
        "files": [path.name for path in ([result.report] if result.report else []) + files],
    }
    # Not by the codec: the script of the same name runs with the standard library alone.
    text = json.dumps(mask_tree(record), indent=2, ensure_ascii=False)
    atomic_write_text(folder / "provenance.json", text + "\n")
    lines = replay_lines(request.command(), cwd=request.workload.cwd, env=request.workload.added_env)
    atomic_write_text(folder / "cmd.txt", f"# Nsight Compute {capabilities.version_text}\n\n{lines}\n")


def _conclude(result: NcuRunResult, folder: Path, kernels: KernelList) -> int:
    if result.kernels is not None and kernels.names and result.kernels:
        missing = missing_targets(kernels.names, result.kernels)
        if missing:
            print(f"warning: not profiled: {len(missing)} of {len(kernels.names)} kernels", file=sys.stderr)
    if result.fault is not None:
        fix = _FIXES.get(result.fault.kind, result.fault.fix).format(folder=folder)
        error = ToolError(result.fault.message, hint=fix)
        code = print_error(error)
        return code if result.fault.status == "failed" else 0
    print(f"written: {folder}")
    print(f"read it with: llm-perf-opt ingest --ncu {folder} --out report")
    return 0
