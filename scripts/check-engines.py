"""Compare the step labels we read with those of the newest releases of vLLM and SGLang: download, search, no install.

    python scripts/check-engines.py                 # the newest releases on PyPI
    python scripts/check-engines.py --release sglang==0.5.23

A release whose source no longer holds a fragment that writes its labels needs a look at
``analysis/timeline/range_rules.yaml``. Exit code 1 then; 2 where nothing could be downloaded.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

LABELS: dict[str, tuple[str, ...]] = {
    "vllm": ("execute_context_", "_generation_"),
    "sglang": ('f"step[{stage} bs={bs}', '"VERIFY"', '"DRAFT"', "DRAFT_LOOP raw_bs="),
}
"""Package → fragments of the source that writes the names of steps."""
CHECKED: dict[str, tuple[str, ...]] = {"sglang": ("0.5.19", "0.5.23")}
"""Releases whose labels were read (0.5.19 writes the name of the forward mode, later ones VERIFY and DRAFT)."""
_INDEX = "https://pypi.org/pypi/{package}/json"
_ONE_RELEASE = "https://pypi.org/pypi/{package}/{version}/json"
_TIMEOUT_S = 60.0


def main() -> int:
    """Check every package; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--release", action="append", default=[], metavar="PACKAGE==VERSION", help="instead of the newest"
    )
    options = parser.parse_args()
    wanted = dict(one.partition("==")[::2] for one in options.release) or dict.fromkeys(LABELS, "")
    code = 0
    for package, version in wanted.items():
        try:
            found, missing = check(package, version)
        except (OSError, ValueError, KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
            print(f"{package}: could not be checked: {error}", file=sys.stderr)
            code = max(code, 2)
            continue
        print(
            f"{package} {found}: "
            + ("labels as known" if not missing else f"not found: {', '.join(missing)}")
        )
        code = code or int(bool(missing))
    return code


def check(package: str, version: str) -> tuple[str, list[str]]:
    """Return the release that was looked at, and the fragments that its source does not hold."""
    address = (_ONE_RELEASE if version else _INDEX).format(package=package, version=version)
    with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
        about = json.load(answer)
    files = [one for one in about["urls"] if one["filename"].endswith((".tar.gz", ".whl"))]
    source = min(files, key=lambda one: (not one["filename"].endswith(".tar.gz"), one["size"]))
    left = list(LABELS[package])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / source["filename"]
        # Mirrors give addresses relative to the page of the package.
        file_at = urllib.parse.urljoin(f"https://pypi.org/simple/{package}/", source["url"])
        urllib.request.urlretrieve(file_at, path)
        for text in _sources(path):
            left = [one for one in left if one not in text]
            if not left:
                break
    return about["info"]["version"], left


def _sources(path: Path) -> Iterator[str]:
    """Yield the Python files of an archive; nothing is unpacked."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".py"):
                    yield archive.read(name).decode("utf-8", errors="replace")
        return
    with tarfile.open(path) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.name.endswith(".py") and member.isfile() else None
            if stream is not None:
                yield stream.read().decode("utf-8", errors="replace")


if __name__ == "__main__":
    sys.exit(main())
