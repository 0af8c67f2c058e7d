"""The wheel works from any directory, and what ships is complete; reference pages follow the code."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    source = tmp_path_factory.mktemp("source") / "tree"
    # A copy, so that building leaves nothing in the checkout.
    import shutil

    shutil.copytree(
        repository,
        source,
        symlinks=True,
        ignore=shutil.ignore_patterns(
            ".venv*", ".git", "tmp", "build", "*.egg-info", ".*_cache", "__pycache__"
        ),
    )
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--wheel-dir", str(out), str(source)],
        check=True, timeout=200, capture_output=True,
    )  # fmt: skip
    return next(out.glob("*.whl"))


def test_the_wheel_holds_presets_schema_templates_and_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for wanted in (
        "llm_perf_opt/conf/config.yaml",
        "llm_perf_opt/conf/profiling/README.md",
        "llm_perf_opt/conf/model/deepseek_ocr/arch/deepseek_ocr.default.yaml",
        "llm_perf_opt/hardware/catalogue.yaml",
        "llm_perf_opt/analysis/kernels/kernel_families.yaml",
        "llm_perf_opt/summary/summary.schema.json",
        "llm_perf_opt/py.typed",
    ):
        assert wanted in names, wanted
    assert any(name.endswith(".j2") for name in names)


def test_the_schemas_of_the_wheel_are_those_of_the_code(wheel: Path) -> None:
    from llm_perf_opt.commands.schema import DOCUMENTS, schema

    archive = zipfile.ZipFile(wheel)
    for document, (_, place) in DOCUMENTS.items():
        assert json.loads(archive.read(f"llm_perf_opt/{place}")) == schema(document)


def test_schemas_are_not_kept_in_the_sources(repository: Path) -> None:
    assert list((repository / "src").rglob("*.schema.json")) == []


def test_the_installed_wheel_runs_from_any_directory(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    program = "import runpy, llm_perf_opt; print(llm_perf_opt.__file__); runpy.run_module('llm_perf_opt', run_name='__main__', alter_sys=True)"
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "model=llama_tiny", "pipeline.torch_profiler.enable=false", "hardware.probe=false"],
        cwd=elsewhere, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = next((elsewhere / "tmp" / "runs").glob("*/report.html"))
    assert report.stat().st_size < 3_000_000
    assert str(site) in done.stdout


def _metadata(wheel: Path) -> Message:
    archive = zipfile.ZipFile(wheel)
    (place,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
    return message_from_bytes(archive.read(place))


def test_the_wheel_is_described(wheel: Path) -> None:
    archive, metadata = zipfile.ZipFile(wheel), _metadata(wheel)
    assert {"run", "mcp", "otel", "serve"} <= set(metadata.get_all("Provides-Extra") or [])
    assert "Typing :: Typed" in (metadata.get_all("Classifier") or [])
    assert metadata["License-Expression"] == "MIT" and metadata["Requires-Python"] == ">=3.11"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist())
    assert wheel.stat().st_size < 3_000_000


def test_nothing_claims_that_the_package_is_on_an_index(repository: Path) -> None:
    """Until it is: a bare ``pip install llm-perf-opt`` would install whatever somebody puts there."""
    pages = [
        repository / "README.md",
        *(repository / "docs").glob("*.md"),
        *(repository / "examples").rglob("*.yml"),
    ]
    pages += [
        repository / "action.yml",
        *(repository / ".github").rglob("*.yml"),
        *repository.glob("Dockerfile*"),
    ]
    for page in pages:
        assert not re.search(
            r"pip install [\"']?llm-perf-opt[\"']?(\s|$)", page.read_text(encoding="utf-8")
        ), page.name


def test_reference_pages_and_schema_are_up_to_date(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate-docs.py", "--check"],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_dependency_is_pinned(repository: Path) -> None:
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (repository / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    for requirement in [
        *project["dependencies"],
        *project["optional-dependencies"]["dev"],
        *(one for extra in ("run", "mcp", "otel", "ncu") for one in project["optional-dependencies"][extra]),
    ]:
        name = re.split(r"[<>=;\[ ]", requirement)[0].lower().replace("_", "-")
        assert name in pinned, name


def test_make_targets_and_ci_call_each_other(repository: Path) -> None:
    assert "make test" in (repository / ".ci" / "run").read_text()
    assert os.access(repository / ".ci" / "run", os.X_OK)
    readme = (repository / "README.md").read_text()
    assert "make profile" in readme
    assert "make test" in readme


@pytest.mark.contract("B13")
def test_B13_documentation_shows_only_the_unified_schema(repository: Path) -> None:
    from llm_perf_opt.config.legacy import LEGACY_KEYS

    for page in [repository / "README.md", *(repository / "docs").glob("*.md")]:
        text = page.read_text()
        if page.name == "configuration.md":
            text = text.split("## Keys of earlier releases")[0]
        for entry in LEGACY_KEYS:
            old = entry.old.removesuffix(".*")
            assert f" {old}=" not in text, (page.name, old)


def test_every_environment_variable_is_documented(repository: Path) -> None:
    used = set()
    for path in (repository / "src").rglob("*.py"):
        used |= set(re.findall(r"LLM_PERF_OPT_[A-Z_]*[A-Z]", path.read_text()))
    documented = "".join(path.read_text() for path in (repository / "docs").glob("*.md"))
    assert {name for name in used if name not in documented} == set()


def test_links_between_documents_exist(repository: Path) -> None:
    for page in [
        repository / "README.md",
        repository / "CONTRIBUTING.md",
        *(repository / "docs").glob("*.md"),
    ]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith(("http", "mailto")):
                assert (page.parent / target).exists(), (page.name, target)


def test_pinned_packages_run_on_the_oldest_python_we_promise(repository: Path) -> None:
    """Debian 12 has 3.11.2: a pin that needs a later one would break ``make install`` there."""
    from importlib.metadata import PackageNotFoundError, metadata

    from packaging.specifiers import SpecifierSet

    lines = (repository / "constraints.txt").read_text().splitlines()
    names = [line.partition("==")[0] for line in lines if "==" in line]
    wanted = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            wanted[name] = metadata(name)["Requires-Python"] or ""
    assert len(wanted) > 60
    assert [name for name, versions in wanted.items() if "3.11.0" not in SpecifierSet(versions)] == []
