"""From a request to a kernel: look it up, then load it, or let something else compute meanwhile.

The way is straight: `serve` takes a target and a request, `autotune.serving.lookup` finds the
candidate, and `Target.kernel` loads or compiles it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.core.forking import LOADING
from autotune.families import offers
from autotune.serving import lookup
from autotune.serving.background import Background, background, failure_text
from autotune.serving.lookup import binary_of, look_up
from autotune.serving.resident import resident
from autotune.store import MatchQuality

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.serving.background import Job
    from autotune.serving.kernel import BoundKernel, Kernel, Request
    from autotune.serving.lookup import Lookup
    from autotune.serving.target import Target
    from autotune.store import Match


def serve(target: Target, request: Request) -> Kernel:
    """Load the kernel that serves a request, or what computes in its place.

    Args:
        target: where to run.
        request: the arguments of `autotune.load`.

    Raises:
        NotTunedError: nothing good enough; the message names the command that would tune it.
        CacheError: the cache cannot be read.
    """
    if (joint := target.load_jointly(request)) is not None:
        return joint
    with LOADING:
        return _load(_look_up(target, request), request)


@dataclass(frozen=True, slots=True)
class Contender:
    """A kernel that may be the fastest for a problem, found and not yet loaded.

    Attributes:
        found: the candidate, and the reasons for it.
        request: the one it was found for.
    """

    found: Lookup
    request: Request

    @property
    def job(self) -> Job | None:
        """The compilation that its first call would wait for; None where there is none."""
        with LOADING:
            return _job(self.found, self.request)

    def load(self) -> Kernel:
        """Load the kernel; it is compiled now unless it is here.

        Raises:
            CompileError: the compiler refuses it.
        """
        with LOADING:
            return _load(self.found, self.request)


def contenders(target: Target, request: Request, most: int) -> Sequence[Contender]:
    """The kernels most likely to be the fastest for a request, at most `most`, the best first.

    Raises:
        NotTunedError: nothing is good enough.
        CacheError: the cache cannot be read.
    """
    with LOADING:
        found = lookup.contenders(request.problem, _look_up(target, request), most)
        return [Contender(candidate, request) for candidate in found]


def refusal(target: Target, request: Request) -> str | None:
    """The reason why no family of the target computes the problem; None where one does."""
    shared = resident(
        request.problem, target, request.device, request.cache, request.extra_families, now=False
    )
    return offers.refusal(shared.families, request.problem)


class Placeholder:
    """A `BoundKernel` that calls a fallback until the real kernel is compiled, then that one.

    Calls that have begun end as they began. Where it cannot be compiled the fallback stays.

    Args:
        job: compiles the kernel.
        fallback: the library of the operands.
        make: loads the kernel, once it is compiled.
    """

    def __init__(self, job: Job, fallback: BoundKernel, make: Callable[[], BoundKernel]) -> None:
        self._job = job
        self._make = make
        self._now = fallback
        self._submitted_to: Background | None = None
        self._over = False
        self._kernel: Kernel | None = None
        self._reason = ""

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """See `autotune.targets.Kernel`."""
        if self._submitted_to is not background() and not self._over:
            # There was no thread to be had, or this is a child by fork, without its parent's.
            self._submit()
        return self._now(*inputs, **options)

    def begin(self, kernel: Kernel) -> None:
        """Have it compiled for a kernel, which takes it when that is done."""
        self._kernel, self._reason = kernel, kernel.reason
        state = "is being compiled: the library of its operands computes meanwhile"
        self._describe(state, passing=True)
        self._submit()

    def _submit(self) -> None:
        here = background()
        self._submitted_to = here  # before the job can end
        if not here.submit(self._job, self._finish):
            self._submitted_to = None

    def _finish(self, failure: str) -> None:
        kernel = self._kernel
        assert kernel is not None  # it has begun
        if not failure:
            try:
                with LOADING:  # in the thread that compiles: a fork waits for its imports
                    self._now = self._make()
            except Exception as error:  # of loaders and drivers, too: the fallback goes on
                failure = failure_text(error)
        self._over = True
        if failure:
            state = f"cannot be used ({failure}): the library of its operands computes"
            self._describe(state, passing=False)
        else:
            kernel.become(self._now, self._reason)

    def _describe(self, state: str, *, passing: bool) -> None:
        assert self._kernel is not None
        reason = "; ".join(filter(None, (f"{self._job.name} {state}", self._reason)))
        self._kernel.become(self, reason, passing=passing)


def _look_up(target: Target, request: Request) -> Lookup:
    return look_up(
        request.problem,
        target,
        match=request.match,
        device=request.device,
        cache=request.cache,
        extra_families=request.extra_families,
    )


def _load(found: Lookup, request: Request) -> Kernel:
    problem, target = request.problem, found.target
    record, reason, library = found.match.record, found.match.reason, ""

    def load_tuned() -> BoundKernel:
        with LOADING:
            binary, programs = binary_of(problem, found), found.shared.programs
            return target.kernel(
                found.family, found.candidate, problem, found.shared.device, programs, binary
            )

    bound: BoundKernel | None = None
    if request.fallback == "library" and _is_slower(found.match):
        bound = target.library(problem, load_tuned)
    if bound is not None and record is not None and record.baseline is not None:
        library = record.baseline.name.partition(" ")[0]
        slower = f"{record.candidate.family} is at {record.ratio:.2f}x {library} here"
        reason = "; ".join(filter(None, (f"{slower}: {library} computes", reason)))
    placeholder = None
    if bound is None and request.background and (job := _job(found, request)) is not None:
        meanwhile = target.library(problem, load_tuned)
        placeholder = None if meanwhile is None else Placeholder(job, meanwhile, load_tuned)
    kernel = target.kernel_class(problem)(
        problem,
        target.name,
        found.candidate,
        found.match.quality,
        reason,
        record,
        bound or placeholder or load_tuned(),
        library,
        request,
    )
    if placeholder is not None:
        placeholder.begin(kernel)
    return kernel


def _job(found: Lookup, request: Request) -> Job | None:
    """The compilation without which the candidate cannot be called."""
    problem = request.problem
    if binary_of(problem, found) is not None:
        return None
    programs = found.shared.programs
    return found.target.job(found.family, found.candidate, problem, found.device, programs)


def _is_slower(match: Match) -> bool:
    """True if the problem's own record says that the library is faster."""
    own = match.quality <= MatchQuality.MEASURED
    return own and match.record is not None and match.record.slower_than_library
