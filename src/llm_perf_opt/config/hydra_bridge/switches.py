"""The switches of Hydra's command line; without importing Hydra, so that reading a command line is quick."""

from __future__ import annotations

MULTIRUN = frozenset({"--multirun", "-m"})
CONFIG_DIR = frozenset({"--config-dir", "-cd"})
CONFIG_NAME = frozenset({"--config-name", "-cn"})

PRINT_CONFIG = frozenset({"--cfg", "-c", "--info", "-i"})
"""Switches after which Hydra prints the configuration, or how it was composed."""

PRINT_ONLY = PRINT_CONFIG | {"--help", "-h", "--hydra-help", "--version", "--shell-completion", "-sc"}
"""Switches after which Hydra prints something and nothing is run."""

WITH_VALUE = frozenset(
    {"--cfg", "-c", "--config-path", "-cp", "--package", "-p", "--experimental-rerun"}
    | CONFIG_DIR
    | CONFIG_NAME
)
"""Switches whose value may be the next argument. ``--info`` is not among them: its value is optional."""

REFUSED = frozenset({"--experimental-rerun"})
"""Switches that run what a file holds: this one unpickles it, and a pickle is a program."""

KNOWN = PRINT_ONLY | MULTIRUN | WITH_VALUE | {"--run", "-r", "--resolve"}
