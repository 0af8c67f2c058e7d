"""``doctor --self-test`` with real tools, on the CPU and on a simulated device; and with an nsys that hangs."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from llm_perf_opt.commands import doctor
from llm_perf_opt.self_test import checks, command
from llm_perf_opt.self_test.checks import torch_checks
from llm_perf_opt.self_test.report import judge_claims, read_bundle
from llm_perf_opt.summary import Hardware
from tests.needs import is_met
from tests.nsys_support import fake_nsys
from tests.simulated_device import PLUGIN


def test_on_a_cpu_everything_that_is_possible_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = Hardware("some CPU", "cpu", {}, None, "probe")
    monkeypatch.setattr("llm_perf_opt.hardware.resolve.resolve_hardware", lambda device: measured)
    monkeypatch.setattr(
        command,
        "engine_checks",
        lambda device, folder: checks.engine_checks(device, folder, ("eager", "graphs")),
    )
    monkeypatch.chdir(tmp_path)
    assert doctor.main(["--self-test", "--json", "--bundle", "sent.zip", "run.device=cpu"]) == 0
    result = json.loads(capsys.readouterr().out)
    statuses = {check["name"]: check["status"] for check in result["checks"]}
    for name in (
        "device",
        "host clock",
        "profiler operators",
        "profiler FLOPs",
        "profiler ranges",
        "engine eager",
    ):
        assert statuses[name] == "passed", result
    for name, tool in (("nsys ranges", "nsys"), ("ncu", "ncu")):
        assert statuses[name] == ("passed" if is_met(tool) else "not possible"), result
    for name in (
        "device events",
        "profiler kernels",
        "probe against catalogue",
        "engine graphs",
        "collective",
    ):
        assert statuses[name] == "not possible"
    for name, tool in (("nsys kernels", "nsys"), ("counters", "ncu")):
        assert statuses.get(name) == ("not possible" if is_met(tool) else None)
    assert set(statuses) <= set(command.CLAIMS), "every check says what rests on it"
    with zipfile.ZipFile(tmp_path / "sent.zip") as archive:
        assert json.loads(archive.read("self-test.json"))["passed"] == result["passed"]
    verdicts = {one.id: one.verdict for one in judge_claims(read_bundle(tmp_path / "sent.zip")[0])}
    assert verdicts["tokens"] == verdicts["operators"] == "confirmed" and "refuted" not in verdicts.values()
    assert [path.name for path in tmp_path.iterdir()] == ["sent.zip"], "captures are not left behind"


@pytest.mark.needs("compiler")
def test_on_a_simulated_device_events_and_memory_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PLUGIN))
    found = {outcome.name: outcome for outcome in torch_checks("sim:1", tmp_path)}
    for name in (
        "device",
        "device events",
        "profiler operators",
        "profiler FLOPs",
        "profiler ranges",
        "memory released",
    ):
        assert found[name].status == "passed", found[name]
    assert found["profiler kernels"].facts["all"] == 35


def test_a_device_that_is_not_there_fails_and_names_what_was_not_reached(tmp_path: Path) -> None:
    found = torch_checks("cuda:0", tmp_path)
    assert len(found) > 1 and {outcome.status for outcome in found} == {"failed"}
    # Every check that the program did not come to has the end of its output, and what to do.
    assert all(outcome.facts["tail"] and outcome.fix for outcome in found)
    assert found[0].facts["tail"].splitlines()[-1] in found[0].said


def test_an_nsys_that_hangs_ends_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = fake_nsys(tmp_path / "tool", "import time\ntime.sleep(600)")
    monkeypatch.setenv("LLM_PERF_OPT_NSYS", str(tool))
    (tmp_path / "nsys").mkdir()
    (outcome, *_) = checks.nsys_checks("cpu", tmp_path / "nsys", limit_s=1.0)
    assert outcome.status == "failed" and outcome.facts["ended"] == "timeout"


def test_a_failed_check_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = [("clock", lambda: [command.failed("host clock", "runs backward", "another machine")])]
    monkeypatch.setattr(command, "_groups", lambda device, scratch: groups)
    assert doctor.main(["--self-test", "--bundle", str(tmp_path / "b.zip")]) == 1
    text = capsys.readouterr().out
    assert "FAILED" in text and "fix: another machine" in text and command.CLAIMS["host clock"] in text
