"""Device limits as data: the shipped catalogue, a user's own YAML next to it, and matching by driver name.

A name that no pattern matches in full has no limits: "RTX 4090 Laptop GPU" or a MIG slice of an A100 is
another device, and a wrong peak is worse than none.
"""

from __future__ import annotations

import difflib
import functools
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.files import packaged_yaml, parse_yaml, read_document
from llm_perf_opt.core.units import canonical_dtype, dtype_bytes
from llm_perf_opt.summary import Hardware, Peak

# Frameworks and kernels of the measured tables, with their usual names.


_FRAMEWORKS = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
    "nccl": "NCCL",
    "oneccl": "oneCCL",
}
_KERNELS = {
    "torch.nn.functional.linear": "cuBLAS",
    "sglang_torch_linear": "cuBLAS",
    "CutlassFP8ScaledMMLinearKernel": "CUTLASS",
    "vllm_flash_attn_fa2": "FlashAttention 2",
    "vllm_flash_attn_fa3": "FlashAttention 3",
    "vllm_flash_attn_fa4": "FlashAttention 4",
    "fa3": "FlashAttention 3",
    "vllm_vit_flash_attn_fa2": "FlashAttention 2",
    "vllm_vit_flash_attn_fa3": "FlashAttention 3",
    "vllm_vit_flash_attn_fa4": "FlashAttention 4",
    "flash_attention_v3": "FlashAttention 3",
    "flash_attention_v4": "FlashAttention 4",
    **dict.fromkeys(("torch_flow", "default", "sglang", "vllm_default"), ""),
}
"""Names that mean something to a reader; empty: says no more than the framework does."""


def _framework_name(framework: str) -> str:
    """Return ``vLLM`` for ``vllm``."""
    return _FRAMEWORKS.get(framework, framework)


def describe_framework(framework: str, version: str, kernel: str = "") -> str:
    """Return ``vLLM 0.24, cuBLAS``."""
    name = f"{_framework_name(framework)} {version.removesuffix('.0')}"
    kernel = _KERNELS.get(kernel, kernel)
    return f"{name}, {kernel}" if kernel else name


# Best measured rate of a device, next to its data-sheet peak.
#
# The figures ship as data (``reached.yaml``), taken from public tables of measured operators, so that the tables are not needed
# at run time. ``docs/hardware.md`` describes how they are made and checked.


_BANDWIDTH = "bandwidth"


@dataclass(frozen=True, slots=True)
class Reached:
    """Best measured rates of one device; unmeasured ones are absent."""

    flops_per_s: Mapping[str, Peak] = field(default_factory=dict)
    bandwidth_bytes_per_s: float | None = None
    bandwidth_source: str | None = None


def _reached_by(device: str, peaks: Mapping[str, Peak]) -> Reached:
    """Return the best measured rates of a catalogue device; empty if there is no table.

    Tables measure sixteen bits as bfloat16. Where the data sheet gives float16 the same peak, the same was reached.
    """
    content = _content()
    rows: dict[str, dict[str, Any]] = content["devices"].get(device, {})
    package = content["package"]
    found = {
        dtype: Peak(row["rate"] * 1e12, _source(row, package))
        for dtype, row in rows.items()
        if dtype != _BANDWIDTH
    }
    if "bfloat16" in found and _same_peak(peaks, "bfloat16", "float16"):
        found.setdefault("float16", found["bfloat16"])
    streamed = rows.get(_BANDWIDTH)
    if streamed is None:
        return Reached(found)
    return Reached(found, streamed["rate"] * 1e9, _source(streamed, package))


def _same_peak(peaks: Mapping[str, Peak], first: str, second: str) -> bool:
    return first in peaks and second in peaks and peaks[first].dense == peaks[second].dense


def _source(row: Mapping[str, Any], package: str) -> str:
    framework, _, rest = row["by"].partition(" ")
    return f"best measured: {_framework_name(framework)} {rest}, {row['shape']} ({package})"


@functools.cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = packaged_yaml("llm_perf_opt.hardware", "reached.yaml")
    return content


# One device of the catalogue: its names, its limits, and the source of each limit.


Origin = Literal["catalogue", "user"]


