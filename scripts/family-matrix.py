#!/usr/bin/env python3
"""Check every decoder family transformers offers at a tiny size, and print the table; ``--write`` makes the docs page of it.

python scripts/family-matrix.py [FAMILY ...] [--write]
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
PAGE = ROOT / "docs" / "model-families.md"


def main() -> int:
    """Run the families named, or all; the exit code says whether a family that runs is wrong anywhere."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="model types; none: all")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)} (all families)")
    options = parser.parse_args()
    if options.write and options.families:
        parser.error("--write makes the page of all families: name none")

    from tests.families.check import check_family
    from tests.families.table import all_families, page, table
    from transformers.utils import logging as hf_logging

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    hf_logging.set_verbosity_error()
    rows = []
    for family in options.families or all_families():
        rows.append(check_family(family))
        print(rows[-1].family, rows[-1].verdict(), rows[-1].remark[:120], file=sys.stderr, flush=True)
    print(table(rows))
    if options.write:
        PAGE.write_text(page(rows), encoding="utf-8")
    return 1 if any(row.verdict() == "wrong" for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
