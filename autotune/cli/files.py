"""``autotune export`` and ``autotune report``: a record's kernel, or studies, as files."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.outputs import check_outputs
from autotune.cli.parser import CommandResult, check_name, common
from autotune.cli.records import find_record, user_cache
from autotune.cli.scope import families_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.exporting.exportable import Exported
    from autotune.reporting import Study
    from autotune.search.importance import Importance


def add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    parser.set_defaults(run=run_export)


def run_export(args: argparse.Namespace) -> CommandResult:
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


def add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        parents=[common()],
        description="Writes one HTML page about a study or sweep, or about several side by side: "
        "winner, progress, importance of parameters, what pruned the space, where the time went, "
        "failures, roofline. The page needs no network.",
    )
    parser.add_argument(
        "studies",
        nargs="+",
        metavar="STUDY",
        help="a study's name, the beginning of a record's id, or a file of measurements (what "
        "`autotune sweep -o` writes, or anything that `autotune replay` reads)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="where to (default: the study's name with .html; report.html for several)",
    )
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="also draw progress and importance: an .svg or a .png",
    )
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="Optuna storage, or a folder of journals (default: those beside the cache)",
    )
    families_option(parser)
    parser.set_defaults(run=run_report)


def run_report(args: argparse.Namespace) -> CommandResult:
    """Read every study, then write what was asked for."""
    from autotune.core.paths import CacheLocations
    from autotune.reporting import Finder, facts, is_file, write_page, write_picture
    from autotune.reporting import page as pages

    for given in args.studies:
        if not is_file(given):
            check_name("a study's name", given)
    if args.picture is not None:
        pages.check_picture(args.picture)
    outputs = {"the page": args.output, "the picture": args.picture}
    check_outputs(outputs, args, args.studies)
    extra = tuple(args.families)
    journals = Path(args.storage) if args.storage and Path(args.storage).is_dir() else None
    storage = None if journals else args.storage
    finder = Finder(CacheLocations.at(args.cache), storage, extra, journals)
    studies = finder.find_all(args.studies)
    page = args.output or Path(f"{_file_name(studies)}.html")
    check_outputs(outputs | {"the page": page}, args, args.studies)
    size = write_page(page, studies, extra)
    if args.picture is not None:
        write_picture(args.picture, studies)
    importance = facts.importance_of(studies)
    document = {
        "output": str(page.absolute()),
        "bytes": size,
        "picture": None if args.picture is None else str(args.picture.absolute()),
        "studies": [_document(study, importance[study.name]) for study in studies],
    }
    pictured = "" if args.picture is None else f"\npicture   {args.picture}"
    told = "\n".join(f"study     {_line(study)}" for study in studies)
    return CommandResult(document, f"{told}\nwritten   {page} ({size / 1e6:.1f} MB){pictured}")


def _document(study: Study, importance: Sequence[Importance]) -> dict[str, Any]:
    best = study.ranked[0] if study.ranked else None
    return {
        "name": study.name,
        "source": study.source,
        "problem": None if study.problem is None else study.problem.key(),
        "target": study.target or None,
        "device": study.device or None,
        "trials": len(study.trials),
        "counts": study.counts,
        "unit": study.unit,
        "best": None
        if best is None
        else {
            "family": best.family,
            "configuration": dict(best.configuration),
            "value": best.value,
            "interval": None if best.interval is None else list(best.interval),
        },
        "record": None if study.record is None else study.record.id,
        "importance": [asdict(one) for one in importance],
    }


def _line(study: Study) -> str:
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(study.counts.items()))
    return f"{study.name}: {len(study.trials):,} trials ({counts or 'none'}), {study.source}"


def _file_name(studies: list[Study]) -> str:
    """The name of the page, which no other study's has."""
    from autotune.search.storage import slug

    return "report" if len(studies) > 1 else slug(studies[0].name)
