#!/usr/bin/env python3
"""Check every decoder family transformers offers, vision-language models and encoder-decoders at a tiny size, and print the
table; ``--write`` makes the docs page of it.

python scripts/family-matrix.py [FAMILY ...] [--write]
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.families.check import Row

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

    from tests.families.check_towers import tower_families
    from tests.families.table import all_families, page, table
    from transformers.utils import logging as hf_logging

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    hf_logging.set_verbosity_error()
    towers = _rows([name for name in tower_families() if not options.families or name in options.families])
    decoders = _rows([name for name in options.families or all_families() if name not in tower_families()])
    print(table([*towers, *decoders]))
    if options.write:
        PAGE.write_text(page(decoders, towers), encoding="utf-8")
    return 1 if any(row.verdict() == "wrong" for row in [*towers, *decoders]) else 0


def _rows(families: list[str]) -> list[Row]:
    from tests.families.check import check_family
    from tests.families.check_towers import check_tower_family, tower_families

    rows = []
    for family in families:
        rows.append((check_tower_family if family in tower_families() else check_family)(family))
        print(rows[-1].family, rows[-1].verdict(), rows[-1].remark[:120], file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