@dataclass(frozen=True, slots=True)
class Device:
    """One entry of the catalogue."""

    name: str
    kind: Literal["gpu", "cpu"]
    patterns: tuple[re.Pattern[str], ...]
    peaks: Mapping[str, Peak]
    """Data type → dense peak; ``…_accumulate_float16`` is the rate with float16 accumulation."""
    bandwidth_bytes_per_s: float | None
    bandwidth_source: str | None
    memory_bytes: float | None
    memory_source: str | None
    origin: Origin
    note: str | None = None
    link_bytes_per_s: float | None = None
    """To other devices of the machine, one direction, all links together."""
    link_source: str | None = None

    def matches(self, reported: str) -> bool:
        """Return whether a driver's name matches this device, in full and ignoring case."""
        return any(pattern.fullmatch(reported) for pattern in self.patterns)

    def to_hardware(self, reported: str | None = None) -> Hardware:
        """Return the limits as they go into a summary; ``reported`` is the driver's name, when there is one."""
        # A user's own entry is another device, whatever its name: our measurements do not apply.
        reached = _reached_by(self.name, self.peaks) if self.origin == "catalogue" else Reached()
        return Hardware(
            name=reported or self.name,
            kind=self.kind,
            peak_flops_per_s=dict(self.peaks),
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
            source=self.origin,
            memory_bytes=self.memory_bytes,
            bandwidth_source=self.bandwidth_source,
            link_bytes_per_s=self.link_bytes_per_s,
            link_source=self.link_source,
            reached_flops_per_s=dict(reached.flops_per_s),
            reached_bandwidth_bytes_per_s=reached.bandwidth_bytes_per_s,
            reached_bandwidth_source=reached.bandwidth_source,
        )


# Entries of a catalogue file, the shipped one and a user's, turned into devices; errors name the mistake.
#
# An entry gives its figures in one of two ways. ``printed``: what each document prints, and the first document that
# prints a figure is used. Or directly, with one ``source`` for all of them, which is enough for a lab's own file.


