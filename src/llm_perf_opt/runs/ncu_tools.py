"""Two command-line tools around Nsight Compute, also shipped as scripts: ``ncu-profile`` and ``top-kernels``.

``top-kernels`` turns an nsys kernel summary into a list of kernels; ``ncu-profile`` profiles such a list, or
whatever a regular expression matches, in one run of any program, and writes report, CSV pages and provenance.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llm_perf_opt.config.workload_env import named_variables
from llm_perf_opt.core.command_line import print_error
from llm_perf_opt.core.errors import (
    ConfigError,
    InputError,
    LlmPerfError,
    ToolError,
)
from llm_perf_opt.core.files import atomic_write_json, atomic_write_text
from llm_perf_opt.core.secrets import mask_tree
from llm_perf_opt.core.version import __version__
from llm_perf_opt.process import tools as checks
from llm_perf_opt.vendor.ncu.command import DEFAULT_SECTIONS, accept_sections, estimated_passes
from llm_perf_opt.vendor.ncu.probe import NcuCapabilities, probe_ncu
from llm_perf_opt.vendor.ncu.run import (
    NcuRequest,
    NcuRunResult,
    export_pages,
    run_ncu,
)
from llm_perf_opt.vendor.ncu.targets import (
    KernelTime,
    kernel_filter,
    missing_targets,
    read_kernel_summary,
    select_targets,
)
from llm_perf_opt.vendor.workload import Workload, replay_lines

PROFILE_USAGE = "%(prog)s [options] -- PROGRAM [ARGUMENT …]"


@dataclass(frozen=True, slots=True)
class KernelList:
    """What a ``--kernel-config`` file says."""

    names: list[str]
    regex: str | None
    """The filter for all of them."""


# --- ncu-profile -----------------------------------------------------------------------------------------


def profile_main(argv: Sequence[str] | None = None, prog: str = "llm-perf-opt ncu-profile") -> int:
    """Profile kernels of any program; return an exit code (see ``llm_perf_opt.core.errors``)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    own, program = _split_program(arguments)
    options = _profile_parser(prog).parse_args(own)
    try:
        return _profile(options, program)
    except LlmPerfError as error:
        return print_error(error)


def _split_program(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return list(arguments), []
    place = list(arguments).index("--")
    return list(arguments[:place]), list(arguments[place + 1 :])


def _profile_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=PROFILE_USAGE,
        description="Profile chosen kernels of any program with Nsight Compute, without the pipeline.",
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--kernel-regex", metavar="REGEX", help="profile kernels whose name matches")
    chosen.add_argument(
        "--kernel-config", type=Path, metavar="YAML", help="kernels as top-kernels writes them"
    )
    parser.add_argument("--topk", type=_positive, metavar="N", help="only the first N of --kernel-config")
    parser.add_argument(
        "--extra-sections", nargs="+", default=[], metavar="SECTION", action="extend",
        help=f"besides {', '.join(DEFAULT_SECTIONS)}",
    )  # fmt: skip
    parser.add_argument(
        "--metrics", help="also these metrics, comma-separated (default: those of the sections)"
    )
    parser.add_argument("--launch-skip", type=int, metavar="N", help="matching launches to leave out first")
    parser.add_argument(
        "--launch-count", type=_positive, metavar="N", help="most launches to profile (default: 1)"
    )
    parser.add_argument("--kernel-name-base", choices=["function", "demangled", "mangled"])
    parser.add_argument(
        "--nvtx-include", action="append", default=[], metavar="RANGE", help="only inside this range"
    )
    parser.add_argument("--output-dir", type=Path, metavar="DIR", help="default: ncu-<time>")
    parser.add_argument("--ncu", metavar="PATH", help="which ncu")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", default=1800.0)
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]",
        help="hand this variable to the program; it gets an allow-listed environment otherwise",
    )  # fmt: skip
    parser.add_argument("--no-csv", action="store_true", help="write only the report")
    parser.add_argument("--dry-run", action="store_true", help="print the command and stop")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _profile(options: argparse.Namespace, program: list[str]) -> int:
    if not program:
        raise ConfigError("no program to profile", hint="put it after --: … -- ./bench --size 2048")
    executable = checks.find_tool("ncu", options.ncu)
    if executable is None:
        raise checks.missing_tool("ncu", options.ncu)
    capabilities = probe_ncu(executable)
    kernels = _kernels(options)
    folder = (options.output_dir or Path(f"ncu-{datetime.now():%Y%m%d-%H%M%S}")).absolute()
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
        metrics=tuple(part for part in (options.metrics or "").split(",") if part),
        filter_mode="per-launch-config" if per_config else None,
        launch_skip=options.launch_skip,
        launch_count=1 if per_config else count or 20 * len(kernels.names),
        timeout_s=options.timeout,
    )
    return request, list(sections.warnings)


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
    """Record what was run, with what, and what came of it."""
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
    atomic_write_json(folder / "provenance.json", mask_tree(record))
    lines = replay_lines(request.command(), cwd=request.workload.cwd, env=request.workload.added_env)
    atomic_write_text(folder / "cmd.txt", f"# Nsight Compute {capabilities.version_text}\n\n{lines}\n")


