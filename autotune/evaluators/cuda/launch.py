"""Compiled candidates as callables on device memory."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.errors import LaunchError
from autotune.evaluators.cuda.context import (
    STATIC_SHARED_BYTES,
    activated,
    describe,
    driver_errors,
    is_current,
    pycuda_driver,
)
from autotune.evaluators.cuda.foreign import ForeignModule
from autotune.evaluators.cuda.program import LaunchStep
from autotune.problem import ITEM_SIZES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.evaluators.cuda.program import CudaProgram, Extents, LaunchPlan

Launch: TypeAlias = Callable[..., None]
"""``launch(a, lda, b, ldb, c, ldc, alpha=1.0, beta=0.0, stream=None)``: enqueues a
multiplication. Addresses are integers; leading dimensions are in elements of the matrices as they
are stored. The stream is None for the default one, a PyCUDA stream, or another library's as an
integer."""

_Enqueue: TypeAlias = Callable[[int, int, int, int, int, int, float, float, Any], None]

_Run: TypeAlias = Callable[[bytes, Any], None]
"""``run(arguments, stream)``: enqueues kernels, all with the same packed arguments."""

_TYPES = {"float32": "f", "float64": "d"}
_TRANSPOSE_BLOCK = (32, 8, 1)
_TRANSPOSE_TILE = 32
_PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD


class CudaKernel:
    """A program, loaded; `launch` runs it on its problem.

    What it holds on the device (code, workspace, transposed copies) is freed by `close`.
    Workspaces belong to streams, so that launches on several streams do not disturb each other.

    Args:
        program: what to load.
        ordinal: the driver's number of the device.

    Raises:
        LaunchError: the driver refuses the binary.

    Attributes:
        program: what was loaded.
        ordinal: the driver's number of the device.
        launch: see `Launch`; raises LaunchError.
    """

    def __init__(self, program: CudaProgram, ordinal: int = 0) -> None:
        self.program = program
        self.ordinal = ordinal
        self._scratch: dict[tuple[str, int, int, int], Any] = {}
        self._launchers: list[_Launcher] = []
        self._lock = threading.RLock()
        self._modules: list[_Module] = []
        self._foreign_modules: list[ForeignModule] = []
        try:
            with activated(ordinal):
                self._modules.extend(map(_Module, self._cubins()))
                self.launch: Launch = self.launcher(program.plan)
        except driver_errors() as error:
            raise LaunchError(describe(error)) from error

    def launcher(self, plan: LaunchPlan) -> Launch:
        """The same program on other sizes: a launch of its own.

        Raises:
            LaunchError: the driver refuses a kernel or its shared memory.
        """
        with self._lock:
            launcher = _Launcher(self, plan, self._assemble(plan, self._modules))
            self._launchers.append(launcher)
        return launcher

    def close(self) -> None:
        """Unload the code and free the memory; the kernel must not be launched any more."""
        with self._lock, activated(self.ordinal):
            for launcher in self._launchers:
                launcher.close()
            self._launchers.clear()
            for allocation in self._scratch.values():
                allocation.free()
            self._scratch.clear()
            for module in self._foreign_modules:
                module.unload()
            self._foreign_modules.clear()
            # PyCUDA unloads a module with the last function of it.
            self._modules.clear()

    def foreign(self, plan: LaunchPlan) -> _Enqueue:
        """Launches on other libraries' streams, of which PyCUDA cannot make its own."""
        with self._lock, activated(self.ordinal):
            if not self._foreign_modules:
                self._foreign_modules.extend(map(ForeignModule, self._cubins()))
            return self._assemble(plan, self._foreign_modules)

    def _cubins(self) -> list[bytes]:
        flips = any(self.program.flips)
        return [self.program.cubin, *([self.program.support] if flips else [])]

    def _assemble(
        self, plan: LaunchPlan, modules: Sequence[_Module] | Sequence[ForeignModule]
    ) -> _Enqueue:
        """What enqueues the plan. Whatever does not depend on the call is done here, once."""
        m, n, k = plan.sizes
        kind = _TYPES[self.program.dtype]
        workspace_bytes = plan.workspace_bytes
        pack = struct.Struct(
            f"iii{kind}PiPi{kind}Pi" + ("P" if workspace_bytes is not None else "")
        ).pack
        run = modules[0].runner(plan.steps)
        flip_a, flip_b = (
            _Transposer(self, modules[1], name, stored) if flipped else None
            for flipped, name, stored in zip(
                self.program.flips, "ab", ((n, m), (k, n)), strict=True
            )
        )

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
            run(pack(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc), stream)

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
            # Another thread's kernels on this stream, and in the same memory, come before all of
            # these or after all of them.
            with self._lock:
                if flip_a is not None:
                    a, lda = flip_a(a, lda, stream)
                if flip_b is not None:
                    b, ldb = flip_b(b, ldb, stream)
                last: tuple[int, ...] = ()
                if workspace_bytes is not None:
                    last = (self.memory("workspace", workspace_bytes, stream),)
                run(pack(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, *last), stream)

        return general if workspace_bytes is not None or any(self.program.flips) else plain

    def memory(self, name: str, size: int, stream: Any) -> int:
        """Memory for the launches on one stream, allocated when first needed."""
        handle = stream if stream.__class__ is int else getattr(stream, "handle", 0)
        # One handle stands for the default stream of whichever thread asks.
        owner = threading.get_ident() if handle == _PER_THREAD_STREAM else 0
        key = (name, size, handle, owner)
        found = self._scratch.get(key)
        if found is None:
            with self._lock, activated(self.ordinal):
                found = self._scratch.setdefault(key, pycuda_driver().mem_alloc(max(size, 1)))
        return int(found)


