"""Life cycle of a server: checkpoint, port, start, health, failure messages and shutdown."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llm_perf_opt.captures.serving import INITIALISES
from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.core.files import explain_os_errors
from llm_perf_opt.core.secrets import mask_arguments, mask_text
from llm_perf_opt.process.launch import BackgroundProcess, ProcessResult
from llm_perf_opt.stages.serve.config import EngineName, ServeConfig, key_of
from llm_perf_opt.stages.serve.engines import HOST, Engine, ServerSettings
from llm_perf_opt.stages.serve.load import WORDS

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import AppConfig

_LOG_NAME = "server"
_LAST_LINES = 15
_POLL_S = 0.2
_MOST_STEP_LINES = 500_000
_PROBE_S = 5.0
CHECKPOINT_ADAPTERS = ("hf_causal_lm",)
"""Presets that a checkpoint can be written from."""
_MOST_ANSWER_BYTES = 1 << 20
_MOST_MESSAGE = 2000
_MOST_NAME = 512
"""Longest name of a model or version that is taken from a server."""


def free_port(wanted: int | None) -> int:
    """Return the wanted port, or a free one; a port that is in use is a :class:`ToolError`."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted or 0))
        except OSError as error:
            raise ToolError(
                f"port {wanted} of {HOST} cannot be used: {error.strerror}",
                hint=f"end the program that uses it, or leave {key_of('port')} out for a free one",
            ) from error
        return int(probe.getsockname()[1])


def served_checkpoint(config: AppConfig, serve: ServeConfig) -> str | None:
    """Return the checkpoint or name that is given; ``None``: one is written from the preset."""
    if serve.model is not None:
        local = Path(serve.model).expanduser()
        return (
            str(local.absolute()) if local.is_dir() and serve.engine is not EngineName.attach else serve.model
        )
    if config.model.path is not None:
        local = Path(config.model.path).expanduser()
        return str(local.absolute()) if local.is_dir() else config.model.path
    return None


def write_checkpoint(config: AppConfig, folder: Path) -> Path:
    """Write the preset with random weights and a tokenizer, without an end token, so that answers have a fixed length."""
    import torch
    from transformers import GenerationConfig
    from transformers.utils import logging as hf_logging

    from llm_perf_opt.workloads.models.hf_causal_lm import HfCausalLmAdapter
    from llm_perf_opt.workloads.registry import load_adapter

    adapter = load_adapter(config.model, config.infer)
    if not isinstance(adapter, HfCausalLmAdapter):
        raise ConfigError(
            f"no checkpoint can be written for the adapter {config.model.adapter}",
            hint=f"use a text model (model=llama_tiny), or name a checkpoint: {key_of('model')}=DIR",
            key=key_of("model"),
        )
    kind = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(config.model.dtype.value, torch.float32)
    model: Any = adapter.build("cpu", kind)
    model.generation_config = GenerationConfig(do_sample=False)
    model.config.eos_token_id = None
    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        with explain_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            model.save_pretrained(folder)
            _word_tokenizer(int(adapter.text_config().vocab_size)).save_pretrained(folder)
    finally:
        if bars:
            hf_logging.enable_progress_bar()
    return folder


def _word_tokenizer(vocab_size: int) -> Any:
    """Make a tokenizer of whole words, so that a prompt has exactly as many tokens as words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", *WORDS][:vocab_size]
    words += [f"w{number}" for number in range(len(words), vocab_size)]
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return tokenizer


def _is_name(value: object) -> bool:
    """Return whether a model name or version of a server is safe to print and to pass to a client."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= _MOST_NAME
        and value.isprintable()
        and not value.startswith("-")
    )


