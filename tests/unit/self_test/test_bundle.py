"""The bundle names no path, host, user or secret, and holds what is on its list and nothing else."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from llm_perf_opt.self_test.bundle import Cleaner, allowed_machine, bundle_documents, write_bundle

DOCTOR = {
    "machine": {"cpu": "AMD EPYC", "cores": 2, "hostname": "alices-box", "drivers": {"nvidia": "550.54.14"}},
    "torch": {"version": "2.13.0", "build": "cuda", "fix": None},
    "tools": {"nsys": {"version": "2024.2", "path": "/home/alice/tools/nsys", "fix": None}},
    "counter_permission": {"allowed": True, "reason": "open to all users", "fix": None},
    "disk": {"path": "/home/alice/secret-project", "free_bytes": 1},
    "stages": {"nsys": {"outlook": "runs", "problems": [{"message": "/home/alice/x", "fix": None}]}},
    "left_running": {"processes": ["4711 python train.py --token=abc"]},
}


def test_only_what_is_listed_goes_out(tmp_path: Path) -> None:
    result = {
        "checks": [
            {"said": "Traceback in /home/alice/venv/lib/torch/x.py: HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz"}
        ]
    }
    documents = bundle_documents(result, "see /home/alice/venv/lib/x.py", DOCTOR)
    path = write_bundle(tmp_path / "b.zip", documents)
    with zipfile.ZipFile(path) as archive:
        assert sorted(archive.namelist()) == ["README.txt", "machine.json", "self-test.json", "self-test.txt"]
        packed = "".join(archive.read(name).decode() for name in archive.namelist())
    for private in ("alice", "secret-project", "hf_abcdef", "train.py", "--token"):
        assert private not in packed
    assert "550.54.14" in packed and "2024.2" in packed and "x.py" in packed


def test_machine_is_an_allow_list() -> None:
    found = allowed_machine(DOCTOR)
    assert found["tools"] == {"nsys": "2024.2"} and found["stages"] == {"nsys": "runs"}
    assert "hostname" not in found["machine"] and "disk" not in found and "left_running" not in found


def test_names_are_taken_out_of_texts() -> None:
    clean = Cleaner(home="/home/alice", user="alice", host="gpu-node-17")
    assert clean.text("on gpu-node-17: /home/alice/run/a.log") == "on …: …/a.log"
    for harmless in ("7.46 GFLOP/s of 20 B/s", "aten::mm 15 of 15"):
        assert clean.text(harmless) == harmless
    assert (
        clean.text("https://developer.nvidia.com/ERR_NVGPUCTRPERM")
        == "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
    )
    tree = clean.tree({"a": [1, None, "/opt/x/y/z"], "b": {"alice": True}})
    assert json.dumps(tree, ensure_ascii=False) == '{"a": [1, null, "…/z"], "b": {"…": true}}'
