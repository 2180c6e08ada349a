"""Products by whoever is known to be fastest: a kernel that was measured, else the library.

What stands in for a library's product must never be slower by our choice. A kernel serves where
the problem's own record, calls of a program, or the survey of the device have it faster than the
library; everywhere else the library does, or both take turns until that is known
(`autotune.runtime.turns`).
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.arrays.shapes import products_of
from autotune.core import session
from autotune.core.errors import AutotuneError, OperandError
from autotune.core.session import Remembered
from autotune.families.offers import refusal
from autotune.operations.problem import Gemm
from autotune.runtime import usage
from autotune.runtime.loading import load, request_of
from autotune.runtime.routes import tell, way_of
from autotune.runtime.turns import MARGIN, Turns, are_wanted, is_faster
from autotune.serving.loading import contenders
from autotune.store import MatchQuality
from autotune.targets.families import catalog
from autotune.targets.registry import HOMES, make_target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.arrays.library import Descriptor, Library
    from autotune.serving.kernel import Kernel
    from autotune.serving.loading import Contender

_log = logging.getLogger(__name__)

_LEFT = "left to the library: "

CONTENDERS = 3
"""Kernels that take turns with the library."""

ANY = ""
"""The name of a library that is not asked for: whatever kernels were measured beside will do."""


@dataclass(frozen=True, slots=True)
class Served:
    """A product of two matrices that kernels may compute.

    Attributes:
        problem: what it is; its layout says which operands kernels take turned, as they are
            stored.
        turns: says who computes it. A kernel is ``kernel(a, b, out, alpha, beta)`` of operands as
            they are stored.
    """

    problem: Gemm
    turns: Turns


def served(
    library: Library,
    a: Descriptor,
    b: Descriptor,
    caller: str,
    accepts: Callable[[Gemm], bool] | None = None,
) -> Served | None:
    """Who computes the product of two matrices; None where no kernel can.

    Nothing is copied for it: what a kernel cannot read where it lies is left to the library, too.

    Args:
        library: what the operands are of.
        a: how A lies.
        b: how B lies.
        caller: the function that was called, for the log.
        accepts: which problems may be served; None takes all.
    """
    problem_and_target = _problem_of(library, a, b)
    if problem_and_target is None:
        kinds = f"{tuple(a.shape)} of {a.dtype} by {tuple(b.shape)} of {b.dtype}"
        tell(caller, None, "", f"{kinds}: {_LEFT}no kernel takes them as they lie")
        return None
    problem, target = problem_and_target
    if accepts is not None and not accepts(problem):
        tell(caller, problem, target, f"{_LEFT}not selected")
        return None
    turns = turns_of(problem, target, library.name, caller)
    return None if turns is None else Served(problem, turns)


def turns_of(problem: Gemm, target: str, library: str, caller: str) -> Turns | None:
    """Who computes a problem; None where no kernel can.

    Args:
        problem: what is to be computed.
        target: where.
        library: name and version of the operands' library.
        caller: the function that was called, for the log.
    """
    turns, reason = _TURNS[problem, target, library]
    if turns is None or (turns.over and turns.winner is None):
        tell(caller, problem, target, f"{_LEFT}{reason}")
    elif turns.winner is not None:
        tell(caller, problem, target, way_of(turns.winner))
    else:
        tell(caller, problem, target, f"in turns: {reason}")
        turns.hear(functools.partial(_tell_end, turns, problem, target, caller))
    return turns


def new_turns(problem: Gemm, target: str, library: str, *, timed: bool = True) -> Turns | None:
    """Turns of calls that are not those of the product alone, and that nothing is known of.

    None where no kernel can take part.

    Args:
        problem: what kernels compute of it.
        target: where.
        library: name and version of the operands' library.
        timed: whether it is found out who is faster; else the library computes.
    """
    found, _ = _contenders(problem, target)
    clock = make_target(target).clock() if timed and are_wanted() else None
    return Turns(problem, target, library, found, clock, kept=False) if found else None


def measured_kernel(problem: Gemm, target: str, caller: str) -> Kernel | None:
    """The kernel that is known to be faster than the library that it was measured beside.

    None where none is, or nothing is known; then nothing is measured in calls.

    Args:
        problem: what is to be computed.
        target: where.
        caller: the function that was called, for the log.
    """
    kernel, reason = _KNOWN[problem, target]
    tell(caller, problem, target, f"{_LEFT}{reason}" if kernel is None else way_of(kernel))
    return kernel


def turning(kernel: Callable[..., Any], layout: str) -> Callable[..., Any]:
    """A kernel that takes operands as they are multiplied, by turning those that it wants turned.

    Args:
        kernel: ``kernel(a, b, out, alpha, beta)`` of operands as they are stored.
        layout: how those are stored.
    """
    if layout == "nn":
        return kernel
    turn_a, turn_b = (each == "t" for each in layout)

    def call(a: Any, b: Any, out: Any = None, alpha: float = 1.0, beta: float = 0.0) -> Any:
        return kernel(a.T if turn_a else a, b.T if turn_b else b, out, alpha, beta)

    return call


def _problem_of(library: Library, a: Descriptor, b: Descriptor) -> tuple[Gemm, str] | None:
    """The product that two operands ask for, and where; None where no kernel could take them."""
    if len(a.shape) != 2 or len(b.shape) != 2:
        return None
    try:
        memory = library.memory(a, b)
        dtype = None if memory is None else library.dtype(a, b)
        if memory is None or dtype is None:
            return None
        products = products_of(library.strided(a, dtype), library.strided(b, dtype))
    except OperandError:  # the library says what is wrong
        return None
    if min(products.sizes) < 1 or products.left.copied or products.right.copied:
        return None
    m, n, k = products.sizes
    return Gemm(m, n, k, dtype, layout=products.layout), HOMES[memory]


def _made_turns(problem: Gemm, target: str, library: str) -> tuple[Turns | None, str]:
    """Who computes, or why the library does; and what is known."""
    found, reason = _contenders(problem, target)
    if not found:
        return None, reason
    used = usage.counter(problem, target)
    faster, known = _knowledge(found[0], problem, target, library)
    if faster:
        kernel = load(problem, target, match="nearest")
        return Turns.won_by(problem, target, kernel), known
    clock = make_target(target).clock() if faster is None and are_wanted() else None
    return Turns(problem, target, library, found, clock, used=used), known


def _made_known(problem: Gemm, target: str) -> tuple[Kernel | None, str]:
    """The kernel that is known to be faster than any library, or why there is none."""
    found, reason = _contenders(problem, target)
    if not found:
        return None, reason
    faster, known = _knowledge(found[0], problem, target, ANY)
    return (load(problem, target, match="nearest") if faster else None), known


def _contenders(problem: Gemm, target: str) -> tuple[Sequence[Contender], str]:
    """The kernels that may be the fastest, or why there are none."""
    if (reason := refusal(catalog(target), problem)) is not None:
        return (), reason
    try:
        request = request_of(problem, target, match="nearest")
        return contenders(make_target(target), request, CONTENDERS), ""
    except AutotuneError as error:  # programs must not end for what they can do without
        _warn(target, str(error))
        return (), str(error)


@session.cached()
def _warn(target: str, reason: str) -> None:
    """Say once, and not for every shape, why libraries compute."""
    _log.warning("products on target %s are left to their libraries: %s", target, reason)


def _knowledge(
    contender: Contender, problem: Gemm, target: str, library: str
) -> tuple[bool | None, str]:
    """Whether a kernel is known to be faster than the library; None where that is not known."""
    match = contender.found.match
    record = match.record
    own = record is not None and match.quality in (MatchQuality.EXACT, MatchQuality.MEASURED)
    if record is None or not own or record.baseline is None:
        return None, f"no kernel is known to be faster ({match.reason or match.quality})"
    name, ratio = record.baseline.name, record.baseline.ratio
    if record.is_light:
        is_it = library in (ANY, name)
    else:  # libraries of GPUs call one and the same
        is_it = target != "cpu" or library.partition(" ")[0] in (ANY, name.partition(" ")[0])
    if not is_it:
        return None, f"no kernel is known to be faster (than {library}: measured beside {name})"
    least = MARGIN if record.is_light else 1.0
    faster = is_faster(ratio, record.median_s, problem, target, least)
    return faster, f"{record.candidate.family} is at {ratio:.2f}x {name} here"


def _tell_end(turns: Turns, problem: Gemm, target: str, caller: str) -> None:
    if turns.over:
        way = f"{_LEFT}it was faster in turns" if turns.winner is None else way_of(turns.winner)
        tell(caller, problem, target, way)


_TURNS = Remembered(_made_turns)
_KNOWN = Remembered(_made_known)
