"""``llm-perf-opt completion``: verbs, options, keys, values and presets for the shell.

The shell calls the program at every press of the tab key, so neither Hydra nor torch is imported.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.commands.verbs import VERBS
from llm_perf_opt.core.errors import ConfigError

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
        from llm_perf_opt.config.completion import complete_override

        return complete_override(current)
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
