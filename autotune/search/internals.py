"""Optuna's private parts, its log lines and its interrupted writes, each handled here alone.

A claim must be written to a trial that another object represents, and a trial be ended that this
process did not start; Optuna's public interface has neither. What is used: `Study._storage` and
`_trial_id` of trials, through the methods of `BaseStorage`, which is documented for storages.
"""

import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from autotune.core.interrupt import SIGNALS

TESTED = ("5.0",)
"""Releases of Optuna that this module was tried with: a test compares the installed one."""


def trial_id(trial: optuna.Trial | FrozenTrial) -> int:
    """The number that storages know a trial by, which is unique over all studies."""
    return trial._trial_id


def write_note(study: optuna.Study, trial: FrozenTrial, key: str, note: Any) -> None:
    """Write an attribute that samplers and users do not see to any trial that still runs."""
    storage_of(study).set_trial_system_attr(trial_id(trial), key, note)


def end_as_failed(
    study: optuna.Study, trial: optuna.Trial | FrozenTrial, key: str, why: str
) -> bool:
    """End any running trial as failed, with an attribute; False when it had ended already."""
    try:
        storage_of(study).set_trial_user_attr(trial_id(trial), key, why)
        storage_of(study).set_trial_state_values(trial_id(trial), TrialState.FAIL)
    except optuna.exceptions.UpdateFinishedTrialError:
        return False
    return True


def end_with(
    study: optuna.Study, trial: optuna.Trial, state: TrialState, values: list[float] | None
) -> None:
    """End a running trial; Optuna's own `tell` makes two deep copies of it besides.

    Raises:
        UpdateFinishedTrialError: it had ended already.
    """
    storage_of(study).set_trial_state_values(trial_id(trial), state, values)


def storage_of(study: optuna.Study) -> BaseStorage:
    """The storage that a study is in."""
    return study._storage


_received: list[int] = []
"""Signals that have arrived inside a block of `deferred_interrupt`."""


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Deliver a signal of `SIGNALS` that arrives inside the block when the block has ended.

    A trial is several writes (created, claimed, its parameters, its end). An interrupt between
    two of them would leave a trial that nobody owns, or the journal's lock file behind. Only the
    main thread handles signals, so elsewhere there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {
        number: signal.signal(number, lambda number, frame: _received.append(number))
        for number in SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            # None: the handler was not installed from Python and cannot be put back from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        arrived = _received[:]
        _received.clear()
        for each in arrived:
            signal.raise_signal(each)


def interrupt_waits() -> bool:
    """A signal has arrived inside a block of `deferred_interrupt`, which should end soon."""
    return bool(_received)


class _Muted(threading.local):
    """Categories of warnings that the current thread drops; empty outside of `quiet`.

    Nothing of the whole process is saved and put back, which threads would do in each other's
    way, and after which Python shows once more every warning that it shows once. A filter is set,
    and passes everything but what comes from a thread that is inside of `quiet`.
    """

    categories: tuple[type[Warning], ...] = ()


_muted = _Muted()


class _AnyMuted(type):
    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _muted.categories)


class _MutedWarning(Warning, metaclass=_AnyMuted):
    """The category of the filter: no warning has it, and in `quiet` those that are dropped do."""


_FILTER = ("ignore", None, _MutedWarning, None, 0)
"""The entry that `warnings.simplefilter` makes of it."""

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


def _passes(record: logging.LogRecord) -> bool:
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
                logger.addFilter(_passes)  # which adds none twice


_set_filters()
