"""MLflow: parameters, metrics, tags and the reports of a run, in a SQLite store unless a server is named.

Configured by MLflow's own variables ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``. Without the former, ``mlflow.db`` in
the parent directory of the run (MLflow's file store rejects new runs).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from llm_perf_opt.core import layout
from llm_perf_opt.history.rows import metric_rows, run_row, seconds_since_1970, settings_of_run
from llm_perf_opt.process.tools import has_package, import_optional
from llm_perf_opt.runs.sinks import Sink
from llm_perf_opt.summary import Summary

URI_VARIABLE, EXPERIMENT_VARIABLE = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
_DEFAULT_EXPERIMENT = "llm-perf-opt"
_FILES = (layout.SUMMARY, layout.REPORT_HTML, layout.CONFIG)
_NOT_A_NAME = re.compile(r"[^\w./ :-]")
_LONGEST_VALUE = 500


class MlflowSink(Sink):
    """Runs become MLflow runs."""

    name = "mlflow"

    def check(self) -> str | None:
        """Look for the package without importing it, which takes seconds."""
        if not has_package("mlflow"):
            return 'MLflow is not installed: pip install "llm-perf-opt[mlflow]"'
        if os.environ.get(URI_VARIABLE, "").startswith(("file:", "/", "./")):
            return f"{URI_VARIABLE} names a directory, which MLflow no longer writes to: give sqlite:///FILE or a server"
        return None

    def write(self, summary: Summary, run_dir: Path) -> None:
        """Log one run."""
        mlflow = import_optional("mlflow")
        tracking = import_optional("mlflow.tracking")
        entities = import_optional("mlflow.entities")
        uri = os.environ.get(URI_VARIABLE) or f"sqlite:///{run_dir.absolute().parent / 'mlflow.db'}"
        client = tracking.MlflowClient(tracking_uri=uri)
        experiment = self._experiment(client, run_dir, uri)
        row = run_row(
            summary, settings_of_run(run_dir, summary), run=run_dir.name, path="", size=0, mtime_ns=0
        )
        started_ms = int((seconds_since_1970(summary.run.started) or 0.0) * 1000) or None
        tags = {
            "mlflow.source.name": "llm-perf-opt",
            "llm_perf_opt.config_hash": row.config_hash,
            "llm_perf_opt.machine": row.machine,
            "llm_perf_opt.version": row.version or mlflow.__version__,
            **({"mlflow.source.git.commit": row.commit} if row.commit else {}),
        }
        run = client.create_run(experiment, start_time=started_ms, run_name=summary.run.id, tags=tags)
        metrics = [
            entities.Metric(_name(m.name, m.phase, m.statistic), m.value, started_ms or 0, 0)
            for m in metric_rows(summary, row.run)
        ]
        named = (
            "model",
            "architecture",
            "dtype",
            "weights",
            "device",
            "batch_size",
            "cache",
            "compiled",
            "settings",
        )
        params = [
            entities.Param(name, str(getattr(row, name))[:_LONGEST_VALUE])
            for name in named
            if getattr(row, name) is not None
        ]
        client.log_batch(run.info.run_id, metrics=metrics, params=params)
        for file in _FILES:
            if (run_dir / file).is_file():
                client.log_artifact(run.info.run_id, str(run_dir / file))
        status = {"ok": "FINISHED", "interrupted": "KILLED"}.get(summary.run.status, "FAILED")
        ended_ms = None if started_ms is None else started_ms + int((summary.run.seconds or 0.0) * 1000)
        client.set_terminated(run.info.run_id, status=status, end_time=ended_ms)

    @staticmethod
    def _experiment(client: object, run_dir: Path, uri: str) -> str:
        name = os.environ.get(EXPERIMENT_VARIABLE) or _DEFAULT_EXPERIMENT
        found = client.get_experiment_by_name(name)  # type: ignore[attr-defined]
        if found is not None:
            return str(found.experiment_id)
        # Beside the data base: MLflow's default is relative to the current directory of a later run.
        place = (run_dir.absolute().parent / "mlartifacts").as_uri() if uri.startswith("sqlite:") else None
        return str(client.create_experiment(name, artifact_location=place))  # type: ignore[attr-defined]


def _name(metric: str, phase: str | None, statistic: str) -> str:
    parts = [
        metric,
        *([phase] if phase and phase != metric else []),
        *([] if statistic == "value" else [statistic]),
    ]
    return _NOT_A_NAME.sub("_", ".".join(parts))[:250]
