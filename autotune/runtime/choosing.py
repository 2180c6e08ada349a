"""The choice of who computes a product: a kernel that was measured, else the library.

What stands in for a library's product must never be slower by our choice. A kernel serves where
the problem's own record, calls of a program, or the survey of the device have it faster than the
library; everywhere else the library does, or both take turns until that is known
(`autotune.runtime.contest`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autotune.arrays.shapes import products_of
from autotune.core import session
from autotune.core.arguments import is_on
from autotune.core.dtypes import DTYPES
from autotune.core.errors import AutotuneError, InputError, OperandError
from autotune.core.session import Remembered
from autotune.families.offers import accuracies_of
from autotune.operations.accuracy import admits, refuse_unknown, unfit
from autotune.operations.problem import Gemm, Problem
from autotune.runtime import usage
from autotune.runtime.contest import VARIABLE, Contest, is_faster
from autotune.runtime.loading import load, request_of
from autotune.runtime.product_log import log_product, summary, warn_once
from autotune.serving.background import VARIABLE as IN_BACKGROUND
from autotune.serving.loading import contenders, refusal
from autotune.store import MatchQuality, pools
from autotune.targets.families import catalog
from autotune.targets.registry import HOMES, make_target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.arrays.library import Descriptor, Library
    from autotune.operations.operation import Operation, Problem
    from autotune.serving.clock import Clock
    from autotune.serving.kernel import Kernel
    from autotune.serving.loading import Contender
    from autotune.store import TuningRecord

_LEFT = "left to the library: "

CONTENDERS = 3
"""Kernels that take turns with the library, also where they must be compiled for it."""

MOST_CONTENDERS = 6
"""Such kernels, where the others are compiled and a GPU is soon through with their turns."""

ANY = ""
"""The name of a library that is not asked for: whatever kernels were measured beside will do."""


@dataclass(frozen=True, slots=True)
class Served:
    """A product of two matrices, or a layer, that kernels may compute.

    Attributes:
        problem: what it is; its layout says which operands kernels take turned, as they are
            stored.
        contest: says who computes it. A kernel of a product is ``kernel(a, b, out, alpha, beta)``
            of operands as they are stored.
    """

    problem: Problem
    contest: Contest


def serve(
    library: Library,
    a: Descriptor,
    b: Descriptor,
    caller: str,
    accepts: Callable[[Gemm], str | None] | None = None,
    layer: Operation | None = None,
) -> Served | None:
    """Choose who computes the product of two matrices, or a layer; None where no kernel can.

    Nothing is copied for it: what a kernel cannot read where it lies is left to the library, too.

    Args:
        library: what the operands are of.
        a: how A lies.
        b: how B lies.
        caller: the function that was called, for the log.
        accepts: the accuracy class that a problem is to be served in, empty for the usual one, or
            None where it is not; no function takes all.
        layer: the operation of which this is the product; None where nothing follows it.
    """
    found = _problem_of(library, a, b)
    if found is None:
        kinds = f"{tuple(a.shape)} of {a.dtype} by {tuple(b.shape)} of {b.dtype}"
        log_product(caller, None, "", f"{kinds}: {_LEFT}no kernel takes them as they lie")
        return None
    product, target = found
    accuracy = "" if accepts is None else accepts(product)
    if accuracy is None:
        log_product(caller, product, target, f"{_LEFT}not selected")
        return None
    product = of_class(product, accuracy, target)
    problem: Problem = product
    if layer is not None:
        fields = {"dtype": product.dtype, "layout": product.layout, "accuracy": product.accuracy}
        problem = layer.at(product.shape, **fields)
    contest = contest_of(problem, target, library.name, caller)
    return None if contest is None else Served(problem, contest)


def class_name(accuracy: Any) -> str:
    """The name of a class that is asked for; None asks for the usual one, which is empty.

    Raises:
        InputError: it is no name.
    """
    if accuracy is None:
        return ""
    refuse_unknown(accuracy)
    return str(accuracy)


def check_class(accuracy: str, dtype: str) -> None:
    """Refuse an accuracy class that the library's products of a dtype do not have.

    Args:
        accuracy: the class that is asked for; empty is the usual one.
        dtype: element type of the operands.

    Raises:
        InputError: it is no class, not for such operands, or stricter than the library's.
    """
    if not accuracy:
        return
    refuse_unknown(accuracy)
    usual = DTYPES[dtype].accuracy
    reason = unfit(accuracy, dtype)
    if reason is None and not admits(accuracy, usual):
        reason = (
            f"accuracy {accuracy} of {dtype} operands is stricter than {usual}, which libraries "
            "have: use autotune.load"
        )
    if reason is not None:
        raise InputError(reason)


def of_class(problem: Gemm, accuracy: str, target: str) -> Gemm:
    """A product in the class that is asked for, where that is for its operands.

    Where no kernel of a target is of that class, those of the usual one compute, which is
    stricter.

    Args:
        problem: of the usual class.
        accuracy: the class; empty is the usual one.
        target: where it is computed.
    """
    if accuracy in ("", problem.accuracy) or unfit(accuracy, problem.dtype) is not None:
        return problem
    if accuracy not in _offered(target) or not admits(accuracy, problem.accuracy):
        return problem
    return replace(problem, accuracy=accuracy)


@session.cached(lasting=False)
def _offered(target: str) -> list[str]:
    """The accuracy classes that kernels of a target have."""
    return accuracies_of(catalog(target).values())


def contest_of(problem: Problem, target: str, library: str, caller: str) -> Contest | None:
    """The one contest of a problem; None where no kernel can compute it.

    Args:
        problem: what is to be computed.
        target: where.
        library: name and version of the operands' library.
        caller: the function that was called, for the log.
    """
    contest, reason = _CONTESTS[problem, target, library]

    def log_end() -> None:
        if contest is not None and contest.over:
            winner = contest.winner
            way = summary(winner) if winner else f"{_LEFT}it was faster in turns"
            log_product(caller, problem, target, way)

    if contest is None or (contest.over and contest.winner is None):
        log_product(caller, problem, target, f"{_LEFT}{reason}")
    elif contest.winner is not None:
        log_end()
    else:
        log_product(caller, problem, target, f"in turns: {reason}")
        contest.on_change(log_end)
    return contest


def new_contest(
    problem: Problem, target: str, library: str, *, timed: bool = True
) -> Contest | None:
    """A contest of calls that are not those of the product alone, and that nothing is known of.

    None where no kernel can take part.

    Args:
        problem: what kernels compute of it.
        target: where.
        library: name and version of the operands' library.
        timed: whether it is found out who is faster; else the library computes.
    """
    found, _ = _contenders(problem, target)
    clock = _clock(target) if timed else None
    if not found:
        return None
    return Contest(problem, target, library, _taking_part(found, target), clock, kept=False)


def measured_kernel(problem: Problem, target: str, caller: str) -> Kernel | None:
    """The kernel that is known to be faster than the library that it was measured beside.

    None where none is, or nothing is known; then nothing is measured in calls.

    Args:
        problem: what is to be computed.
        target: where.
        caller: the function that was called, for the log.
    """
    kernel, reason = _KNOWN[problem, target]
    way = f"{_LEFT}{reason}" if kernel is None else summary(kernel)
    log_product(caller, problem, target, way)
    return kernel


def turning(kernel: Callable[..., Any], layout: str) -> Callable[..., Any]:
    """A kernel that takes operands as they are multiplied, by turning those that it wants turned.

    Args:
        kernel: ``kernel(a, b, out, alpha, beta)`` of operands as they are stored.
        layout: how those are stored.
    """
    if layout == "nn":
        return kernel
    turn_a, turn_b = (stored == "t" for stored in layout)

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
    return Gemm(*products.sizes, dtype, layout=products.layout), HOMES[memory]


def _make_contest(problem: Problem, target: str, library: str) -> tuple[Contest | None, str]:
    """The contest of a problem, if kernels can compute it, and what is known or why not."""
    found, reason = _contenders(problem, target)
    if not found:
        return None, reason
    used = usage.counter(problem, target)
    faster, known = _knowledge(found[0], problem, target, library)
    if faster:
        kernel = load(problem, target, match="nearest")
        return Contest.won_by(problem, target, kernel), known
    clock = _clock(target) if faster is None else None
    taking_part = _taking_part(found, target)
    return Contest(problem, target, library, taking_part, clock, used=used), known


def _find_known(problem: Problem, target: str) -> tuple[Kernel | None, str]:
    """The kernel that is known to be faster than any library, or why there is none."""
    found, reason = _contenders(problem, target)
    if not found:
        return None, reason
    faster, known = _knowledge(found[0], problem, target, ANY)
    return (load(problem, target, match="nearest") if faster else None), known


def _clock(target: str) -> Clock | None:
    """Clock of a target's calls; None where the environment has none measured."""
    return make_target(target).clock() if is_on(VARIABLE) else None


