"""OpenTelemetry: the metrics of a run as gauges, sent once over OTLP (HTTP) to a collector.

Configured by OpenTelemetry's own variables: ``OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_ENDPOINT``, and
``OTEL_EXPORTER_OTLP_HEADERS`` and the like.
"""

from __future__ import annotations

import os
from pathlib import Path

from llm_perf_opt.history.rows import metric_rows, run_row, settings_of_run
from llm_perf_opt.process.tools import has_package, import_optional
from llm_perf_opt.runs.sinks import Sink
from llm_perf_opt.summary import Summary

_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PREFIX = "llm_perf_opt"
_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_UNITS = {"ratio": "1", "count": "1", "bytes": "By"}
"""Ours → UCUM, which OpenTelemetry uses; seconds, watts and joules are the same."""
_TIMEOUT_S = 30.0
_ATTRIBUTES = ("model", "architecture", "dtype", "weights", "device", "batch_size", "config_hash", "commit")


class OpenTelemetrySink(Sink):
    """Runs become data points of gauges, distinguished by the attribute ``llm_perf_opt.run``."""

    name = "opentelemetry"

    def check(self) -> str | None:
        """Look for the packages and the address of a collector."""
        if not all(map(has_package, _PACKAGES)):
            return "OpenTelemetry is not installed: pip install 'llm-perf-opt[otel]'"
        if not any(os.environ.get(name) for name in _ENDPOINT_VARIABLES):
            return f"no collector is named: set {_ENDPOINT_VARIABLES[1]}=http://127.0.0.1:4318"
        return None

    def write(self, summary: Summary, run_dir: Path) -> None:
        """Record every metric once and send it; a rejection by the collector is an error."""
        export = import_optional("opentelemetry.sdk.metrics.export")
        otlp = import_optional("opentelemetry.exporter.otlp.proto.http.metric_exporter")
        exporter = otlp.OTLPMetricExporter(timeout=_TIMEOUT_S)
        try:
            result = exporter.export(self._record(summary, run_dir), timeout_millis=_TIMEOUT_S * 1000)
        finally:
            exporter.shutdown()
        if result is not export.MetricExportResult.SUCCESS:
            raise ConnectionError("the collector did not accept the metrics")

    @staticmethod
    def _record(summary: Summary, run_dir: Path) -> object:
        sdk = import_optional("opentelemetry.sdk.metrics")
        export = import_optional("opentelemetry.sdk.metrics.export")
        resources = import_optional("opentelemetry.sdk.resources")
        row = run_row(
            summary, settings_of_run(run_dir, summary), run=run_dir.name, path="", size=0, mtime_ns=0
        )
        described = {name: getattr(row, name) for name in _ATTRIBUTES}
        resource = resources.Resource.create(
            {
                "service.name": "llm-perf-opt",
                "service.version": row.version or "",
                **{
                    f"{PREFIX}.{name}": value if isinstance(value, int | float) else str(value)
                    for name, value in described.items()
                    if value is not None
                },
            }
        )
        reader = export.InMemoryMetricReader()
        provider = sdk.MeterProvider(
            metric_readers=[reader], resource=resource, shutdown_on_exit=False, exemplar_filter=None
        )
        meter = provider.get_meter(PREFIX)
        run = {f"{PREFIX}.run": summary.run.id, f"{PREFIX}.status": summary.run.status}
        meter.create_gauge(f"{PREFIX}.run.duration", "s").set(summary.run.seconds or 0.0, run)
        gauges = {}
        for metric in metric_rows(summary, row.run):
            name = f"{PREFIX}.{metric.name}"
            if name not in gauges:
                gauges[name] = meter.create_gauge(name, _UNITS.get(metric.unit, metric.unit))
            phase = {} if metric.phase is None else {"phase": metric.phase}
            gauges[name].set(metric.value, {**run, **phase, "statistic": metric.statistic})
        recorded: object = reader.get_metrics_data()
        provider.shutdown()
        return recorded
