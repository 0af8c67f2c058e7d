"""Build the source distribution and a wheel from it, and try both installations in clean environments.

    python scripts/check-install.py            # the light installation, on every Python from 3.11 to 3.13 that is found
    python scripts/check-install.py --run      # also the extra `run`, on the first of them (torch of constraints.txt)
    python scripts/check-install.py --image    # also the build steps of Dockerfile, in a clean directory instead of a container

It prints the size and time of each installation, and ends with 1 if a check fails. Everything is below a temporary directory.
"""

from __future__ import annotations

import argparse
import gzip
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
MOST_LIGHT_BYTES = 350_000_000
RUN_COMMAND = "pip install 'llm-perf-opt[run]'"
NOT_LIGHT = ("torch", "transformers", "PIL", "aiohttp", "mcp")
LEFT_OUT = (".venv*", ".git", "tmp", "build", "dist", "site", "*.egg-info", ".*_cache", "__pycache__")


def call(*argv: object, cwd: Path | None = None, code: int = 0) -> str:
    done = subprocess.run([str(word) for word in argv], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != code:
        sys.exit(
            f"{' '.join(map(str, argv))}\nended with {done.returncode}, not {code}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout + done.stderr


def find_pythons() -> dict[str, str]:
    """Return the interpreters that start, by version; a version manager may leave a name that does not."""
    found = {}
    managed = Path.home().glob(".pyenv/versions/*/bin/python3")
    candidates = [sys.executable, *(f"python{version}" for version in PYTHONS), *map(str, managed)]
    for name in candidates:
        path = shutil.which(name)
        if path is None:
            continue
        done = subprocess.run(
            [path, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        version = done.stdout.strip()
        if done.returncode == 0 and version in PYTHONS:
            found.setdefault(version, path)
    return dict(sorted(found.items()))


def build(folder: Path) -> Path:
    """Return the wheel that pip builds, in isolation, from the source distribution."""
    source = folder / "source"
    shutil.copytree(REPOSITORY, source, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    # setup.py generates nothing for a source distribution, so that setuptools alone is enough here.
    call(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", folder / "sdist", cwd=source)
    (sdist,) = (folder / "sdist").glob("*.tar.gz")
    call(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder / "wheel", sdist)
    (wheel,) = (folder / "wheel").glob("*.whl")
    print(
        f"{sdist.name} {sdist.stat().st_size / 1e6:.1f} MB, {wheel.name} {wheel.stat().st_size / 1e6:.1f} MB"
    )
    return wheel


def install(python: str, requirement: str, folder: Path) -> Path:
    """Return the scripts of a new environment that holds the requirement; its size is without pip's own files."""
    call(python, "-m", "venv", folder)
    before = size(folder)
    began = time.monotonic()
    constraints = REPOSITORY / "constraints.txt"
    pip = (folder / "bin" / "python", "-m", "pip", "install", "-q", "--constraint", constraints)
    if requirement.endswith("[run]"):
        # torch first and alone, as the Makefile does: asked for as a dependency it would bring another build with it.
        call(*pip, "torch")
    call(*pip, requirement)
    seconds, added = time.monotonic() - began, size(folder) - before
    print(f"{folder.name}: {added / 1e6:.0f} MB installed in {seconds:.0f} s")
    if "light" in folder.name and added > MOST_LIGHT_BYTES:
        sys.exit(f"the light installation takes more than {MOST_LIGHT_BYTES / 1e6:.0f} MB")
    return folder / "bin"


def size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def write_trace(path: Path) -> None:
    """Write a torch trace of ten kernels, each launched by a call of the CPU."""
    events: list[dict[str, object]] = []
    for number in range(10):
        at = 100 * number
        shared = {"ph": "X", "pid": 1, "args": {"correlation": number + 1, "device": 0, "stream": 7}}
        events.append(
            {**shared, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": at, "dur": 5}
        )
        events.append(
            {
                **shared,
                "cat": "kernel",
                "name": "ampere_sgemm_128x64_tn",
                "pid": 0,
                "tid": 7,
                "ts": at + 20,
                "dur": 60,
            }
        )
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
        "traceEvents": events,
    }
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


def try_light(scripts: Path, folder: Path) -> None:
    """Use the verbs that a light installation has, and meet the message of those it has not."""
    program = scripts / "llm-perf-opt"
    folder.mkdir()
    write_trace(folder / "trace.json.gz")
    looked = "import importlib.util as u, sys; print([n for n in sys.argv[1:] if u.find_spec(n)])"
    there = call(scripts / "python", "-c", looked, *NOT_LIGHT).strip()
    if there != "[]":
        sys.exit(f"a light installation brings {there}")
    call(program, "--help")
    doctor = json.loads(call(program, "doctor", "--json", cwd=folder))
    outlooks = {stage["outlook"] for stage in doctor["stages"].values()}
    if doctor["torch"]["fix"] != RUN_COMMAND or outlooks != {"error"}:
        sys.exit(f"doctor does not say that nothing can run, and why:\n{json.dumps(doctor, indent=1)}")
    for name in ("a", "b"):
        call(program, "ingest", "--trace", "trace.json.gz", "--out", f"runs/{name}", cwd=folder)
    call(program, "report", "runs/a", cwd=folder)
    call(program, "compare", "runs/a", "runs/b", "--out", "comparison", cwd=folder)
    call(program, "index", "runs", cwd=folder)
    call(program, "history", "runs", "--html", cwd=folder)
    call(program, "schema", "summary", cwd=folder)
    plugins = json.loads(call(program, "plugins", "--json", cwd=folder))["plugins"]
    problems = {one["problem"] for one in plugins if one["interface"] in ("models", "datasets")}
    if None in problems or len(plugins) <= 15:
        sys.exit(f"plugins does not say what each needs:\n{json.dumps(plugins, indent=1)}")
    for line in ("run", "run --plan", "improve --plan", "serve --plan", "doctor --self-test", "mcp"):
        said = call(program, *line.split(), cwd=folder, code=4)
        if ("llm-perf-opt[mcp]" if line == "mcp" else RUN_COMMAND) not in said:
            sys.exit(f"{line} does not name the command that installs what it needs:\n{said}")
    if not (folder / "runs" / "a" / "report.html").is_file():
        sys.exit("ingest wrote no report")


class StubAnswer(http.server.BaseHTTPRequestHandler):
    """A server with the routes that the load client uses."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.reply(json.dumps({"data": [{"id": "stub"}]}).encode(), "application/json")

    def do_POST(self) -> None:
        tokens = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"]
        token = {"choices": [{"index": 0, "text": " word", "finish_reason": None}]}
        usage = {"prompt_tokens": 4, "completion_tokens": tokens}
        last = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": usage}
        events = [*(json.dumps(token) for _ in range(tokens)), json.dumps(last), "[DONE]"]
        self.reply("".join(f"data: {one}\n\n" for one in events).encode(), "text/event-stream")

    def reply(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def try_load(scripts: Path, folder: Path) -> None:
    """Send load to a running server with the extra `load`, without torch."""
    constraints = REPOSITORY / "constraints.txt"
    call(scripts / "python", "-m", "pip", "install", "-q", "--constraint", constraints, "aiohttp", "pyzmq")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), StubAnswer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        call(
            scripts / "llm-perf-opt",
            "serve",
            "-q",
            "--url",
            url,
            "--requests",
            "4",
            "--concurrency",
            "2",
            "--out",
            "load",
            cwd=folder,
        )
        server.shutdown()
    if not (folder / "load" / "serve" / "requests.jsonl").is_file():
        sys.exit("serve wrote no requests")


def try_run(scripts: Path, folder: Path) -> None:
    """Profile a small model."""
    folder.mkdir()
    quick = ("infer.max_new_tokens=4", "run.repeats=2", "hardware.probe=false", "artifacts.runs_dir=run")
    call(scripts / "llm-perf-opt", "run", "-q", "model=llama_tiny", *quick, cwd=folder)
    if not (folder / "run" / "summary.json").is_file():
        sys.exit("run wrote no summary")


def try_image(folder: Path, python: str) -> None:
    """Execute COPY and RUN of the first stage of ``Dockerfile`` below a directory, and use what they made as an ordinary user would."""
    text = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    stage = text.split("\nFROM ")[1]
    source, target = folder / "image-source", folder / "image"
    source.mkdir()
    arguments = {
        name: value
        for name, _, value in (one.partition("=") for one in re.findall(r"^ARG (.*)$", stage, re.M))
    }
    for word, value in re.findall(r"^(COPY|RUN) (.*)$", stage, re.M):
        if word == "COPY":
            *names, _ = value.split()
            for name in names:
                copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy2
                copy(REPOSITORY / name, source / name)
            continue
        command = value.replace("/opt/llm-perf-opt", str(target)).replace(
            "python -m venv", f"{python} -m venv"
        )
        for name, default in arguments.items():
            command = command.replace(f"${{{name}}}", default)
        call("sh", "-ec", command, cwd=source)
    print(f"image: {size(target) / 1e6:.0f} MB below /opt/llm-perf-opt")
    call(target / "bin" / "llm-perf-opt", "doctor", "--json", cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", action="store_true", help="also try the extra `run` (downloads torch)")
    parser.add_argument("--image", action="store_true", help="also try the build steps of Dockerfile")
    options = parser.parse_args()
    pythons = find_pythons()
    with tempfile.TemporaryDirectory(prefix="llm-perf-opt-install-") as name:
        folder = Path(name)
        wheel = build(folder)
        for version, python in pythons.items():
            environment = folder / f"light-{version}"
            scripts = install(python, str(wheel), environment)
            try_light(scripts, folder / f"try-{version}")
            try_load(scripts, folder / f"try-{version}")
            shutil.rmtree(environment)
        if options.run:
            version, python = next(iter(pythons.items()))
            try_run(install(python, f"{wheel}[run]", folder / f"run-{version}"), folder / "try-run")
        if options.image:
            try_image(folder, next(iter(pythons.values())))
    print(f"checked on Python {', '.join(pythons)}")


if __name__ == "__main__":
    main()
