"""Using tuned kernels: `load` looks one up, `matmul` picks one by the operands."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from autotune.catalog import catalog
from autotune.configuration import Candidate
from autotune.device import CpuLimits
from autotune.device_libraries import in_device_memory
from autotune.errors import (
    InputError,
    NotTunedError,
    OperandError,
    SpaceError,
    UnknownNameError,
)
from autotune.evaluators.base import Binary
from autotune.forking import threads_are_lost
from autotune.hybrid_target import HybridTarget
from autotune.library import library_kernel
from autotune.mpi_limits import MpiLimits
from autotune.paths import CacheLocations
from autotune.problem import ITEM_SIZES, Gemm
from autotune.program_cache import ProgramCache
from autotune.store import (
    Match,
    MatchQuality,
    TuningRecord,
    find,
    pools,
    record_sources,
)
from autotune.targets import Target, make_target

if TYPE_CHECKING:
    from autotune.device import Device, DeviceLimits
    from autotune.family import KernelFamily
    from autotune.family_index import Families
    from autotune.space import SearchSpace
    from autotune.space.restriction import Rejection
    from autotune.targets import BoundKernel

MATCHES = ("exact", "stale", "nearest")
"""What `load` may settle for: the problem's own record, one made by another toolchain or
template, or the best there is, down to a family's default configuration."""

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

    problem: Gemm
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

    problem: Gemm
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
    problem: Gemm,
    target: str | Target | None = None,
    *,
    match: str = "exact",
    device: int | str | None = None,
    comm: Any = None,
    operands: str | None = None,
    local: str = "cpu",
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
    _qualities(match)  # before any rank waits for others
    if fallback not in FALLBACKS:
        raise UnknownNameError(f"fallback must be None or 'library', got {fallback!r}")
    if comm is not None:
        from autotune.distributed import load_distributed

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
            _placed(target, operands),
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
        from autotune.hybrid import HybridKernel

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


@dataclass(frozen=True, slots=True)
class Lookup:
    """Which kernel serves a problem; nothing of it is compiled or loaded.

    Attributes:
        target: where it runs.
        device: as the target read it.
        family: the candidate's family.
        candidate: valid for the problem on the device.
        match: what was found in the caches.
    """

    target: Target
    device: Device
    family: KernelFamily
    candidate: Candidate
    match: Match


def look_up(
    problem: Gemm,
    target: str | Target | None,
    *,
    match: str,
    device: int | str | None = None,
    cache: str | Path | None = None,
    extra_families: Sequence[Path] = (),
) -> Lookup:
    """Find what `load` would load; arguments and errors are those of `load`."""
    allowed = _qualities(match)
    place = CacheLocations.at(cache)
    chosen = make_target(target)
    here = _runnable(chosen.device(problem, device))
    families = catalog(
        chosen.name, problem.operation, extra_families, keep=_facts_of(place, chosen.name)
    )
    fitting = _Fitting(families, problem, here.limits)
    found = _find(problem, chosen, here, families, fitting, place)
    if found.quality not in allowed:
        raise NotTunedError(
            _not_tuned(problem, chosen, here, found, device, cache, extra_families)
        )
    candidate = _candidate(problem, chosen, here, families, fitting, found)
    if found.record is not None and (cap := _capped(found.record.candidate, here)):
        found = replace(found, reason="; ".join(filter(None, (found.reason, cap))))
    return Lookup(chosen, here, families[candidate.family], candidate, found)


def _runnable(device: Device) -> Device:
    """A device as kernels of this process may use it: a child by fork may have lost threads."""
    if threads_are_lost() and isinstance(device.limits, CpuLimits):
        return replace(device, limits=replace(device.limits, max_threads=1))
    return device


def _facts_of(place: CacheLocations, target: str) -> Path:
    """Where digests of families are kept: with the programs, where this process may write."""
    return ProgramCache(place.programs).folder / target


def binary_of(problem: Gemm, found: Lookup, cache: str | Path | None = None) -> Binary | None:
    """What the winner of a record that was found was compiled to, if it is kept and may be used.

    Args:
        problem: what it is for.
        found: as `look_up` gives it.
        cache: as for `load`.
    """
    place = CacheLocations.at(cache)
    return _binary(problem, found.family, found.candidate, found.device, found.match.record, place)


def _placed(target: str | Target | None, operands: str | None) -> str | Target | None:
    """The target with what `operands` says of it.

    Raises:
        InputError: it is for another target.
    """
    if operands is None:
        return target
    if target != "hybrid":
        raise InputError(
            f'operands is for target "hybrid", or for "mpi" with comm, got {operands!r} with '
            f"target {target!r}: leave it out"
        )
    return HybridTarget(operands=operands)


def _qualities(match: str) -> tuple[MatchQuality, ...]:
    """The qualities that a `match` of `load` allows."""
    if match not in MATCHES:
        raise UnknownNameError(f"match must be one of {', '.join(MATCHES)}, got {match!r}")
    return {
        "exact": (MatchQuality.EXACT,),
        "stale": (MatchQuality.EXACT, MatchQuality.STALE),
        "nearest": tuple(MatchQuality),
    }[match]


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


