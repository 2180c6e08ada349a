"""Variables of the environment that are switches: 1, or 0 for off."""

from __future__ import annotations

import os

from autotune.core.errors import InputError
from autotune.core.printable import shown


def is_on(variable: str) -> bool:
    """Whether a switch is on, as it is unless somebody has said otherwise.

    Raises:
        InputError: it is neither 0 nor 1.
    """
    told = os.environ.get(variable) or "1"
    if told not in ("0", "1"):
        raise InputError(
            f"{variable} must be 0 or 1, got {shown(told)}: set it to one of them, or unset it"
        )
    return told == "1"
