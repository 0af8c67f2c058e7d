"""Command lines of Nsight Systems. Pure: nothing is run, no file is read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import ConfigError

_REGISTER_ONLY = "NSYS_NVTX_PROFILER_REGISTER_ONLY"
"""Set to 0, nsys also matches plain strings (``torch.cuda.nvtx``) against ``--nvtx-capture``."""
_CAPTURE_RANGES = ("none", "nvtx", "cudaProfilerApi", "hotkey")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysOptions:
    """How one capture is made."""

    executable: str = "nsys"
    label: str | None = None
    """One exact range name, optionally ``range@domain``."""
    capture_range: str = "none"
    capture_range_end: str | None = None
    trace: str = "cuda,nvtx,osrt"
    sample: str | None = "none"
    """Passed even as ``none``: left out, nsys samples the CPU (and 2022.4 then hangs). ``cpuctxsw`` likewise."""
    cpuctxsw: str | None = "none"
    cuda_graph_trace: str | None = None
    """Passed where CUDA is traced."""
    domain_include: Sequence[str] = ()
    domain_exclude: Sequence[str] = ()
    session: str | None = None
    rank: int | None = None
    """Of a capture for each of several ranks: the output base ends with ``rank<rank>``; nsys is given the variable in its
    place, so that the command is the same for all ranks."""
    force_overwrite: bool = True
    extra_args: Sequence[str] = ()

    def argv(
        self, out_base: Path | str, work_argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> list[str]:
        """Return the argument list of one capture.

        The output base is made absolute, because nsys resolves it against its own directory.
        """
        include, exclude = self.domain_include, self.domain_exclude
        if include and exclude:
            raise ConfigError(
                "nvtx_domain_include and nvtx_domain_exclude exclude each other",
                hint="give only one of them",
                key="pipeline.nsys.nvtx_domain_include",
            )
        command = [self.executable, "profile", f"--trace={self.trace}"]
        command += [f"--sample={self.sample}"] if self.sample else []
        command += [f"--cpuctxsw={self.cpuctxsw}"] if self.cpuctxsw else []
        if self.cuda_graph_trace and "cuda" in self.trace.split(","):
            command.append(f"--cuda-graph-trace={self.cuda_graph_trace}")
        command += _gating_flags(self.label, self.capture_range, self.capture_range_end)
        command += [f"--nvtx-domain-include={','.join(map(_escape_domain, include))}"] if include else []
        command += [f"--nvtx-domain-exclude={','.join(map(_escape_domain, exclude))}"] if exclude else []
        command += ["-e", _environment_list({_REGISTER_ONLY: "0", **(env or {})})]
        command += [f"--session-new={self.session}"] if self.session else []
        command += [f"--force-overwrite={'true' if self.force_overwrite else 'false'}"]
        # In file names nsys replaces %p, %h, %q{…}; a doubled percent sign is literal.
        output = str(Path(out_base).absolute()).replace("%", "%%")
        if self.rank is not None:
            output = f"{output.removesuffix(str(self.rank))}%q{{RANK}}"
        return [*command, "-o", output, *self.extra_args, *work_argv]


def build_nsys_cmd(
    out_base: Path | str,
    work_argv: Sequence[str],
    *,
    nvtx_capture: str | None = None,
    trace: str | Sequence[str] = "cuda,nvtx,osrt",
    capture: str | None = None,
    capture_end: str | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> list[str]:
    """Return :meth:`NsysOptions.argv` from plain keywords; ``options``: other fields of :class:`NsysOptions`.

    ``nvtx_capture``: ``None`` or ``"none"``: no gating by a range. ``capture`` defaults to ``nvtx`` with a range and to no
    gating without.
    """
    label = None if nvtx_capture == "none" else nvtx_capture or None
    if nvtx_capture == "none" and capture == "nvtx":
        capture = capture_end = None
    chosen = NsysOptions(
        label=label,
        capture_range=capture or ("nvtx" if label else "none"),
        capture_range_end=capture_end,
        trace=trace if isinstance(trace, str) else ",".join(trace),
        **options,
    )
    return chosen.argv(out_base, work_argv, env)


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
    """Return the command that turns a raw stream into a report, as nsys does at the end of a capture."""
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
    """Raise :class:`ConfigError` for gating that nsys would reject, or that would silently never open."""
    if capture_range not in _CAPTURE_RANGES:
        raise ConfigError(
            f"pipeline.nsys.capture_range={capture_range} is not one of {', '.join(_CAPTURE_RANGES)}",
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
    """Reject a label that nsys can never match: it compares names exactly, without a warning."""

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
    """Reject an extra option that has its own key (nsys accepts each once), or that nsys does not have."""
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


def _gating_flags(label: str | None, capture_range: str, capture_range_end: str | None) -> list[str]:
    check_capture(capture_range, [label] if label else [], capture_range_end)
    if capture_range == "none":
        return []
    flags = [f"--capture-range={capture_range}"]
    flags += [f"--nvtx-capture={label}"] if capture_range == "nvtx" else []
    return flags + ([f"--capture-range-end={capture_range_end}"] if capture_range_end else [])


def _environment_list(env: Mapping[str, str]) -> str:
    """Join variables as nsys requires: a single option, split at commas, without escapes."""
    for name, value in env.items():
        if "," in value or "\n" in value:
            raise ConfigError(
                f"nsys cannot pass {name} to the program: its value has a comma or a line break",
                hint=f"set {name} in the environment before the run instead",
            )
    return ",".join(f"{name}={value}" for name, value in env.items())


def _escape_domain(name: str) -> str:
    return name.replace(",", r"\,")
