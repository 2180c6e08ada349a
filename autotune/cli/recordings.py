"""``autotune convert``: recordings in other formats."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autotune.cli.outputs import check_outputs
from autotune.cli.parser import CommandResult, common

FORMATS = ("sweep", "csv", "parquet", "arrow", "kernel-tuner", "t4", "ktt")
"""Formats that are written; naming them here spares the parser an import."""


def add_convert(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "convert",
        parents=[common()],
        description="Writes what was recorded in another format. Read are sweeps of ours (JSON, "
        "CSV, Parquet, Arrow), Kernel Tuner's caches and lists of results, T4 results, KTT's "
        "results, replay files, and spaces of the T1 schema, also as .gz. The format written "
        "follows from the name: .json (a sweep), .csv, .parquet, .arrow, .kt.json (a Kernel Tuner "
        "cache), .t4.json, .ktt.json, each also with .gz.",
    )
    parser.add_argument("source", type=Path, metavar="FILE", help="a recording, or a space")
    parser.add_argument("target", type=Path, metavar="TARGET", help="the file to write")
    parser.add_argument(
        "--to", choices=FORMATS, metavar="FORMAT", help=f"{', '.join(FORMATS)} (default: by name)"
    )
    parser.set_defaults(run=run_convert)


def run_convert(args: argparse.Namespace) -> CommandResult:
    """Convert one file."""
    from autotune.research import convert
    from autotune.research.converting import format_of

    form = format_of(args.target, args.to)
    check_outputs({"the recording": args.target}, args, [args.source])
    lost = convert(args.source, args.target, form)
    if lost and not args.quiet:
        print(f"autotune: {lost}", file=sys.stderr)
    size = args.target.stat().st_size
    document = {"output": str(args.target.absolute()), "format": form, "bytes": size, "lost": lost}
    return CommandResult(document, f"written   {args.target} ({form}, {size:,} bytes)")
