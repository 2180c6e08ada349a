"""Calls of a kernel that is still being compiled: something else computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.core.forking import LOADING
from autotune.serving.background import Background, background, failure_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.serving.background import Job
    from autotune.serving.kernel import BoundKernel, Kernel


class Standing:
    """A `BoundKernel` that another one computes for, until it has been compiled.

    Calls that have begun end as they began. Where it cannot be compiled the other one stays.

    Args:
        job: compiles it.
        other: what computes meanwhile.
        what: the other one, for people.
        make: makes the kernel, once it is compiled.
    """

    def __init__(
        self, job: Job, other: BoundKernel, what: str, make: Callable[[], BoundKernel]
    ) -> None:
        self._job = job
        self._what = what
        self._make = make
        self._now = other
        self._asked: Background | None = None
        self._over = False
        self._kernel: Kernel | None = None
        self._reason = ""

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """See `autotune.targets.Kernel`."""
        if self._asked is not background() and not self._over:
            # There was no thread to be had, or this is a child by fork, without its parent's.
            self._submit()
        return self._now(*inputs, **options)

    def begin(self, kernel: Kernel) -> None:
        """Have it compiled for a kernel, which is told when that is done."""
        self._kernel, self._reason = kernel, kernel.reason
        self._tell(f"{self._job.name} is being compiled: {self._what} computes meanwhile")
        self._submit()

    def _submit(self) -> None:
        here = background()
        self._asked = here  # before its end can be heard of
        if not here.submit(self._job, self._end):
            self._asked = None

    def _end(self, failure: str) -> None:
        kernel = self._kernel
        assert kernel is not None  # it has begun
        if not failure:
            try:
                with LOADING:  # in the thread that compiles: a fork waits for its imports
                    self._now = self._make()
            except Exception as error:  # of loaders and drivers, too: the other one goes on
                failure = failure_text(error)
        self._over = True
        if failure:
            self._tell(
                f"{self._job.name} cannot be used ({failure}): {self._what} computes",
                passing=False,
            )
        else:
            kernel.become(self._now, self._reason)

    def _tell(self, reason: str, *, passing: bool = True) -> None:
        assert self._kernel is not None
        told = "; ".join(filter(None, (reason, self._reason)))
        self._kernel.become(self, told, passing=passing)
