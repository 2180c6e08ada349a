"""Kernels as users hold them, and the requests for them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, runtime_checkable

from autotune.core.errors import InputError, LaunchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.core.configuration import Candidate
    from autotune.operations.problem import Problem
    from autotune.serving.recorded import RecordedLaunch
    from autotune.store import MatchQuality, TuningRecord

BoundKernel: TypeAlias = Callable[..., Any]
"""``kernel(*inputs, out=None, stream=None, **scalars)``: checks operands, computes or enqueues,
and returns the output; of matrix products ``kernel(a, b, out, alpha, beta, stream)``, too."""


@runtime_checkable
class Launching(Protocol):
    """A bound kernel that gives its unchecked launches."""

    def launch_on(self, device: int) -> Callable[..., None]:
        """``launch(*operands, *scalars, stream=None)`` on a device, all as numbers.

        Of a product that is ``launch(a, lda, b, ldb, c, ldc, alpha, beta, stream)``. Addresses
        are those of the operands as stored, leading dimensions count elements, and the stream is
        a handle.

        Args:
            device: the driver's number.

        Raises:
            OperandError: the kernel is not for that device.
        """
        ...


@runtime_checkable
class Recordable(Protocol):
    """A bound kernel whose launches others can make."""

    def recorded_on(
        self, device: int, distances: Sequence[tuple[int, ...]]
    ) -> RecordedLaunch | None:
        """The launch for others to make; None where operands are copied before it.

        Args:
            device: the driver's number.
            distances: of every operand, in the operation's order, its strides but the last.

        Raises:
            OperandError: the kernel is not for that device.
            LaunchError: the driver refuses a kernel.
        """
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of ``keep(b, stream)`` of a product's bound kernel: B, prepared once.

    Attributes:
        call: the bound kernel that finds it made.
        bytes: of the device's memory that hold it.
        close: frees them; calls are refused then.
    """

    call: BoundKernel
    bytes: int
    close: Callable[[], None]


FALLBACKS = (None, "library")
"""Values of `fallback`, for records that say that the vendor's library is faster."""


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of `autotune.load`, less target and options.

    `background` is decided here, and `again` repeats the call in another process; None where that
    makes no sense.
    """

    problem: Problem
    match: str
    device: int | str | None
    cache: str | Path | None
    extra_families: tuple[Path, ...]
    fallback: str | None
    background: bool = False
    again: Callable[[], Kernel] | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Kernel:
    """A tuned kernel, ready to call.

    Copies are the kernel itself. A pickled one is loaded again where it is unpickled, with the
    arguments it was loaded with: what serves there is looked up there.

    Attributes:
        problem: what it computes.
        target: where it runs.
        candidate: family and configuration.
        match: how well the record behind it fits the problem and this device.
        reason: what kept the match from being exact, or the configuration from being the
            record's, as fewer threads do; and what computes while the kernel is being compiled.
            Empty when all is well.
        record: the tuning record behind it; None for a default configuration.
        library: the library that computes instead of the candidate, since it is faster; empty
            where the candidate does.
    """

    problem: Problem
    target: str
    candidate: Candidate
    match: MatchQuality
    reason: str
    record: TuningRecord | None
    _bound: BoundKernel
    library: str = ""
    _request: Request | None = None
    _call: BoundKernel = field(init=False, compare=False)
    _used: Callable[[], None] | None = field(init=False, default=None, compare=False)
    _passing: bool = field(init=False, default=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_call", self._bound)

    @property
    def bound(self) -> BoundKernel:
        """The callable for many calls, one Python frame less for each.

        Where something else computes for the time being, the kernel itself.
        """
        return self.__call__ if self._passing else self._call

    @property
    def is_passing(self) -> bool:
        """True while something else computes in its place, for the time being."""
        return self._passing

    def become(self, bound: BoundKernel, reason: str, *, passing: bool = False) -> None:
        """Compute by `bound` from now on, for `reason`; `passing` until something else will."""
        object.__setattr__(self, "_bound", bound)
        object.__setattr__(self, "_passing", passing)
        object.__setattr__(self, "_call", _reporting(bound, self._used))
        object.__setattr__(self, "reason", reason)

    def hear(self, used: Callable[[], None]) -> None:
        """Call `used` after every call that raises nothing, in its thread."""
        object.__setattr__(self, "_used", used)
        object.__setattr__(self, "_call", _reporting(self._bound, used))

    def __repr__(self) -> str:
        """One line: what computes what, where, and how well it fits."""
        what = f"{self.library} instead of {self.candidate}" if self.library else self.candidate
        tuned = "untuned" if self.record is None else f"record {self.record.id}"
        kind = type(self).__name__.removeprefix("Product")
        return f"<{kind} {what}; {self.problem.label} on {self.target}, {self.match}, {tuned}>"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._request is None or self._request.again is None:
            raise InputError(
                f"a kernel of target {self.target} is bound to its communicator and cannot be "
                "pickled: load it on every rank"
            )
        return operator.call, (self._request.again,)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Compute the problem's operation: ``kernel(*inputs, out=None, stream=None, **scalars)``.

        On the CPU operands are arrays of NumPy, or of PyTorch or JAX in the memory of the host, of
        which the output is one too, and it is there when the call returns. On a GPU they are
        arrays of PyTorch, CuPy, Numba, or anything with DLPack or ``__cuda_array_interface__`` in
        its memory; the work is enqueued on a stream, and the call does not wait for it. Rows must
        be contiguous there: nothing is copied unasked. Tensors that require grad are refused where
        PyTorch records gradients: a kernel has none.

        Args:
            inputs: the operands that are not written, in the operation's order.
            options: `out`, the output, written in place and returned; None allocates it with the
                library of the first input. `stream`, where to enqueue the work: a stream of any
                library, its handle, or anything with ``__cuda_stream__``; what the operands need
                must be ordered before it. None is the current stream of the first input's library.
                CPU kernels take none. And the operation's scalars, numbers of the host; where one
                that is not zero scales what `out` holds, `out` must be there.

        Returns:
            The output.

        Raises:
            OperandError: an operand does not fit; the message names it and what it takes.
            LaunchError: the GPU's driver refuses the launch, or an earlier kernel was at fault.
        """
        return self._call(*inputs, **options)


