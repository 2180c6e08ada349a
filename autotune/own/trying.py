"""Functions of the user's, run once before anything is tuned: their faults are told at once."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.errors import InputError
from autotune.operations.cases import Case, cases_of
from autotune.operations.contents import Drawn
from autotune.operations.python_reference import LOADED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import CodeType

    from autotune.operations.problem import Problem


def try_functions(problem: Problem, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Run the functions that say what a problem's kernels take and give, on a small case.

    Where that fails larger ones are tried, up to the problem itself: kernels need not be for all.

    Args:
        problem: what is going to be tuned.
        functions: the user's own, by what they are for.

    Raises:
        InputError: the message says where the function is, and which of its lines raised.
    """
    if not problem.defined.result.names:  # an answer, which runs nothing of the user's
        return
    own = Case(*problem.shape)
    by_size = sorted(
        (own, *cases_of(problem)), key=lambda case: problem.with_sizes(*case.sizes).traffic
    )
    for case in by_size[: by_size.index(own) + 1]:
        try:
            Drawn.of(case, problem, np.random.default_rng(0))
        except InputError as error:
            fault = error
        else:
            return
    text = " ".join(str(fault).split())
    function = functions.get("inputs" if text.startswith("inputs of ") else "reference")
    if function is None:
        raise InputError(f"{problem.operation}: {text}") from fault
    code: CodeType = getattr(function, "py_func", function).__code__
    where = f"{code.co_filename}, line {code.co_firstlineno}"
    if (raised := _raised(fault)) is not None:
        ran, line = raised  # a copy, whose lines are as far apart
        where += f", raised in line {_last(code) - _last(ran) + line}"
    raise InputError(f"{problem.operation}: {text} ({where})") from fault


def _raised(error: BaseException | None) -> tuple[CodeType, int] | None:
    """The function of the user's that an error came through, and the line that it was at."""
    while error is not None:
        for frame, line in traceback.walk_tb(error.__traceback__):
            if frame.f_globals.get("__name__") == LOADED:
                return frame.f_code, line
        error = error.__cause__
    return None


def _last(code: CodeType) -> int:
    """The last line of a function."""
    return max(line for _, _, line in code.co_lines() if line is not None)