def _request(url: str, path: str, method: str, headers: dict[str, str], limit_s: float) -> tuple[int, bytes]:
    """Return HTTP status and the start of the response, after at most ``limit_s`` in total.

    The limit of a socket is one of each packet: a server that sends a byte a second, or "100 Continue" without end, would never
    reach it. No proxy is used and no redirect is followed: the server is the one that was named, and the API key is for it alone.
    """
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    held = [socket.create_connection((host, parts.port or (443 if secure else 80)), timeout=limit_s)]
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        with contextlib.suppress(OSError):
            held[0].shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(limit_s, expire)
    timer.daemon = True
    timer.start()
    try:
        if secure:
            context = ssl.create_default_context()
            held[0] = context.wrap_socket(held[0], server_hostname=host, do_handshake_on_connect=False)
            held[0].do_handshake()  # type: ignore[attr-defined]
        connection = http.client.HTTPConnection(host, parts.port)
        connection.sock = held[0]
        connection.request(
            method, f"{parts.path}{path}", body=b"" if method == "POST" else None, headers=headers
        )
        with connection.getresponse() as response:
            status, data = response.status, response.read(_MOST_ANSWER_BYTES)
    except (http.client.HTTPException, OSError, ValueError) as error:
        if expired.is_set():
            raise TimeoutError(f"no complete answer within {limit_s:g} s") from error
        raise
    finally:
        timer.cancel()
        held[0].close()
    # Closing a connection also ends headers and bodies.
    if expired.is_set():
        raise TimeoutError(f"no complete answer within {limit_s:g} s")
    return status, data