def _conclude(result: NcuRunResult, folder: Path, kernels: KernelList) -> int:
    if result.kernels is not None and kernels.names and result.kernels:
        missing = missing_targets(kernels.names, result.kernels)
        if missing:
            print(f"warning: not profiled: {len(missing)} of {len(kernels.names)} kernels", file=sys.stderr)
    if result.fault is not None:
        none = "check --kernel-regex, --nvtx-include and that the program launches kernels"
        fix = none if result.fault.kind == "no-kernels" else result.fault.fix
        error = ToolError(result.fault.message, hint=fix)
        code = print_error(error)
        return code if result.fault.status == "failed" else 0
    print(f"written: {folder}")
    print(f"read it with: llm-perf-opt ingest --ncu {folder} --out report")
    return 0


# --- top-kernels -----------------------------------------------------------------------------------------


def extract_main(argv: Sequence[str] | None = None, prog: str = "llm-perf-opt top-kernels") -> int:
    """Write the top kernels of an nsys summary as YAML; return an exit code."""
    parser = argparse.ArgumentParser(prog=prog, description="List the top kernels of an nsys kernel summary.")
    parser.add_argument("summary", type=Path, help="nsys/summary.csv, or what nsys stats writes")
    parser.add_argument("-o", "--output", type=Path, help="YAML file (default: print it)")
    parser.add_argument("--topk", type=_positive, default=30, metavar="N")
    parser.add_argument("--until-share", type=float, metavar="SHARE", help="stop at this share of time (0.9)")
    options = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
    try:
        if not options.summary.is_file():
            raise InputError(
                f"{options.summary} does not exist", hint="give the kernel summary of nsys stats"
            )
        text = kernel_list_yaml(read_kernel_summary(options.summary), options.topk, options.until_share)
        if options.output is None:
            print(text, end="")
        else:
            atomic_write_text(options.output, text)
            print(f"written: {options.output}")
    except LlmPerfError as error:
        return print_error(error)
    return 0


def kernel_list_yaml(kernels: Sequence[KernelTime], top_n: int, until_share: float | None = None) -> str:
    """Return the kernels that take the most time, with a filter for each and for all, as YAML."""
    import yaml

    from llm_perf_opt.analysis.kernels.match import name_md5

    names = [kernel.name for kernel in kernels]
    times = {kernel.name: kernel for kernel in kernels}
    targets = select_targets({"": list(kernels)}, top_n=top_n, until_share=until_share)
    content = {
        "kernel_regex": kernel_filter([target.name for target in targets], names) or "",
        "kernels": [
            {
                "rank": rank,
                "name": target.name,
                "regex": kernel_filter([target.name], names),
                "md5": name_md5(target.name),
                "share_ratio": round(target.share_ratio, 6),
                "total_s": times[target.name].total_ns / 1e9,
                "launches": target.launches,
            }
            for rank, target in enumerate(targets, start=1)
        ],
    }
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=10**9))


def read_kernel_list(path: Path, top_n: int | None = None) -> KernelList:
    """Read a kernel list: ``kernels`` as names, or as entries with ``name`` and, if wanted, ``regex``."""
    import yaml

    hint = "make one with: llm-perf-opt top-kernels summary.csv -o kernels.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot read {path}: {error}", hint=hint, path=str(path)) from error
    entries = content.get("kernels") if isinstance(content, dict) else content
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path} has no list 'kernels'", hint=hint, path=str(path))
    entries = entries[:top_n]
    names = [str(entry.get("name", "") if isinstance(entry, dict) else entry) for entry in entries]
    given = [entry.get("regex") if isinstance(entry, dict) else None for entry in entries]
    parts = [
        str(regex) if regex else kernel_filter([name], names)
        for regex, name in zip(given, names, strict=True)
        if regex or name
    ]
    if not parts:
        raise InputError(f"{path}: no kernel has a name or a regex", hint=hint, path=str(path))
    return KernelList([name for name in names if name], "|".join(f"({part})" for part in parts))