class ProductKernel(Kernel):
    """A tuned kernel of a matrix product."""

    __slots__ = ()

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> Any:
        """``C = alpha A B + beta C`` for operands of the problem's shapes, dtype and layout.

        Args:
            a: A as stored: M x N, or N x M where the layout says transposed.
            b: B as stored: N x K, or K x N where the layout says transposed.
            out: C, M x K, written in place and returned; None allocates it with the library of
                `a`.
            alpha: scales the product; a number of the host.
            beta: scales what `out` holds; needs `out`. Zero means `out` is not read.
            stream: as for `Kernel`.

        Returns:
            C, an M x K array.

        Raises:
            OperandError: an operand does not fit; the message names it and what it takes.
            LaunchError: the GPU's driver refuses the launch, or an earlier kernel was at fault.
        """
        return self._call(a, b, out, alpha, beta, stream)

    def keep(self, b: Any, stream: Any = None) -> KeptProduct:
        """The product with a B that stays as it is, weights say.

        Kernels of the classes `fp32`, `fp32-normwise` and `fp64` on a GPU, and some of `tf32`,
        split or round their operands before they multiply: B is split here, once, for all calls,
        and this waits until it is. Others keep nothing.

        Args:
            b: B as stored, see `__call__`.
            stream: where it is split, as for `Kernel`; none that is captured.

        Raises:
            OperandError: `b` does not fit.
            LaunchError: the GPU's driver refuses the launch, or the memory.
        """
        return KeptProduct(self, b, self._kept(b, stream))

    def _kept(self, b: Any, stream: Any) -> Kept | None:
        keep = getattr(self._bound, "keep", None)
        kept: Kept | None = None if keep is None else keep(b, stream)
        return kept


class KeptProduct:
    """``kept(a, out=None, alpha=1.0, beta=0.0, stream=None)``: a product with a B that stays.

    `ProductKernel.keep` makes it. What B held then is multiplied. It is held here and must not
    change: the elements that cannot be made of what is kept are read from B itself at every call.
    Calls, from any thread and on any stream, are done one after the other, as all have one
    workspace: a stream must not be destroyed before a call on another one. They may be captured
    in graphs, which need this object for as long as they live; the order of their replays, with
    each other and with calls, is yours.

    The memory is freed by `close`, or with the object, once what is enqueued is done. Copies, and
    what is pickled, keep B again.

    Attributes:
        kept_bytes: of the device's memory that hold what was made of B; 0 where the kernel keeps
            nothing, so that every call is one of the kernel's, and until it is compiled, after
            which the next call keeps B.
    """

    def __init__(self, kernel: ProductKernel, b: Any, kept: Kept | None) -> None:
        self._kernel, self._b = kernel, b
        self._hold(kept)

    def _hold(self, kept: Kept | None) -> None:
        kernel = self._kernel
        self._kept, self.kept_bytes = kept, 0 if kept is None else kept.bytes
        if kept is not None:
            self._call = _reporting(kept.call, kernel._used)
        else:
            self._call = self._wait if kernel._passing else kernel

    def _wait(self, *arguments: Any) -> Any:
        """A call while something computes in the kernel's place, or the first one after that."""
        if self._kernel._passing:
            return self._kernel(*arguments)
        try:
            self._hold(self._kernel._kept(self._b, arguments[-1]))
        except LaunchError:  # a graph is captured, or memory is short: a later call keeps B
            return self._kernel(*arguments)
        return self._call(*arguments)

    def __call__(
        self,
        a: Any,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> Any:
        """``C = alpha A B + beta C``; arguments, result and errors are those of the kernel."""
        return self._call(a, self._b, out, alpha, beta, stream)

    def close(self) -> None:
        """Free the memory and let B go; calls raise LaunchError then."""
        self._call, self._b = _refuse_closed, None
        if self._kept is not None:
            self._kept.close()

    def __repr__(self) -> str:
        """One line: the kernel, and how much is kept of B."""
        return f"<B kept in {self.kept_bytes} bytes for {self._kernel!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.methodcaller("keep", self._b), (self._kernel,)


def _refuse_closed(*_: Any) -> Any:
    raise LaunchError("what was kept of B was closed: keep it again")


def _reporting(bound: BoundKernel, used: Callable[[], None] | None) -> BoundKernel:
    """The kernel, with the callback after its calls if there is one."""
    if used is None:
        return bound

    def call(*inputs: Any, **options: Any) -> Any:
        result = bound(*inputs, **options)
        used()
        return result

    return call