class Server:
    """One server, from its start to its end; a context manager."""

    def __init__(self, engine: Engine, url: str, *, api_key: str | None = None) -> None:
        self.engine, self.url, self.api_key = engine, url.rstrip("/"), api_key
        self.result: ProcessResult | None = None
        self.ready_s: float | None = None
        """Seconds from the start until it was healthy."""
        self.stop_s: float | None = None
        """Seconds from the request to end until nothing was left."""
        self._process: BackgroundProcess | None = None
        self.log_dir: Path | None = None
        """Where its log is, once it was started."""
        self.imports_s: float | None = None
        """Seconds from the start until the engine began to initialise, where its log tells."""
        self.step_lines: deque[tuple[float, str]] = deque(maxlen=_MOST_STEP_LINES)
        """Lines of the log that describe steps, with the time at which they came."""
        self._began: float | None = None
        self._last_output: deque[str] = deque(maxlen=_LAST_LINES)

    @property
    def is_alive(self) -> bool:
        """Whether the started process is running; always true for an external server."""
        return self._process is None or self._process.is_running

    @property
    def pid(self) -> int | None:
        """Process id of the started server."""
        return self._process.pid if self._process is not None else None

    def pause(self) -> None:
        """Keep the started server from running: an idle one may still use the processor."""
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        """Let a paused server go on."""
        if self._process is not None:
            self._process.resume()

    def request_stop(self) -> None:
        """Begin to end the started server, without waiting."""
        if self._process is not None:
            self._process.request_stop()

    def last_lines(self) -> str:
        """Return the end of the server's log, masked."""
        return self.masked("\n".join(self._last_output))

    def masked(self, text: str) -> str:
        """Return a text without secrets."""
        return mask_text(text.replace(self.api_key, "***") if self.api_key else text)

    @contextlib.contextmanager
    def running(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        log_dir: Path,
        config: ServeConfig,
        cwd: Path,
        *,
        wait: bool = True,
    ) -> Iterator[Server]:
        """Start the server; all its processes are ended afterwards. ``wait``: until it is healthy."""
        began = self._began = time.monotonic()
        self.log_dir = log_dir
        process = BackgroundProcess(
            argv,
            log_dir=log_dir,
            name=_LOG_NAME,
            cwd=cwd,
            env=env,
            on_line=self._take_line,
            grace_s=config.stop_timeout_s,
        )
        with process:
            self._process = process
            try:
                if wait:
                    self.wait_until_healthy(config.start_timeout_s)
                    self.ready_s = time.monotonic() - began
                yield self
            finally:
                requested = time.monotonic()
                self.result = process.stop()
                self.stop_s = time.monotonic() - requested

    def _take_line(self, line: str) -> None:
        self._last_output.append(line)
        if self.engine.step_mark is not None and self.engine.step_mark in line:
            self.step_lines.append((time.time(), line))
        if (
            self.imports_s is None
            and self.ready_s is None
            and INITIALISES.search(line)
            and self._began is not None
        ):
            self.imports_s = time.monotonic() - self._began

    def wait_until_healthy(self, limit_s: float) -> None:
        """Poll until the server answers; :class:`ToolError` with the end of its log if it does not."""
        end = time.monotonic() + limit_s
        reason = "no answer"
        while True:
            if not self.is_alive:
                raise ToolError(
                    f"the {self.engine.name.value} server ended before it was healthy:\n{self.last_lines()}",
                    hint=f"see serve/{_LOG_NAME}.stderr.log; arguments of your own: {key_of('args')}",
                )
            reason = self._health() or ""
            if not reason:
                return
            if time.monotonic() >= end:
                break
            time.sleep(_POLL_S)
        if self._process is None:
            raise ToolError(
                f"the server at {self.url} does not answer: {reason}",
                hint=f"start it, or correct {key_of('url')}",
            )
        raise ToolError(
            f"the {self.engine.name.value} server was not healthy after {limit_s:g} s ({reason}):\n{self.last_lines()}",
            hint=f"see serve/{_LOG_NAME}.stderr.log; more time: {key_of('start_timeout_s')}",
        )

    def _health(self) -> str | None:
        """Return why the server is not healthy; ``None``: it is healthy."""
        reason = "no answer"
        for path in self.engine.health_paths:
            status, answer = self.get(path)
            if status == 200:
                return None
            reason = f"{path}: {f'HTTP {status}' if status else answer}"
            if status is not None and 300 <= status < 400:
                reason += " (redirects are not followed)"
            if status != 404:
                break
        return reason

    def get(self, path: str, *, post: bool = False, timeout_s: float = _PROBE_S) -> tuple[int | None, str]:
        """Return (HTTP status, start of the response); status ``None``: no response."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            status, data = _request(self.url, path, "POST" if post else "GET", headers, timeout_s)
        except (http.client.HTTPException, OSError, ValueError) as error:
            return None, self.masked(str(error) or type(error).__name__)[:_MOST_MESSAGE]
        text = data.decode("utf-8", errors="replace")
        return status, text if status == 200 else self.masked(text[:_MOST_MESSAGE])

    def models(self) -> list[dict[str, Any]]:
        """Return the models that the server lists (``id``, ``owned_by``); empty if it lists none."""
        data = self._document("/v1/models").get("data")
        return (
            [one for one in data if isinstance(one, dict) and _is_name(one.get("id"))]
            if isinstance(data, list)
            else []
        )

    def identify(self) -> tuple[str | None, str | None]:
        """Return (engine, version) of an external server, if reported."""
        owners = {str(one.get("owned_by")) for one in self.models()}
        engine = next((name for name in ("vllm", "sglang") if name in owners), None)
        version = self._document("/version").get("version") if engine == "vllm" else None
        return engine, version if _is_name(version) else None

    def _document(self, path: str) -> dict[str, Any]:
        status, answer = self.get(path)
        try:
            found = json.loads(answer) if status == 200 else {}
        except (ValueError, RecursionError):
            found = {}
        return found if isinstance(found, dict) else {}

    def has_metrics(self, url: str) -> bool:
        """Return whether there is a metrics page."""
        path = url.removeprefix(self.url)
        return self.get(path)[0] == 200 if path.startswith("/") else True

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; ``False`` where the engine has no such route."""
        path = self.engine.reset_path
        return path is not None and self.get(path, post=True, timeout_s=30.0)[0] == 200

    def log_text(self) -> str:
        """Return the whole log of a server that has ended."""
        return f"{self.result.stdout}\n{self.result.stderr}" if self.result is not None else ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Command and environment of a server, ready for display."""

    settings: ServerSettings
    argv: list[str]
    env: dict[str, str]

    def shown(self) -> str:
        """Return the command without secrets."""
        import shlex

        return shlex.join(mask_arguments(self.argv))


def prepare(engine: Engine, settings: ServerSettings) -> Prepared:
    """Return command and environment of a server."""
    return Prepared(settings, engine.command(settings), engine.environment(settings))
