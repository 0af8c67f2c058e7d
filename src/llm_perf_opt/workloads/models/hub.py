"""Models named by their Hugging Face Hub id (``organisation/name``): resolved or rejected within seconds, before any work."""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.workloads.models import loading

LOGGER = logging.getLogger("llm_perf_opt")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_ENDPOINT = "https://huggingface.co"
_TIMEOUT_S = 3.0
_OFFLINE = "HF_HUB_OFFLINE"
_TRUE = {"1", "ON", "YES", "TRUE"}


def is_hub_id(path: str) -> bool:
    """Whether ``model.path`` can only be a Hub id: it has the form of one, and there is no such directory."""
    return _HUB_ID.fullmatch(path) is not None and not Path(path).exists()


@functools.lru_cache(maxsize=64)
def hub_config(name: str, revision: str | None = None) -> dict[str, Any]:
    """Return ``config.json`` of a Hub model, from the local cache or the Hub; :class:`InputError` if there is neither.

    Where the Hub cannot be reached, the process is switched to offline mode: the libraries would otherwise retry every
    file for half a minute.
    """
    reason = _unreachable()
    from huggingface_hub import constants, hf_hub_download

    if reason is not None:
        os.environ[_OFFLINE] = "1"  # for processes started from here
        constants.HF_HUB_OFFLINE = True
    try:
        file = hf_hub_download(name, "config.json", revision=revision, local_files_only=reason is not None)
    except (OSError, ValueError) as error:
        if reason is not None:
            raise InputError(
                f"model.path={name} is not a local directory, and the Hugging Face Hub cannot be reached ({reason})",
                hint=f"on a machine with a network: hf download {name} --local-dir {Path(name).name}; "
                f"then use model=./{Path(name).name}",
                key="model.path",
            ) from error
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise InputError(
            f"model.path={name} is not a local directory, and cannot be read from the Hugging Face Hub: {first}",
            hint="check the name, model.revision and, for a gated model, the access token (hf auth login)",
            key="model.path",
        ) from error
    LOGGER.debug("config.json of %s: %s", name, file)
    return loading.read_json(Path(file))


def _unreachable() -> str | None:
    """Return why the Hub cannot be reached; ``None``: it is reachable."""
    if os.environ.get(_OFFLINE, "").upper() in _TRUE:
        return f"{_OFFLINE}=1"
    endpoint = os.environ.get("HF_ENDPOINT", _ENDPOINT).rstrip("/")
    if not endpoint.startswith(("http://", "https://")):
        return f"HF_ENDPOINT={endpoint} is not a URL"
    # A thread, because resolving the name has no time limit of its own.
    answers: list[str | None] = []
    asking = threading.Thread(target=lambda: answers.append(_request(endpoint)), daemon=True)
    asking.start()
    asking.join(_TIMEOUT_S)
    return answers[0] if answers else f"no answer within {_TIMEOUT_S:g} s"


def _request(endpoint: str) -> str | None:
    """Send one request without retries; return the reason for a failure."""
    import urllib.error
    import urllib.request  # with TLS: not for commands that stay offline

    request = urllib.request.Request(f"{endpoint}/api/models?limit=1", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
            return None
    except urllib.error.HTTPError:
        return None  # reachable, whatever the status
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
