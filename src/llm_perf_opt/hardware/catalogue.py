"""Device limits as data: the shipped catalogue, a user's own YAML beside it, and matching by driver name.

A name that no pattern matches in full has no limits: "RTX 4090 Laptop GPU" or a MIG slice of an A100 is
another device, and a wrong peak is worse than none.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml

from llm_perf_opt.analysis.roofline import canonical_dtype, dtype_bytes
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.summary.model import Hardware, Peak

Origin = Literal["catalogue", "user"]

_DEVICE_KEYS = frozenset(
    (
        "name",
        "kind",
        "match",
        "source",
        "memory_gib",
        "bandwidth_gb_per_s",
        "multiprocessors",
        "peaks",
        "note",
    )
)
_MEMORY_TOLERANCE = 0.15
"""Drivers report a little less than the data sheet (ECC, reserved); more than this is another card."""


@dataclass(frozen=True, slots=True)
class Device:
    """One entry of the catalogue."""

    name: str
    kind: Literal["gpu", "cpu"]
    patterns: tuple[re.Pattern[str], ...]
    peaks: Mapping[str, Peak]
    """Data type → dense peak; ``…_accumulate_float16`` is the rate with float16 accumulation."""
    bandwidth_bytes_per_s: float | None
    memory_bytes: float | None
    multiprocessors: int | None
    source: str
    """Document of the memory figures (peaks carry their own)."""
    origin: Origin
    note: str | None = None

    def matches(self, reported: str) -> bool:
        """Say whether a driver's name is this device, as a whole and without regard to case."""
        return any(pattern.fullmatch(reported) for pattern in self.patterns)

    def to_hardware(self, reported: str | None = None) -> Hardware:
        """Return the limits as they go into a summary; ``reported`` is the driver's name, when there is one."""
        return Hardware(
            name=reported or self.name,
            kind=self.kind,
            peak_flops_per_s=dict(self.peaks),
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
            source=self.origin,
            memory_bytes=self.memory_bytes,
            bandwidth_source=self.source,
        )


@dataclass(frozen=True, slots=True)
class Ambiguity:
    """A driver name shared by devices with different limits."""

    patterns: tuple[re.Pattern[str], ...]
    reason: str
    choose: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All known devices; later entries (a user's) come first when matching."""

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
        # "RTX 5090" for "NVIDIA GeForce RTX 5090": the end of a name, when it is the end of only one.
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
        return (
            None,
            f"'{plain}' is not in the hardware catalogue, and no other device's limits are assumed; {how}",
        )

    def _suggestion(self, wanted: str) -> str:
        close = difflib.get_close_matches(
            wanted.casefold(), [n.casefold() for n in self.names()], n=3, cutoff=0.3
        )
        by_key = {name.casefold(): name for name in self.names()}
        # A part of the name ("4090", "h100") is what people type; a closer spelling comes second.
        partial = [name for name in self.names() if wanted.casefold() in name.casefold()]
        nearest = list(dict.fromkeys(partial + [by_key[key] for key in close]))[:4]
        return "the nearest are: " + ", ".join(nearest) if nearest else "see docs/hardware.md for the names"


def _memory_mismatch(device: Device, memory_bytes: float | None) -> str | None:
    if memory_bytes is None or device.memory_bytes is None:
        return None
    if abs(memory_bytes / device.memory_bytes - 1) <= _MEMORY_TOLERANCE:
        return None
    seen, known = memory_bytes / 2**30, device.memory_bytes / 2**30
    return (
        f"the driver says '{device.name}' but {seen:.1f} GiB of memory where the catalogue has {known:g} GiB: "
        "another variant, whose limits are not known; add it with hardware.catalogue"
    )


def load_catalogue(extra: Path | None = None) -> Catalogue:
    """Return the shipped devices, and those of a user's YAML file, which win over shipped ones of one name."""
    shipped = _shipped()
    if extra is None:
        return shipped
    own = _parse(_read_user_file(extra), "user", str(extra), {})
    replaced = {device.name.casefold() for device in own.devices}
    kept = tuple(device for device in shipped.devices if device.name.casefold() not in replaced)
    return Catalogue(kept + own.devices, own.ambiguities + shipped.ambiguities)


def hardware_for(name: str, catalogue: Catalogue, *, memory_bytes: float | None = None) -> Hardware:
    """Return limits of the device a capture or a user names; unknown names get none, and the reason.

    For a name the user typed, :meth:`Catalogue.named` is stricter: it raises and suggests.
    """
    device, reason = catalogue.look_up(name, memory_bytes)
    if device is None:
        plain = " ".join(name.split()).casefold()
        device = next((d for d in catalogue.devices if d.name.casefold() == plain), None)
    if device is not None:
        return device.to_hardware(name)
    return Hardware(
        name=name,
        kind="unknown",
        peak_flops_per_s={},
        bandwidth_bytes_per_s=None,
        source="none",
        reason=reason,
    )


@functools.cache
def _shipped() -> Catalogue:
    text = files("llm_perf_opt.hardware").joinpath("catalogue.yaml").read_text(encoding="utf-8")
    # The C reader is as safe as the Python one and ten times as fast; it is absent from some builds.
    value = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return _parse(value, "catalogue", "catalogue.yaml", value["documents"])


def _read_user_file(path: Path) -> Any:
    hint = "give hardware.catalogue a YAML file as described in docs/hardware.md"
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"hardware.catalogue: cannot read {path}: {error.strerror}", hint=hint, key="hardware.catalogue"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"hardware.catalogue: {path} is not valid YAML: {error}", hint=hint, key="hardware.catalogue"
        ) from error


