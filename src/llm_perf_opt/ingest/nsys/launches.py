"""Grid and block of every kernel of an nsys export: read only when counters have to be weighed, not with the timeline."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from llm_perf_opt.ingest.linking import order_by_time
from llm_perf_opt.ingest.nsys.schema import open_export
from llm_perf_opt.ingest.nsys.sqlite import KERNELS
from llm_perf_opt.ingest.nsys.sqlite_pages import Int64

SHAPE_COLUMNS = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")


def read_launch_shapes(path: Path, *, use_pages: bool = True) -> tuple[Int64, Int64] | None:
    """Return the starts of all kernels in the order of a timeline, and their shapes (rows × 6); ``None`` without.

    The order is that of :func:`~llm_perf_opt.ingest.nsys.sqlite.read_nsys_sqlite`, so that the rows are its kernels'.
    """
    with open_export(Path(path), use_pages=use_pages) as export:
        if not export.has(KERNELS, "start", "end", *SHAPE_COLUMNS):
            return None
        found = export.doubts.possible(KERNELS, export.read(KERNELS, ("start", "end", *SHAPE_COLUMNS)))
        order = order_by_time(found["start"], found["end"])
        return found["start"][order], np.stack([found[name][order] for name in SHAPE_COLUMNS], axis=1)
