"""Commands that install missing extras: from a checkout, since the package is on no index."""

from __future__ import annotations


def install_hint(extra: str = "") -> str:
    """The command that installs an extra, for an error message or a check's remedy.

    Args:
        extra: one of `pyproject.toml`'s; the whole package without any.
    """
    return (
        f"pip install '.[{extra}]' from a checkout" if extra else "pip install . from a checkout"
    )
