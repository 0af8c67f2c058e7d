"""Build the documentation of this version below ``site/<version>/``; other versions that are there are kept.

    python scripts/build-docs.py [--site DIR]

``site/versions.json`` is what the theme's version menu reads (the format of mike), and ``site/index.html`` leads to the newest version.
Publish the whole folder: building again after a release adds a version next to the earlier ones.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from llm_perf_opt.core.version import __version__

REPOSITORY = Path(__file__).resolve().parent.parent
_INDEX = """<!doctype html>
<meta charset="utf-8">
<title>llm-perf-opt</title>
<meta http-equiv="refresh" content="0; url={version}/index.html">
<a href="{version}/index.html">llm-perf-opt {version}</a>
"""


def newest_first(version: str) -> tuple[int, ...]:
    """Sort key: numbers of a version, negated."""
    return tuple(-int(part) for part in re.findall(r"\d+", version))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--site", type=Path, default=REPOSITORY / "site")
    site: Path = parser.parse_args().site
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str((site / __version__).absolute())],
        cwd=REPOSITORY, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False,
    )  # fmt: skip
    if built.returncode:
        return built.returncode
    versions = sorted({one.parent.name for one in site.glob("*/index.html")}, key=newest_first)
    entries = [
        {"version": one, "title": one, "aliases": ["latest"] if one == versions[0] else []}
        for one in versions
    ]
    (site / "versions.json").write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    (site / "index.html").write_text(_INDEX.format(version=versions[0]), encoding="utf-8")
    print(f"{site / 'index.html'}: {', '.join(versions)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
