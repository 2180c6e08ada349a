"""``autotune cache``: list, show, export, import, verify and prune what has been tuned."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.options import common
from autotune.cli.records import find_record, shipped, user_cache
from autotune.cli.result import CommandResult
from autotune.cli.table import table
from autotune.cli.targets import target_options
from autotune.core.errors import InputError, MissingDependencyError, UnknownNameError
from autotune.core.paths import CacheLocations
from autotune.operations.problem import gemm_from_key
from autotune.store import (
    TuningRecord,
    export_lines,
    export_records,
    import_records,
    is_current,
    parse_record,
    superseded,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem


_MAX_DAYS = 36500


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its actions."""
    parser = commands.add_parser(
        "cache",
        description="Works on the tuning records and measurements stored on this machine.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

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

    add("list", _list, "list the records, newest first").add_argument(
        "--shipped", action="store_true", help="list those that come with the package instead"
    )
    show = add("show", _show, "show everything about one record")
    show.add_argument("id", metavar="ID", help="a record's id, or the beginning of it")
    export = add("export", _export, "write records to a file that `import` reads")
    export.add_argument("file", metavar="FILE", help="where to; - is stdout")
    export.add_argument(
        "--id", action="append", metavar="ID", help="only this record; may be given again"
    )
    add("import", _import, "store the records of a file, all or none").add_argument(
        "file", type=Path, metavar="FILE", help="what `export` wrote"
    )
    add("verify", _verify, "check the file, its records and what they refer to")
    prune = add("prune", _prune, "remove records that a better one has replaced")
    prune.add_argument(
        "--days", type=int, metavar="N", help="remove measurements older than this, too"
    )
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    add("path", _path, "print where the cache is")


def _list(args: argparse.Namespace) -> CommandResult:
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
    header = ("id", "device", "problem", "target", "family", "GFLOP/s", "ratio", "created", "")
    rows = [
        (
            record.id,
            record.fingerprint.name,
            _problem_label(record),
            record.target,
            record.candidate.family,
            f"{record.gflops:.1f}",
            f"{record.baseline.ratio:.2f}x" if record.baseline else "-",
            record.created[:19].replace("T", " "),
            "noisy" if record.noisy else "",
        )
        for record in records
    ]
    return CommandResult(
        [record.to_json() for record in records], table(header, rows, right=("GFLOP/s", "ratio"))
    )


def _show(args: argparse.Namespace) -> CommandResult:
    record = find_record(user_cache(args.cache), args.id)
    low, high = record.interval_s
    effort = record.effort
    lines = [
        f"{record.id}  {_problem_label(record)} on {record.fingerprint.name}",
        f"winner       {record.candidate}",
        f"median       {record.median_s:.4g} s ({low:.4g} to {high:.4g} with 95% confidence), "
        f"{record.gflops:.1f} GFLOP/s, ties with {record.ties}",
    ]
    if record.baseline:
        lines.append(
            f"baseline     {record.baseline.ratio:.2f}x the speed of {record.baseline.name}, "
            f"{record.baseline.median_s:.4g} s"
        )
    lines += [f"but          {caveat}" for caveat in record.caveats]
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
        lines.append(title)
        lines.extend(f"  {name:<18} {value}" for name, value in fields.items())
    return CommandResult(record.to_json(), "\n".join(lines))


def _export(args: argparse.Namespace) -> CommandResult:
    cache = user_cache(args.cache)
    records = [cache.get(id_) for id_ in args.id] if args.id else cache.records()
    document = [record.to_json() for record in records]
    if args.file == "-":
        return CommandResult(document, "\n".join(export_lines(records)))
    export_records(records, Path(args.file))
    return CommandResult(document, f"wrote {_count(len(records), 'record')} to {args.file}")


def _import(args: argparse.Namespace) -> CommandResult:
    records = import_records(args.file)
    cache = user_cache(args.cache)
    new = cache.add(*records)
    return CommandResult(
        [record.to_json() for record in records],
        f"{_count(new, 'new record')} of {len(records)} stored in {cache.path}",
    )


def _verify(args: argparse.Namespace) -> CommandResult:
    cache = user_cache(args.cache)
    damage = cache.damage()
    check = _Verifier(_Here(args.families))
    rows = []
    for id_, text in cache.documents(target=args.target):
        status, detail = check(id_, text)
        rows.append({"id": id_, "status": status, "detail": detail})
    counts = Counter(row["status"] for row in rows)
    lines = [f"{cache.path}: {line}" for line in damage]
    if rows:
        lines.append(
            table(("id", "status", "detail"), [tuple(row.values()) for row in rows], fold=True)
        )
    summary = ", ".join(f"{counts[status]} {status}" for status in ("ok", "stale", "invalid"))
    lines.append(f"{_count(len(rows), 'record')} in {cache.path}: {summary}")
    return CommandResult(
        {"path": str(cache.path), "damage": damage, "records": rows},
        "\n".join(lines),
        exit_code=1 if damage or counts["invalid"] else 0,
    )


class _Here:
    """What there is on this machine to hold records against; read once."""

    def __init__(self, extra_families: list[Path]) -> None:
        self._extra_families = extra_families
        self.families = functools.cache(self._load_families)
        self.device = functools.cache(self._read_device)

    def is_current(self, record: TuningRecord) -> bool:
        """Whether a record's kernel would come out here and now as it was measured."""
        try:
            families = self.families(record.target, record.operation)
            family = families.get(record.candidate.family)
            if family is None:
                return False
            device = self.device(record.target, family.defined.problem_from_key(record.problem))
        except (InputError, MissingDependencyError, UnknownNameError):
            return False
        return is_current(record, device, {family.name: family.digest})

    def _load_families(self, target: str, operation: str) -> Mapping[str, KernelFamily]:
        from autotune.families.catalog import load_families
        from autotune.targets.registry import make_target

        make_target(target)
        return load_families(target=target, operation=operation, extra=self._extra_families)

    def _read_device(self, target: str, problem: Problem) -> Device:
        from autotune.targets.registry import make_target

        return make_target(target).device(problem)


class _Verifier:
    """Says of a stored document whether it is ok, stale or invalid, and why."""

    def __init__(self, here: _Here) -> None:
        self._here = here

    def __call__(self, id_: str, text: str) -> tuple[str, str]:
        try:
            record = parse_record(text)
        except InputError as error:
            return "invalid", str(error)
        if record.id != id_:
            return "invalid", f"the content's id is {record.id}"
        try:
            families = self._here.families(record.target, record.operation)
        except UnknownNameError:
            return "ok", f"families of target {record.target} cannot be checked here"
        family = families.get(record.candidate.family)
        if family is None:
            where = "" if families else f" for {record.operation}: --families names its folder"
            return "stale", f"there is no family {record.candidate.family!r}{where}"
        if family.digest != record.family_digest:
            return "stale", f"family {family.name} {record.family_digest} → {family.digest}"
        return self._in_space(record, family)

    def _in_space(self, record: TuningRecord, family: KernelFamily) -> tuple[str, str]:
        try:
            problem = family.defined.problem_from_key(record.problem)
        except InputError as error:
            return "invalid", str(error)
        try:
            device = self._here.device(record.target, problem)
        except MissingDependencyError as error:
            return "ok", f"the device is not here to check against: {error}"
        if device.fingerprint.digest != record.fingerprint.digest:
            return "ok", f"tuned on another device, {record.fingerprint.name}"
        try:
            rejection = family.space(problem, device.limits).rejection(
                record.candidate.configuration
            )
        except InputError as error:
            return "invalid", str(error)
        return ("ok", "") if rejection is None else ("invalid", str(rejection))


def _prune(args: argparse.Namespace) -> CommandResult:
    if args.days is not None and not 0 <= args.days <= _MAX_DAYS:
        raise InputError(f"--days must be from 0 to {_MAX_DAYS}, got {args.days}")
    cache = user_cache(args.cache)
    replaced = superseded(cache.records(target=args.target), _Here(args.families).is_current)
    measurements = 0
    if args.days is not None:
        before = (datetime.now(UTC) - timedelta(days=args.days)).isoformat()
        forget = cache.count_measurements if args.dry_run else cache.delete_measurements
        measurements = forget(before=before)
    if not args.dry_run:
        cache.delete(record.id for record in replaced)
    verb = "would remove" if args.dry_run else "removed"
    lines = [f"{record.id}  {_problem_label(record)}" for record in replaced]
    lines.append(
        f"{verb} {_count(len(replaced), 'superseded record')} and "
        f"{_count(measurements, 'measurement')} from {cache.path}"
    )
    document: dict[str, Any] = {
        "removed": [record.to_json() for record in replaced],
        "measurements": measurements,
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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
