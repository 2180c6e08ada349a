"""Tuning records by id: the user's own and those that ship."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.errors import UnknownNameError
from autotune.core.paths import CacheLocations, data_dir
from autotune.store import TuningCache, read_portfolios, shipped_records

if TYPE_CHECKING:
    from autotune.model import Portfolio
    from autotune.store import TuningRecord


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
    """What a portfolio serves: operation, types, class, and the cap of its threads."""
    types = dict.fromkeys((portfolio.dtype, portfolio.out_dtype))
    text = f"{portfolio.operation} {'-'.join(types)} {portfolio.accuracy}"
    return text if portfolio.threads is None else f"{text} threads={portfolio.threads}"


def stored_text(records: int, portfolios: int) -> str:
    """How many there are of either; of portfolios only where there are any."""
    text = counted(records, "record")
    return f"{text} and {counted(portfolios, 'portfolio')}" if portfolios else text


def counted(number: int, noun: str) -> str:
    """A number of things: "1 record", "2 records"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def find_record(cache: TuningCache, prefix: str) -> TuningRecord:
    """The one record whose id begins with `prefix`: one of the user's, else a shipped one.

    Raises:
        UnknownNameError: no record's id begins so, or several do.
        CacheError: the cache, or the record, cannot be read.
    """
    if any(id_.startswith(prefix) for id_, _ in cache.documents()):
        return cache.get(prefix)
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
