"""Records of the user's cache and of the package: finding one, and verifying them again."""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from autotune.cli.terminal import ratio
from autotune.core.errors import InputError, MissingDependencyError, UnknownNameError
from autotune.core.paths import CacheLocations, data_dir
from autotune.model import check_entry
from autotune.store import (
    TuningCache,
    TuningRecord,
    is_current,
    parse_line,
    read_portfolio,
    read_portfolios,
    shipped_records,
    strict_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.core.device import Device
    from autotune.core.measurement import Sustained
    from autotune.families.family import KernelFamily
    from autotune.model import Portfolio
    from autotune.operations.problem import Problem
    from autotune.store import SustainedRecord


def user_cache(path: str | None) -> TuningCache:
    """The cache that ``--cache`` means."""
    return TuningCache(CacheLocations.at(path).database)


def shipped() -> list[TuningRecord]:
    """Every record that comes with the package."""
    files = data_dir("cache").glob("*/*.jsonl")
    operations = sorted({file.stem for file in files if "." not in file.stem})
    return [record for operation in operations for record in shipped_records(operation)]


def shipped_portfolios() -> list[Portfolio]:
    """Every portfolio that comes with the package."""
    files = sorted(data_dir("cache").glob("*/*.portfolio.jsonl"))
    return [each for file in files for each in read_portfolios(file)]


def subject(portfolio: Portfolio) -> str:
    """Subject of a portfolio: operation, types, class, and the cap of its threads."""
    types = dict.fromkeys((portfolio.dtype, portfolio.out_dtype))
    text = f"{portfolio.operation} {'-'.join(types)} {portfolio.accuracy}"
    return text if portfolio.threads is None else f"{text} threads={portfolio.threads}"


def stored_text(records: int, portfolios: int) -> str:
    """Numbers of records and portfolios; of portfolios only where there are any."""
    text = counted(records, "record")
    return f"{text} and {counted(portfolios, 'portfolio')}" if portfolios else text


def counted(number: int, noun: str) -> str:
    """A number of things: "1 record", "2 records"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def sustained_cell(record: TuningRecord) -> str:
    """Speed relative to the vendor library without a pause; a dash where that is not known."""
    held = None if record.sustained is None else record.sustained.ratio
    return "-" if held is None else ratio(f"{held:.3f}x", held)


def sustained_document(record: TuningRecord) -> dict[str, Any] | None:
    """Times without a pause as JSON-able values; None where there are none."""
    held = record.sustained
    return None if held is None else {**asdict(held), "ratio": held.ratio}


def sustained_text(held: SustainedRecord, record: TuningRecord) -> str:
    """The winner without a pause, for people, and the vendor library beside it."""
    rate = record.gflops * record.median_s / held.kernel.median_s
    text = f"{_steady_text(held.kernel)}, {rate:.1f} GFLOP/s without a pause"
    if held.baseline is None or held.ratio is None:
        return text
    return (
        f"{text}: {ratio(f'{held.ratio:.2f}x', held.ratio)} the speed of the library, "
        f"{_steady_text(held.baseline)}"
    )


def _steady_text(held: Sustained) -> str:
    """Time of a call, its energy, and the clock that was kept, as far as they are known."""
    joules = "" if held.joules is None else f", {held.joules:.3g} J"
    clock = "" if held.sm_clock_mhz is None else f" at {held.sm_clock_mhz:.0f} MHz"
    return f"{held.median_s * 1e3:.4g} ms{joules}{clock}"


def find_record(cache: TuningCache, prefix: str) -> TuningRecord:
    """The one record whose id begins with `prefix`: one of the user's, else a shipped one.

    The name of an operation, as of a kernel of one's own, is its newest record's.

    Raises:
        InputError: it is empty.
        UnknownNameError: no record's id begins so, or several do.
        CacheError: the cache, or the record, cannot be read.
    """
    if not prefix:
        raise InputError(
            "a record's id must have some digits, got '': `autotune cache list` shows them"
        )
    if any(id_.startswith(prefix) for id_, _ in cache.documents()):
        return cache.get(prefix)
    if named := cache.records(operation=prefix):
        return named[0]
    found = [record for record in shipped() if record.id.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(record.id for record in found[:4]) + (", ..." if len(found) > 4 else "")
        raise UnknownNameError(
            f"record id {prefix!r} is ambiguous ({ids}): give more of its digits"
        )
    where = f"in {cache.path}" if cache.path.exists() else f"and no cache at {cache.path}"
    raise UnknownNameError(
        f"no record {prefix!r} {where}, nor among the shipped ones: `autotune cache list` and "
        "`autotune cache list --shipped` show those there are"
    )


class Here:
    """Families and devices of this machine to hold records against; read once."""

    def __init__(self, extra_families: list[Path]) -> None:
        self._extra_families = extra_families
        self.families = functools.cache(self._load_families)
        self.device = functools.cache(self._read_device)

    def is_current(self, record: TuningRecord) -> bool:
        """True where a record's kernel would come out here and now as it was measured."""
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
        from autotune.targets.families import load_families
        from autotune.targets.registry import make_target

        make_target(target)
        return load_families(target=target, operation=operation, extra=self._extra_families)

    def _read_device(self, target: str, problem: Problem) -> Device:
        from autotune.targets.registry import make_target

        return make_target(target).device(problem)


class Verifier:
    """Says of a stored document whether it is ok, stale or invalid, and why.

    Args:
        cache: where it is stored.
        here: what it is held against.
    """

    def __init__(self, cache: TuningCache, here: Here) -> None:
        self._cache = cache
        self._here = here

    def record(self, id_: str, text: str) -> tuple[str, str]:
        """Status and detail of a record by its document."""
        try:
            record = parse_line(text)
        except InputError as error:
            return "invalid", str(error)
        if not isinstance(record, TuningRecord):
            return "invalid", "the content is a portfolio"
        if record.id != id_:
            return "invalid", f"the content's id is {record.id}"
        try:
            families = self._here.families(record.target, record.operation)
        except UnknownNameError:
            return "ok", _unchecked(record.target)
        family = families.get(record.candidate.family)
        if family is None:
            where = "" if families else f" for {record.operation}: --families names its folder"
            return "stale", f"there is no family {record.candidate.family!r}{where}"
        if family.digest != record.family_digest:
            return "stale", f"family {family.name} {record.family_digest} → {family.digest}"
        return self._in_space(record, family)

    def portfolio(self, text: str) -> tuple[str, str, str]:
        """Subject, status and detail of a portfolio, by its document."""
        try:
            portfolio = read_portfolio(strict_json.parse(text))
        except InputError as error:
            return "-", "invalid", str(error)
        name = f"{subject(portfolio)} on {portfolio.fingerprint.name}"
        named = {d for each in portfolio.entries for d in (each.binary, each.support) if d}
        lost = sorted(digest for digest in named if self._cache.binary(digest) is None)
        if lost:
            return name, "invalid", f"binaries are missing or damaged: {', '.join(lost)}"
        try:
            families = self._here.families(portfolio.target, portfolio.operation)
        except UnknownNameError:
            return name, "ok", _unchecked(portfolio.target)
        known = {family.name: family.digest for family in families.values()}
        stale = [
            each for each in portfolio.entries if known.get(each.family) != each.family_digest
        ]
        bad = self._no_programs(portfolio, families)
        if bad:
            return name, "invalid", bad
        if not stale:
            return name, "ok", ""
        changed = ", ".join(sorted({each.family for each in stale}))
        count = f"{len(stale)} of {counted(len(portfolio.entries), 'program')}"
        return name, "stale", f"{count} of families that changed since: {changed}"

    def _no_programs(self, portfolio: Portfolio, families: Mapping[str, KernelFamily]) -> str:
        """A portfolio's programs that its current families do not have, in words; else nothing."""
        told = []
        for each in portfolio.entries:
            family = families.get(each.family)
            if family is not None and family.digest == each.family_digest:
                try:
                    check_entry(each, family)
                except InputError as error:
                    told.append(str(error))
        count = f"{len(told)} of {counted(len(portfolio.entries), 'program')}"
        return f"{count} not of their families ({told[0]})" if told else ""

    def _in_space(self, record: TuningRecord, family: KernelFamily) -> tuple[str, str]:
        try:
            problem = family.defined.problem_from_key(record.problem)
        except InputError as error:
            return "invalid", str(error)
        try:
            family.conform(record.candidate.configuration)
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


def _unchecked(target: str) -> str:
    return f"families of target {target} cannot be checked here"
