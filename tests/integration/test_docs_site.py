"""The documentation builds as a site in which no link is dead, and shows real reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.core.version import __version__

GALLERY = (
    "default-run.html", "rtx5090-deepseek-ocr.html", "llama3-70b-static.html", "comparison.html", "serving-vllm.html",
    "serving-load-curve.html", "two-ranks.html", "improve.html",
)  # fmt: skip


def test_the_site_builds_with_every_link_checked_next_to_earlier_versions(
    repository: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    (site / "0.0.1").mkdir(parents=True)
    (site / "0.0.1" / "index.html").write_text("earlier")
    done = subprocess.run(
        [sys.executable, str(repository / "scripts" / "build-docs.py"), "--site", str(site)],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    versions = [one["version"] for one in json.loads((site / "versions.json").read_text())]
    assert versions == [__version__, "0.0.1"]
    assert f"{__version__}/index.html" in (site / "index.html").read_text()
    assert "mike" in (site / __version__ / "index.html").read_text()
    for name in GALLERY:
        assert (site / __version__ / "gallery" / name).is_file()


@pytest.mark.parametrize("name", GALLERY)
def test_pages_of_the_gallery_are_self_contained_and_name_no_machine(name: str, repository: Path) -> None:
    page = (repository / "docs" / "gallery" / name).read_text(encoding="utf-8")
    assert page[:15].lower() == "<!doctype html>"
    assert 'src="http' not in page
    for folder in ("home", "root", "tmp", str(repository.parent).strip("/")):
        assert f"/{folder}/" not in page
