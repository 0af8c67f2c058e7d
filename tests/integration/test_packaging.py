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
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--target", str(site), str(wheel)],
        check=True, timeout=200, capture_output=True,
    )  # fmt: skip
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "llm_perf_opt", "run", "model=llama_tiny", "pipeline.torch_profiler.enable=false", "hardware.probe=false"],
        cwd=elsewhere, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = next((elsewhere / "tmp" / "runs").glob("*/report.html"))
    assert report.stat().st_size < 3_000_000
    where = subprocess.run(
        [sys.executable, "-c", "import llm_perf_opt; print(llm_perf_opt.__file__)"],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
        cwd=elsewhere,
    )
    assert str(site) in where.stdout


def _metadata(wheel: Path) -> Message:
    archive = zipfile.ZipFile(wheel)
    (place,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
    return message_from_bytes(archive.read(place))


def _light_packages(wheel: Path) -> set[str]:
    """Return what the wheel needs without an extra, and what that needs."""
    from importlib.metadata import distribution

    from packaging.requirements import Requirement

    waiting = _metadata(wheel).get_all("Requires-Dist") or []
    found: set[str] = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name not in found:
            found.add(requirement.name)
            waiting += distribution(requirement.name).requires or []
    return found


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that holds the wheel and what it needs without an extra, and nothing else."""
    from importlib.metadata import distribution

    folder = tmp_path_factory.mktemp("light")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    (site,) = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    for name in _light_packages(wheel):
        package = distribution(name)
        for top in {
            file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            if not (site / top).exists():
                (site / top).symlink_to(package.locate_file(top))
    return folder / "bin" / "python"


def test_the_light_installation_analyses_and_names_what_a_run_needs(light: Path, tmp_path: Path) -> None:
    from tests.unit import kineto_traces

    def use(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [str(light), "-m", "llm_perf_opt", *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    absent = "import importlib.util as u; print([n for n in ('torch', 'transformers', 'PIL', 'mcp') if u.find_spec(n)])"
    assert (
        subprocess.run([str(light), "-c", absent], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )
    events = [kineto_traces.call("cudaLaunchKernel", 0, 5, 1), kineto_traces.kernel("gemm", 10, 20, 1)]
    kineto_traces.write(tmp_path / "trace.json", kineto_traces.document(events))
    use("ingest", "--trace", "trace.json", "--out", "runs/a")
    use("report", "runs/a")
    use("compare", "runs/a", "runs/a")
    use("history", "runs")
    doctor = json.loads(use("doctor", "--json"))
    install = "pip install 'llm-perf-opt[run]'"
    assert doctor["torch"]["fix"] == install
    assert {stage["outlook"] for stage in doctor["stages"].values()} == {"error"}
    plugins = json.loads(use("plugins", "--json"))["plugins"]
    problems = {one["problem"] for one in plugins if one["interface"] in ("models", "datasets")}
    assert None not in problems and len(plugins) > 15
    for arguments in (
        ("run",),
        ("run", "--plan"),
        ("improve", "--plan"),
        ("serve", "--plan"),
        ("doctor", "--self-test"),
    ):
        assert install in use(*arguments, code=4), arguments
    assert "llm-perf-opt[mcp]" in use("mcp", code=4)


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