def _contenders(problem: Problem, target: str) -> tuple[Sequence[Contender], str]:
    """The kernels that may be the fastest, or why there are none."""
    try:
        for variable in (VARIABLE, IN_BACKGROUND):
            is_on(variable)  # a wrong value is told of once, here: calls refuse nothing
        chosen, request = make_target(target), request_of(problem, target, match="nearest")
        if (reason := refusal(chosen, request)) is not None:
            return (), reason
        return contenders(chosen, request, MOST_CONTENDERS), ""
    except AutotuneError as error:  # programs must not end for what they can do without
        warn_once(f"products on target {target} are left to their libraries: {error}")
        return (), str(error)


def _taking_part(found: Sequence[Contender], target: str) -> list[Contender]:
    """Those that take turns: of many, the first ones, and on a GPU others that are compiled."""
    more = found[CONTENDERS:] if target != "cpu" else ()
    return [*found[:CONTENDERS], *(each for each in more if each.job is None)]


def _knowledge(
    contender: Contender, problem: Problem, target: str, library: str
) -> tuple[bool | None, str]:
    """True if a kernel is known to be faster than the library; None where that is not known."""
    match = contender.found.match
    record = match.record
    own = record is not None and match.quality in (MatchQuality.EXACT, MatchQuality.MEASURED)
    if own and record is not None and not _is_beside(record, target, library):
        record = _timed_in_calls(contender, record, library) or record
    if record is None or not own or record.baseline is None:
        return None, f"no kernel is known to be faster ({match.reason or match.quality})"
    name, ratio = record.baseline.name, record.ratio or record.baseline.ratio
    if not _is_beside(record, target, library):
        return None, f"no kernel is known to be faster (than {library}: measured beside {name})"
    held = record.sustained is not None and record.sustained.ratio is not None
    faster = is_faster(
        ratio, record.median_s, problem, target, in_turns=record.is_light, held=held
    )
    return faster, f"{record.candidate.family} is at {ratio:.2f}x {name} here"


def _is_beside(record: TuningRecord, target: str, library: str) -> bool:
    """True if a record says how fast a kernel is beside a library; of layers few do."""
    if record.baseline is None:
        return False
    name = record.baseline.name
    if record.is_light:
        return library in (ANY, name)
    # Libraries of GPUs call one and the same.
    return target != "cpu" or library.partition(" ")[0] in (ANY, name.partition(" ")[0])


def _timed_in_calls(
    contender: Contender, tuned: TuningRecord, library: str
) -> TuningRecord | None:
    """The record of calls in which a tuned kernel took turns with a library, if it did."""
    found, problem = contender.found, contender.request.problem
    own = next(pools(found.shared.sources, problem, tuned.target, tuned.fingerprint))
    same = tuned.candidate, tuned.family_digest
    return next(
        (
            record
            for record in own
            if record.is_light
            and (record.candidate, record.family_digest) == same
            and _is_beside(record, tuned.target, library)
        ),
        None,
    )


_CONTESTS = Remembered(_make_contest)
_KNOWN = Remembered(_find_known)
