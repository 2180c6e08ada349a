"""What `load`, `tune` and `sweep` are told, checked before any work is done."""

from __future__ import annotations

from typing import Any

from autotune.core.arguments import is_whole, must, path, text
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


def check_run(*, sampler: Any, storage: Any, study: Any, effort: Any, progress: Any) -> None:
    """Refuse what no run of trials can be told.

    Args:
        sampler: as for `autotune.tune`.
        storage: as for `autotune.tune`.
        study: as for `autotune.tune`.
        effort: as for `autotune.tune`.
        progress: as for `autotune.tune`.

    Raises:
        InputError: one of them is of another type, there is no such sampler, or the storage
            cannot be opened; the message says which.
        MissingDependencyError: the sampler or the storage needs a package.
    """
    text("sampler", sampler)
    for name, value in (("storage", storage), ("study", study)):
        if value is not None:
            text(name, value)
    if effort is not None:
        from autotune.measuring.evaluator import Effort  # late: who loads does not measure

        must("effort", "None or an autotune.Effort", effort, isinstance(effort, Effort))
    must("progress", "None or a function", progress, progress is None or callable(progress))
    from autotune.search import check_sampler, check_storage  # late, as above

    check_sampler(sampler)
    if storage is not None:
        check_storage(storage)
