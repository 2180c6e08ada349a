"""Portfolios as documents: what the cache holds and what is shipped, checked when read."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from autotune.core.configuration import Configuration
from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError
from autotune.core.printable import shown
from autotune.model.book import later_prices
from autotune.model.portfolio import LARGEST, Entry, Portfolio
from autotune.model.terms import FIRST_TERMS, TERMS
from autotune.operations.problem import ACCURACIES, LAYOUTS
from autotune.store import checks, strict_json
from autotune.store.record import read_fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT = 1
"""Version of a portfolio's JSON; it also says what the prices are of."""

_DIGEST = re.compile("[0-9a-f]{64}")
_PLAIN = ("operation", "target", "dtype", "out_dtype", "accuracy", "architecture", "created")
_DIGITS = 16
_MOST_PRICE = 1.0
"""Seconds that a unit of anything may cost: what is charged is nanoseconds as a rule. Above such
bounds a sum of prices is no finite time."""
_MOST_SPREAD = 10.0
_MOST_LOSS = 1e3
_MOST_PRODUCTS = 1e60
_MOST_RESIDENT = 1 << 16
_ENTRY = ("family", "family_digest", "layout", "resident", "spread", "measured", "largest")


def portfolio_document(portfolio: Portfolio) -> dict[str, Any]:
    """A portfolio as a JSON-able document; its digest is over all the rest."""
    document = {
        "format": FORMAT,
        **{name: getattr(portfolio, name) for name in _PLAIN},
        "fingerprint": portfolio.fingerprint.key(),
        "threads": portfolio.threads,
        "toolchain": dict(portfolio.toolchain),
        "shapes": portfolio.shapes,
        "loss": portfolio.loss,
        "terms": list(TERMS),
        "families": {name: list(prices) for name, prices in portfolio.families.items()},
        "entries": [
            {
                **{name: getattr(each, name) for name in _ENTRY},
                "configuration": dict(each.configuration),
                "free": list(each.free),
                "calls": [list(values) for values in each.calls],
                "prices": list(each.prices),
                "binary": each.binary,
                "support": each.support,
            }
            for each in portfolio.entries
        ],
    }
    return {**document, "digest": _digest_of(document)}


def _digest_of(document: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in document.items() if name != "digest"}
    return hashlib.sha256(strict_json.canonical(rest).encode()).hexdigest()[:_DIGITS]


def read_portfolio(document: object) -> Portfolio:
    """Rebuild a portfolio from `portfolio_document`.

    Raises:
        InputError: another format version or other terms, a missing key, a field of the wrong
            type or out of range, or a digest that is not that of the rest; the message names it.
    """
    fields = checks.mapping("a portfolio", document)
    version = checks.required(fields, "format")
    if type(version) is not int or version != FORMAT:
        raise InputError(
            f"portfolio format must be {FORMAT}, got {shown(version)}: another autotune wrote it, "
            "run the preset again"
        )
    terms = checks.sequence("terms", checks.required(fields, "terms"))
    if len(terms) < FIRST_TERMS or terms != list(TERMS[: len(terms)]):
        raise InputError("the portfolio's terms are another autotune's: run the preset again")
    entries = checks.sequence("entries", checks.required(fields, "entries"))
    if len(entries) > LARGEST:
        raise InputError(f"a portfolio has {LARGEST} programs at most, got {len(entries)}")
    plain = {name: _text(fields, name, empty=name == "architecture") for name in _PLAIN}
    for name, known in (("dtype", DTYPES), ("out_dtype", DTYPES), ("accuracy", ACCURACIES)):
        if plain[name] not in known:
            raise checks.wrong(name, f"one of {', '.join(known)}", plain[name])
    threads = checks.required(fields, "threads")
    places = 1 if plain["target"] == "cpu" else 2  # of a GPU, however many it has
    later = later_prices(plain["dtype"], places, len(terms))
    portfolio = Portfolio(
        **plain,
        fingerprint=read_fingerprint(checks.required(fields, "fingerprint")),
        threads=None if threads is None else checks.count("threads", threads, minimum=1),
        toolchain=checks.texts("toolchain", checks.required(fields, "toolchain")),
        entries=tuple(_entry(each, later) for each in entries),
        families={
            name: _prices(each, later)
            for name, each in checks.mapping(
                "families", checks.required(fields, "families")
            ).items()
        },
        shapes=checks.count("shapes", checks.required(fields, "shapes")),
        loss=checks.number("loss", checks.required(fields, "loss"), zero=True, most=_MOST_LOSS),
    )
    if "digest" in fields and fields["digest"] != (own := _digest_of(fields)):
        raise InputError(
            f"digest must be that of the content ({own}), got {shown(fields['digest'])}: "
            "the portfolio was altered; remove its digest to take it as it is"
        )
    return portfolio


def _entry(document: object, later: Sequence[float]) -> Entry:
    fields = checks.mapping("an entry", document)
    layout = _text(fields, "layout")
    if layout not in LAYOUTS:
        raise checks.wrong("layout", f"one of {', '.join(LAYOUTS)}", layout)
    configuration = Configuration(
        checks.scalars("configuration", checks.required(fields, "configuration"))
    )
    free = tuple(checks.text("free", each) for each in checks.sequence("free", fields.get("free")))
    calls = checks.required(fields, "calls")
    if not set(free) <= configuration.keys():
        raise checks.wrong("free", "names of the configuration", list(free))
    return Entry(
        family=_text(fields, "family"),
        family_digest=_text(fields, "family_digest"),
        layout=layout,
        configuration=configuration,
        free=free,
        calls=tuple(_call(each, len(free)) for each in checks.sequence("calls", calls)),
        resident=checks.count(
            "resident", checks.required(fields, "resident"), minimum=1, most=_MOST_RESIDENT
        ),
        prices=_prices(checks.required(fields, "prices"), later),
        spread=checks.number(
            "spread", checks.required(fields, "spread"), zero=True, most=_MOST_SPREAD
        ),
        measured=checks.count("measured", checks.required(fields, "measured")),
        largest=checks.number(
            "largest", checks.required(fields, "largest"), zero=True, most=_MOST_PRODUCTS
        ),
        binary=_digest(fields, "binary"),
        support=_digest(fields, "support"),
    )


def _call(value: object, count: int) -> tuple[int, ...]:
    values = checks.sequence("calls", value)
    if len(values) != count:
        raise InputError(f"a call has a value for each of {count} parameters, got {len(values)}")
    return tuple(checks.count("calls", each) for each in values)


def _prices(value: object, later: Sequence[float]) -> tuple[float, ...]:
    prices = checks.sequence("prices", value)
    count = len(TERMS) - len(later)
    if len(prices) != count:
        raise InputError(f"there must be {count} prices, got {len(prices)}")
    own = (checks.number("prices", each, zero=True, most=_MOST_PRICE) for each in prices)
    return (*own, *later)


def _text(fields: Mapping[str, Any], name: str, *, empty: bool = False) -> str:
    return checks.text(name, checks.required(fields, name), empty=empty)


def _digest(fields: Mapping[str, Any], name: str) -> str | None:
    digest = checks.required(fields, name)
    if digest is None or (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        return digest
    raise checks.wrong(name, "a SHA-256 in hex, or null", digest)
