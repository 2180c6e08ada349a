"""Compiled candidates as callables on device memory."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.core import session
from autotune.core.errors import LaunchError
from autotune.gpu.driver import activated, describe, driver, driver_errors, finish
from autotune.gpu.launch.arguments import Arguments
from autotune.gpu.launch.inputs import together
from autotune.gpu.launch.scratch import OwnScratch, Scratch, SharedScratch
from autotune.serving.recorded import RecordedLaunch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.families.gpu.keeping import KeptPlan
    from autotune.families.gpu.launch import LaunchPlan
    from autotune.gpu.interface import Module
    from autotune.gpu.launch.program import GpuProgram
    from autotune.gpu.launch.scratch import Allocate

Launch: TypeAlias = Callable[..., None]
"""``launch(*operands, *scalars, stream=None)``: enqueues the operation.

Of every operand, in the operation's order, it takes the address, an integer, and the strides but
the last, in elements of the array as it is stored; scalars that are left out have their defaults.
Of a product that is ``launch(a, lda, b, ldb, c, ldc, alpha=1.0, beta=0.0, stream=None)``. The
stream is None for the default one, one of the driver's, or another library's as an integer."""

_Enqueue: TypeAlias = Callable[..., None]


class GpuKernel:
    """A program, loaded; `launch` runs it on its problem.

    All that it holds on the device (code, workspace, copies of operands) is freed by `close`.

    Args:
        program: what to load.
        ordinal: the driver's number of the device.
        scratch: memory that others use, too, and that is not freed by `close`; None makes one.

    Raises:
        LaunchError: the driver refuses the binary.

    Attributes:
        program: what was loaded.
        ordinal: the driver's number of the device.
        launch: see `Launch`; raises LaunchError.
    """

    def __init__(
        self, program: GpuProgram, ordinal: int = 0, scratch: Scratch | None = None
    ) -> None:
        self.program = program
        self.ordinal = ordinal
        self._scratch = scratch or Scratch(ordinal)
        self._shares = scratch is not None
        # A launcher that nobody holds any more is none to be closed.
        self._launchers: weakref.WeakSet[_Launcher] = weakref.WeakSet()
        self._lock = threading.RLock()
        self._modules: list[Module] = []
        copying = [program.support] if program.copies and program.support else []
        try:
            with activated(ordinal):
                for binary in (program.cubin, *copying):
                    self._modules.append(driver().load(binary))
                self.launch: Launch = self.launcher(program.plan)
        except driver_errors() as error:
            raise LaunchError(describe(error)) from error

    def launcher(self, plan: LaunchPlan, scratch: Scratch | None = None) -> Launch:
        """A launch of the same program on other sizes.

        Args:
            plan: of these.
            scratch: its memory; None takes the kernel's.

        Raises:
            LaunchError: the driver refuses a kernel or its shared memory.
        """
        kind = _ProductLauncher if self.program.is_product else _Launcher
        with self._lock, activated(self.ordinal):
            enqueue = self._assemble(plan, scratch or self._scratch)
            launcher = kind(self.ordinal, enqueue)
            self._launchers.add(launcher)
        return launcher

    def recorded(
        self, plan: LaunchPlan, distances: Sequence[tuple[int, ...]]
    ) -> RecordedLaunch | None:
        """A launch on operands that lie in one way; None where some are copied before it.

        Args:
            plan: of their sizes.
            distances: of every operand, in the operation's order, its strides but the last.

        Raises:
            LaunchError: the driver refuses a kernel or its shared memory.
        """
        with self._lock, activated(self.ordinal):
            arguments = Arguments(self.program, plan, self._support)
            found = arguments.recorded(distances)
            if found is None:
                return None
            packed, addresses, maps = found
            try:
                functions, steps = self._modules[0].recorded(plan.steps)
            except driver_errors() as error:
                raise LaunchError(describe(error)) from error
        return RecordedLaunch(
            functions,
            steps,
            packed,
            tuple(arguments.places),
            addresses,
            maps,
            plan.workspace_bytes or 0,
            plan.zeroed_bytes,
        )

    def close(self) -> None:
        """Unload the code and free the memory; the kernel must not be launched any more."""
        with self._lock, activated(self.ordinal):
            for launcher in list(self._launchers):
                launcher.close()
            self._launchers.clear()
            if not self._shares:
                self._scratch.free()
            for module in self._modules:
                module.unload()
            self._modules.clear()

    @property
    def _support(self) -> Module | None:
        """The kernels that copy operands."""
        return self._modules[1] if len(self._modules) > 1 else None

    def _assemble(self, plan: LaunchPlan, scratch: Scratch) -> _Enqueue:
        """A function that enqueues the plan; all that no call changes is prepared here, once."""
        program, workspace_bytes = self.program, plan.workspace_bytes
        arguments = Arguments(program, plan, self._support)
        run = self._modules[0].runner(plan.steps, arguments.places)
        inputs, mapped, pack = arguments.inputs, arguments.mapped, arguments.pack
        if not (workspace_bytes or inputs or mapped):
            no_workspace = arguments.last()
            if not program.is_product:
                return lambda *values: run(arguments.packed(values[:-1]), values[-1])
            m, n, k = plan.sizes

            def enqueue_product(
                a: int,
                lda: int,
                b: int,
                ldb: int,
                c: int,
                ldc: int,
                alpha: float,
                beta: float,
                stream: Any,
            ) -> None:
                run(pack(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, *no_workspace), stream)

            return enqueue_product
        at = arguments.at
        pair = inputs if program.is_product else {}
        copy_both = together(pair.get("A"), pair.get("B"), self._support)

        def enqueue_placed(*given: Any) -> None:
            *values, stream = given
            badly = [
                operand for operand in inputs.values() if operand.lies_badly(*values[at[operand]])
            ]

            def enqueue(allocate: Allocate) -> None:
                placed, workspace = [*values], 0
                copies: tuple[Any, ...]
                where = [at[operand] for operand in badly]
                if copy_both and len(badly) == 2:
                    one, other = (tuple(placed[place]) for place in where)
                    copies = copy_both(one, other, stream, allocate)
                else:
                    copies = tuple(
                        operand.copy(tuple(placed[at[operand]]), stream, allocate)
                        for operand in badly
                    )
                for place, copied in zip(where, copies, strict=True):
                    placed[place] = copied
                if workspace_bytes:
                    zeroed = plan.zeroed_bytes
                    workspace = allocate(stream, "workspace", workspace_bytes, zeroed)
                run(arguments.packed(placed, workspace), stream)

            if badly or workspace_bytes:
                scratch.lend(stream, enqueue)
            else:
                enqueue(_allocate_nothing)

        return enqueue_placed


class _Launcher:
    """See `Launch`. Makes the context current where a call needs that."""

    __slots__ = ("__weakref__", "_enqueue", "_ordinal")

    def __init__(self, ordinal: int, enqueue: _Enqueue) -> None:
        self._ordinal = ordinal
        self._enqueue = enqueue

    def __call__(self, *arguments: Any, stream: Any = None) -> None:
        try:
            self._enqueue(*arguments, stream)
        except driver_errors() as error:
            self._again(error, *arguments, stream)

    def close(self) -> None:
        self._enqueue = _refuse_closed

    def _again(self, error: Exception, *arguments: Any) -> None:
        """Launch in the context of the device; what fails in that has failed."""
        try:
            if driver().is_current(self._ordinal):
                raise error
            # Nothing was launched: another context is current in this thread, or none.
            with activated(self._ordinal):
                self._enqueue(*arguments)
        except driver_errors() as failed:
            raise LaunchError(describe(failed)) from failed


class _ProductLauncher(_Launcher):
    """The same for matrix products, whose stream may come by position."""

    __slots__ = ()

    def __call__(  # type: ignore[override]
        self,
        a: int,
        lda: int,
        b: int,
        ldb: int,
        c: int,
        ldc: int,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> None:
        try:
            self._enqueue(a, lda, b, ldb, c, ldc, alpha, beta, stream)
        except driver_errors() as error:
            self._again(error, a, lda, b, ldb, c, ldc, alpha, beta, stream)


def _allocate_nothing(*_: Any) -> int:
    raise AssertionError("nothing was to be allocated")


def _refuse_closed(*_: Any, **__: Any) -> None:
    raise LaunchError("the kernel was closed: load it again")


# Python hashes bytes once and finds the same object without comparing it.
_LOADED: dict[tuple[object, ...], GpuKernel] = session.keep("modules of GPUs", {}, lasting=True)
_SCRATCH: dict[int, SharedScratch] = session.keep("scratch memory of GPUs", {}, lasting=True)
_LOCK = threading.RLock()


def resident_launch(program: GpuProgram, ordinal: int) -> Launch:
    """A launch of a program on its sizes, by a module that is loaded once a process.

    Modules stay, and so does their scratch memory, which all of them share.

    Raises:
        LaunchError: the driver refuses the binary, or a kernel of it.
    """
    return _resident(program, ordinal).launcher(program.plan)


def keeping_launch(
    program: GpuProgram, plans: KeptPlan, ordinal: int, arguments: Sequence[int], stream: int
) -> tuple[Launch, Callable[[], None]]:
    """A launch that finds what is made of an operand in memory of its own, and what frees that.

    It is made here, once: graphs and calls on any stream may follow.

    Args:
        program: the same as of `resident_launch`.
        plans: how it is launched.
        ordinal: the same.
        arguments: of a launch, of which those of the operand matter.
        stream: where it is made; its handle.

    Raises:
        LaunchError: the driver refuses the launch, or the memory; the stream is being captured.
    """
    kernel = _resident(program, ordinal)
    if driver().is_capturing(stream):
        raise LaunchError("an operand must be kept before the capture of a graph, not in it")
    try:
        scratch = OwnScratch(ordinal, plans.call.workspace_bytes or 0)
    except driver_errors() as error:
        raise LaunchError(describe(error)) from error
    kernel.launcher(plans.keep, scratch)(*arguments, stream=stream)
    finish(ordinal, stream)
    return kernel.launcher(plans.call, scratch), scratch.free


def recorded_launch(
    program: GpuProgram, ordinal: int, distances: Sequence[tuple[int, ...]]
) -> RecordedLaunch | None:
    """The same launch for others to make; see `GpuKernel.recorded`."""
    return _resident(program, ordinal).recorded(program.plan, distances)


def _resident(program: GpuProgram, ordinal: int) -> GpuKernel:
    # All that a module, and how it is called, depend on; sizes are none of it.
    types = program.dtype, program.layout, program.kernel_layout, program.defined
    key = (program.cubin, program.support, *types, ordinal)
    kernel = _LOADED.get(key)
    if kernel is None:
        with _LOCK:
            kernel = _LOADED.get(key)
            if kernel is None:
                scratch = _SCRATCH.setdefault(ordinal, SharedScratch(ordinal))
                kernel = _LOADED[key] = GpuKernel(program, ordinal, scratch)
    return kernel
