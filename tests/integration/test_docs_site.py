"""The documentation builds as a site in which no link is dead, and shows real reports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GALLERY = ("default-run.html", "rtx5090-deepseek-ocr.html", "llama3-70b-on-paper.html", "comparison.html")


def test_the_site_builds_with_every_link_checked(repository: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            str(tmp_path / "site"),
        ],
        cwd=repository,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "index.html").is_file()
    for name in GALLERY:
        assert (tmp_path / "site" / "gallery" / name).is_file()


@pytest.mark.parametrize("name", GALLERY)
def test_pages_of_the_gallery_are_self_contained_and_name_no_machine(name: str, repository: Path) -> None:
    page = (repository / "docs" / "gallery" / name).read_text(encoding="utf-8")
    assert page[:15].lower() == "<!doctype html>"
    assert 'src="http' not in page
    for folder in ("home", "root", "tmp", str(repository.parent).strip("/")):
        assert f"/{folder}/" not in page