_COMMON_KEYS = frozenset(("name", "kind", "match", "note"))
_MEMORY_KEYS = ("memory_gib", "bandwidth_gb_per_s", "link_gb_per_s")
_DIRECT_KEYS = frozenset((*_MEMORY_KEYS, "source", "peaks"))
_FORMS = {"value": "", "sparse": "with 2:4 sparsity", "package": "for the package of two"}
_KEYS = _COMMON_KEYS | _DIRECT_KEYS | {"printed"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of an entry, in the unit of its key, and where it is printed."""

    value: float
    source: str


def _parse_device(entry: Any, origin: Origin, where: str, titles: Mapping[str, str]) -> Device:
    """Read one entry; :class:`ConfigError` names the device and the key."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise bad(where, "every device needs a 'name'")
    name = entry["name"]
    here = f"{where}: device '{name}'"
    unknown = sorted(map(str, set(entry) - _KEYS))
    if unknown:
        raise bad(here, f"unknown key '{unknown[0]}' (known: {', '.join(sorted(_KEYS))})")
    kind = entry.get("kind", "gpu")
    if kind not in ("gpu", "cpu"):
        raise bad(here, f"kind must be gpu or cpu, not {reprlib.repr(kind)}")
    if not isinstance(entry.get("note", ""), str | None):
        raise bad(here, "'note' must be text")
    figures = (
        _parse_printed_figures(entry, here, titles)
        if "printed" in entry
        else _parse_direct_figures(entry, here, titles)
    )
    memory, bandwidth, link = (figures.pop(key, None) for key in _MEMORY_KEYS)
    return Device(
        name=name,
        kind="gpu" if kind == "gpu" else "cpu",
        patterns=patterns(entry.get("match", [re.escape(name)]), here),
        peaks={key: Peak(dense=found.value * 1e12, source=found.source) for key, found in figures.items()},
        bandwidth_bytes_per_s=bandwidth.value * 1e9 if bandwidth else None,
        bandwidth_source=bandwidth.source if bandwidth else None,
        memory_bytes=memory.value * 2.0**30 if memory else None,
        memory_source=memory.source if memory else None,
        link_bytes_per_s=link.value * 1e9 if link else None,
        link_source=link.source if link else None,
        origin=origin,
        note=entry.get("note"),
    )


def _parse_printed_figures(
    entry: Mapping[str, Any], here: str, titles: Mapping[str, str]
) -> dict[str, Figure]:
    """The figures of ``printed``: of each, the one of the first document that has it."""
    both = sorted(_DIRECT_KEYS & set(entry))
    if both:
        raise bad(here, f"'printed' and '{both[0]}' exclude one another")
    found: dict[str, Figure] = {}
    for document, figures in mapping(entry["printed"], here, "printed").items():
        title = titles.get(str(document), str(document))
        seen: set[str] = set()
        for key, given in mapping(figures, here, f"printed.{document}").items():
            name = key if key in _MEMORY_KEYS else _dtype(key, here, f"printed.{document}")
            if name in seen:
                raise bad(here, f"printed.{document} gives {name} twice")
            seen.add(name)
            figure = _read_figure(given, here, f"printed.{document}.{key}", title, titles)
            if figure is not None:
                found.setdefault(name, figure)
    if not found:
        raise bad(here, "'printed' contains no figure")
    return found


def _parse_direct_figures(
    entry: Mapping[str, Any], here: str, titles: Mapping[str, str]
) -> dict[str, Figure]:
    source = _title(entry.get("source"), titles)
    if not source:
        raise bad(here, "needs a 'source': the document its numbers come from")
    given: dict[str, Any] = {key: entry.get(key) for key in _MEMORY_KEYS}
    for key, value in mapping(entry.get("peaks") or {}, here, "peaks").items():
        name = _dtype(key, here, "peaks")
        if name in given:
            raise bad(here, f"peaks gives {name} twice")
        given[name] = value
    read = {key: _read_figure(value, here, key, source, titles) for key, value in given.items()}
    return {key: figure for key, figure in read.items() if figure is not None}


def _read_figure(given: Any, here: str, key: str, source: str, titles: Mapping[str, str]) -> Figure | None:
    """Read ``number``, ``{value, source}``, ``{sparse}`` (twice the dense peak) or ``{package}`` (two devices)."""
    if not isinstance(given, dict):
        number = _parse_number(given, here, key)
        return None if number is None else Figure(number, source)
    forms = [form for form in given if form != "source"]
    if len(forms) != 1 or forms[0] not in _FORMS:
        raise bad(here, f"{key} must be a number, {{value: …}}, {{sparse: …}} or {{package: …}}")
    form, source = forms[0], _title(given.get("source"), titles) or source
    number = _parse_number(given[form], here, key)
    if form == "sparse" and key.rpartition(".")[2] in _MEMORY_KEYS:
        raise bad(here, f"{key}: only rates of arithmetic can be sparse")
    if number is None or form == "value":
        return None if number is None else Figure(number, source)
    return Figure(number / 2, f"{source}: half of the printed {number:g} {_FORMS[form]}")


def _dtype(key: Any, here: str, where: str) -> str:
    dtype = canonical_dtype(str(key))
    if dtype_bytes(dtype) is None:
        raise bad(here, f"{where}: unknown data type '{key}'")
    return dtype


def _parse_number(value: Any, here: str, key: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise bad(here, f"{key} must be a positive number, not {reprlib.repr(value)}")
    return float(value)


def patterns(value: Any, here: str) -> tuple[re.Pattern[str], ...]:
    """Compile what must match a driver's name in full."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
        raise bad(here, "'match' must be a list of regular expressions")
    try:
        return tuple(re.compile(item, re.IGNORECASE) for item in given)
    except (re.error, OverflowError, RecursionError) as error:
        raise bad(here, f"'match' has a bad regular expression: {error}") from error


def _document_titles(value: Any, here: str) -> dict[str, str]:
    """Return key → title of ``documents``; a document is its title, or a mapping that has one."""
    titles: dict[str, str] = {}
    for key, document in mapping(value, here, "documents").items():
        title = document.get("title") if isinstance(document, dict) else document
        if not isinstance(title, str):
            raise bad(here, f"documents.{key} must be a title, or a mapping with a 'title'")
        titles[str(key)] = title
    return titles


def mapping(value: Any, here: str, key: str) -> dict[str, Any]:
    """Return a mapping ; anything else is an error."""
    if not isinstance(value, dict):
        raise bad(here, f"'{key}' must be a mapping")
    return value


def _title(key: Any, titles: Mapping[str, str]) -> str | None:
    return titles.get(str(key), str(key)) if key and isinstance(key, str | int) else None


def bad(where: str, message: str) -> ConfigError:
    """Return an error for a catalogue file."""
    return ConfigError(
        f"hardware.catalogue: {where}: {message}",
        hint="see docs/hardware.md for the format",
        key="hardware.catalogue",
    )


_MEMORY_TOLERANCE = 0.15
"""Drivers report a little less than the data sheet (ECC, reserved); more than this is another card."""


@dataclass(frozen=True, slots=True)
class Ambiguity:
    """A driver name shared by devices with different limits."""

    patterns: tuple[re.Pattern[str], ...]
    reason: str
    choose: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All known devices; later entries (a user's) take precedence."""

    devices: tuple[Device, ...]
    ambiguities: tuple[Ambiguity, ...] = ()

    def names(self) -> list[str]:
        """Return the names ``hardware.device`` accepts."""
        return [device.name for device in self.devices]

    def named(self, name: str) -> Device:
        """Return the device a user chose, by its name here or by a driver's; :class:`ConfigError` if unknown."""
        wanted = " ".join(name.split())
        for device in reversed(self.devices):
            if device.name.casefold() == wanted.casefold() or device.matches(wanted):
                return device
        # "RTX 5090" for "NVIDIA GeForce RTX 5090": a suffix, if it is unique.
        ending = [d for d in self.devices if d.name.casefold().endswith(" " + wanted.casefold())]
        if len(ending) == 1:
            return ending[0]
        raise ConfigError(
            f"hardware.device='{name}' is not in the catalogue",
            hint=f"{self._suggestion(wanted)}; or add it with hardware.catalogue=FILE (docs/hardware.md)",
            key="hardware.device",
        )

    def look_up(self, reported: str, memory_bytes: float | None = None) -> tuple[Device | None, str | None]:
        """Return the device with this driver name, or the reason why there is none."""
        plain = " ".join(reported.split())
        for device in reversed(self.devices):
            if device.matches(plain):
                problem = _memory_mismatch(device, memory_bytes)
                return (None, problem) if problem else (device, None)
        for ambiguity in self.ambiguities:
            if any(pattern.fullmatch(plain) for pattern in ambiguity.patterns):
                choices = ", ".join(ambiguity.choose)
                return None, f"{ambiguity.reason}; choose one with hardware.device (one of: {choices})"
        how = "choose a device with hardware.device or add yours with hardware.catalogue"
        near = self._relatives(plain)
        return (
            None,
            f"'{plain}' is not in the hardware catalogue, and no other device's limits are assumed "
            f"({f'nearest: {near[0]}; ' if near else ''}{how})",
        )

    def _suggestion(self, wanted: str) -> str:
        near = self._nearest(wanted)
        return f"the nearest are: {', '.join(near)}" if near else "no device of the catalogue is near it"

    def _nearest(self, wanted: str) -> list[str]:
        # Users type a part of the name ("4090", "h100"); similar spellings come second.
        partial = [name for name in self.names() if wanted.casefold() in name.casefold()]
        near = self._relatives(wanted)
        if not near:  # a slip of the hand: the closest spelling among devices whose number is as long
            model = _designation(wanted)
            alike = [name for name in self.names() if model is None or model.is_series_of(_designation(name))]
            near = sorted(alike, key=functools.partial(_unlikeness, wanted))
        return list(dict.fromkeys([*partial, *near]))[:4]

    def _relatives(self, wanted: str) -> list[str]:
        """Return the devices of the same or a neighbouring model number: like letters alone do not make GB10 a GB200."""
        whole = wanted.partition(" MIG ")[0]
        model, words = _designation(whole), _words(whole)
        ranked = []
        for name in self.names():
            known = _designation(name)
            if model is None or known is None or not model.is_series_of(known):
                continue
            differing = sum(one != other for one, other in zip(model.number, known.number, strict=True))
            if differing <= 1:
                ranked.append((differing, model.suffix != known.suffix, len(words - _words(name)), name))
        return [name for *_, name in sorted(ranked, key=lambda one: one[:3])]


_DESIGNATION = re.compile(r"(?<![\w.])([a-z]{0,2})(\d{1,4})([a-z]{0,2})(?![\w.])")
_MEMORY = re.compile(r"\b(\d+ ?gi?b|hbm\w+|sxm\d?|mig)\b")
_EXPORT_NUMBER, _EXPORTED_NUMBER = "800", "100"
"""A800 and H800 are the A100 and H100 with slower links, for export."""


@dataclass(frozen=True, slots=True)
class _Designation:
    """Letters and number of a model: gb and 10, h and 100, nothing and 5090 of an RTX 5090 D, mi, 300 and x."""

    letters: str
    number: str
    suffix: str

    def is_series_of(self, other: _Designation | None) -> bool:
        return other is not None and self.letters == other.letters and len(self.number) == len(other.number)


def _words(name: str) -> set[str]:
    return set(re.findall(r"[\w.]+", name.casefold()))


def _designation(name: str) -> _Designation | None:
    plain = _MEMORY.sub(" ", re.sub(r"[^\w.]+", " ", name.casefold()))
    found = _DESIGNATION.search(re.sub(r"\brtx(?=\d)", "rtx ", plain))
    if found is None:
        return None
    letters, number, suffix = found.groups()
    if letters in ("a", "h") and number == _EXPORT_NUMBER:
        number = _EXPORTED_NUMBER
    return _Designation(letters, number, suffix)


def _unlikeness(wanted: str, name: str) -> float:
    """Return how far two spellings are apart, from 0 to 1."""
    pair = (_normalise_name(wanted), _normalise_name(name))
    return 1 - difflib.SequenceMatcher(None, *pair, autojunk=False).ratio()


def _normalise_name(name: str) -> str:
    """Normalise a name by removing common words, so that the model's letters and digits decide."""
    return re.sub(r"\b(nvidia|amd|geforce|instinct)\b|\W", "", name.casefold())


def _memory_mismatch(device: Device, memory_bytes: float | None) -> str | None:
    if memory_bytes is None or device.memory_bytes is None:
        return None
    if abs(memory_bytes / device.memory_bytes - 1) <= _MEMORY_TOLERANCE:
        return None
    seen, known = memory_bytes / 2**30, device.memory_bytes / 2**30
    return (
        f"the driver reports '{device.name}' but {seen:.1f} GiB of memory where the catalogue has {known:g} GiB: "
        "another variant, whose limits are not known; add it with hardware.catalogue"
    )


def load_catalogue(extra: Path | None = None) -> Catalogue:
    """Return the shipped devices, and those of a user's YAML file, which override shipped ones of the same name."""
    shipped = _shipped()
    if extra is None:
        return shipped
    own = _parse(_read_user_file(extra), "user", str(extra))
    replaced = {device.name.casefold() for device in own.devices}
    kept = tuple(device for device in shipped.devices if device.name.casefold() not in replaced)
    return Catalogue(kept + own.devices, own.ambiguities + shipped.ambiguities)


@functools.cache
def _shipped() -> Catalogue:
    return _parse(packaged_yaml("llm_perf_opt.hardware", "catalogue.yaml"), "catalogue", "catalogue.yaml")


def _read_user_file(path: Path) -> Any:
    hint = "give hardware.catalogue a YAML file as described in docs/hardware.md"
    try:
        return parse_yaml(read_document(path))
    except OSError as error:
        raise ConfigError(
            f"hardware.catalogue: cannot read {path}: {error.strerror}", hint=hint, key="hardware.catalogue"
        ) from error
    except InputError as error:
        raise ConfigError(
            f"hardware.catalogue: {error.message}", hint=hint, key="hardware.catalogue"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"hardware.catalogue: {path} is not valid YAML: {error}", hint=hint, key="hardware.catalogue"
        ) from error


def _parse(value: Any, origin: Origin, where: str) -> Catalogue:
    if not isinstance(value, dict) or not isinstance(value.get("devices"), list):
        raise bad(where, "the file must have a list 'devices'")
    titles = _document_titles(value.get("documents") or {}, where)
    devices = tuple(_parse_device(entry, origin, where, titles) for entry in value["devices"])
    ambiguous = value.get("ambiguous") or []
    if not isinstance(ambiguous, list):
        raise bad(where, "'ambiguous' must be a list")
    return Catalogue(devices, tuple(_ambiguity(entry, where) for entry in ambiguous))


def _ambiguity(entry: Any, where: str) -> Ambiguity:
    if not isinstance(entry, dict) or not all(entry.get(key) for key in ("match", "reason", "choose")):
        raise bad(where, "every item of 'ambiguous' needs 'match', 'reason' and 'choose'")
    choose = entry["choose"] if isinstance(entry["choose"], list) else [entry["choose"]]
    if not all(isinstance(item, str) for item in (entry["reason"], *choose)):
        raise bad(where, "'reason' and 'choose' of 'ambiguous' must be text")
    return Ambiguity(patterns(entry["match"], where), entry["reason"], tuple(choose))
