"""``llm-perf-opt top-kernels``, also shipped as a script: an nsys kernel summary as a list for ``ncu-profile``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.console.command_line import VerbParser, exit_codes, print_error, share, whole_number
from llm_perf_opt.core.errors import InputError, LlmPerfError
from llm_perf_opt.core.files import atomic_write_text, parse_yaml, read_document
from llm_perf_opt.stages.ncu.targets import KernelTime, kernel_filter, read_kernel_summary, select_targets


@dataclass(frozen=True, slots=True)
class KernelList:
    """Content of a ``--kernel-config`` file."""

    names: list[str]
    regex: str | None
    """The filter for all of them."""


def extract_main(argv: Sequence[str] | None = None, prog: str = "llm-perf-opt top-kernels") -> int:
    """Write the top kernels of an nsys summary as YAML; return an exit code."""
    parser = VerbParser(
        prog=prog,
        description="List the top kernels of an nsys kernel summary.",
        epilog=exit_codes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("summary", type=Path, help="nsys/summary.csv, or what nsys stats writes")
    parser.add_argument("-o", "--output", type=Path, help="YAML file (default: print it)")
    parser.add_argument("--topk", type=whole_number(1), default=30, metavar="N")
    parser.add_argument("--until-share", type=share, metavar="SHARE", help="stop at this share of time (0.9)")
    try:
        options = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
        if not options.summary.is_file():
            raise InputError(
                f"{options.summary} does not exist", hint="give the kernel summary of nsys stats"
            )
        text = _kernel_list_yaml(read_kernel_summary(options.summary), options.topk, options.until_share)
        if options.output is None:
            print(text, end="")
        else:
            atomic_write_text(options.output, text)
            print(f"written: {options.output}")
    except LlmPerfError as error:
        return print_error(error)
    return 0


def _kernel_list_yaml(kernels: Sequence[KernelTime], top_n: int, until_share: float | None = None) -> str:
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
    hint = "make one with: llm-perf-opt top-kernels summary.csv -o kernels.yaml"
    try:
        content = parse_yaml(read_document(path))
    except (OSError, ValueError) as error:
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
