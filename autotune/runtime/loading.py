"""Using tuned kernels: `load` looks one up, `matmul` picks one by the operands."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autotune.core.dtypes import DTYPES
from autotune.core.errors import OperandError, UnknownNameError
from autotune.operations.problem import Gemm, Problem
from autotune.targets import resident
from autotune.targets.background import is_wanted
from autotune.targets.base import Target
from autotune.targets.kernel import FALLBACKS, Kernel, Request
from autotune.targets.lookup import qualities
from autotune.targets.registry import home_of, make_target


def load(
    problem: Problem,
    target: str | Target | None = None,
    *,
    match: str = "exact",
    device: int | str | None = None,
    cache: str | Path | None = None,
    extra_families: Sequence[Path] = (),
    fallback: str | None = None,
    background: bool | None = None,
    **options: Any,
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
        device: which one, by number or (part of) its name; None takes the first.
        cache: folder or database of the user's cache; None takes the default place.
        extra_families: folders with families of the user's own, beside $AUTOTUNE_FAMILIES.
        fallback: "library": where the problem's own record says that the vendor's library is
            faster, that computes: NumPy on the CPU, on a GPU the library that the arrays are of,
            if it has a product (PyTorch and CuPy do). `Kernel.library` and `Kernel.reason` say
            so. None takes the tuned kernel in any case, and so does a target without a library.
        background: whether match="nearest" may compile in the background what it finds and has no
            binary of: something that is there, usually the vendor's library, computes meanwhile,
            `Kernel.reason` says so, and calls take the kernel once it is compiled. False compiles
            it now, as the other matches do; None does as AUTOTUNE_BACKGROUND says, which is 1
            unless it is set to 0.
        options: what the target can be told (its `OPTIONS`), where they are not None. "mpi" takes
            `comm`, an mpi4py communicator, every rank of which loads the kernel; `operands`,
            "root" (whole on rank 0, the default) or "distributed" (`MpiKernel.blocks`); and
            `local`, what a rank multiplies on, "cpu" or "cuda", a GPU of its own. "hybrid" takes
            `gpus`, how many to use, the first ones; and `operands`, "host" (the default),
            "device", whole on the first GPU, or "blocks" (`HybridKernel.blocks`).

    Raises:
        NotTunedError: nothing good enough; the message names the command that would tune it.
        UnknownNameError: there is no such target, `match` or `fallback`.
        InputError: an option is another target's, or not right.
        CacheError: the cache cannot be read.
    """
    qualities(match)  # before any rank waits for others
    if fallback not in FALLBACKS:
        raise UnknownNameError(f"fallback must be None or 'library', got {fallback!r}")
    folders = tuple(extra_families)
    again = functools.partial(
        load,
        problem,
        target,
        match=match,
        device=device,
        cache=cache,
        extra_families=folders,
        fallback=fallback,
        background=background,
        **options,
    )
    lasting = match == "nearest" and is_wanted(background)
    request = Request(problem, match, device, cache, folders, fallback, lasting, again)
    return make_target(target, options).load(request)


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
        kernel = _kernel_for(a.shape, b.shape, a.dtype, _host_target())
    else:
        shape_a, shape_b = (tuple(getattr(operand, "shape", ())) for operand in (a, b))
        kernel = _kernel_for(shape_a, shape_b, getattr(a, "dtype", None), home_of(a))
    return kernel(a, b, out, alpha, beta)


@functools.cache
def _host_target() -> str:
    return home_of(np.empty(0))


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
    if name not in DTYPES:
        raise OperandError(f"a must be one of {', '.join(DTYPES)}, got {name}")
    problem = Gemm(m=shape_a[0], n=shape_a[1], k=shape_b[1], dtype=name)
    return load(problem, target, match="nearest", fallback="library")


def forget() -> None:
    """Drop what `matmul` and look-ups hold, so that they see what was tuned or edited since."""
    _kernel_for.cache_clear()
    resident.forget()