class _Fitting:
    """Tuned candidates, fitted to a problem and a device: what takes time is done once a lookup.

    Args:
        families: by name.
        problem: what is to be computed.
        limits: of the device it is to run on.
    """

    def __init__(self, families: Families, problem: Gemm, limits: DeviceLimits) -> None:
        self._families = families
        self._problem = problem
        self._limits = limits
        self._spaces: dict[str, SearchSpace] = {}
        self._fitted: dict[Candidate, Candidate | None] = {}

    def rejection(self, tuned: Candidate) -> Rejection | None:
        """Why a candidate is not valid here; None where it is."""
        return self._space(tuned.family).rejection(tuned.configuration)

    def fitted(self, tuned: Candidate) -> Candidate | None:
        """The candidate itself or, where it is not valid here, one near to it."""
        if tuned not in self._fitted:
            self._fitted[tuned] = self._nearest(tuned)
        return self._fitted[tuned]

    def _nearest(self, tuned: Candidate) -> Candidate | None:
        if self.rejection(tuned) is None:  # at a fraction of the cost of the space's rows
            return tuned
        space = self._space(tuned.family)
        row = space.nearest(tuned.configuration, ())
        return None if row is None else Candidate(tuned.family, space[row])

    def _space(self, name: str) -> SearchSpace:
        if name not in self._spaces:
            self._spaces[name] = self._families[name].space(self._problem, self._limits)
        return self._spaces[name]


def _find(
    problem: Gemm,
    target: Target,
    device: Device,
    families: Families,
    fitting: _Fitting,
    place: CacheLocations,
) -> Match:
    """The best record for a problem; no more records are read than it takes to know."""

    def unusable(record: TuningRecord) -> str | None:
        tuned, name = record.candidate, record.candidate.family
        if name not in families:
            return f"family {name!r} is not among the families found"
        family = families[name]
        try:
            family.conform(tuned.configuration)
        except SpaceError as error:  # its parameters were others when that was tuned
            return str(error)
        if record.problem == problem.key():
            rejection = fitting.rejection(tuned)
            if rejection is None or (_capped(tuned, device) and fitting.fitted(tuned)):
                return None
            return str(rejection)
        reason = family.unsupported(problem)
        if reason is None and not fitting.fitted(tuned):
            reason = f"family {family.name!r} has no configuration that is valid here"
        return reason

    sources = record_sources(place.database, device.fingerprint.kind)
    found = None
    for records in pools(sources, problem, target.name, device.fingerprint):
        found = find(records, problem, target.name, device, families.digests, unusable)
        if found.record is not None:
            break
    assert found is not None  # there is always a first pool
    return found


def _candidate(
    problem: Gemm,
    target: Target,
    device: Device,
    families: Families,
    fitting: _Fitting,
    found: Match,
) -> Candidate:
    """The candidate a match stands for, moved to the nearest configuration valid here."""
    if found.record is None:
        default = target.default_family(device)
        family = families[default if default in families else next(iter(families))]
        return Candidate(family.name, family.default(problem, device.limits))
    fitted = fitting.fitted(found.record.candidate)
    if fitted is None:
        name = found.record.candidate.family
        raise InputError(f"family {name!r} has no valid configuration for {problem.label}")
    return fitted


def _capped(tuned: Candidate, device: Device) -> str:
    """Why a candidate that was tuned with more threads than there are now must have fewer."""
    threads, usable = tuned.configuration.get("threads"), device.limits.names().get("max_threads")
    if not isinstance(threads, int) or usable is None or threads <= usable:
        return ""
    return f"tuned with {threads} threads, and this process may use {usable}"


def _binary(
    problem: Gemm,
    family: KernelFamily,
    candidate: Candidate,
    device: Device,
    record: TuningRecord | None,
    place: CacheLocations,
) -> Binary | None:
    """What a record's winner was compiled to, if that is here and may be used for the problem."""
    if record is None or record.binary is None or candidate != record.candidate:
        return None
    kept = record.binary
    current = family.digest == record.family_digest
    # A kernel of another template is launched as it was measured, or not at all.
    if kept.architecture != getattr(device.limits, "architecture", None) or not (
        current or kept.launch.sizes == (problem.m, problem.n, problem.k)
    ):
        return None
    sources = record_sources(place.database, device.fingerprint.kind)

    def content(digest: str) -> bytes | None:
        return next(filter(None, (source.binary(digest) for source in sources)), None)

    binary = content(kept.digest)
    support = b"" if kept.support is None else content(kept.support)
    if binary is None or support is None:
        return None
    return Binary(binary, kept.architecture, None if current else kept.launch, support)


def _not_tuned(
    problem: Gemm,
    target: Target,
    device: Device,
    found: Match,
    name: int | str | None,
    cache: str | Path | None,
    extra_families: Sequence[Path],
) -> str:
    operation = "" if problem.operation == "gemm" else f" {problem.operation}"
    command = (
        f"autotune tune{operation} --shape {problem.m}x{problem.n}x{problem.k} "
        f"--target {target.name}"
    )
    if isinstance(target, HybridTarget) and target.operands != "host":
        command += f" --operands {target.operands}"
    if problem.dtype != "float32":
        command += f" --dtype {problem.dtype}"
    if problem.layout != "nn":
        command += f" --layout {problem.layout}"
    if problem.accuracy != "ieee":
        command += f" --accuracy {problem.accuracy}"
    if problem.threads is not None:
        command += f" --threads {problem.threads}"
    if name is not None:
        command += f" --device {shlex.quote(str(name))}"
    if cache is not None:
        command += f" --cache {shlex.quote(str(cache))}"
    for folder in extra_families:
        command += f" --families {shlex.quote(str(folder))}"
    if isinstance(device.limits, MpiLimits):
        command = device.limits.tuned_by(command)
    enough = "stale" if found.quality is MatchQuality.STALE else "nearest"
    return (
        f"no tuned {target.name} kernel for {problem.label} ({found.reason}): run `{command}`, "
        f'or load with match="{enough}"'
    )
