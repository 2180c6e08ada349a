"""Using tuned kernels: `load` looks one up, `matmul` picks one by the operands."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from autotune.core.configuration import Candidate
from autotune.core.errors import InputError, OperandError, UnknownNameError
from autotune.core.paths import CacheLocations
from autotune.families.program_cache import ProgramCache
from autotune.operations.problem import ITEM_SIZES, Gemm, Problem
from autotune.runtime.library import library_kernel
from autotune.store import Match, MatchQuality, TuningRecord
from autotune.targets.base import Target
from autotune.targets.cuda.arrays.libraries import in_device_memory
from autotune.targets.hybrid.target import HybridTarget
from autotune.targets.lookup import binary_of, look_up, qualities

if TYPE_CHECKING:
    from autotune.targets.base import BoundKernel

FALLBACKS = (None, "library")
"""What `load` may do where the record says that the vendor's library is faster."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a kernel was asked for with: the arguments of `load`, where no communicator is one.

    Attributes:
        problem: what to compute.
        target: where to run; None takes the best.
        match: one of `MATCHES`.
        device: which GPU.
        cache: the user's cache.
        extra_families: folders of families.
        fallback: one of `FALLBACKS`.
    """

    problem: Problem
    target: str | Target | None
    match: str
    device: int | str | None
    cache: str | Path | None
    extra_families: tuple[Path, ...]
    fallback: str | None


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
            record's, as fewer threads do; empty when both are.
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

    def __repr__(self) -> str:
        """One line: what computes what, where, and how well it fits."""
        what = f"{self.library} instead of {self.candidate}" if self.library else self.candidate
        tuned = "untuned" if self.record is None else f"record {self.record.id}"
        return (
            f"<{type(self).__name__} {what}; {self.problem.label} on {self.target}, "
            f"{self.match}, {tuned}>"
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._request is None:
            raise InputError(
                f"a kernel of target {self.target} is bound to its communicator and cannot be "
                "pickled: load it on every rank"
            )
        return _load, (self._request,)

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

        On the CPU operands are NumPy arrays, and C is there when the call returns. On a GPU they
        are arrays of PyTorch, CuPy, Numba, or anything with DLPack or
        ``__cuda_array_interface__`` in its memory; the work is enqueued on a stream, and the call
        does not wait for it. Rows must be contiguous there: nothing is copied unasked.

        Args:
            a: A as stored: M x N, or N x M where the layout says transposed.
            b: B as stored: N x K, or K x N where the layout says transposed.
            out: C, M x K, written in place and returned; None allocates it with the library of
                `a`.
            alpha: scales the product; a number of the host.
            beta: scales what `out` holds; needs `out`. Zero means `out` is not read.
            stream: where to enqueue the work: a stream of any library, its handle, or anything
                with ``__cuda_stream__``; what the operands need must be ordered before it. None
                is the current stream of the library of `a`. CPU kernels take none.

        Returns:
            C, an M x K array.

        Raises:
            OperandError: an operand does not fit; the message names it and what it takes.
            LaunchError: the GPU's driver refuses the launch, or an earlier kernel was at fault.
        """
        return self._bound(a, b, out, alpha, beta, stream)


def load(
    problem: Problem,
    target: str | Target | None = None,
    *,
    match: str = "exact",
    device: int | str | None = None,
    comm: Any = None,
    operands: str | None = None,
    local: str = "cpu",
    gpus: int | None = None,
    cache: str | Path | None = None,
    extra_families: Sequence[Path] = (),
    fallback: str | None = None,
) -> Kernel:
    """The tuned kernel for a problem on this machine, from the cache.

    Args:
        problem: what to compute.
        target: where to run; None takes the best this machine has.
        match: "exact" takes only a record of this problem, device, toolchain and template, with
            fewer threads where the process may not use as many as it was tuned with (affinity,
            quota, NUMBA_NUM_THREADS, threadpoolctl);
            "stale" also one whose toolchain or template has changed since; "nearest" takes the
            best there is and never fails for want of a record. `Kernel.match` says which it was.
        device: which GPU, by number or (part of) its name; None takes the first.
        comm: for target "mpi", an mpi4py communicator, every rank of which loads the kernel.
        operands: with `comm`, where they are: "root", whole on rank 0 (the default), or
            "distributed", in blocks (`MpiKernel.blocks`). For target "hybrid": "host" (the
            default), "device", whole on the first GPU, or "blocks" (`HybridKernel.blocks`).
        local: with `comm`, what a rank multiplies on: "cpu", or "cuda", a GPU of its own.
        gpus: for target "hybrid", how many GPUs to use, the first ones; None takes all.
        cache: folder or database of the user's cache; None takes the default place.
        extra_families: folders with families of the user's own, beside $AUTOTUNE_FAMILIES.
        fallback: "library": where the problem's own record says that the vendor's library is
            faster, that computes: NumPy on the CPU, on a GPU the library that the arrays are of,
            if it has a product (PyTorch and CuPy do). `Kernel.library` and `Kernel.reason` say
            so. None takes the tuned kernel in any case, and so do targets "mpi" and "hybrid".

    Raises:
        NotTunedError: nothing good enough; the message names the command that would tune it.
        UnknownNameError: there is no such target, `match` or `fallback`.
        CacheError: the cache cannot be read.
    """
    qualities(match)  # before any rank waits for others
    if fallback not in FALLBACKS:
        raise UnknownNameError(f"fallback must be None or 'library', got {fallback!r}")
    if comm is not None:
        from autotune.targets.mpi.load import load_distributed

        return load_distributed(
            problem,
            comm,
            operands=operands or "root",
            local=local,
            match=match,
            cache=cache,
            extra_families=extra_families,
        )
    return _load(
        Request(
            problem,
            _placed(target, operands, gpus),
            match,
            device,
            cache,
            tuple(extra_families),
            fallback,
        )
    )


