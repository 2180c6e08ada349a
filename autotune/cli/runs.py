"""Commands that run kernels: their options, and the loop over problems."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from autotune.cli.outputs import check_outputs
from autotune.cli.parser import rare
from autotune.cli.problems import problems, shapes_text
from autotune.cli.scope import Scope, joined_target
from autotune.core import arguments
from autotune.core.errors import InputError
from autotune.core.printable import shown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from autotune.operations.problem import Problem

THREADS = "NUMBA_NUM_THREADS"


class Result(Protocol):
    """Outcome of a run for one problem."""

    @property
    def interrupted(self) -> bool:
        """True if the run was asked to stop."""
        ...


_Made = TypeVar("_Made", bound=Result)


def family_option(parser: argparse._ActionsContainer, verb: str) -> None:
    """Add ``--family``."""
    parser.add_argument(
        "--family",
        action="append",
        default=[],
        metavar="F",
        help=f"{verb} only this family; may be given again (default: all)",
    )


def run_options(group: argparse._ActionsContainer) -> None:
    """Add what every run of trials can be told and few are: ``--storage`` and ``--workers``."""
    rare(
        group.add_argument(
            "--storage", metavar="URL", help="Optuna storage (default: a journal beside the cache)"
        )
    )
    rare(
        group.add_argument(
            "--workers", type=int, metavar="N", help="compile workers (default: one per core)"
        )
    )


def check_threads() -> None:
    """Refuse a variable with which Numba does not start in the user's programs.

    Raises:
        InputError: it is not a number of threads.
    """
    told = os.environ.get(THREADS) or "1"
    if not told.isdecimal() or int(told) < 1:
        raise InputError(
            f"{THREADS} must be a whole number, at least 1, got {shown(told)}: set it to one, or "
            "unset it"
        )


def check_run(args: argparse.Namespace) -> None:
    """Refuse what no run of trials can begin with.

    Raises:
        InputError: ``--workers``, or the variable for threads, is out of range.
    """
    arguments.workers(args.workers)
    check_threads()


def problems_of(args: argparse.Namespace) -> tuple[Scope, list[Problem]]:
    """The scope of the families named, and the problems asked for."""
    scope = Scope.of(args, args.family)
    return scope, problems(args, scope)


def run_each(
    args: argparse.Namespace,
    target: str,
    todo: list[Problem],
    work: Callable[..., _Made],
    *,
    doing: str,
    ends: str = "",
    outputs: Mapping[str, Path | None],
    shared: Callable[[_Made], dict[str, Any]],
    **options: object,
) -> list[_Made]:
    """Run every problem until one is interrupted, with a live line on stderr.

    Args:
        args: parsed options.
        target: name of the target.
        todo: the problems.
        work: `autotune.tune` or `autotune.sweep`.
        doing: the live line's first word.
        ends: the live line's last words.
        outputs: files that are written afterwards, see `check_outputs`.
        shared: what other processes that run the same command get of a result.
        options: arguments that `work` alone has.
    """
    from autotune.tuning.progress import ProgressLine

    results = []
    with joined_target(target, args) as joined:
        check_outputs(outputs, args)
        for problem in todo:
            line = ProgressLine(f"{doing} {shapes_text(problem)} on target {target}{ends}")
            try:
                result = work(
                    problem,
                    target=joined.target,
                    device=args.device,
                    families=args.family,
                    extra_families=args.families,
                    seed=args.seed,
                    cache=args.cache,
                    storage=args.storage,
                    study=args.study,
                    workers=args.workers,
                    progress=None if args.quiet else line,
                    **options,
                )
            finally:
                line.end()
            results.append(result)
            if result.interrupted:
                break
        joined.results.extend(map(shared, results))
    return results
