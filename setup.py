"""Build hook: a wheel gets the JSON Schemas and the address of its repository. The rest is in pyproject.toml."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithSchemas(build_py):
    """Copies the package and writes the schemas next to it; an editable install has `llm-perf-opt schema` only."""

    schemas: tuple[str, ...] = ()

    def run(self) -> None:
        """Build."""
        super().run()
        if self.editable_mode:
            return
        sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))
        from llm_perf_opt.commands.schema import write_schemas

        self.schemas = tuple(map(str, write_schemas(Path(self.build_lib) / "llm_perf_opt")))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Return all files of the build."""
        return [*super().get_outputs(include_bytecode), *self.schemas]


def project_urls() -> dict[str, str]:
    """Return the addresses of the repository that builds a release; a build elsewhere names none."""
    server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    if not server or not repository:
        return {}
    source = f"{server}/{repository}"
    return {"Source": source, "Issues": f"{source}/issues", "Changelog": f"{source}/blob/main/CHANGELOG.md"}


setup(cmdclass={"build_py": BuildWithSchemas}, project_urls=project_urls())
