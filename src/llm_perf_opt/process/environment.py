"""The environment of captured programs: required variables, and those the user names.

Nsight Systems stores the whole environment of the program in its report and in every export, and captures are made to
be passed on. So a captured program, and the tool around it, get an allow-listed environment; anything else has to be
named in ``pipeline.workload.env``. Names and values that look like secrets are held back even where the list allows
the name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.core.secrets import is_secret_variable

_NAMES = frozenset(
    [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "PWD",
        "TERM",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TMP",
        "TEMP",
        "HOSTNAME",
        "DISPLAY",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "LIBRARY_PATH",
        "CPATH",
        "CC",
        "CXX",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CONDA_DEFAULT_ENV",
        "CUBLAS_WORKSPACE_CONFIG",
        "CUBLASLT_WORKSPACE_SIZE",
        "NVTX_INJECTION64_PATH",
        "GOMP_CPU_AFFINITY",
        "KMP_AFFINITY",
        "KMP_BLOCKTIME",
        "KMP_SETTINGS",
        "MALLOC_ARENA_MAX",
        "MALLOC_CONF",
        "TOKENIZERS_PARALLELISM",
        "RAYON_NUM_THREADS",
        "SAFETENSORS_FAST_GPU",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HF_DATASETS_CACHE",
        "HF_HUB_OFFLINE",
        "HF_DATASETS_OFFLINE",
        "HF_ENDPOINT",
        "HF_MODULES_CACHE",
        "HF_HUB_DISABLE_TELEMETRY",
        "HF_HUB_ENABLE_HF_TRANSFER",
        "HUGGINGFACE_HUB_CACHE",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "all_proxy",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NODE_RANK",
        "GROUP_RANK",
    ]
)
_PREFIXES = (
    "LC_",
    "XDG_",
    "PYTHON",
    "CUDA",
    "NVIDIA",
    "NCCL",
    "CUDNN",
    "CUBLAS",
    "CUTLASS",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "NUMEXPR_",
    "BLIS_",
    "DNNL_",
    "ONEDNN_",
    "KINETO_",
    "TORCH",
    "PYTORCH",
    "TRITON",
    "TRANSFORMERS_",
    "VLLM_",
    "SGLANG_",
    "SGL_",
    "TRTLLM_",
    "TLLM_",
    "FLASHINFER_",
    "LMCACHE_",
    "MOONCAKE_",
    "NIXL_",
    "DG_",
    "AITER_",
    "UCX_",
    "UCC_",
    "FI_",
    "GLOO_",
    "SLURM_",
    "PMI_",
    "PMIX_",
    "OMPI_",
    "MPI_",
    "I_MPI_",
    "MPICH_",
    "NVSHMEM_",
    "RCCL_",
    "HIP_",
    "HSA_",
    "ROCR_",
    "ROCM_",
    "ROCBLAS_",
    "HIPBLASLT_",
    "MIOPEN_",
    "GPU_",
    "IBV_",
    "MLX5_",
    "RDMAV_",
    "RAY_",
    "ACCELERATE_",
    "FLASH_ATTENTION_",
    "XFORMERS_",
    "NSYS_",
    "NV_",
    "LLM_PERF_OPT_",
)


def allowed_environment(named: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of this process that a captured program gets, and those that the user ``named``.

    A named variable is always passed, even if it looks like a secret.
    """
    return {
        **{name: value for name, value in os.environ.items() if _is_allowed(name, value)},
        **(named or {}),
    }


def _is_allowed(name: str, value: str) -> bool:
    return (name in _NAMES or name.startswith(_PREFIXES)) and not is_secret_variable(name, value)


# Start this program again with variables that libraries read only when a process starts.


_MARK = "LLM_PERF_OPT_RESTARTED"
"""Set for a process that was started again, so that it is not started a third time."""


def missing_variables(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that this process was started without, or with another value."""
    return {name: value for name, value in wanted.items() if os.environ.get(name) != value}


def restart_with(variables: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Replace this process by one with these variables and the same command line; returns only if none is missing."""
    missing = missing_variables(variables)
    if not missing:
        return
    if os.environ.get(_MARK):
        names = ", ".join(sorted(missing))
        raise ToolError(
            f"run.env: {names} did not take effect although the run was started again with it",
            hint="set it in the shell before starting",
        )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    command = [sys.executable, "-m", "llm_perf_opt", *arguments]
    try:
        os.execve(sys.executable, command, {**os.environ, **missing, _MARK: "1"})
    except (OSError, ValueError) as error:
        raise ToolError(
            f"run.env: the run cannot be started again with {', '.join(sorted(missing))}: {error}",
            hint="check names and values",
        ) from error


# Environment of a measuring process, set before torch is imported. The user's values are kept.


DEFAULTS = {
    # Idle CPU threads sleep instead of spinning. With the default, one other busy program on the machine slows
    # small operators down tenfold (a spinning thread keeps the one it waits for off the core).
    "OMP_WAIT_POLICY": "PASSIVE",
    # The torch profiler's own log lines would disturb the progress display.
    "KINETO_LOG_LEVEL": "99",
}


def prepare_process() -> None:
    """Set variables that are not set yet; no effect once torch is loaded."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
