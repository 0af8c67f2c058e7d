"""CUDA and HIP graphs in captures: which device operations a graph launch started, and which calls only recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llm_perf_opt.model.timeline import DeviceOps, HostCalls

Mask = npt.NDArray[np.bool_]

# nsys appends a version ("cudaGraphLaunch_v10000"), HIP and the driver have prefixes of their own.
_GRAPH_LAUNCH = re.compile(r"(cuda|cu|hip)GraphLaunch")
_CAPTURE_BEGIN = re.compile(r"(cuda|cu|hip)StreamBeginCapture")
_CAPTURE_END = re.compile(r"(cuda|cu|hip)StreamEndCapture")
_KERNEL_LAUNCH = re.compile(r"(cuda|cu|hip)(Ext)?(Module)?Launch(Cooperative)?Kernel")


def is_graph_launch(name: str) -> bool:
    """Whether a call launches a whole graph."""
    return bool(_GRAPH_LAUNCH.match(name))


def is_kernel_launch(name: str) -> bool:
    """Whether a call launches (or, while a stream is captured, records) one kernel."""
    return bool(_KERNEL_LAUNCH.match(name))


def is_capture_begin(name: str) -> bool:
    """Whether a call begins to record a stream into a graph."""
    return bool(_CAPTURE_BEGIN.match(name))


def is_capture_end(name: str) -> bool:
    """Whether a call ends recording."""
    return bool(_CAPTURE_END.match(name))


def behind_graph_launch(names: Sequence[str], calls: HostCalls, ops: DeviceOps) -> Mask:
    """Return which device operations a graph launch started; those without a known launch are not among them."""
    used = np.unique(calls.name).tolist()
    graph = [index for index in used if is_graph_launch(names[index])]
    if not graph or not len(ops):
        return np.zeros(len(ops), bool)
    launches = np.isin(calls.name, graph)
    found: Mask = (ops.launch >= 0) & launches[np.maximum(ops.launch, 0)]
    return found
