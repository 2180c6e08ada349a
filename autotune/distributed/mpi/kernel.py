"""Kernels of a communicator: loaded and called on every rank, on blocks of the host or of GPUs."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from autotune.arrays.device import check_place
from autotune.arrays.host import check_apart, check_operands, check_plain
from autotune.arrays.libraries import library_of
from autotune.core.configuration import Candidate
from autotune.core.errors import AutotuneError, InputError, OperandError
from autotune.core.paths import CacheLocations
from autotune.distributed.grid import Block, check_beta
from autotune.distributed.mpi.gpu.rank import GpuRank
from autotune.distributed.mpi.loading import (
    Plan,
    choose_gpu_local,
    load_product,
    load_program,
    mpi_program,
)
from autotune.distributed.mpi.messages import MpiProgram, RankSet
from autotune.distributed.mpi.processes import is_set, patience_s
from autotune.distributed.mpi.ranks.meeting import (
    Waiting,
    check_same,
    load_on_all,
    meet,
    say_gone,
    wait,
)
from autotune.distributed.mpi.ranks.ranks import Together
from autotune.distributed.mpi.ranks.ranks import describe as describe_ranks
from autotune.families.program_cache import ProgramCache
from autotune.gpu import matrix as device
from autotune.gpu.arrays.kernel import describe
from autotune.gpu.driver import finish
from autotune.gpu.matrix import DeviceMatrix
from autotune.operations.calls import real
from autotune.operations.problem import Gemm, only_gemm
from autotune.serving.kernel import ProductKernel, Request
from autotune.serving.lookup import look_up
from autotune.serving.target import Target
from autotune.store import Match

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_unfreed: dict[int, Intracomm] = {}
"""Ranks of kernels that have not been freed, by identity: others may come to wait for this one."""


class DistributedKernel:
    """``kernel(a, b, out, alpha, beta, stream)`` on every rank: checks operands, then computes.

    A call that one rank makes with operands or scalars that do not fit raises on all of them. One
    that some ranks do not make is named in a line, and ends all of them if they have ended, or if
    somebody has said how long to wait (`autotune.distributed.mpi.processes`).

    Args:
        problem: what is computed.
        comm: the ranks.
        plan: the emitted program's plan for the problem, on `comm`.
        distributed: operands are kept in blocks by all ranks, instead of whole by rank 0.
    """

    def __init__(self, problem: Gemm, comm: Intracomm, plan: Plan, *, distributed: bool) -> None:
        self._problem = problem
        self._comm = comm
        self._plan = plan
        self._distributed = distributed
        self._calls = 0
        self._limit_s = patience_s()
        _unfreed[id(comm)] = comm

    @property
    def blocks(self) -> tuple[Block, Block, Block]:
        """Parts of A, B and C that this rank keeps."""
        if not self._distributed:
            raise OperandError('blocks are kept with operands="distributed" only: rank 0 has all')
        a, b, c = (Block(rows, columns) for rows, columns in self._plan.homes())
        return a, b, c

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> Any:
        """See `autotune.targets.Kernel` and `MpiKernel`."""
        fault: Exception | None = None
        c: Any = None
        try:
            alpha, beta = real("alpha", alpha), real("beta", beta)
            if stream is not None:
                raise OperandError(f"an mpi kernel takes no stream, got {stream!r:.80}")
            c = self._check(a, b, out, beta)
        except Exception as error:  # whatever it is, the others wait for this rank
            fault, alpha, beta = error, 0.0, 0.0
        self._agree(fault, alpha, beta)
        if self._distributed:
            self._multiply_blocks(a, b, c, alpha, beta)
        elif c is None:
            self._plan.from_root(None, None, None, alpha, beta)
        else:
            whole = np.ascontiguousarray(c)
            given = np.ascontiguousarray(a), np.ascontiguousarray(b)
            self._plan.from_root(*given, whole, alpha, beta)
            if whole is not c:
                c[...] = whole
        return c

    def _multiply_blocks(self, a: Any, b: Any, c: Any, alpha: float, beta: float) -> None:
        """The product of blocks that have been checked."""
        given = np.ascontiguousarray(a), np.ascontiguousarray(b)
        self._plan.on_blocks(*given, c, alpha, beta)

    def free(self) -> None:
        """Give communicators and datatypes back."""
        _unfreed.pop(id(self._comm), None)
        self._plan.free()
        self._comm.Free()

    def _check(self, a: Any, b: Any, out: Any, beta: float) -> Any:
        """The array that C goes to on this rank; None where none does."""
        if self._distributed:
            return self._check_blocks(a, b, out, beta)
        if self._comm.rank == 0:
            return check_operands(self._problem, (a, b), out, {"beta": beta})[-1]
        if not (a is None and b is None and out is None):
            raise OperandError(
                f"operands are rank 0's alone, and rank {self._comm.rank} passes some: pass None "
                'there, or load the kernel with operands="distributed"'
            )
        return None

    def _check_blocks(self, a: Any, b: Any, out: Any, beta: float) -> Any:
        dtype = np.dtype(self._problem.dtype)
        shapes = [block.shape for block in self.blocks]
        check_beta(beta, out)
        if out is None:
            out = np.empty(shapes[2], dtype)
        for name, block, shape in zip(("a", "b", "out"), (a, b, out), shapes, strict=True):
            if not isinstance(block, np.ndarray) or block.dtype != dtype or block.shape != shape:
                got = type(block).__name__
                if hasattr(block, "shape"):
                    got = f"{getattr(block, 'dtype', got)} {block.shape}"
                raise OperandError(
                    f"{name} of rank {self._comm.rank} must be its block (see Kernel.blocks), "
                    f"{dtype} {shape}, got {got}"
                )
            check_plain(name, block)
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise OperandError("out must be contiguous and writeable: pass a copy")
        check_apart(out, "a", a)
        check_apart(out, "b", b)
        return out

    def _agree(self, fault: Exception | None, alpha: float, beta: float) -> None:
        """Raise on every rank the fault of any, an OperandError unless it is this rank's own."""
        from mpi4py import MPI

        # As whole numbers, of which there is always a largest: there is none of what is no number.
        of_alpha, of_beta = np.array([alpha, beta], "float64").view("int64")
        mine = np.array([bool(fault), of_alpha, ~of_alpha, of_beta, ~of_beta], "int64")
        largest = np.empty_like(mine)
        request = self._comm.Iallreduce(mine, largest, MPI.MAX)
        wait(self._comm, request, self._waiting)
        self._calls += 1
        same = largest[1] == ~largest[2] and largest[3] == ~largest[4]
        if largest[0] or not same:
            everybodys = self._comm.allgather(_describe_fault(fault))
            if fault is not None and not isinstance(fault, OperandError):
                raise fault
            for rank, told in enumerate(everybodys):
                if told:
                    raise OperandError(f"rank {rank}: {told}")
            check_same(self._comm, alpha=alpha, beta=beta)

    def _waiting(self) -> Waiting:
        name = f"call {self._calls + 1} of the kernel for {self._problem.label}"
        return Waiting(name, self._limit_s, ends=is_set())


