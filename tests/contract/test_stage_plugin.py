"""B16: a user's stage, installed from the example package, reaches summary and reports without an edit here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import QUICK, cli, install_example, read_json

STATIC_ONLY = (*QUICK, "pipeline.torch_profiler.enable=false")


@pytest.fixture(scope="module")
def plugged_in(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment in which the example package is installed."""
    site = install_example("user_stage", tmp_path_factory.mktemp("site"))
    return {"PYTHONPATH": os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])}


@pytest.mark.contract("B16")
def test_B16_a_plug_in_adds_a_quantity_a_section_and_a_finding(
    plugged_in: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    noise = ("enable=true", "samples=40", "limit_ratio=0.5")  # every machine is noisier than that
    done = cli(
        "run", *STATIC_ONLY, *(f"pipeline.machine_noise.{key}" for key in noise), f"artifacts.runs_dir={run}",
        env=plugged_in,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = read_json(run / "summary.json")
    assert summary["stages"]["machine_noise"]["status"] == "ok"
    assert summary["metrics"]["machine_noise_p95_over_median_ratio"] >= 1.0
    assert summary["sources"]["machine_noise"] == "machine_noise/repetitions.json"
    assert "machine-noise" in {finding["id"] for finding in summary["findings"]}
    (section,) = summary["sections"]
    assert section["stage"] == "machine_noise" and section["title"] and section["tables"]
    (finding,) = [finding for finding in summary["findings"] if finding["id"] == "machine-noise"]
    for name in ("report.html", "report.md"):
        page = (run / name).read_text(encoding="utf-8")
        assert section["title"] in page
        assert finding["title"] in page

    again = cli("report", str(run), "--reanalyse", env=plugged_in)
    assert again.returncode == 0, again.stderr
    assert read_json(run / "summary.json") == summary
    # On a machine without the plug-in the rest is still read, and what is missing is said.
    elsewhere = cli("report", str(run), "--reanalyse")
    assert elsewhere.returncode == 0, elsewhere.stderr
    found = read_json(run / "summary.json")
    assert found["static"] == summary["static"]
    assert any("machine_noise" in note and "not installed" in note for note in found["notes"])


@pytest.mark.contract("B16")
def test_B16_its_keys_are_checked_like_ours(plugged_in: dict[str, str], tmp_path: Path) -> None:
    done = cli("run", *STATIC_ONLY, "pipeline.machine_noise.sampels=3", cwd=tmp_path, env=plugged_in)
    assert done.returncode == 2
    assert "pipeline.machine_noise.samples" in done.stderr
    wrong = ("pipeline.machine_noise.enable=true", "pipeline.machine_noise.samples=1")
    done = cli("run", *STATIC_ONLY, *wrong, cwd=tmp_path, env=plugged_in)
    assert done.returncode == 2
    assert "pipeline.machine_noise.samples=1" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_shipped_suite_passes_for_the_plug_in(
    plugged_in: dict[str, str], repository: Path, tmp_path: Path
) -> None:
    test = repository / "examples" / "user_stage" / "test_machine_noise.py"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
            str(test),
        ],
        env={**os.environ, **plugged_in},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
