"""Every check."""

from __future__ import annotations

from tests.faults.security import execution, files, output, secrets

CHECKS = (*output.CHECKS, *files.CHECKS, *secrets.CHECKS, *execution.CHECKS)
