"""Portfolios as documents: what the cache holds and what is shipped, checked when read."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import msgspec

from autotune.core import checks
from autotune.core.configuration import Configuration
from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError
from autotune.core.printable import shown
from autotune.model.book import later_prices
from autotune.model.portfolio import LARGEST, Entry, Portfolio
from autotune.model.terms import FIRST_TERMS, TERMS
from autotune.operations.problem import ACCURACIES, LAYOUTS
from autotune.store import strict_json

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
"""Version of a portfolio's JSON; it also says what the prices are of."""

_DIGITS = 16


def portfolio_document(portfolio: Portfolio) -> dict[str, Any]:
    """A portfolio as a JSON-able document; its digest is over all the rest."""
    content = msgspec.json.decode(msgspec.json.encode(portfolio, enc_hook=_builtin))
    document = {"format": FORMAT, "terms": list(TERMS), **content}
    return {**document, "digest": _digest_of(document)}


def _builtin(value: Any) -> Any:
    return dict(value) if isinstance(value, Configuration) else float(value)  # NumPy's floats


def _digest_of(document: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in document.items() if name != "digest"}
    return hashlib.sha256(strict_json.canonical(rest).encode()).hexdigest()[:_DIGITS]


def read_portfolio(document: object) -> Portfolio:
    """Rebuild a portfolio from `portfolio_document`.

    Raises:
        InputError: another format version or other terms, a missing key, a field of the wrong
            type or out of range, or a digest that is not that of the rest; the message names it.
    """
    remedy = "another autotune wrote it, run the preset again"
    document = checks.versioned("portfolio", document, FORMAT, remedy)
    terms = document.get("terms")
    known = len(terms) if isinstance(terms, list) else 0
    if known < FIRST_TERMS or terms != list(TERMS[:known]):
        raise InputError("the portfolio's terms are another autotune's: run the preset again")
    entries = checks.sequence("$.entries", document.get("entries"))
    if len(entries) > LARGEST:
        raise InputError(f"a portfolio has {LARGEST} programs at most, got {len(entries)}")
    portfolio: Portfolio = checks.checked(document, Portfolio)
    for number, (entry, stored) in enumerate(zip(portfolio.entries, entries, strict=True)):
        _check_entry(entry, stored, f"$.entries[{number}]", known)
    for name, prices in portfolio.families.items():
        _check_prices(prices, f"$.families.{name}", known)
    for name, value, allowed in (
        ("dtype", portfolio.dtype, DTYPES),
        ("out_dtype", portfolio.out_dtype, DTYPES),
        ("accuracy", portfolio.accuracy, ACCURACIES),
    ):
        if value not in allowed:
            raise checks.wrong(f"$.{name}", f"one of {', '.join(allowed)}", value)
    if "digest" in document and document["digest"] != (own := _digest_of(document)):
        raise InputError(
            f"digest must be that of the content ({own}), got {shown(document['digest'])}: "
            "the portfolio was altered; remove its digest to take it as it is"
        )
    places = 1 if portfolio.target == "cpu" else 2  # of a GPU, however many it has
    later = later_prices(portfolio.dtype, places, known)
    if not later:
        return portfolio
    return replace(
        portfolio,
        entries=tuple(replace(each, prices=each.prices + later) for each in portfolio.entries),
        families={name: prices + later for name, prices in portfolio.families.items()},
    )


_ENTRY = [each.name for each in fields(Entry)]


def _check_entry(entry: Entry, stored: Mapping[str, Any], where: str, known: int) -> None:
    for name in _ENTRY:
        if name not in stored:
            raise InputError(f"key {name!r} is missing in {where}")
    if entry.layout not in LAYOUTS:
        raise checks.wrong(f"{where}.layout", f"one of {', '.join(LAYOUTS)}", entry.layout)
    if not set(entry.free) <= entry.configuration.keys():
        raise checks.wrong(f"{where}.free", "names of the configuration", list(entry.free))
    for call in entry.calls:
        if len(call) != len(entry.free):
            raise InputError(
                f"{where}: a call has a value for each of {len(entry.free)} parameters, got "
                f"{len(call)}"
            )
    _check_prices(entry.prices, f"{where}.prices", known)


def _check_prices(prices: tuple[float, ...], where: str, known: int) -> None:
    if len(prices) != known:
        raise InputError(f"{where}: there must be {known} prices, got {len(prices)}")
