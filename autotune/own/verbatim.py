"""Text that a template holds as it is."""

from __future__ import annotations

import re

from autotune.core.errors import InputError

_MARKS = ("{{", "{%", "{#")
_ENDS_RAW = re.compile(r"\{%[-+]?\s*endraw")


def raw(text: str) -> list[str]:
    """Lines of a template that come out as the text.

    Raises:
        InputError: it holds the one tag that ends such text.
    """
    if _ENDS_RAW.search(text):
        raise InputError("a kernel's source must not hold Jinja's tag endraw: write it otherwise")
    if not any(mark in text for mark in _MARKS):
        return [text.rstrip("\n")]
    return ["{% raw %}" + text.rstrip("\n"), "{% endraw %}"]
