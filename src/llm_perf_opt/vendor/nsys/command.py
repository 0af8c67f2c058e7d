"""Command lines of Nsight Systems. Pure: nothing is run, no file is looked at."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from llm_perf_opt.core.errors import ConfigError

REGISTER_ONLY = "NSYS_NVTX_PROFILER_REGISTER_ONLY"
"""Set to 0, nsys also matches plain strings (``torch.cuda.nvtx``) against ``--nvtx-capture``."""

CAPTURE_RANGES = ("none", "nvtx", "cudaProfilerApi", "hotkey")

_OWN_OPTIONS = {
    **dict.fromkeys(("t", "trace"), "pipeline.nsys.trace"),
    **dict.fromkeys(("s", "sample"), "pipeline.nsys.sample"),
    **dict.fromkeys(("c", "capture-range"), "pipeline.nsys.capture_range"),
    **dict.fromkeys(("p", "nvtx-capture"), "pipeline.nsys.nvtx_capture"),
    **dict.fromkeys(("f", "force-overwrite"), "pipeline.nsys.force_overwrite"),
    **dict.fromkeys(("o", "output"), "artifacts.runs_dir"),
    **dict.fromkeys(("e", "env-var"), "the environment of the run"),
    "cpuctxsw": "pipeline.nsys.cpuctxsw",
    "capture-range-end": "pipeline.nsys.capture_range_end",
    "nvtx-domain-include": "pipeline.nsys.nvtx_domain_include",
    "nvtx-domain-exclude": "pipeline.nsys.nvtx_domain_exclude",
    "session-new": "the stage itself",
}
"""Option → where its value comes from; nsys refuses an option given twice."""

_CAPTURE_END = re.compile(r"none|stop|stop-shutdown|repeat(:[1-9]\d*)?(:sync)?|repeat-shutdown:[1-9]\d*")
_REGEX_SIGNS = re.compile(r"^regex:|^\^|\$$|\.[*+?]|\||\\[dws]|\[[^\]]*\][*+]")


def build_nsys_cmd(
    out_base: Path | str,
    work_argv: Sequence[str],
    *,
    nvtx_capture: str | None = None,
    trace: str | Sequence[str] = "cuda,nvtx,osrt",
    sample: str | None = "none",
    cpuctxsw: str | None = "none",
    cuda_graph_trace: str | None = None,
    capture: str | None = None,
    capture_end: str | None = None,
    domain_include: Sequence[str] = (),
    domain_exclude: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    session: str | None = None,
    rank: int | None = None,
    force_overwrite: bool = True,
    extra_args: Sequence[str] = (),
    executable: str = "nsys",
) -> list[str]:
    """Return the argument list of one capture.

    ``nvtx_capture`` is one exact range name, optionally ``range@domain``; ``None`` or ``"none"``: no gating.
    ``capture`` defaults to ``nvtx`` with a label and to no gating without. ``sample`` and ``cpuctxsw`` are
    passed even as ``none``: left out, nsys samples the CPU (and 2022.4 then hangs). ``cuda_graph_trace`` is passed where
    CUDA is traced. The output base is made
    absolute, because nsys resolves it against its own directory. ``rank``: the base ends with ``rank<rank>``; nsys is given
    the variable in its place, so that the command is the same for all ranks.
    """
    include, exclude = list(domain_include), list(domain_exclude)
    if include and exclude:
        raise ConfigError(
            "nvtx_domain_include and nvtx_domain_exclude exclude each other",
            hint="give only one of them",
            key="pipeline.nsys.nvtx_domain_include",
        )
    command = [executable, "profile", f"--trace={trace if isinstance(trace, str) else ','.join(trace)}"]
    command += [f"--sample={sample}"] if sample else []
    command += [f"--cpuctxsw={cpuctxsw}"] if cpuctxsw else []
    traced = trace.split(",") if isinstance(trace, str) else list(trace)
    command += [f"--cuda-graph-trace={cuda_graph_trace}"] if cuda_graph_trace and "cuda" in traced else []
    command += _gating_flags(nvtx_capture, capture, capture_end)
    command += [f"--nvtx-domain-include={','.join(map(_escape_domain, include))}"] if include else []
    command += [f"--nvtx-domain-exclude={','.join(map(_escape_domain, exclude))}"] if exclude else []
    command += ["-e", _environment_list({REGISTER_ONLY: "0", **(env or {})})]
    command += [f"--session-new={session}"] if session else []
    command += [f"--force-overwrite={'true' if force_overwrite else 'false'}"]
    # In a file name nsys replaces %p, %h, %q{…}; a doubled one stands for itself.
    output = str(Path(out_base).absolute()).replace("%", "%%")
    if rank is not None:
        output = f"{output.removesuffix(str(rank))}%q{{RANK}}"
    command += ["-o", output]
    return [*command, *extra_args, *work_argv]


def build_export_cmd(report: Path, sqlite: Path, *, executable: str = "nsys") -> list[str]:
    """Return the command that turns a report into SQLite."""
    return [
        executable,
        "export",
        "--type=sqlite",
        "--force-overwrite=true",
        f"--output={sqlite}",
        str(report),
    ]


def build_import_cmd(importer: Path, stream: Path, report: Path) -> list[str]:
    """Return the command that turns a raw stream into a report, as nsys itself calls it at the end of a capture."""
    return [str(importer), "--input-file", str(stream), "--output-file", str(report), "--force-overwrite"]


def build_stats_cmd(
    source: Path, reports: Sequence[str], base: str = "summary", *, executable: str = "nsys"
) -> list[str]:
    """Return the command that writes ``<base>_<report>.csv`` for each report, into the current directory.

    The base is relative on purpose: nsys splits ``--output`` at commas, so a directory must not be in it.
    """
    command = [executable, "stats"]
    for name in reports:
        command += ["--report", name]
    return [*command, "--format", "csv", "--force-overwrite", "true", "--output", base, str(source)]


def build_shutdown_cmd(session: str, *, executable: str = "nsys") -> list[str]:
    """Return the command that ends a session's agent and target, also when nsys itself was killed."""
    return [executable, "shutdown", "--kill", "sigkill", f"--session={session}"]


