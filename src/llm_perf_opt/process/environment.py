"""The environment of programs that are captured: what they need, and what the user names.

Nsight Systems stores the whole environment of the program in its report and in every export, and captures are made to
be passed on. So a captured program, and the tool around it, get an allow-listed environment; anything else has to be
named in ``pipeline.workload.env``. Names and values that look like secrets are held back even where the list allows
the name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

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
    "ACCELERATE_",
    "FLASH_ATTENTION_",
    "XFORMERS_",
    "NSYS_",
    "NV_",
    "LLM_PERF_OPT_",
)


def allowed_environment(named: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of this process that a captured program gets, and those that the user ``named``.

    Who names a variable wants it there: it is not held back, whatever it looks like.
    """
    return {
        **{name: value for name, value in os.environ.items() if _is_allowed(name, value)},
        **(named or {}),
    }


def withheld_names(named: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of the variables that a captured program does not get."""
    return sorted(set(os.environ) - set(allowed_environment(named)))


def _is_allowed(name: str, value: str) -> bool:
    return (name in _NAMES or name.startswith(_PREFIXES)) and not is_secret_variable(name, value)
