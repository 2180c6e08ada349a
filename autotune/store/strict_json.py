"""JSON from strangers: parsed without surprises, refused in one line.

Python's parser accepts more than JSON (NaN, Infinity), lets the last of two equal keys win, and
recurses as deep as the text says. Records arrive from files that other people wrote, so here all
of that is an `InputError`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

import msgspec

from autotune.core.checks import INTEGER_LIMIT
from autotune.core.errors import InputError

_LONG_NUMBER = re.compile(r"(?:^|[^.\d])\d{19}")


def parse(text: str) -> Any:
    """Parse one JSON document.

    Raises:
        InputError: not JSON, a number that is not finite or does not fit in 64 bits, a repeated
            key, or nesting too deep to follow.
    """
    if not isinstance(text, str):  # a value of a database that others may have made
        raise InputError(f"not valid JSON: no text, got {type(text).__name__}")
    try:
        document = msgspec.json.decode(text)
        # A key that is there twice is lost with its colon; long numbers may not fit.
        colons = msgspec.json.encode(document).count(b":")
        if text.count(":") == colons and "\\u003" not in text and not _LONG_NUMBER.search(text):
            return document
    except (ValueError, RecursionError):
        pass
    return _parse_slowly(text)  # which says what is wrong, if anything is


def _parse_slowly(text: str) -> Any:
    try:
        return json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_bounded,
            object_pairs_hook=_unique,
        )
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg} (column {error.colno})") from error
    except RecursionError as error:
        raise InputError("not usable JSON: nested too deep") from error


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(document: Any) -> str:
    """One line of JSON with sorted keys: equal documents give equal text."""
    return _CANONICAL.encode(document)


def line(document: Any) -> str:
    """One line of JSON, keys in their own order: that of parameters means something to people."""
    return json.dumps(document, allow_nan=False)


def _refuse_constant(name: str) -> float:
    raise InputError(f"numbers must be finite, got {name}")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise InputError(f"numbers must be finite, got {_short(digits)}")
    return number


def _bounded(digits: str) -> int:
    # The length comes first: converting millions of digits takes quadratic time.
    number = int(digits) if len(digits) <= 20 else INTEGER_LIMIT
    if not -INTEGER_LIMIT <= number < INTEGER_LIMIT:
        raise InputError(f"whole numbers must fit in 64 bits, got {_short(digits)}")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) < len(pairs):
        times = Counter(name for name, _ in pairs)
        repeated = next(name for name, count in times.items() if count > 1)
        raise InputError(f"a key may appear once, got {_short(repeated)!r} again")
    return items


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
