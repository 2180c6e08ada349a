"""Loading the kernel that serves a request, as targets of one process do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.forking import LOADING
from autotune.operations.problem import MatrixOperation
from autotune.serving import lookup
from autotune.serving.kernel import Kernel, ProductKernel
from autotune.serving.lookup import binary_of, look_up
from autotune.serving.placeholder import Standing
from autotune.store import MatchQuality

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.operations.problem import Problem
    from autotune.serving.background import Job
    from autotune.serving.kernel import BoundKernel, Request
    from autotune.serving.lookup import Lookup
    from autotune.serving.target import Target
    from autotune.store import Match


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
        return _loaded(_looked_up(target, request), request, kind)


@dataclass(frozen=True, slots=True)
class Contender:
    """A kernel that may be the fastest for a problem, found and not yet loaded.

    Attributes:
        found: which one, and what speaks for it.
        request: what it was found for.
    """

    found: Lookup
    request: Request

    @property
    def job(self) -> Job | None:
        """The compilation that its first call would wait for; None where there is none."""
        with LOADING:
            return _job(self.found, self.request.problem)

    def load(self) -> Kernel:
        """The kernel; it is compiled now unless it is here.

        Raises:
            CompileError: the compiler refuses it.
        """
        with LOADING:
            return _loaded(self.found, self.request, None)


def contenders(target: Target, request: Request, most: int) -> Sequence[Contender]:
    """The kernels most likely to be the fastest for a request, the most promising first.

    Args:
        target: where to run.
        request: what is asked for.
        most: how many, at most.

    Raises:
        NotTunedError: nothing is good enough.
        CacheError: the cache cannot be read.
    """
    with LOADING:
        first = _looked_up(target, request)
        found = lookup.contenders(request.problem, first, most)
        return [Contender(each, request) for each in found]


def _looked_up(target: Target, request: Request) -> Lookup:
    return look_up(
        request.problem,
        target,
        match=request.match,
        device=request.device,
        cache=request.cache,
        extra_families=request.extra_families,
    )


def _loaded(found: Lookup, request: Request, kind: type[Kernel] | None) -> Kernel:
    problem, target = request.problem, found.target
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
    """The library, in place of a kernel that is being compiled; None where it is here already."""
    job = _job(found, problem)
    library = None if job is None else found.target.library(problem, make)
    if job is None or library is None:
        return None
    return Standing(job, library, "the library of its operands", make)


def _job(found: Lookup, problem: Problem) -> Job | None:
    """What must be compiled before the candidate can be called."""
    if binary_of(problem, found) is not None:
        return None
    return found.target.job(
        found.family, found.candidate, problem, found.device, found.shared.programs
    )


def _is_slower(match: Match) -> bool:
    """Whether the problem's own record says that the library is faster."""
    own = match.quality <= MatchQuality.MEASURED
    return own and match.record is not None and match.record.slower_than_library