def _load(request: Request) -> Kernel:
    """Load what was asked for."""
    problem, cache = request.problem, request.cache
    found = look_up(
        problem,
        request.target,
        match=request.match,
        device=request.device,
        cache=cache,
        extra_families=request.extra_families,
    )
    record, reason, library = found.match.record, found.match.reason, ""

    def tuned() -> BoundKernel:
        programs = ProgramCache(CacheLocations.at(cache).programs)
        binary = binary_of(problem, found, cache)
        return found.target.kernel(
            found.family, found.candidate, problem, found.device, programs, binary
        )

    bound = None
    if request.fallback == "library" and _is_slower(found.match):
        bound = library_kernel(found.target.name, problem, tuned)
    if bound is not None and record is not None and record.baseline is not None:
        library = record.baseline.name.partition(" ")[0]
        slower = f"{record.candidate.family} is at {record.baseline.ratio:.2f}x {library} here"
        reason = "; ".join(filter(None, (f"{slower}: {library} computes", reason)))
    kind = Kernel
    if found.target.name == "hybrid":
        from autotune.targets.hybrid.bind import HybridKernel

        kind = HybridKernel
    return kind(
        problem,
        found.target.name,
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


def _placed(
    target: str | Target | None, operands: str | None, gpus: int | None
) -> str | Target | None:
    """The target with what `operands` and `gpus` say of it.

    Raises:
        InputError: they are for another target.
    """
    if operands is None and gpus is None:
        return target
    if target != "hybrid":
        raise InputError(
            'gpus and operands are for target "hybrid", operands with comm also for "mpi", got '
            f"gpus={gpus!r} and operands={operands!r} with target {target!r}: leave them out"
        )
    return HybridTarget(gpus, operands or "host")


_SHAPES = 4096
"""Shapes that `matmul` remembers the kernel of, at a few kilobytes each."""


def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """``alpha a @ b + beta out`` by the best kernel there is for these shapes on this machine.

    Where the shapes were tuned and the vendor's library was faster, that computes.

    Args:
        a: A, M x N, in the memory of the host or of a GPU: the product is computed there.
        b: B, N x K, of A's dtype.
        out: C, M x K; None allocates it.
        alpha: scales the product.
        beta: scales what `out` holds; needs `out`.

    Returns:
        C, an M x K array.

    Raises:
        OperandError: the operands are not 2-D arrays of one supported dtype that fit together.
    """
    if type(a) is np.ndarray and type(b) is np.ndarray:
        kernel = _kernel_for(a.shape, b.shape, a.dtype, "cpu")
    else:
        shape_a, shape_b = (tuple(getattr(operand, "shape", ())) for operand in (a, b))
        target = "cuda" if in_device_memory(a) else "cpu"
        kernel = _kernel_for(shape_a, shape_b, getattr(a, "dtype", None), target)
    return kernel(a, b, out, alpha, beta)


@functools.lru_cache(maxsize=_SHAPES)
def _kernel_for(
    shape_a: tuple[int, ...], shape_b: tuple[int, ...], dtype: Any, target: str
) -> Kernel:
    """The kernel for operands like these; what stands in their key is all that it depends on."""
    if len(shape_a) != 2 or len(shape_b) != 2 or shape_a[1] != shape_b[0]:
        raise OperandError(
            f"a and b must be 2-D with a's columns equal to b's rows, got {shape_a} and {shape_b}"
        )
    if min(*shape_a, *shape_b) < 1:
        raise OperandError(f"a and b must not be empty, got {shape_a} and {shape_b}")
    name = str(dtype).removeprefix("torch.")
    if name not in ITEM_SIZES:
        raise OperandError(f"a must be one of {', '.join(ITEM_SIZES)}, got {name}")
    problem = Gemm(m=shape_a[0], n=shape_a[1], k=shape_b[1], dtype=name)
    return load(problem, target, match="nearest", fallback="library")


def forget() -> None:
    """Drop the kernels that `matmul` holds, so that it sees what was tuned since."""
    _kernel_for.cache_clear()
