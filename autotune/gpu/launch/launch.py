"""Compiled candidates as callables on device memory."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.core.dtypes import DTYPES
from autotune.core.errors import LaunchError
from autotune.gpu.launch.inputs import inputs_of, packing, together
from autotune.gpu.launch.scratch import Scratch
from autotune.gpu.nvidia.driver.context import activated, describe, driver_errors, is_current
from autotune.gpu.nvidia.driver.interface import driver
from autotune.operations.parts import Kind, operand_arguments
from autotune.operations.problem import GEMM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.families.gpu.launch import LaunchPlan
    from autotune.gpu.launch.program import CudaProgram
    from autotune.gpu.launch.scratch import Allocate
    from autotune.gpu.nvidia.driver.interface import Module
    from autotune.operations.parts import Operand

Launch: TypeAlias = Callable[..., None]
"""``launch(*operands, *scalars, stream=None)``: enqueues the operation.

Of every operand, in the operation's order, it takes the address, an integer, and the strides but
the last, in elements of the array as it is stored; scalars that are left out have their defaults.
Of a product that is ``launch(a, lda, b, ldb, c, ldc, alpha=1.0, beta=0.0, stream=None)``. The
stream is None for the default one, one of the driver's, or another library's as an integer."""

_Enqueue: TypeAlias = Callable[..., None]


class CudaKernel:
    """A program, loaded; `launch` runs it on its problem.

    What it holds on the device (code, workspace, copies of operands) is freed by `close`.

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
        self, program: CudaProgram, ordinal: int = 0, scratch: Scratch | None = None
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
                for cubin in (program.cubin, *copying):
                    self._modules.append(driver().load(cubin))
                self.launch: Launch = self.launcher(program.plan)
        except driver_errors() as error:
            raise LaunchError(describe(error)) from error

    def launcher(self, plan: LaunchPlan) -> Launch:
        """The same program on other sizes: a launch of its own.

        Raises:
            LaunchError: the driver refuses a kernel or its shared memory.
        """
        with self._lock, activated(self.ordinal):
            products = self.program.defined.arguments == GEMM.arguments
            kind = _Launcher if products else _AnyLauncher
            launcher = kind(self.ordinal, self._assemble(plan))
            self._launchers.add(launcher)
        return launcher

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
        """The kernels that copy operands, where any are copied."""
        return self._modules[1] if len(self._modules) > 1 else None

    def _assemble(self, plan: LaunchPlan) -> _Enqueue:
        """What enqueues the plan. Whatever does not depend on the call is done here, once."""
        if self.program.defined.arguments != GEMM.arguments:
            return self._assemble_any(plan)
        m, n, k = plan.sizes
        kind = DTYPES[self.program.dtype].accumulated.letter
        workspace_bytes = plan.workspace_bytes
        arguments = (
            f"iii{kind}PiPi{kind}Pi"
            + ("P" if workspace_bytes is not None else "")
            + "i" * len(plan.runtime)
        )
        pack, places = packing(arguments, len(plan.maps))
        runtime = plan.runtime
        last_of_all = runtime if workspace_bytes is None else (0, *runtime)
        run = self._modules[0].runner(plan.steps, places)
        inputs, mapped = inputs_of(self.program, plan, self._support)
        input_a, input_b = inputs.get("A"), inputs.get("B")
        copy_both = together(input_a, input_b, self._support)

        def plain(
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
            run(pack(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, *last_of_all), stream)

        def general(
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
            copy_a = input_a and input_a.lies_badly(a, lda) and input_a.copy
            copy_b = input_b and input_b.lies_badly(b, ldb) and input_b.copy

            def enqueue(allocate: Allocate) -> None:
                in_a, in_b = (a, lda), (b, ldb)
                if copy_both and copy_a and copy_b:
                    in_a, in_b = copy_both(in_a, in_b, stream, allocate)
                else:
                    in_a = copy_a(a, lda, stream, allocate) if copy_a else in_a
                    in_b = copy_b(b, ldb, stream, allocate) if copy_b else in_b
                last = last_of_all
                if workspace_bytes:
                    zeroed = plan.zeroed_bytes
                    last = (allocate(stream, "workspace", workspace_bytes, zeroed), *runtime)
                at = {"A": in_a, "B": in_b, "C": (c, ldc)}
                maps = [each.tensor_map(*at[each.operand]) for each in mapped]
                run(pack(m, n, k, alpha, *in_a, *in_b, beta, c, ldc, *last, *maps), stream)

            if copy_a or copy_b or workspace_bytes:
                self._scratch.lend(stream, enqueue)
            else:
                enqueue(_nothing)

        return general if workspace_bytes or inputs or mapped else plain

    def _assemble_any(self, plan: LaunchPlan) -> _Enqueue:
        """The same for any operation, whose arguments come in an order of their own."""
        defined, workspace_bytes = self.program.defined, plan.workspace_bytes
        formats = {
            Kind.SIZE: "i",
            Kind.LEADING: "i",
            Kind.BATCH: "q",
            Kind.ADDRESS: "P",
            Kind.SCALAR: DTYPES[self.program.dtype].accumulated.letter,
        }
        taken = defined.arguments
        last = ("" if workspace_bytes is None else "P") + "i" * len(plan.runtime)
        arguments = "".join(formats[each.kind] for each in taken) + last
        pack, argument_places = packing(arguments, len(plan.maps))
        given = [name.lower() for name in defined.sizes]
        given += [name for each in defined.operands for name in _names_of(each)]
        given += [name for name, _ in defined.scalars]
        places = [given.index(each.name) for each in taken]
        defaults = [default for _, default in defined.scalars]
        count = len(given) - len(defined.sizes)
        run = self._modules[0].runner(plan.steps, argument_places)
        inputs, mapped = inputs_of(self.program, plan, self._support)
        # Where a call has the address of each, which the distance of its rows follows.
        operands = {*inputs.values(), *mapped}
        at = {each: given.index(each.name) - len(defined.sizes) for each in operands}
        sizes, runtime = plan.sizes, plan.runtime
        last_of_all = runtime if workspace_bytes is None else (0, *runtime)

        def ordered(values: Sequence[Any]) -> list[Any]:
            """The arguments; scalars that are left out have their defaults."""
            full = (*sizes, *values, *defaults[len(values) - count + len(defaults) :])
            return [full[place] for place in places]

        def plain(*arguments: Any) -> None:
            *values, stream = arguments
            run(pack(*ordered(values), *last_of_all), stream)

        def general(*arguments: Any) -> None:
            *values, stream = arguments
            badly = [
                each
                for each in inputs.values()
                if each.lies_badly(*values[at[each] : at[each] + 2])
            ]

            def enqueue(allocate: Allocate) -> None:
                placed, last = [*values], last_of_all
                for each in badly:
                    where = slice(at[each], at[each] + 2)
                    address, stride = values[where]
                    placed[where] = each.copy(address, stride, stream, allocate)
                if workspace_bytes:
                    zeroed = plan.zeroed_bytes
                    last = (allocate(stream, "workspace", workspace_bytes, zeroed), *runtime)
                maps = [each.tensor_map(*placed[at[each] : at[each] + 2]) for each in mapped]
                run(pack(*ordered(placed), *last, *maps), stream)

            if badly or workspace_bytes:
                self._scratch.lend(stream, enqueue)
            else:
                enqueue(_nothing)

        return general if workspace_bytes or inputs or mapped else plain


class _Launcher:
    """See `Launch`. Makes the context current where a call needs that."""

    __slots__ = ("__weakref__", "_enqueue", "_ordinal")

    def __init__(self, ordinal: int, enqueue: _Enqueue) -> None:
        self._ordinal = ordinal
        self._enqueue = enqueue

    def __call__(
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
            if is_current(self._ordinal):
                raise LaunchError(describe(error)) from error
            # Nothing was launched: another context is current in this thread, or none.
            with activated(self._ordinal):
                self(a, lda, b, ldb, c, ldc, alpha, beta, stream)

    def close(self) -> None:
        self._enqueue = _closed


class _AnyLauncher(_Launcher):
    """The same for operations with arguments of their own."""

    __slots__ = ()

    def __call__(self, *arguments: Any, stream: Any = None) -> None:
        try:
            self._enqueue(*arguments, stream)
        except driver_errors() as error:
            if is_current(self._ordinal):
                raise LaunchError(describe(error)) from error
            with activated(self._ordinal):
                self(*arguments, stream=stream)


def _names_of(operand: Operand) -> list[str]:
    """What a launch takes for an operand: its address, and its strides but the last."""
    name, dimensions = operand.name, len(operand.shape)
    return [each.name for each in operand_arguments(name, dimensions, written=operand.written)]


def _nothing(*_: Any) -> int:
    raise AssertionError("nothing was to be allocated")


def _closed(*_: Any, **__: Any) -> None:
    raise LaunchError("the kernel was closed: load it again")
