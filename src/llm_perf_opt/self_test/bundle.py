"""The bundle to send back: results of the checks and versions, by an allow-list; no path, no environment, no host or user name.

Captures are not included: an nsys report stores the environment of the profiled program.
"""

from __future__ import annotations

import getpass
import io
import json
import platform
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.core.files import atomic_write_bytes
from llm_perf_opt.core.secrets import mask_text

_MACHINE_KEYS = ("cpu", "cores", "memory_bytes", "load_average", "gpus", "slices", "drivers", "device")
_UNNAMED = "…"
_README = """What is in here: self-test.json (every check with its numbers), self-test.txt (the same, to read), machine.json
(versions and names of devices). No path, no environment variable, no host or user name is meant to be in it; have a look
before you send it.
"""


def bundle_documents(result: Mapping[str, Any], text: str, machine: Mapping[str, Any]) -> dict[str, str]:
    """Return file name → content of a bundle, cleaned."""
    clean = Cleaner()
    return {
        "README.txt": _README,
        "self-test.json": json.dumps(clean.tree(dict(result)), indent=2, ensure_ascii=False) + "\n",
        "self-test.txt": clean.text(text) + "\n",
        "machine.json": json.dumps(clean.tree(allowed_machine(machine)), indent=2, ensure_ascii=False) + "\n",
    }


def allowed_machine(doctor: Mapping[str, Any]) -> dict[str, Any]:
    """Return the useful, anonymous parts of doctor's result: hardware, versions, permissions, outlook of the stages."""
    machine = doctor.get("machine", {})
    return {
        "machine": {key: machine.get(key) for key in _MACHINE_KEYS},
        "torch": doctor.get("torch"),
        "tools": {name: tool.get("version") for name, tool in doctor.get("tools", {}).items()},
        "counter_permission": doctor.get("counter_permission"),
        "stages": {name: stage.get("outlook") for name, stage in doctor.get("stages", {}).items()},
        "system": {
            "kernel": platform.release(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        },
    }


class Cleaner:
    """Removes names and paths from program output."""

    def __init__(self, home: str | None = None, user: str | None = None, host: str | None = None) -> None:
        found = (home or str(Path.home()), user or _user(), host or platform.node())
        # Longest first; a name of one or two letters, or root, would be found everywhere.
        self._words = sorted(
            (word for word in found if len(word) > 2 and word != "root" and word != "/root"),
            key=len,
            reverse=True,
        )

    def text(self, value: str) -> str:
        """Return a text without secrets, paths, and the names of user and host."""
        value = mask_text(value)
        # Only the file name of a path is kept, not its location.
        value = re.sub(r"(?<![\w/:.])/(?:[\w.@+-]+/)+(?=[\w.@+-])", f"{_UNNAMED}/", value)
        for word in self._words:
            value = value.replace(word, _UNNAMED)
        return value

    def tree(self, value: Any) -> Any:
        """Return a document with every text cleaned."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.tree(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.tree(one) for one in value]
        return value


def write_bundle(path: Path, documents: Mapping[str, str]) -> Path:
    """Write the files as one zip."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in documents.items():
            archive.writestr(name, content)
    return atomic_write_bytes(path, packed.getvalue())


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""  # a container with a user id without a name
