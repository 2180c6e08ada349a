"""Compiled candidates as callables on device memory."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.errors import LaunchError
from autotune.evaluators.cuda.context import (
    ForeignError,
    activated,
    describe,
    driver_errors,
    is_current,
    pycuda_driver,
)
from autotune.evaluators.cuda.identity import load_driver
from autotune.problem import ITEM_SIZES

if TYPE_CHECKING:
    from autotune.evaluators.cuda.program import CudaProgram, Extents, LaunchPlan

Launch: TypeAlias = Callable[..., None]
"""``launch(a, lda, b, ldb, c, ldc, alpha=1.0, beta=0.0, stream=None)``: enqueues a
multiplication. Addresses are integers; leading dimensions are in elements of the matrices as they
are stored. The stream is None for the default one, a PyCUDA stream, or another library's as an
integer."""

_Enqueue: TypeAlias = Callable[[int, int, int, int, int, int, float, float, Any], None]

_Invocation: TypeAlias = Callable[[tuple[int, ...], tuple[int, ...], bytes, int, Any], None]
"""``invoke(grid, block, arguments, shared_bytes, stream)``."""

_TYPES = {"float32": "f", "float64": "d"}
_TRANSPOSE_BLOCK = (32, 8, 1)
_TRANSPOSE_TILE = 32
_STATIC_SHARED_BYTES = 48 * 1024
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
        self._foreign_functions: dict[str, _ForeignFunction] = {}
        try:
            with activated(ordinal):
                self._modules = [_load(program.cubin)]
                if any(program.flips):
                    self._modules.append(_load(program.support))
                self.launch: Launch = self.launcher(program.plan)
        except driver_errors() as error:
            raise LaunchError(describe(error)) from error

    def launcher(self, plan: LaunchPlan) -> Launch:
        """The same program on other sizes: a launch of its own.

        Raises:
            LaunchError: the driver refuses a kernel or its shared memory.
        """
        with self._lock:
            launcher = _Launcher(self, plan, self._assemble(plan, *self._own(plan)))
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
            for function in self._foreign_functions.values():
                function.unload()
            self._foreign_functions.clear()
            # PyCUDA unloads a module with the last function of it.
            self._modules.clear()

    def _own(self, plan: LaunchPlan) -> tuple[list[_Invocation], _Invocation | None]:
        """The plan's kernels and the transposing one, through PyCUDA."""
        main, *support = self._modules
        invocations: list[_Invocation] = []
        for step in plan.steps:
            function = main.get_function(step.kernel)
            if step.shared_bytes > _STATIC_SHARED_BYTES:
                attribute = pycuda_driver().function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
                function.set_attribute(attribute, step.shared_bytes)
            invocations.append(function._launch_kernel)
        transpose = support[0].get_function("transpose")._launch_kernel if support else None
        return invocations, transpose

    def foreign(self, plan: LaunchPlan) -> _Enqueue:
        """Launches on other libraries' streams, of which PyCUDA cannot make its own."""

        def load(cubin: bytes, kernel: str, shared_bytes: int = 0) -> _Invocation:
            if kernel not in self._foreign_functions:
                self._foreign_functions[kernel] = _ForeignFunction(cubin, kernel)
            self._foreign_functions[kernel].allow_shared(shared_bytes)
            return self._foreign_functions[kernel]

        with self._lock, activated(self.ordinal):
            own = [load(self.program.cubin, step.kernel, step.shared_bytes) for step in plan.steps]
            flips = any(self.program.flips)
            transpose = load(self.program.support, "transpose") if flips else None
            return self._assemble(plan, own, transpose)

    def _assemble(
        self,
        plan: LaunchPlan,
        invocations: list[_Invocation],
        transpose: _Invocation | None,
    ) -> _Enqueue:
        """What enqueues the plan. Whatever does not depend on the call is done here, once."""
        m, n, k = plan.sizes
        kind = _TYPES[self.program.dtype]
        workspace_bytes = plan.workspace_bytes
        pack = struct.Struct(
            f"iii{kind}PiPi{kind}Pi" + ("P" if workspace_bytes is not None else "")
        ).pack
        steps = [
            (invoke, step.grid, step.block, step.shared_bytes)
            for invoke, step in zip(invocations, plan.steps, strict=True)
        ]

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
            packed = pack(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
            for invoke, grid, block, shared_bytes in steps:
                invoke(grid, block, packed, shared_bytes, stream)

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
                if self.program.flips[0]:
                    a, lda = self._transposed(transpose, "a", a, lda, (n, m), stream)
                if self.program.flips[1]:
                    b, ldb = self._transposed(transpose, "b", b, ldb, (k, n), stream)
                last: tuple[int, ...] = ()
                if workspace_bytes is not None:
                    last = (self._memory("workspace", workspace_bytes, stream),)
                packed = pack(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, *last)
                for invoke, grid, block, shared_bytes in steps:
                    invoke(grid, block, packed, shared_bytes, stream)

        return general if workspace_bytes is not None or any(self.program.flips) else plain

    def _transposed(
        self,
        transpose: _Invocation | None,
        name: str,
        address: int,
        stride: int,
        stored: tuple[int, int],
        stream: Any,
    ) -> tuple[int, int]:
        """Enqueue the copy of an operand; its address and leading dimension."""
        if transpose is None:
            raise LaunchError("the program has no transposing kernel: give it `support`")
        rows, columns = stored
        copy = self._memory(name, rows * columns * ITEM_SIZES[self.program.dtype], stream)
        packed = struct.pack("PqqqP", address, stride, rows, columns, copy)
        transpose(transpose_grid(rows, columns), _TRANSPOSE_BLOCK, packed, 0, stream)
        return copy, rows

    def _memory(self, name: str, size: int, stream: Any) -> int:
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


class _ForeignFunction:
    """A kernel loaded by the driver itself; called like PyCUDA's, with a stream's handle."""

    def __init__(self, cubin: bytes, kernel: str) -> None:
        self._driver = load_driver()
        self._module = self._check(self._driver.cuModuleLoadData(cubin))
        self._function = self._check(
            self._driver.cuModuleGetFunction(self._module, kernel.encode())
        )
        self._lock = threading.Lock()
        self._arguments = ctypes.create_string_buffer(4096)
        self._size = ctypes.c_size_t()
        end, pointer, size = 0, 1, 2  # CU_LAUNCH_PARAM_...
        self._extra = (ctypes.c_void_p * 5)(
            pointer, ctypes.addressof(self._arguments), size, ctypes.addressof(self._size), end
        )

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: bytes,
        shared_bytes: int,
        stream: int,
    ) -> None:
        with self._lock:  # the driver has copied the arguments when it returns
            ctypes.memmove(self._arguments, arguments, len(arguments))
            self._size.value = len(arguments)
            self._check(
                self._driver.cuLaunchKernel(
                    self._function,
                    *grid,
                    *block,
                    shared_bytes,
                    stream,
                    0,
                    ctypes.addressof(self._extra),
                )
            )

    def allow_shared(self, size: int) -> None:
        """Let blocks have more dynamic shared memory than every kernel may."""
        if size > _STATIC_SHARED_BYTES:
            attributes = self._driver.CUfunction_attribute
            attribute = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._check(self._driver.cuFuncSetAttribute(self._function, attribute, size))

    def unload(self) -> None:
        """Free the code."""
        self._driver.cuModuleUnload(self._module)

    def _check(self, result: tuple[Any, ...]) -> Any:
        status, *values = result
        if int(status) != 0:
            raise ForeignError(status.name)
        return values[0] if values else None


def _load(cubin: bytes) -> Any:
    return pycuda_driver().module_from_buffer(cubin)


def _closed(*_: Any, **__: Any) -> None:
    raise LaunchError("the kernel was closed: load it again")
