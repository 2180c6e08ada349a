"""Loading the kernel that serves a request, as targets of one process do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.forking import LOADING
from autotune.operations.problem import MatrixOperation
from autotune.store import MatchQuality
from autotune.targets.kernel import Kernel, ProductKernel
from autotune.targets.lookup import binary_of, look_up, second_choice
from autotune.targets.standing import Standing

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.operations.problem import Problem
    from autotune.store import Match
    from autotune.targets.background import Job
    from autotune.targets.base import Target
    from autotune.targets.kernel import BoundKernel, Request
    from autotune.targets.lookup import Lookup


def load_kernel(target: Target, request: Request, kind: type[Kernel] | None = None) -> Kernel:
    """Look the kernel up, and make it, or what computes instead.

    Args:
        target: where to run.
        request: what was asked for.
        kind: the class of the target's kernels; None takes that of the operation's.

    Raises:
        NotTunedError: nothing good enough; the message names the command that would tune it.
        CacheError: the cache cannot be read.
    """
    with LOADING:
        return _loaded(target, request, kind)


def _loaded(target: Target, request: Request, kind: type[Kernel] | None) -> Kernel:
    problem = request.problem
    found = look_up(
        problem,
        target,
        match=request.match,
        device=request.device,
        cache=request.cache,
        extra_families=request.extra_families,
    )
    record, reason, library = found.match.record, found.match.reason, ""

    def tuned() -> BoundKernel:
        return _made(found, problem)

    bound = None
    if request.fallback == "library" and _is_slower(found.match):
        bound = target.library(problem, tuned)
    if bound is not None and record is not None and record.baseline is not None:
        library = record.baseline.name.partition(" ")[0]
        slower = f"{record.candidate.family} is at {record.baseline.ratio:.2f}x {library} here"
        reason = "; ".join(filter(None, (f"{slower}: {library} computes", reason)))
    standing = None
    if bound is None:
        if request.background:
            standing = _standing(found, problem, tuned)
        bound = standing or tuned()
    if kind is None:
        kind = ProductKernel if isinstance(problem.defined, MatrixOperation) else Kernel
    kernel = kind(
        problem,
        target.name,
        found.candidate,
        found.match.quality,
        reason,
        record,
        bound,
        library,
        request,
    )
    if standing is not None:
        standing.begin(kernel)
    return kernel


def _made(found: Lookup, problem: Problem) -> BoundKernel:
    """The kernel of a candidate that was found; it is compiled unless it is here."""
    with LOADING:
        binary, programs = binary_of(problem, found), found.shared.programs
        return found.target.kernel(
            found.family, found.candidate, problem, found.device, programs, binary
        )


def _standing(found: Lookup, problem: Problem, make: Callable[[], BoundKernel]) -> Standing | None:
    """What computes while the kernel is compiled; None where it is here, or nothing can."""
    job = _job(found, problem)
    if job is None:
        return None
    other = second_choice(problem, found, lambda each: _job(each, problem) is None)
    if other is not None:
        return Standing(job, _made(other, problem), str(other.candidate), make)
    library = found.target.library(problem, make)
    return None if library is None else Standing(job, library, "the library of its operands", make)


def _job(found: Lookup, problem: Problem) -> Job | None:
    """What must be compiled before the candidate can be called."""
    if binary_of(problem, found) is not None:
        return None
    return found.target.job(
        found.family, found.candidate, problem, found.device, found.shared.programs
    )


def _is_slower(match: Match) -> bool:
    """Whether the problem's own record says that the library is faster."""
    own = match.quality in (MatchQuality.EXACT, MatchQuality.STALE)
    return own and match.record is not None and match.record.slower_than_library