class GpuDistributedKernel(DistributedKernel):
    """As `DistributedKernel`; distributed operands are device arrays, each in its rank's GPU.

    A call waits for the work on the operands' streams, and returns when C is there. Operands
    that rank 0 has whole are in the host's memory.
    """

    def __init__(
        self, problem: Gemm, comm: Any, plan: Plan, gpu: GpuRank, *, distributed: bool
    ) -> None:
        super().__init__(problem, comm, plan, distributed=distributed)
        self._gpu = gpu
        self._ordinal = gpu.machine.ordinal
        self._given: list[DeviceMatrix] = []

    def free(self) -> None:
        """Give communicators, datatypes, code and memory back."""
        super().free()
        self._gpu.close()

    def _check_blocks(self, a: Any, b: Any, out: Any, beta: float) -> Any:
        in_a, in_b, in_c = (block.shape for block in self.blocks)
        given = [self._matrix("a", a, in_a), self._matrix("b", b, in_b)]
        check_beta(beta, out)
        if out is None:
            out = library_of(a).empty(a, in_c, self._problem.dtype, None)
        at_c = self._matrix("out", out, in_c)
        device.check_apart(at_c, a=given[0], b=given[1])
        self._given = [*given, at_c]
        return out

    def _multiply_blocks(self, a: Any, b: Any, c: Any, alpha: float, beta: float) -> None:
        given, self._given = self._given, []
        self._plan.on_blocks(*given, alpha, beta)  # type: ignore[call-arg, arg-type]

    def _matrix(self, name: str, array: Any, shape: tuple[int, int]) -> DeviceMatrix:
        """A block as plans take it; an OperandError if it does not fit this rank's GPU."""
        rank, dtype = self._comm.rank, self._problem.dtype
        if 0 in shape:
            return self._gpu.empty(shape, dtype)
        library = library_of(array)
        stream = self._gpu.machine.compute.handle
        found = describe(name, array, stream)
        whose = f"{name} of rank {rank}"
        address, (leading,) = check_place(whose, found, shape, dtype, written=name == "out")
        if found.device != self._ordinal:
            raise OperandError(
                f"{whose} must be in GPU {self._ordinal}, the rank's own, is in {found.device}"
            )
        if leading != shape[1]:
            raise OperandError(f"{whose} must be contiguous: pass a copy")
        own = library.current_stream(array) if library.ordered else found.stream
        if own is not None:
            finish(self._ordinal, own)
        return self._gpu.at(address, shape, np.dtype(dtype), (array, found))


def _describe_fault(fault: Exception | None) -> str:
    if fault is None or isinstance(fault, OperandError):
        return str(fault or "")
    return f"{type(fault).__name__}: {fault}"


@atexit.register
def _leave() -> None:
    """Tell ranks that wait for this one, or are going to, that it has ended: MPI would not."""
    if not _unfreed:
        return
    from mpi4py import MPI

    if MPI.Is_finalized():
        return
    error = getattr(sys, "last_value", None)  # what nobody caught
    told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    for comm in _unfreed.values():
        say_gone(comm, "its program is at an end" if error is None else told)


