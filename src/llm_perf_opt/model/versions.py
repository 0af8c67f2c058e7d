"""Which ``summary.json`` can be read, and what to know about one that an earlier release wrote.

The schema version is ``major.minor``. A minor version adds keys (with defaults, so that older files are still read)
or changes what a value means; a major version changes the shape, and is read by its own releases only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from llm_perf_opt.model.summary import SCHEMA_VERSION, Summary


class SchemaChange(NamedTuple):
    """One difference between a minor version and the one before it."""

    version: str
    what: str
    """For docs/summary.md."""
    older: str = ""
    """What a file written before means instead; empty where nothing can be misread (a key that was added)."""


SCHEMA_CHANGES = (
    SchemaChange(
        "1.1",
        "decode rows of the module ledger are per step (they were per capture)",
        "decode rows of the module ledger are of a whole capture",
    ),
    SchemaChange(
        "1.1",
        "`hardware` says when this machine was measured and how disturbed (`measured_at`, `measured_under_load`,"
        " `measured_other_load_ratio`, `measurements`)",
    ),
    SchemaChange(
        "1.1",
        "`timings` says how often was measured, why not more often, and how well the time of a pass is known (`repeats`,"
        " `stopped`, `interval_ratio`)",
    ),
    SchemaChange(
        "1.1",
        "`workload.batch_size` is what ran, a mean where batches differ (it was the configured one); "
        "`timings.program_s` and `workload.program` are new",
        "the batch size is the configured one, which the data may not have filled",
    ),
    SchemaChange("1.1", "`samples` has the size and the median times of every sample by itself"),
    SchemaChange("1.1", "operators have `run_share_ratio`, their share of the whole run"),
    SchemaChange("1.1", "rows of `what_if` have `memory_bytes`, the size of the device's memory"),
    SchemaChange(
        "1.1",
        "`devices`, `ranks`, `communication` and `idle_gaps` are new; budgets know `communication` and `queue`, idle parts "
        "have an `owner`; with several devices a budget is their mean (it was their union)",
        "communication counts as compute, and several devices as one",
    ),
    SchemaChange(
        "1.1",
        "`static.splits` is new: the model over several ranks on paper; `ranks[]` has weights, cache, `link_bytes` and `floor_s` of"
        " each; `hardware` has `link_bytes_per_s`, rows of `what_if` have `link_bytes` and `communication_s`, and floors know"
        " `communication`",
    ),
    SchemaChange(
        "1.1",
        "kernels have `profiled`, the launches behind their counters next to those of the run; `counters` says under which "
        "conditions they were measured; counters of one phase no longer stand with the rows of another",
    ),
    SchemaChange(
        "1.1",
        "`cpu_work` says what a processor does in each phase; `workload.cache` and `workload.compiled` say how the built-in "
        "workload decodes, `hardware.measured_operator_s` what an operator costs by itself",
    ),
    SchemaChange(
        "1.1",
        "`telemetry` has clock, power, temperature, energy and throttling beside the measured passes; `memory` has what was "
        "reserved and what the static model predicts (`reserved_bytes`, `predicted_bytes`, `predicted`, `counts`)",
    ),
    SchemaChange(
        "1.1",
        "`static.quantisation` says how a quantised checkpoint keeps its weights; bytes of weights, floors and MBU follow what is "
        "stored (they were those of 16 bits)",
    ),
    SchemaChange(
        "1.1",
        "floors have a third term, launching: rows of `what_if` have `floor_term`, `launch_graph_s` and `launch_eager_s`, phases of "
        "`static` have `operators` and `products`, `predictions` may be bound by `launch`",
    ),
    SchemaChange(
        "1.1",
        "phases of `static` have `minimum`, the least work with the same result, where the model's code does more; floors, MFU and MBU "
        "rest on it, `params.active_per_token` too (as run: `as_run_per_token`)",
    ),
    SchemaChange(
        "1.1",
        "encoder-decoders have a phase `encode`: `timings.encode_s`, `samples[].encode_s`, `workload.encoder_tokens`",
    ),
    SchemaChange(
        "1.1",
        "`hardware` has what such a device was measured to reach (`reached_flops_per_s`, `reached_bandwidth_bytes_per_s`), "
        "`utilisation` the shares of it (`mfu_reached_ratio`, `mbu_reached_ratio`), kernels their `target`",
    ),
    SchemaChange(
        "1.1",
        "rows of `what_if` have expected times beside floors (`ttft_expected_s`, `tpot_expected_s`, launched one by one `…_eager_s`, "
        "`measured_share_ratio`, `tokens_per_s_expected`, `tokens_per_s_per_w`, `expected_source`), `prompt_tokens` and "
        "`tensor_parallel`; `silicon` says which tables they rest on; `static.operators` has the model's operators by shape",
    ),
    SchemaChange(
        "1.1",
        "expected times have ends (`…_expected_low_s`, `…_expected_high_s`), and what the host takes to launch an operator "
        "(`eager_host_s`, `eager_host_source`, `eager_is_bound`); `silicon.reason`; `workload.ranks`",
    ),
    SchemaChange("1.1", "`static.quantisation` has the `block` of weights that share a scale"),
)
"""In order. Every change of the model goes here, and raises ``SCHEMA_VERSION``."""


def parse_version(version: object) -> tuple[int, int] | None:
    """Return (major, minor); ``None`` for what is no version."""
    parts = [*version.split("."), "0"][:2] if isinstance(version, str) else []
    if not parts or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return None
    return int(parts[0]), int(parts[1])


def is_readable(version: object) -> bool:
    """Say whether a summary of this version can be read: one of our major version, whatever its minor."""
    found, ours = parse_version(version), parse_version(SCHEMA_VERSION)
    return found is not None and ours is not None and found[0] == ours[0]


def older_note(version: str) -> str | None:
    """Return what the reader of an older summary must know; ``None`` when its values mean what ours do."""
    found = parse_version(version)
    if found is None:
        return None
    changed = [c.older for c in SCHEMA_CHANGES if c.older and found < (parse_version(c.version) or found)]
    return f"Written with schema {version}: {'; '.join(changed)}." if changed else None


def older_notes(summaries: Iterable[Summary]) -> list[str]:
    """Return the notes on those summaries that are older, each once."""
    return sorted({note for summary in summaries if (note := older_note(summary.schema_version)) is not None})


def versions_page() -> str:
    """Return the section of docs/summary.md about versions."""
    lines = [
        "## Schema versions\n\n",
        "`schema_version` is `major.minor`. A summary of the same major version is read: keys it lacks get their\n"
        "defaults, keys that are not known are ignored, and a note says what an older one means differently.\n"
        "One of another major version is refused.\n\n",
    ]
    for change in SCHEMA_CHANGES:
        major, minor = parse_version(change.version) or (0, 0)
        lines.append(f"- {major}.{minor - 1} → {major}.{minor}: {change.what}.\n")
    return "".join(lines)