def check_capture(
    capture_range: str, labels: Sequence[str], capture_range_end: str | None, *, gating: bool = True
) -> None:
    """Raise :class:`ConfigError` for gating that nsys would refuse, or silently never open."""
    if capture_range not in CAPTURE_RANGES:
        raise ConfigError(
            f"pipeline.nsys.capture_range={capture_range} is not one of {', '.join(CAPTURE_RANGES)}",
            hint="use nvtx with nvtx_capture=<range>, or none for the whole run",
            key="pipeline.nsys.capture_range",
        )
    if capture_range_end and not _CAPTURE_END.fullmatch(capture_range_end):
        raise ConfigError(
            f"pipeline.nsys.capture_range_end={capture_range_end} is not something nsys takes",
            hint="none, stop, stop-shutdown, repeat, repeat:N, repeat-shutdown:N, or null to leave it out",
            key="pipeline.nsys.capture_range_end",
        )
    if not gating or capture_range != "nvtx":
        return
    if not labels:
        raise ConfigError(
            "pipeline.nsys.capture_range=nvtx needs pipeline.nsys.nvtx_capture, which is empty",
            hint="name the range: pipeline.nsys.nvtx_capture=decode, or set pipeline.nsys.capture_range=none",
            key="pipeline.nsys.nvtx_capture",
        )
    for label in labels:
        check_label(label)


def graph_trace(
    wanted: str | None, known_flags: Collection[str], extra_args: Sequence[str] = ()
) -> str | None:
    """Return what ``--cuda-graph-trace`` gets; ``None``: this nsys does not have the option (before 2022), or it is not
    wanted, or given among ``extra_args``.

    ``node``: without it the kernels of a CUDA graph are one block without names.
    """
    given = any(word.split("=", 1)[0] == "--cuda-graph-trace" for word in extra_args)
    if wanted is None or given:
        return None
    return wanted if not known_flags or "cuda-graph-trace" in known_flags else None


