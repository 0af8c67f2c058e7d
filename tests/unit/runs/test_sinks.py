"""Sinks: the example plug-in passes its suite, a failing one never costs the run, MLflow where it is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.runs.provenance import current_commit
from llm_perf_opt.runs.sinks import check_sinks, load_sink
from llm_perf_opt.testing.sinks import SinkConformance
from tests.support import QUICK, REPOSITORY, cli, install_example, read_json


@pytest.fixture(scope="module")
def plugged_in(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment in which the example sink is installed."""
    site = install_example("user_sink", tmp_path_factory.mktemp("site"))
    return {"PYTHONPATH": os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])}


def test_the_example_passes_the_suite(plugged_in: dict[str, str]) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "examples/user_sink",
    ]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **plugged_in},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(".") >= 4


def test_a_failing_sink_is_noted_and_the_run_is_ok(plugged_in: dict[str, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = (
        "run",
        *QUICK,
        "pipeline.torch_profiler.enable=false",
        "run.sinks=[json_lines]",
        f"artifacts.runs_dir={run}",
    )
    done = cli(*arguments, env={**plugged_in, "JSON_LINES_FILE": str(tmp_path / "no" / "file")})
    assert done.returncode == 0, done.stderr
    assert re.search(r"json_lines\b.*FileNotFoundError", done.stderr)
    summary, manifest = read_json(run / "summary.json"), read_json(run / "manifest.json")
    assert summary["run"]["status"] == manifest["status"] == "ok"
    for notes in (summary["notes"], manifest["notes"]):
        (note,) = [note for note in notes if "json_lines" in note]
        assert "FileNotFoundError" in note
    page = re.sub(
        r"<script.*?</script>", "", (run / "report.html").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert re.search(r"json_lines\b.*FileNotFoundError", page)


def test_an_unknown_sink_is_refused_before_any_work(tmp_path: Path) -> None:
    done = cli("run", *QUICK, "run.sinks=[nowhere]", f"artifacts.runs_dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert re.search(r"run\.sinks\b.*'nowhere'", done.stderr)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError) as refused:
        load_sink("nowhere")
    assert refused.value.data["key"] == "run.sinks"


@pytest.mark.needs("mlflow")
class TestMlflow(SinkConformance):
    sink = "mlflow"

    def prepare(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)

    def stored(self, folder: Path) -> Sequence[str]:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("llm-perf-opt")
        runs = client.search_runs([experiment.experiment_id])
        first = next(run for run in runs if run.info.run_name == "first")
        assert first.data.metrics["tpot.decode.median"] == pytest.approx(0.0105)
        assert [file.path for file in client.list_artifacts(first.info.run_id)] == ["summary.json"]
        return sorted(run.info.run_name for run in runs)


@pytest.mark.needs("opentelemetry")
class TestOpenTelemetry(SinkConformance):
    sink = "opentelemetry"

    @pytest.fixture(autouse=True)
    def collector(self) -> Iterator[None]:
        """A collector on loopback that keeps the requests it gets."""
        received: list[bytes] = []

        class Collector(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.received, self.port = received, server.server_address[1]
        yield
        server.shutdown()
        server.server_close()

    def prepare(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{self.port}")

    def stored(self, folder: Path) -> Sequence[str]:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        runs = []
        for body in self.received:
            request = ExportMetricsServiceRequest.FromString(body)
            metrics = {
                metric.name: metric
                for resource in request.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            }
            (point,) = metrics["llm_perf_opt.run.duration"].gauge.data_points
            runs += [one.value.string_value for one in point.attributes if one.key == "llm_perf_opt.run"]
            if runs[-1] == "first":
                tpot = metrics["llm_perf_opt.tpot"]
                medians = [
                    point.as_double
                    for point in tpot.gauge.data_points
                    if any(one.value.string_value == "median" for one in point.attributes)
                ]
                assert tpot.unit == "s" and medians == [pytest.approx(0.0105)]
        return runs

    def test_a_collector_that_is_not_there_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        monkeypatch.setattr(
            "opentelemetry.exporter.otlp.proto.http.metric_exporter.OTLPMetricExporter.export",
            lambda *_, **__: MetricExportResult.FAILURE,
        )
        with pytest.raises(ConnectionError):
            load_sink(self.sink).write(*self.finished_run(tmp_path, "lost", tpot_s=0.01))

    def test_without_an_address_nothing_is_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(ConfigError) as refused:
            check_sinks([self.sink])
        assert "OTEL_EXPORTER_OTLP_ENDPOINT" in refused.value.message


def test_the_commit_is_read_from_the_files_of_a_repository(tmp_path: Path) -> None:
    commit, other = "a" * 40, "b" * 40
    assert current_commit(tmp_path, {"GITHUB_SHA": other}) == other
    assert current_commit(tmp_path, {"GITHUB_SHA": "no commit"}) is None
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    below = tmp_path / "sub"
    below.mkdir()
    assert current_commit(below, {}) is None
    (git / "packed-refs").write_text(f"# pack-refs\n{commit} refs/heads/main\n^{other}\n", encoding="utf-8")
    assert current_commit(below, {"GITHUB_SHA": other}) == commit
    (git / "refs" / "heads" / "main").write_text(f"{other}\n", encoding="utf-8")
    assert current_commit(below, {}) == other
    (git / "HEAD").write_text(f"{commit}\n", encoding="utf-8")
    assert current_commit(below, {}) == commit
    worktree = tmp_path / "worktree"
    worktree.mkdir()
    (git / "worktrees" / "w").mkdir(parents=True)
    (worktree / ".git").write_text(f"gitdir: {git / 'worktrees' / 'w'}\n", encoding="utf-8")
    (git / "worktrees" / "w" / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (git / "worktrees" / "w" / "commondir").write_text("../..\n", encoding="utf-8")
    assert current_commit(worktree, {}) == other
