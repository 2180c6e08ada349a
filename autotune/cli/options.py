"""Options that every command has."""

from __future__ import annotations

import argparse


def common() -> argparse.ArgumentParser:
    """A parent parser with ``--cache``, ``--json`` and ``--quiet``."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("common")
    group.add_argument(
        "--cache",
        metavar="PATH",
        help="folder or .sqlite file of the cache (default: $AUTOTUNE_CACHE, else the user's "
        "data folder)",
    )
    group.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    return parser
