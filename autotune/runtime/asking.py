"""Checks of arguments of `load`, `tune` and `sweep`, before any work is done."""

from __future__ import annotations

from typing import Any

from autotune.core.arguments import is_whole, must, path
from autotune.operations.problem import check_problem
from autotune.serving.target import Target


def check_asked(problem: Any, target: Any, device: Any, cache: Any) -> None:
    """Refuse what is no problem, target, device or cache at all; names may still be unknown.

    Args:
        problem: as for `autotune.load`.
        target: as for `autotune.load`.
        device: as for `autotune.load`.
        cache: as for `autotune.load`.

    Raises:
        InputError: one of them is of another type; the message says which.
    """
    check_problem(problem)
    check_place(target, device, cache)


def check_place(target: Any, device: Any, cache: Any) -> None:
    """The same where there is no problem, or there are several.

    Raises:
        InputError: one of them is of another type; the message says which.
    """
    known = target is None or isinstance(target, (str, Target))
    must("target", "None, the name of a target, or a target", target, known)
    named = device is None or isinstance(device, str) or is_whole(device)
    must("device", "None, a number or a name", device, named)
    if cache is not None:
        path("cache", cache)
