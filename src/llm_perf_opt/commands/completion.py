"""``llm-perf-opt completion``: verbs, options, keys, values and presets for the shell.

The shell calls the program at every press of the tab key, so neither Hydra nor torch is imported.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib.metadata import entry_points
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from llm_perf_opt.commands import VERBS
from llm_perf_opt.config.keys import CONF_DIR
from llm_perf_opt.config.schema import SECTIONS, WorkloadCommandConfig
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.stage import ENTRY_POINT_GROUP, PluginError, load_stage_type

HELP = """\
usage: llm-perf-opt completion {bash,zsh,fish}

Print what makes a shell complete verbs, options, keys, values and presets. For this shell:

  eval "$(llm-perf-opt completion bash)"         # and in ~/.bashrc to keep it
  eval "$(llm-perf-opt completion zsh)"          # in ~/.zshrc, after compinit
  llm-perf-opt completion fish | source
"""
_BASH = """\
_llm_perf_opt() {
  local line="${COMP_LINE:0:COMP_POINT}" cur head
  cur="${line##* }" head=""
  # readline cuts words at these characters and replaces only what is behind the last of them
  [[ $cur == *[=:@]* && $COMP_WORDBREAKS == *=* ]] && head="${cur%"${cur##*[=:@]}"}"
  local IFS=$'\\n'
  COMPREPLY=($(COMP_LINE="$line" "$1" completion words 2>/dev/null))
  COMPREPLY=("${COMPREPLY[@]#"$head"}")
  [[ ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace
}
complete -o default -F _llm_perf_opt llm-perf-opt
"""
_ZSH = """\
autoload -U +X bashcompinit && bashcompinit
_llm_perf_opt_zsh() {
  local line="${(j: :)words[1,CURRENT]}"
  local -a found
  found=("${(@f)$(COMP_LINE="$line" llm-perf-opt completion words 2>/dev/null)}")
  compadd -S '' -- $found || _files
}
compdef _llm_perf_opt_zsh llm-perf-opt
"""
_FISH = """\
function __llm_perf_opt
    COMP_LINE=(commandline -cp) llm-perf-opt completion words 2>/dev/null
end
complete -c llm-perf-opt -a '(__llm_perf_opt)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_OPTION = re.compile(r"""add_argument\(\s*(?:"-\w", )?"(--[a-z][a-z-]*)\"""")
_MOUNT = re.compile(r"^\s*- (?:override )?/?([\w/]+)(@[\w.]+)?:", re.MULTILINE)
_DEVICES = ("auto", "cpu", "cuda", "cuda:0", "mps", "xpu", "xpu:0")


def main(arguments: Sequence[str]) -> int:
    """Print the script of a shell, or (``words``) what the line in ``COMP_LINE`` can become."""
    first = arguments[0] if arguments else None
    if first in ("-h", "--help"):
        print(HELP, end="")
    elif first == "words":
        print("\n".join(complete(os.environ.get("COMP_LINE", ""))))
    elif first in SCRIPTS:
        print(SCRIPTS[first], end="")
    else:
        raise ConfigError("completion needs a shell", hint=f"give one of {', '.join(SCRIPTS)}")
    return 0


def hydra_request(arguments: Sequence[str]) -> int:
    """Answer ``-sc install=bash`` and the scripts that Hydra's own completion installed in earlier releases."""
    action, _, shell = next((word for word in arguments if "=" in word), "").partition("=")
    if action == "uninstall" and shell in SCRIPTS:
        print({"fish": "complete -e -c llm-perf-opt"}.get(shell, "complete -r llm-perf-opt"))
        return 0
    return main(["words" if action == "query" else shell])


def complete(line: str) -> list[str]:
    """Return the words that the last word of a command line can become."""
    words = line.split(" ")
    current, before = words[-1], [word for word in words[1:-1] if word]
    if not before:
        return _starting(current, [*VERBS, "--help", "--version"])
    verb = before[0]
    if current.startswith("-"):
        return _starting(current, _options(verb))
    if verb in ("run", "compare", "improve", "doctor"):
        return _complete_override(current)
    return _starting(current, list(SCRIPTS)) if verb == "completion" else []


def _starting(word: str, candidates: Sequence[str]) -> list[str]:
    return sorted(one for one in candidates if one.startswith(word))


def _options(verb: str) -> list[str]:
    """Return a verb's options: those of ``run`` are Hydra's too, those of the others are listed in their module."""
    if verb == "run":
        from llm_perf_opt.commands.run import KNOWN

        return list(KNOWN)
    found = importlib.util.find_spec(f"llm_perf_opt.{VERBS[verb].module}") if verb in VERBS else None
    if found is None or found.origin is None:
        return []
    return [*_OPTION.findall(Path(found.origin).read_text(encoding="utf-8")), "--help"]


# Overrides of ``run``, from the types alone: completion has no time to import Hydra.


def _complete_override(word: str) -> list[str]:
    """Return what an override that begins with ``word`` can become: the next part of its key, or its value."""
    key, separator, value = word.partition("=")
    if separator:
        known = [*(_presets(key) or _values(key))]
        head, comma, last = value.rpartition(",")  # a sweep: model=a,b
        return sorted(f"{key}={head}{comma}{one}" for one in known if one.startswith(last))
    return sorted({_next_part(one, word) for one in (*_keys(word), *_groups()) if one.startswith(word)})


def _next_part(candidate: str, word: str) -> str:
    """Stop at the next dot, so that a key is found section by section; groups are few and shown whole."""
    if "/" in candidate or "@" in candidate:
        return candidate
    dot = candidate.find(".", len(word))
    return candidate if dot < 0 else candidate[: dot + 1]


def _keys(word: str) -> Iterator[str]:
    for key, annotation in _leaves(word):
        yield f"{key}." if _is_free_form(annotation) else f"{key}="


def _leaves(word: str) -> Iterator[tuple[str, Any]]:
    """Yield every key that ``word`` may be the beginning of, with its type; of ``pipeline`` one stage's only."""
    for name, kind in SECTIONS.items():
        yield from _fields(name, kind)
    section, _, rest = word.partition(".")
    if not "pipeline".startswith(section):
        return
    name, dot, _ = rest.partition(".")
    stages = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if dot and name in stages:
        with contextlib.suppress(PluginError):  # a broken one has no keys to offer
            yield from _fields(f"pipeline.{name}", load_stage_type(stages[name]).config_type)
    elif not dot:
        yield from ((f"pipeline.{stage}.enable", bool) for stage in stages)
    yield from _fields("pipeline.workload", WorkloadCommandConfig)


def _fields(prefix: str, kind: type) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(kind)
    for field in fields(kind):
        annotation = hints[field.name]
        if isinstance(annotation, type) and is_dataclass(annotation):
            yield from _fields(f"{prefix}.{field.name}", annotation)
        else:
            yield f"{prefix}.{field.name}", annotation


def _is_free_form(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is dict


def _values(key: str) -> list[str]:
    if key == "run.device":
        return list(_DEVICES)
    annotation = dict(_leaves(key)).get(key)
    parts = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    values: list[str] = []
    for part in parts:
        if part is bool:
            values += ["true", "false"]
        elif isinstance(part, type) and issubclass(part, Enum):
            values += [str(member.value) for member in part]
        elif part is type(None):
            values.append("null")
    return values


def _groups() -> Iterator[str]:
    """Yield the groups whose presets can be chosen, as they are mounted in ``config.yaml``."""
    text = (CONF_DIR / "config.yaml").read_text(encoding="utf-8")
    for group, mount in _MOUNT.findall(text):
        if (CONF_DIR / group).is_dir():
            yield f"{group}{mount}="


def _presets(key: str) -> list[str]:
    folder = CONF_DIR / key.partition("@")[0]
    return sorted(path.stem for path in folder.glob("*.yaml")) if folder.is_dir() else []
