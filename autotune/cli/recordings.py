"""``autotune convert`` and ``compare``: recordings in other formats, and for papers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.outputs import check_outputs
from autotune.cli.parser import CommandResult, common
from autotune.core.errors import InputError

if TYPE_CHECKING:
    from autotune.research import Summary


def add_convert(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "convert",
        parents=[common()],
        description="Writes what was recorded in another format. Read are sweeps of ours (JSON, "
        "CSV, Parquet, Arrow), Kernel Tuner's caches and lists of results, T4 results, KTT's "
        "results, replay files, and spaces of the T1 schema, also as .gz. The format written "
        "follows from the name: .json (a sweep), .csv, .parquet, .arrow, .kt.json (a Kernel Tuner "
        "cache), .t4.json, .ktt.json, .t1.json (a space alone), each also with .gz.",
    )
    parser.add_argument("source", type=Path, metavar="FILE", help="a recording, or a space")
    parser.add_argument("target", type=Path, metavar="TARGET", help="the file to write")
    parser.add_argument("--to", metavar="FORMAT", help="sweep, csv, t4, ... (default: by name)")
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


def add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        parents=[common()],
        description="Searches recorded spaces with each sampler, as `autotune replay` does, and "
        "writes what a paper needs to a folder: scores with paired tests, convergence, importance "
        "and interactions of parameters, portability, environment. One page (index.html), its "
        "charts as SVG and PDF, its tables as CSV.",
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="a recorded space, or the name of a data set"
    )
    parser.add_argument(
        "--samplers",
        nargs="+",
        default=["auto", "tpe", "random"],
        metavar="NAME",
        help="as `replay` takes them (default: auto tpe random)",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder")
    parser.add_argument(
        "--trials",
        type=int,
        metavar="N",
        help="evaluations per run (default: to the cut-off of each space, which its score needs)",
    )
    parser.add_argument(
        "--seeds", type=int, default=20, metavar="N", help="runs per sampler (default 20)"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes (default: one per core)"
    )
    parser.set_defaults(run=run_compare)


def run_compare(args: argparse.Namespace) -> CommandResult:
    """Replay every file with every sampler, and write the page and its parts."""
    from autotune.core.paths import CacheLocations
    from autotune.reporting import Finder
    from autotune.reporting.comparing import Comparison, write_comparison
    from autotune.reporting.page import bundle

    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {args.out}: {error.strerror}") from error
    files = [_path(given) for given in args.files]
    check_outputs({"the page": args.out / "index.html"}, args, files)
    bundle()  # what draws is missing before the work, not after it

    def told(name: str, sampler: str, summary: Summary) -> None:
        if not args.quiet:
            score = f"{summary.paper.score:.3f}" if summary.paper.telling else "-"
            print(f"{name}: {sampler} scores {score}", file=sys.stderr, flush=True)

    comparison = Comparison.of(
        files,
        list(dict.fromkeys(args.samplers)),
        Finder(CacheLocations.at(args.cache)),
        trials=args.trials,
        seeds=args.seeds,
        workers=args.workers,
        told=told,
    )
    written = write_comparison(args.out, comparison)
    document = {
        "output": str(args.out.absolute()),
        "files": [path.name for path in written],
        "scores": [
            {
                "name": name,
                "sampler": sampler,
                "cut_off": summary.paper.cut_off,
                "scores": list(summary.paper.scores) if summary.paper.telling else [],
            }
            for (name, sampler), summary in comparison.summaries.items()
        ],
    }
    return CommandResult(document, f"written   {args.out / 'index.html'}, {len(written)} files")


def _path(given: str) -> Path:
    """The file of that name, or of the data set of that name."""
    from autotune import datasets
    from autotune.reporting import is_file

    return (
        datasets.path(given) if not is_file(given) and given in datasets.names() else Path(given)
    )