def check_label(label: str) -> None:
    """Refuse a label that nsys can never match: it compares names exactly and stays silent otherwise."""

    def refuse(reason: str, hint: str) -> ConfigError:
        return ConfigError(
            f"pipeline.nsys.nvtx_capture='{label}' {reason}", hint=hint, key="pipeline.nsys.nvtx_capture"
        )

    name, domain = split_label(label)
    if not name.strip():
        raise refuse("names no range", "write range or range@domain, for example decode or decode@LLM")
    if "," in label:
        raise refuse(
            "is a list in one string: nsys takes one range per capture",
            f"write a list, which makes one capture each: nvtx_capture=[{label}]",
        )
    if _REGEX_SIGNS.search(name):
        raise refuse("is a regular expression: nsys matches names exactly", "write the range's exact name")
    if "*" in name:
        raise refuse(
            "is a glob: nsys matches range names exactly, only the domain may be *",
            f"write the exact name, for example {name.replace('*', '') or 'decode'}",
        )
    if domain is not None and domain != "*" and "*" in domain:
        raise refuse("has a glob as domain: it is one exact name, or * alone", f"write {name}@*")
    if label != label.strip():
        raise refuse("begins or ends with a space", f"write '{label.strip()}'")


def check_extra_args(extra_args: Sequence[str], known_flags: Collection[str] = ()) -> None:
    """Refuse an extra option that has a key of its own (nsys takes each once), or that nsys does not have."""
    for word in extra_args:
        if not word.startswith("-"):
            continue
        name = word.lstrip("-").split("=", 1)[0]
        owner = _OWN_OPTIONS.get(name if word.startswith("--") else word[1:2])
        if owner:
            raise ConfigError(
                f"pipeline.nsys.extra_args has {word}, which comes from {owner}",
                hint=f"remove it and use {owner}",
                key="pipeline.nsys.extra_args",
            )
        if word.startswith("--") and known_flags and name not in known_flags:
            raise ConfigError(
                f"pipeline.nsys.extra_args has --{name}, which this nsys does not know",
                hint="see nsys profile --help, or point pipeline.nsys.executable at another version",
                key="pipeline.nsys.extra_args",
            )


def split_label(label: str) -> tuple[str, str | None]:
    r"""Split ``range@domain`` at the last ``@`` that is not escaped as ``\@``."""
    match = re.search(r"(?<!\\)@(?!.*(?<!\\)@)", label, re.DOTALL)
    return (label[: match.start()], label[match.end() :]) if match else (label, None)


def output_names(labels: Sequence[str]) -> dict[str, str]:
    """Return label → base name of its files: ``run`` for one, ``run.<label>`` for several, all distinct."""
    if len(labels) <= 1:
        return dict.fromkeys(labels, "run")
    names: dict[str, str] = {}
    for label in labels:
        base = f"run.{re.sub(r'[^A-Za-z0-9_-]+', '-', label).strip('-') or 'range'}"
        number, name = 1, base
        while name.lower() in {taken.lower() for taken in names.values()}:
            number += 1
            name = f"{base}-{number}"
        names[label] = name
    return names


def _gating_flags(label: str | None, capture: str | None, capture_end: str | None) -> list[str]:
    if label == "none" and capture == "nvtx":
        return []
    gated = bool(label) and label != "none"
    kind = capture or ("nvtx" if gated else "none")
    check_capture(kind, [label] if label and gated else [], capture_end)
    if kind == "none":
        return []
    flags = [f"--capture-range={kind}"]
    flags += [f"--nvtx-capture={label}"] if kind == "nvtx" else []
    return flags + ([f"--capture-range-end={capture_end}"] if capture_end else [])


def _environment_list(env: Mapping[str, str]) -> str:
    """Join variables the one way nsys takes them: a single option, split at commas, without any escape."""
    for name, value in env.items():
        if "," in value or "\n" in value:
            raise ConfigError(
                f"nsys cannot pass {name} to the program: its value has a comma or a line break",
                hint=f"set {name} in the environment before the run instead",
            )
    return ",".join(f"{name}={value}" for name, value in env.items())


def _escape_domain(name: str) -> str:
    return name.replace(",", r"\,")