class _Launcher:
    """See `Launch`. Picks the way to the caller's stream."""

    __slots__ = ("_foreign", "_kernel", "_own", "_plan")

    def __init__(self, kernel: CudaKernel, plan: LaunchPlan, own: _Enqueue) -> None:
        self._kernel = kernel
        self._plan = plan
        self._own = own
        self._foreign: _Enqueue | None = None

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
            if stream.__class__ is not int:
                self._own(a, lda, b, ldb, c, ldc, alpha, beta, stream)
                return
            if self._foreign is None:
                self._foreign = self._kernel.foreign(self._plan)
            self._foreign(a, lda, b, ldb, c, ldc, alpha, beta, stream)
        except driver_errors() as error:
            if is_current(self._kernel.ordinal):
                raise LaunchError(describe(error)) from error
            # Nothing was launched: another context is current in this thread, or none.
            with activated(self._kernel.ordinal):
                self(a, lda, b, ldb, c, ldc, alpha, beta, stream)

    def close(self) -> None:
        self._own = self._foreign = _closed


def transpose_grid(rows: int, columns: int) -> Extents:
    """The grid that covers a matrix with one tile a block."""
    tiles = -(-rows // _TRANSPOSE_TILE) * -(-columns // _TRANSPOSE_TILE)
    return min(tiles, 2**31 - 1), 1, 1


class _Module:
    """A binary, loaded by PyCUDA into the current context."""

    def __init__(self, cubin: bytes) -> None:
        self._module = pycuda_driver().module_from_buffer(cubin)

    def runner(self, steps: Sequence[LaunchStep]) -> _Run:
        """What launches kernels of this binary, one after the other, on PyCUDA's streams."""
        attribute = pycuda_driver().function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
        launches: list[tuple[Callable[..., None], LaunchStep]] = []
        for step in steps:
            function = self._module.get_function(step.kernel)
            if step.shared_bytes > STATIC_SHARED_BYTES:
                function.set_attribute(attribute, step.shared_bytes)
            launches.append((function._launch_kernel, step))

        def run(arguments: bytes, stream: Any) -> None:
            for launch, step in launches:
                launch(step.grid, step.block, arguments, step.shared_bytes, stream)

        return run


class _Transposer:
    """Copies an operand that is stored transposed, on the way to a kernel that cannot read it."""

    def __init__(
        self,
        kernel: CudaKernel,
        module: _Module | ForeignModule,
        name: str,
        stored: tuple[int, int],
    ) -> None:
        self._kernel = kernel
        self._name = name
        self._stored = stored
        step = LaunchStep("transpose", transpose_grid(*stored), _TRANSPOSE_BLOCK)
        self._run = module.runner([step])

    def __call__(self, address: int, stride: int, stream: Any) -> tuple[int, int]:
        """Enqueue the copy; its address and leading dimension."""
        rows, columns = self._stored
        size = rows * columns * ITEM_SIZES[self._kernel.program.dtype]
        copy = self._kernel.memory(self._name, size, stream)
        self._run(struct.pack("PqqqP", address, stride, rows, columns, copy), stream)
        return copy, rows


def _closed(*_: Any, **__: Any) -> None:
    raise LaunchError("the kernel was closed: load it again")
