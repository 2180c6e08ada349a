"""``autotune export``: a record's kernel as a folder, for programs without this package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.options import CommandResult, common
from autotune.cli.records import find_record, user_cache
from autotune.cli.targets import families_option

if TYPE_CHECKING:
    from autotune.exporting.exportable import Exported


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "export",
        parents=[common()],
        description="Writes the kernel of a record to a folder, with all that a program needs to "
        "run it without this package: source, binary, a header or module that launches it, and a "
        "program that checks results.",
    )
    parser.add_argument(
        "record", metavar="ID", help="a stored or a shipped record; the beginning is enough"
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="a new or an empty folder")
    parser.add_argument(
        "--format",
        choices=("cpp", "python"),
        default="cpp",
        help="what the programs are written in: C++, of CPU kernels C too; or Python "
        "(default: cpp)",
    )
    families_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> CommandResult:
    """Gather what belongs to the record, have its target make the files, write them."""
    from autotune.exporting import check_folder, write_folder
    from autotune.targets.exported import exportable
    from autotune.targets.registry import target_class

    check_folder(args.folder)  # before anything is compiled
    cache = user_cache(args.cache)
    record = find_record(cache, args.record)
    kernel = exportable(record, cache.path, args.families)
    exported = target_class(record.target).exporter.export(kernel, args.format)
    write_folder(args.folder, exported.files)
    if not args.quiet:
        for note in exported.notes:
            print(f"autotune: {note}", file=sys.stderr)
    document = {
        "record": record.id,
        "target": record.target,
        "format": args.format,
        "name": exported.name,
        "folder": str(args.folder.absolute()),
        "files": sorted(exported.files),
        "notes": list(exported.notes),
    }
    return CommandResult(document, _text(args.folder, exported))


def _text(folder: Path, exported: Exported) -> str:
    """The files and their sizes."""
    sizes = {name: len(exported.files[name]) for name in sorted(exported.files)}
    width = max(map(len, sizes))
    listed = "\n".join(f"  {name:<{width}}  {size:>9,} bytes" for name, size in sizes.items())
    return f"{folder}: {exported.name}\n{listed}"