_T = TypeVar("_T")
_COMPILATION = "the compilation of load"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class MpiKernel(ProductKernel):
    """A tuned kernel of a communicator; every rank of it makes every call.

    With operands at the root, rank 0 passes A, B and C whole and the others pass None and get
    None. With distributed operands every rank passes its `blocks`.
    """

    _bound: DistributedKernel

    @property
    def blocks(self) -> tuple[Block, Block, Block]:
        """Parts of A, B and C that this rank keeps, where the operands are distributed."""
        return self._bound.blocks

    def free(self) -> None:
        """Give communicators and datatypes back; every rank calls it, before MPI ends."""
        self._bound.free()


def load_distributed(
    request: Request,
    comm: Any,
    target_of: Callable[[RankSet], Target],
    *,
    operands: str,
    local: str,
) -> MpiKernel:
    """The tuned kernel for a problem on a communicator; every rank calls it alike.

    Rank 0 looks it up in its cache; the others are sent the program.

    Args:
        request: the arguments of `load`.
        comm: an mpi4py communicator; it is duplicated.
        target_of: the target on the ranks of a communicator.
        operands: "root" or "distributed".
        local: "cpu", or "cuda" where each rank has a GPU of its own: then distributed operands
            are device arrays, each in its rank's GPU, and those of rank 0 in the host's memory.

    A rank that does not call it within the time that ranks wait for each other
    (`autotune.distributed.mpi.processes`) ends all of them, with a line that names it.

    Raises:
        OperandError: ranks call it with different arguments.
        InputError: with local="cuda", there are fewer GPUs than ranks.
        NotTunedError: as for `autotune.load`, on every rank; so are its other errors.
    """
    gemm = only_gemm(request.problem, "target mpi")
    meet(comm, f"the call of load for {gemm.label}")
    check_same(comm, problem=gemm.label, operands=operands, local=local, match=request.match)
    with _communicators():
        own = comm.Dup()
    try:
        with Together(own, agreed=AutotuneError):
            ranks = describe_ranks(own, gpus=local == "cuda")
            programs = ProgramCache.of(CacheLocations.at(request.cache))

            def find() -> tuple[Candidate, Match, MpiProgram]:
                found = look_up(
                    gemm,
                    target_of(ranks),
                    match=request.match,
                    cache=request.cache,
                    extra_families=request.extra_families,
                )
                chosen = found.candidate.configuration
                limits = found.device.limits
                program = mpi_program(found.family, chosen, gemm, limits, programs)
                return found.candidate, found.match, program

            candidate, matched, program = _of_rank_0(own, find)
            make_plan = load_on_all(
                own, lambda: load_program(program, programs, own), name=_COMPILATION
            )
            with _communicators():
                plan = make_plan(own, gemm.m, gemm.n, gemm.k)
    except AutotuneError:  # on every rank
        own.Free()
        raise
    distributed, gpu = operands == "distributed", make_plan.gpu
    bound = (
        DistributedKernel(gemm, own, plan, distributed=distributed)
        if gpu is None
        else GpuDistributedKernel(gemm, own, plan, gpu, distributed=distributed)
    )
    return MpiKernel(
        gemm, "mpi", candidate, matched.quality, matched.reason, matched.record, bound
    )


@contextlib.contextmanager
def tuned_product(comm: Any, m: int, n: int, k: int, dtype: str) -> Iterator[GpuRank]:
    """The local product of emitted programs for GPUs that are run by themselves.

    Rank 0 looks the kernel up, as for target "cuda"; every rank calls it, and takes a GPU of its
    own.
    """
    describe_ranks(comm, gpus=True)
    programs = ProgramCache.of(CacheLocations.at(None))
    product = _of_rank_0(comm, lambda: choose_gpu_local(Gemm(m, n, k, dtype), programs))
    gpu = load_on_all(comm, lambda: load_product(product, programs, comm), name=_COMPILATION)
    with contextlib.closing(gpu):
        yield gpu


@contextlib.contextmanager
def _communicators() -> Iterator[None]:
    """Raise an InputError with a remedy where MPI has no communicator left: on all ranks."""
    from mpi4py import MPI

    try:
        yield
    except MPI.Exception as error:
        text = error.Get_error_string().strip().rpartition("\n")[2]
        raise InputError(
            f"MPI gives no communicator ({text}): every kernel of target mpi keeps some until its "
            "free() is called: free those that are done with"
        ) from error


def _of_rank_0(comm: Any, look: Callable[[], _T]) -> _T:
    """The result of rank 0, or its error, on every rank."""
    found: _T | AutotuneError | None = None
    if comm.rank == 0:
        try:
            found = look()
        except AutotuneError as error:
            found = error
    meet(comm, "the look-up of load")
    found = comm.bcast(found, 0)
    if isinstance(found, AutotuneError):
        raise found
    assert found is not None
    return found
