"""The one version number: of the package, of ``--version`` and of reports."""

from __future__ import annotations

__version__ = "0.1.0"
