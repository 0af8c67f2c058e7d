"""Device limits as data: the shipped catalogue, a user's own YAML beside it, and matching by driver name.

A name that no pattern matches in full has no limits: "RTX 4090 Laptop GPU" or a MIG slice of an A100 is
another device, and a wrong peak is worse than none.
"""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.packaged import packaged_yaml
from llm_perf_opt.core.sizes import read_document
from llm_perf_opt.hardware.device import Device, Origin
from llm_perf_opt.hardware.entries import (
    bad,
    document_titles,
    parse_device,
    patterns,
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
        # A part of the name ("4090", "h100") is what people type; a closer spelling comes second.
        partial = [name for name in self.names() if wanted.casefold() in name.casefold()]
        plain = _normalise_name(wanted)
        close = sorted(
            self.names(),
            key=lambda name: (
                -difflib.SequenceMatcher(None, plain, _normalise_name(name), autojunk=False).ratio()
            ),
        )
        nearest = list(dict.fromkeys([*partial, *close]))[:4]
        return "the nearest are: " + ", ".join(nearest)


def _normalise_name(name: str) -> str:
    """A name without what all share, so that letters and digits of the model decide."""
    return re.sub(r"\b(nvidia|amd|geforce|instinct)\b|\W", "", name.casefold())


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
        return yaml.safe_load(read_document(path).decode("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"hardware.catalogue: cannot read {path}: {error.strerror}", hint=hint, key="hardware.catalogue"
        ) from error
    except InputError as error:
        raise ConfigError(
            f"hardware.catalogue: {error.message}", hint=hint, key="hardware.catalogue"
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"hardware.catalogue: {path} is not valid YAML: {error}", hint=hint, key="hardware.catalogue"
        ) from error


def _parse(value: Any, origin: Origin, where: str) -> Catalogue:
    if not isinstance(value, dict) or not isinstance(value.get("devices"), list):
        raise bad(where, "the file must have a list 'devices'")
    titles = document_titles(value.get("documents") or {}, where)
    devices = tuple(parse_device(entry, origin, where, titles) for entry in value["devices"])
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
