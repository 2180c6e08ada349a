"""Using tuned kernels: `load` looks one up."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.core.arguments import is_whole, must, path, paths
from autotune.core.errors import UnknownNameError
from autotune.operations.problem import Problem, check_problem
from autotune.runtime.usage import counted
from autotune.serving.background import is_wanted
from autotune.serving.kernel import FALLBACKS, Kernel, Request
from autotune.serving.loading import serve
from autotune.serving.lookup import LASTING, qualities
from autotune.serving.target import Target
from autotune.targets.registry import make_target


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
            "stale" also one whose toolchain or template has changed since; "predicted" also what a
            model of this device chose from measurements of other problems; "nearest" takes the
            best there is and never fails for want of a record. `Kernel.match` says which it was.
        device: which one, by number or (part of) its name; None takes the first.
        cache: folder or database of the user's cache; None takes the default place.
        extra_families: folders with families of the user's own, beside $AUTOTUNE_FAMILIES.
        fallback: "library": where the problem's own record says that the vendor's library is
            faster, that computes: NumPy on the CPU, on a GPU the library that the arrays are of,
            if it has a product (PyTorch and CuPy do). `Kernel.library` and `Kernel.reason` say
            so. None takes the tuned kernel in any case, and so does a target without a library.
        background: whether match="predicted" and "nearest" may compile in the background what they
            find and have no binary of: something that is there, usually the vendor's library,
            computes meanwhile, `Kernel.reason` says so, and calls take the kernel once it is
            compiled. False compiles it now, as the other matches do; None does as
            AUTOTUNE_BACKGROUND says, which is 1 unless it is set to 0.
        options: what the target can be told (its `OPTIONS`), where they are not None. "mpi" takes
            `comm`, an mpi4py communicator, every rank of which loads the kernel; `operands`,
            "root" (whole on rank 0, the default) or "distributed" (`MpiKernel.blocks`); and
            `local`, what a rank multiplies on, "cpu" or "cuda", a GPU of its own. "hybrid" takes
            `gpus`, how many to use, the first ones; and `operands`, "host" (the default),
            "device", whole on the first GPU, or "blocks" (`HybridKernel.blocks`).

    Raises:
        NotTunedError: nothing good enough; the message names the command that would tune it.
        UnknownNameError: there is no such target, `match` or `fallback`.
        InputError: an option is another target's, or something above is not what it should be.
        CacheError: the cache cannot be read.
    """
    qualities(match)  # before any rank waits for others
    if fallback not in FALLBACKS:
        raise UnknownNameError(f"fallback must be None or 'library', got {fallback!r}")
    check_asked(problem, target, device, cache)
    known = background is None or isinstance(background, bool)
    must("background", "True, False or None", background, known)
    folders = paths("extra_families", extra_families)
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
    lasting = match in LASTING and is_wanted(background)
    request = Request(problem, match, device, cache, folders, fallback, lasting, again)
    return counted(serve(make_target(target, options), request))


def request_of(problem: Problem, target: str, *, match: str) -> Request:
    """The request for a kernel of a problem that is compiled, if it must be, when it is loaded."""
    again = functools.partial(load, problem, target, match=match)
    return Request(problem, match, None, None, (), None, background=False, again=again)


def check_asked(problem: Any, target: Any, device: Any, cache: Any) -> None:
    """Refuse what is no problem, target, device or cache at all; names may still be unknown.

    Args:
        problem: as for `autotune.load`.
        target: as for `autotune.load`.
        device: as for `autotune.load`.
        cache: as for `autotune.load`.

    Raises:
        InputError: one of them is of another type; the message says which.
    """
    check_problem(problem)
    check_place(target, device, cache)


def check_place(target: Any, device: Any, cache: Any) -> None:
    """The same where there is no problem, or there are several.

    Raises:
        InputError: one of them is of another type; the message says which.
    """
    known = target is None or isinstance(target, (str, Target))
    must("target", "None, the name of a target, or a target", target, known)
    named = device is None or isinstance(device, str) or is_whole(device)
    must("device", "None, a number or a name", device, named)
    if cache is not None:
        path("cache", cache)
