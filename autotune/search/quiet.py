"""Keeps Optuna's log lines and warnings about experimental features from the user.

Nothing of the whole process is saved and put back, which threads would do in each other's way, and
after which Python shows once more every warning that it shows once. A filter is set, and passes
everything but what comes from a thread that is inside of `quiet`.
"""

from __future__ import annotations

import logging
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import optuna

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Muted(threading.local):
    """Categories of warnings that the current thread drops; empty outside of `quiet`."""

    categories: tuple[type[Warning], ...] = ()


_muted = _Muted()


class _AnyMuted(type):
    """Has Python's warnings ask at every warning whether this thread drops it."""

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _muted.categories)


class _MutedWarning(Warning, metaclass=_AnyMuted):
    """The category of the filter: no warning has it, and in `quiet` those that are dropped do."""


_FILTER = ("ignore", None, _MutedWarning, None, 0)
"""What `warnings.simplefilter` makes of it."""

_KNOWN = [0]
"""Loggers of all names when Optuna's were last given the filter."""


@contextmanager
def quiet(*categories: type[Warning]) -> Iterator[None]:
    """Run a block in which this thread's Optuna logs errors only and warns of no experiments.

    Args:
        categories: further warnings that are dropped inside.
    """
    _set_filters()
    outer = _muted.categories
    _muted.categories = (optuna.exceptions.ExperimentalWarning, *outer, *categories)
    try:
        yield
    finally:
        _muted.categories = outer


def _is_told(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR or not _muted.categories


def _set_filters() -> None:
    """Set what is not set: a program may drop or add filters, and Optuna's modules come late."""
    if [*warnings.filters[:1]] != [_FILTER]:
        warnings.simplefilter("ignore", _MutedWarning)
    loggers = logging.root.manager.loggerDict
    if len(loggers) != _KNOWN[0]:
        _KNOWN[0] = len(loggers)
        for name, logger in [*loggers.items()]:
            if name.startswith("optuna.") and isinstance(logger, logging.Logger):
                logger.addFilter(_is_told)  # which adds none twice


_set_filters()