def _parse(value: Any, origin: Origin, where: str, documents: Mapping[str, str]) -> Catalogue:
    if not isinstance(value, dict) or not isinstance(value.get("devices"), list):
        raise _bad(where, "the file must have a list 'devices'")
    titles = {**documents, **_mapping(value.get("documents") or {}, where, "documents")}
    devices = tuple(_device(entry, origin, where, titles) for entry in value["devices"])
    ambiguities = tuple(
        Ambiguity(_patterns(entry["match"], where), str(entry["reason"]), tuple(entry["choose"]))
        for entry in value.get("ambiguous") or ()
    )
    return Catalogue(devices, ambiguities)


def _device(entry: Any, origin: Origin, where: str, titles: Mapping[str, str]) -> Device:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise _bad(where, "every device needs a 'name'")
    name = entry["name"]
    here = f"{where}: device '{name}'"
    unknown = sorted(set(entry) - _DEVICE_KEYS)
    if unknown:
        raise _bad(here, f"unknown key '{unknown[0]}' (known: {', '.join(sorted(_DEVICE_KEYS))})")
    source = _title(entry.get("source"), titles)
    if not source:
        raise _bad(here, "needs a 'source': the document its numbers come from")
    kind = entry.get("kind", "gpu")
    if kind not in ("gpu", "cpu"):
        raise _bad(here, f"kind must be gpu or cpu, not '{kind}'")
    gib, gb = (_number(entry.get(key), here, key) for key in ("memory_gib", "bandwidth_gb_per_s"))
    count, _ = _sourced(entry.get("multiprocessors"), here, "multiprocessors", source, titles)
    return Device(
        name=name,
        kind="gpu" if kind == "gpu" else "cpu",
        patterns=_patterns(entry.get("match", [re.escape(name)]), here),
        peaks=_peaks(entry.get("peaks") or {}, here, source, titles),
        bandwidth_bytes_per_s=None if gb is None else gb * 1e9,
        memory_bytes=None if gib is None else gib * 2.0**30,
        multiprocessors=None if count is None else int(count),
        source=source,
        origin=origin,
        note=entry.get("note"),
    )


def _peaks(value: Any, here: str, source: str, titles: Mapping[str, str]) -> dict[str, Peak]:
    peaks: dict[str, Peak] = {}
    for key, given in _mapping(value, here, "peaks").items():
        dtype = canonical_dtype(str(key))
        if dtype_bytes(dtype) is None:
            raise _bad(here, f"peaks: unknown data type '{key}'")
        number, document = _sourced(given, here, f"peaks.{key}", source, titles)
        if number is not None:
            peaks[dtype] = Peak(dense=number * 1e12, source=document)
    return peaks


def _sourced(
    given: Any, here: str, key: str, source: str, titles: Mapping[str, str]
) -> tuple[float | None, str]:
    """Read ``number``, ``{value: number, source: …}`` or ``{sparse: number}`` (twice the dense peak)."""
    if not isinstance(given, dict):
        return _number(given, here, key), source
    document = _title(given.get("source"), titles) or source
    if "sparse" in given:
        printed = _number(given["sparse"], here, key)
        note = f"{document}: half of the printed {given['sparse']} with 2:4 sparsity"
        return (None, document) if printed is None else (printed / 2, note)
    if "value" not in given:
        raise _bad(here, f"{key} must be a number, {{value: …}} or {{sparse: …}}")
    return _number(given["value"], here, key), document


def _number(value: Any, here: str, key: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise _bad(here, f"{key} must be a positive number, not {value!r}")
    return float(value)


def _patterns(value: Any, here: str) -> tuple[re.Pattern[str], ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
        raise _bad(here, "'match' must be a list of regular expressions")
    try:
        return tuple(re.compile(item, re.IGNORECASE) for item in given)
    except re.error as error:
        raise _bad(here, f"'match' has a bad regular expression: {error}") from error


def _mapping(value: Any, here: str, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _bad(here, f"'{key}' must be a mapping")
    return value


def _title(key: Any, titles: Mapping[str, str]) -> str | None:
    return titles.get(str(key), str(key)) if key else None


def _bad(where: str, message: str) -> ConfigError:
    return ConfigError(
        f"hardware.catalogue: {where}: {message}",
        hint="see docs/hardware.md for the format",
        key="hardware.catalogue",
    )
