"""A bundle confirms, refutes or does not touch claims; a bundle that is none is refused in one line."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.self_test import report
from llm_perf_opt.self_test.bundle import bundle_documents, write_bundle
from llm_perf_opt.self_test.command import CLAIMS as CHECKS

DOCS = Path(__file__).parents[3] / "docs"


def check(name: str, status: str = "passed", **more: Any) -> dict[str, Any]:
    return {"name": name, "status": status, "said": f"{name} compared", "facts": {}, **more}


def result(device: str = "cuda:0", **statuses: str) -> dict[str, Any]:
    checks = [check(name, statuses.get(name.replace(" ", "_"), "passed")) for name in CHECKS]
    return {"schema": 1, "version": "0.1", "device": device, "checks": checks}


def packed(path: Path, document: object) -> Path:
    return write_bundle(path, {"self-test.json": json.dumps(document), "machine.json": "{}"})


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {one.id: one.verdict for one in report.judge_claims(document)}


def test_a_gpu_where_all_checks_pass_confirms_every_claim_that_has_one() -> None:
    found = verdicts(result())
    assert {claim for claim, verdict in found.items() if verdict != "confirmed"} == {
        "peak-memory",
        "dtype-auto",
    }


def test_a_failed_comparison_refutes_only_its_claims() -> None:
    found = verdicts(result(nsys_graph_kernels="failed"))
    assert [claim for claim, verdict in found.items() if verdict == "refuted"] == ["nsys-graph-nodes"]


def test_a_check_that_did_not_come_to_compare_refutes_nothing() -> None:
    document = result()
    document["checks"] = [check("nsys kernels", "failed", compared=False)]
    assert set(verdicts(document).values()) == {"not touched"}


def test_what_was_not_possible_or_is_not_there_is_not_touched() -> None:
    assert verdicts(result(counters="not possible"))["ncu-counters"] == "not touched"
    assert verdicts({**result(), "checks": []})["tokens"] == "not touched"


def test_claims_about_other_devices_are_not_touched() -> None:
    assert verdicts(result("cpu"))["nsys-kernels"] == "not touched"
    assert verdicts(result("cpu"))["nsys-ranges"] == "confirmed"
    amd = result()
    amd["checks"][0] = check("device", facts={"rocm": "6.2"})
    assert report.device_kind(amd) == "rocm" and verdicts(amd)["nsys-ranges"] == "not touched"


def test_of_two_checks_of_one_name_the_worse_counts() -> None:
    document = result()
    document["checks"] += [check("collective", "failed"), check("collective")]
    assert verdicts(document)["nccl"] == "refuted"


def test_claims_rest_on_checks_that_exist_and_are_those_of_the_documentation() -> None:
    assert {name for claim in report.CLAIMS for name in claim.checks} <= set(CHECKS)
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (.+?) \| (.+?) \| (.+?) \|$", (DOCS / "devices.md").read_text(), re.M
    )
    assert rows == [
        (
            claim.id,
            claim.statement,
            "all" if claim.devices == report.EVERYWHERE else ", ".join(claim.devices),
            ", ".join(claim.checks) or "none",
        )
        for claim in report.CLAIMS
    ]


def test_the_command_reads_what_the_self_test_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = write_bundle(tmp_path / "b.zip", bundle_documents(result(), "text", {}))
    assert main(["self-test-report", str(written)]) == 0
    assert "confirmed (19)" in capsys.readouterr().out
    failing = packed(tmp_path / "f.zip", result(engine_eager="failed"))
    assert main(["self-test-report", str(failing), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    refuted = [one["id"] for one in document["claims"] if one["verdict"] == "refuted"]
    assert refuted == ["torch-events", "tokens"] and document["kind"] == "cuda"


def test_text_of_a_bundle_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = result("cuda\x1b[2J:0")
    document["checks"] = [check("tokens\x1b[31m\nx", "failed", said="\u202eevil\nrefuted (0)")]
    main(["self-test-report", str(packed(tmp_path / "b.zip", document))])
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out and "evil\nrefuted" not in out


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"schema": 2, "device": "cpu", "checks": []},
        {"schema": 1, "device": "cpu", "checks": {}},
        {"schema": 1, "device": 3, "checks": []},
        {"schema": 1, "device": "cpu", "checks": [{"name": "device", "status": "splendid", "said": ""}]},
        {"schema": 1, "device": "cpu", "checks": [check("device")] * 1000},
    ],
)
def test_documents_of_another_shape_are_refused(tmp_path: Path, document: object) -> None:
    with pytest.raises(InputError):
        report.read_bundle(packed(tmp_path / "b.zip", document))


def test_archives_that_are_no_bundle_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"self-test.json": json.dumps(result()), "machine.json": "{}"}
    bad = {
        "deep": {**good, "self-test.json": "[" * 200_000},
        "other": {"../self-test.json": "{}"},
        "text": {**good, "self-test.json": "\x00"},
        "many": {**good, **{f"m{number}": "" for number in range(100)}},
    }
    paths = [write_bundle(tmp_path / f"{name}.zip", members) for name, members in bad.items()]
    for name, content in (
        ("empty", b""),
        ("cut", (write_bundle(tmp_path / "g.zip", good)).read_bytes()[:-30]),
    ):
        paths.append(tmp_path / f"{name}.zip")
        paths[-1].write_bytes(content)
    with zipfile.ZipFile(tmp_path / "lzma.zip", "w", zipfile.ZIP_LZMA) as archive:
        for name, text in good.items():
            archive.writestr(name, text)
    for path in (*paths, tmp_path / "lzma.zip", tmp_path / "absent.zip", tmp_path):
        with pytest.raises(InputError):
            report.read_bundle(path)
    monkeypatch.setattr(report, "_MOST_MEMBER_BYTES", 100)
    with pytest.raises(InputError, match="more than 100 bytes"):
        report.read_bundle(tmp_path / "g.zip")
    assert {path.suffix for path in tmp_path.iterdir()} == {".zip"}, "nothing is unpacked"
