"""``autotune cache``: list, show, export, import, verify and prune what has been tuned."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.outputs import check_outputs
from autotune.cli.own_kernels import unused_folders
from autotune.cli.parser import CommandResult, common
from autotune.cli.records import (
    Here,
    Verifier,
    counted,
    find_record,
    shipped,
    shipped_portfolios,
    stored_text,
    subject,
    sustained_cell,
    sustained_text,
    user_cache,
)
from autotune.cli.scope import target_options
from autotune.cli.terminal import Style, ratio, styled, table
from autotune.core.errors import InputError
from autotune.core.paths import CacheLocations
from autotune.model import Portfolio
from autotune.operations.problem import gemm_from_key
from autotune.store import (
    Stored,
    TuningRecord,
    document_of,
    export_lines,
    export_records,
    import_records,
    superseded,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

_MAX_DAYS = 36500
_COLOURS = {"stale": Style.YELLOW, "invalid": Style.RED}


def add_cache(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its actions."""
    parser = commands.add_parser(
        "cache",
        description="Works on the tuning records and measurements stored on this machine.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    parser.set_defaults(run=lambda args: _help(parser), json=False)

    def add(
        name: str, run: Callable[[argparse.Namespace], CommandResult], summary: str
    ) -> argparse.ArgumentParser:
        with_families = name in ("verify", "prune")
        parents = [common(), target_options(device=False)] if with_families else [common()]
        action: argparse.ArgumentParser = actions.add_parser(
            name, parents=parents, help=summary, description=f"{summary.capitalize()}."
        )
        action.set_defaults(run=run)
        return action

    listing = add("list", _list, "list the records, newest first")
    listing.add_argument(
        "--shipped", action="store_true", help="list those that come with the package instead"
    )
    listing.add_argument(
        "--portfolios", action="store_true", help="list portfolios instead of records"
    )
    show = add("show", _show, "show everything about one record")
    show.add_argument("id", metavar="ID", help="a record's id, or the beginning of it")
    export = add("export", _export, "write records and portfolios to a file that `import` reads")
    export.add_argument("file", metavar="FILE", help="where to; - is stdout")
    export.add_argument(
        "--id", action="append", metavar="ID", help="only this record; may be given again"
    )
    add("import", _import, "store what a file holds, all or nothing").add_argument(
        "file", type=Path, metavar="FILE", help="what `export` wrote"
    )
    add("verify", _verify, "check the file, what it holds and what that refers to")
    prune = add("prune", _prune, "remove records that a better one has replaced")
    prune.add_argument(
        "--days",
        type=int,
        metavar="N",
        help="remove measurements older than this, too, and folders of kernels of your own that "
        "were not used since and that no record is of",
    )
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    add("path", _path, "print where the cache is")


def _help(parser: argparse.ArgumentParser) -> CommandResult:
    return CommandResult(None, parser.format_help().rstrip())


def _list(args: argparse.Namespace) -> CommandResult:
    if args.portfolios:
        return _list_portfolios(args)
    if args.shipped:
        records = shipped()
    else:
        cache = user_cache(args.cache)
        records = cache.records()
        if not records:
            place = "no records in" if cache.path.exists() else "there is no cache at"
            return CommandResult(
                [],
                f"{place} {cache.path}: `autotune tune` makes one; `--shipped` lists the records "
                "that come with the package",
            )
    held = [sustained_cell(record) for record in records]
    some = any(cell != "-" for cell in held)
    numeric = ("GFLOP/s", "ratio", *["sustained"] * some)
    header = ("id", "device", "problem", "target", "family", *numeric, "created", "")
    rows = [
        (
            record.id,
            record.fingerprint.name,
            _problem_label(record),
            record.target,
            record.candidate.family,
            # Of an operation that says no flops, one an element is counted: next to none.
            f"{record.gflops:.1f}" if record.gflops >= 0.05 else "-",
            ratio(f"{record.baseline.ratio:.2f}x", record.baseline.ratio)
            if record.baseline
            else "-",
            *[sustained] * some,
            record.created[:19].replace("T", " "),
            styled("noisy", Style.YELLOW) if record.noisy else "",
        )
        for record, sustained in zip(records, held, strict=True)
    ]
    return CommandResult(
        [record.to_json() for record in records], table(header, rows, right=numeric)
    )


def _list_portfolios(args: argparse.Namespace) -> CommandResult:
    cache = user_cache(args.cache)
    found = shipped_portfolios() if args.shipped else cache.portfolios()
    documents = [document_of(each) for each in found]
    if not found:
        place = "come with the package" if args.shipped else f"are in {cache.path}"
        return CommandResult(
            documents, f"no portfolios {place}: `autotune tune --preset gpu`, or cpu, makes them"
        )
    header = ("device", "problems", "target", "programs", "binaries", "shapes", "loss", "created")
    rows = [
        (
            each.fingerprint.name,
            subject(each),
            each.target,
            f"{len(each.entries)}",
            f"{sum(entry.binary is not None for entry in each.entries)}",
            f"{each.shapes}",
            f"{each.loss:.1%}",
            each.created[:19].replace("T", " "),
        )
        for each in found
    ]
    right = ("programs", "binaries", "shapes", "loss")
    return CommandResult(documents, table(header, rows, right=right))


def _show(args: argparse.Namespace) -> CommandResult:
    record = find_record(user_cache(args.cache), args.id)
    low, high = record.interval_s
    effort = record.effort
    lines = [
        f"{record.id}  {_problem_label(record)} on {record.fingerprint.name}",
        f"winner       {styled(str(record.candidate), Style.GREEN)}",
        f"median       {record.median_s:.4g} s ({low:.4g} to {high:.4g} with 95% confidence), "
        f"{record.gflops:.1f} GFLOP/s, ties with {record.ties}",
    ]
    if record.baseline:
        lines.append(
            f"baseline     {ratio(f'{record.baseline.ratio:.2f}x', record.baseline.ratio)} the "
            f"speed of {record.baseline.name}, "
            f"{record.baseline.median_s:.4g} s"
        )
    if record.sustained is not None:
        lines.append(f"sustained    {sustained_text(record.sustained, record)}")
    if record.score is not None:
        lines.append(f"{record.objective:<13}{record.score:.4g}, which it was chosen by")
    lines += [f"{styled('but', Style.YELLOW)}          {caveat}" for caveat in record.caveats]
    lines += [
        f"effort       {effort.trials} trials in {effort.seconds:.4g} s, "
        f"sampler {effort.sampler}, seed {effort.seed}",
        f"made         {record.created} by autotune {record.version} for target {record.target}",
        f"family       {record.family_digest} (space {record.space_digest})",
    ]
    sections: tuple[tuple[str, Mapping[str, object]], ...] = (
        ("fingerprint", record.fingerprint.fields),
        ("toolchain", record.toolchain),
        ("state", record.state),
    )
    for title, fields in sections:
        lines.append(styled(title, Style.BOLD))
        lines.extend(f"  {name:<18} {value}" for name, value in fields.items())
    return CommandResult(record.to_json(), "\n".join(lines))


def _export(args: argparse.Namespace) -> CommandResult:
    if args.file != "-":
        check_outputs({"the export": Path(args.file)}, args)
    cache = user_cache(args.cache)
    named = {record.id: record for record in map(cache.get, args.id or ())}  # each once
    records = [*named.values()] if args.id else cache.records()
    portfolios = [] if args.id else cache.portfolios()
    stored: list[Stored] = [*records, *portfolios]
    document = [document_of(each) for each in stored]
    if args.file == "-":
        return CommandResult(document, "\n".join(export_lines(stored)))
    export_records(stored, Path(args.file))
    written = stored_text(len(records), len(portfolios))
    return CommandResult(document, f"wrote {written} to {args.file}")


def _import(args: argparse.Namespace) -> CommandResult:
    stored = import_records(args.file)
    cache = user_cache(args.cache)
    records = [each for each in stored if isinstance(each, TuningRecord)]
    portfolios = [each for each in stored if isinstance(each, Portfolio)]
    new, taken = cache.take(records, portfolios)
    lines = [f"{counted(new, 'new record')} of {len(records)} stored in {cache.path}"]
    for each, is_new in zip(portfolios, taken, strict=True):
        done = "stored" if is_new else "not stored: there is one, which stays"
        lines.append(f"portfolio {subject(each)} on {each.fingerprint.name}: {done}")
    return CommandResult([document_of(each) for each in stored], "\n".join(lines))


def _verify(args: argparse.Namespace) -> CommandResult:
    cache = user_cache(args.cache)
    damage = cache.damage()
    verifier = Verifier(cache, Here(args.families))
    records = [
        dict(zip(("id", "status", "detail"), (id_, *verifier.record(id_, text)), strict=True))
        for id_, text in cache.documents(target=args.target)
    ]
    portfolios = [
        dict(zip(("portfolio", "status", "detail"), verifier.portfolio(text), strict=True))
        for text in cache.portfolio_documents(target=args.target)
    ]
    lines = [f"{cache.path}: {line}" for line in damage]
    for kind, rows in (("record", records), ("portfolio", portfolios)):
        counts = Counter(row["status"] for row in rows)
        if rows:
            cells = [
                (what, _coloured(status), why) for what, status, why in map(dict.values, rows)
            ]
            lines.append(table(tuple(rows[0]), cells, fold=True))
        summary = ", ".join(f"{counts[status]} {status}" for status in ("ok", "stale", "invalid"))
        if kind == "record" and not cache.path.exists():
            lines.append(f"there is no cache at {cache.path}: `autotune tune` makes one")
        elif rows or kind == "record":
            lines.append(f"{counted(len(rows), kind)} in {cache.path}: {summary}")
    failed = bool(damage) or any(row["status"] == "invalid" for row in (*records, *portfolios))
    return CommandResult(
        {"path": str(cache.path), "damage": damage, "records": records, "portfolios": portfolios},
        "\n".join(lines),
        exit_code=1 if failed else 0,
    )


def _coloured(status: str) -> str:
    style = _COLOURS.get(status)
    return status if style is None else styled(status, style)


def _prune(args: argparse.Namespace) -> CommandResult:
    if args.days is not None and not 0 <= args.days <= _MAX_DAYS:
        raise InputError(f"--days must be from 0 to {_MAX_DAYS}, got {args.days}")
    cache = user_cache(args.cache)
    replaced = superseded(cache.records(target=args.target), Here(args.families).is_current)
    measurements = 0
    folders: list[Path] = []
    if args.days is not None:
        before = datetime.now(UTC) - timedelta(days=args.days)
        forget = cache.count_measurements if args.dry_run else cache.delete_measurements
        measurements = forget(before=before.isoformat())
        gone = {record.id for record in replaced}
        kept = (record for record in cache.records() if record.id not in gone)
        folders = unused_folders(args.cache, kept, before.timestamp())
    if not args.dry_run:
        cache.delete(record.id for record in replaced)
        for folder in folders:  # whoever needs one again writes it again
            shutil.rmtree(folder, ignore_errors=True)
    verb = "would remove" if args.dry_run else "removed"
    lines = [f"{record.id}  {_problem_label(record)}" for record in replaced]
    lines += [f"{folder}  files of a kernel that nothing has used since" for folder in folders]
    told = f", {counted(len(folders), 'folder')}" if folders else ""
    lines.append(
        f"{verb} {counted(len(replaced), 'superseded record')}{told} and "
        f"{counted(measurements, 'measurement')} from {cache.path}"
    )
    document: dict[str, Any] = {
        "removed": [record.to_json() for record in replaced],
        "measurements": measurements,
        "folders": [str(folder) for folder in folders],
        "dry_run": args.dry_run,
    }
    return CommandResult(document, "\n".join(lines))


def _path(args: argparse.Namespace) -> CommandResult:
    place = CacheLocations.at(args.cache)
    places = {
        "root": place.root,
        "database": place.database,
        "studies": place.studies,
        "programs": place.programs,
    }
    return CommandResult(
        {name: str(path) for name, path in places.items()},
        "\n".join(f"{name:<9} {path}" for name, path in places.items()),
    )


def _problem_label(record: TuningRecord) -> str:
    """The problem as its label has it, after its operation where that is not gemm."""
    shared = {name: value for name, value in record.problem.items() if name != "formula"}
    try:
        label = gemm_from_key(shared).label
    except InputError:  # of an operation with operands of its own: its sizes come before the dtype
        fields = itertools.takewhile(lambda field: field[0] != "dtype", shared.items())
        sizes = (str(value) for name, value in fields if name != "operation")
        label = f"{'x'.join(sizes)}-{shared.get('dtype')}"
    return label if record.operation == "gemm" else f"{record.operation} {label}"
