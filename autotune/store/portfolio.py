"""Portfolios as documents: what the cache holds and what is shipped, checked when read."""

import functools
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec

from autotune.core import checks
from autotune.core.checks import Line
from autotune.core.configuration import Configuration
from autotune.core.device import DeviceFingerprint
from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError
from autotune.core.printable import shown
from autotune.model.portfolio import LARGEST, Entry, Portfolio, Threads
from autotune.model.prices import later_prices
from autotune.model.terms import FIRST_TERMS, TERMS
from autotune.operations.problem import ACCURACIES, LAYOUTS
from autotune.store import strict_json

FORMAT = 1
"""Version of a portfolio's JSON; it also says what the prices are of."""

_DIGITS = 16

TEXT = r'"[^"\\]*(?:\\.[^"\\]*)*"'
"""A text of JSON: a quote within it has a backslash before it."""

FLAT = rf'\{{[^{{}}"]*(?:{TEXT}[^{{}}"]*)*\}}'
DEVICE = re.compile(rf'"fingerprint": (\{{"kind": {TEXT}, "name": {TEXT}, "fields": {FLAT}\}})')
"""A fingerprint as this package writes it, which is found in the middle of no text."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subject:
    """The problems and the device that a portfolio is for."""

    operation: Line
    target: Line
    fingerprint: DeviceFingerprint
    dtype: Line
    out_dtype: Line
    accuracy: Line
    threads: Threads | None


_SUBJECT = {
    each.name: re.compile(rf'"{each.name}": ({TEXT}|null|\d{{1,18}})')
    for each in fields(Subject)
    if each.name != "fingerprint"
}
_HEAD = 1 << 14
"""Characters of a portfolio's text among which its subject is, as this package writes it."""


@dataclass(frozen=True, slots=True)
class PortfolioHead:
    """A portfolio by its subject; its programs are decoded when they are asked for.

    Attributes:
        subject: what its text says that it is for.
        read: gives the portfolio; None, and a warning, where it is no good.
    """

    subject: Subject
    read: Callable[[], Portfolio | None] = field(compare=False)

    @classmethod
    def of(cls, subject: Subject, where: str, decode: Callable[[], object]) -> "PortfolioHead":
        """The head of a portfolio.

        Args:
            subject: as `subject_of` has it.
            where: its place, for the warning.
            decode: gives the portfolio, or raises an `InputError`.
        """

        @functools.cache
        def read() -> Portfolio | None:
            try:
                portfolio = decode()
                if isinstance(portfolio, Portfolio) and _subject(portfolio) == subject:
                    return portfolio
                error = InputError("the subject must be that of the whole portfolio")
            except InputError as raised:
                error = raised
            _log.warning("%s: a portfolio is left out: %s", where, error)
            return None

        return cls(subject, read)

    @classmethod
    def known(cls, portfolio: Portfolio) -> "PortfolioHead":
        """The head of a portfolio that has been decoded."""
        return cls(_subject(portfolio), lambda: portfolio)

    def without_binaries(self) -> "PortfolioHead":
        """The same without what it says of binaries."""

        def read() -> Portfolio | None:
            found = self.read()
            return None if found is None else without_binaries(found)

        return PortfolioHead(self.subject, read)


def without_binaries(portfolio: Portfolio) -> Portfolio:
    """A portfolio as a stranger's is taken: how a binary is launched is as good as code."""
    entries = (replace(each, binary=None, support=None) for each in portfolio.entries)
    return replace(portfolio, entries=tuple(entries))


def decoded(heads: Iterable[PortfolioHead]) -> list[Portfolio]:
    """The portfolios; those that are no good are left out."""
    return [found for head in heads if (found := head.read()) is not None]


def _subject(portfolio: Portfolio) -> Subject:
    return Subject(**{each.name: getattr(portfolio, each.name) for each in fields(Subject)})


def subject_of(text: str) -> Subject:
    """The subject of a portfolio's text, of which the rest is not decoded.

    Raises:
        InputError: the text is no portfolio's.
    """
    head = text[:_HEAD]
    if device := DEVICE.search(head):
        # A field of the device may have the name of one that is looked for.
        rest = head[: device.start()] + head[device.end() :]
        found = {name: pattern.search(rest) for name, pattern in _SUBJECT.items()}
        if all(found.values()):
            stated = {name: json.loads(match[1]) for name, match in found.items() if match}
            stated["fingerprint"] = strict_json.parse(device[1])
            return checks.checked(stated, Subject)
    return checks.checked(strict_json.parse(text), Subject)


def portfolio_document(portfolio: Portfolio) -> dict[str, Any]:
    """A portfolio as a JSON-able document; its digest is over all the rest.

    Raises:
        InputError: what is written could not be read again.
    """
    content = msgspec.json.decode(msgspec.json.encode(portfolio, enc_hook=_builtin))
    document = {"format": FORMAT, "terms": list(TERMS), **content}
    document["digest"] = digest_of(document)
    read_portfolio(document)
    return document


def _builtin(value: Any) -> Any:
    return dict(value) if isinstance(value, Configuration) else float(value)  # NumPy's floats


def digest_of(document: Mapping[str, Any]) -> str:
    """The digest over all of a portfolio's document but itself."""
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
    if "digest" in document and document["digest"] != (own := digest_of(document)):
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
