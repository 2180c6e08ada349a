"""Loading the kernel that serves a request, as targets of one process do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.operations.problem import MatrixOperation
from autotune.store import MatchQuality
from autotune.targets.kernel import Kernel, ProductKernel
from autotune.targets.lookup import binary_of, look_up

if TYPE_CHECKING:
    from autotune.store import Match
    from autotune.targets.base import Target
    from autotune.targets.kernel import BoundKernel, Request


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
        binary, programs = binary_of(problem, found), found.shared.programs
        return target.kernel(
            found.family, found.candidate, problem, found.device, programs, binary
        )

    bound = None
    if request.fallback == "library" and _is_slower(found.match):
        bound = target.library(problem, tuned)
    if bound is not None and record is not None and record.baseline is not None:
        library = record.baseline.name.partition(" ")[0]
        slower = f"{record.candidate.family} is at {record.baseline.ratio:.2f}x {library} here"
        reason = "; ".join(filter(None, (f"{slower}: {library} computes", reason)))
    if kind is None:
        kind = ProductKernel if isinstance(problem.defined, MatrixOperation) else Kernel
    return kind(
        problem,
        target.name,
        found.candidate,
        found.match.quality,
        reason,
        record,
        tuned() if bound is None else bound,
        library,
        request,
    )


def _is_slower(match: Match) -> bool:
    """Whether the problem's own record says that the library is faster."""
    own = match.quality in (MatchQuality.EXACT, MatchQuality.STALE)
    return own and match.record is not None and match.record.slower_than_library
