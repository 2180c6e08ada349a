"""GPUs of this host for threads and ranks alike: memory, streams, events, copies and products."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from numpy.typing import NDArray

from autotune.core.configuration import Candidate, Configuration
from autotune.core.dtypes import DTYPES
from autotune.core.errors import CompileError, InputError
from autotune.core.limits import GpuLimits
from autotune.families.catalog import catalog
from autotune.families.family import KernelFamily
from autotune.families.gpu.launch import Binary, LaunchPlan, LaunchStep
from autotune.families.gpu.planning import Planner
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source
from autotune.gpu.compiling import CompileRequest, Refused, compile_kept
from autotune.gpu.driver import activated, driver, driver_errors
from autotune.gpu.interface import Driver, Memory, Module, Run
from autotune.gpu.launch.code import make_program
from autotune.gpu.launch.kernel import GpuKernel, Launch
from autotune.gpu.matrix import HOST, DeviceMatrix
from autotune.gpu.nvidia.target import CudaTarget
from autotune.operations.problem import Gemm


@dataclass(frozen=True, slots=True)
class LocalKernel:
    """A kernel for the part of a product that one GPU has; it can be sent between processes.

    Attributes:
        candidate: of target cuda.
        digest: its family's.
        limits: of the GPUs, which are all alike.
        binary: what it was compiled to; None compiles it.
    """

    candidate: Candidate
    digest: str
    dtype: str
    limits: GpuLimits
    binary: Binary | None


class Enqueues(Protocol):
    """Copies, products and events on streams.

    A matrix is an `autotune.gpu.matrix.DeviceMatrix`, or a NumPy array of the host. A stream does
    its work in order. Only `finish` waits for it; copies of pageable host memory may, too.
    """

    def lock(self, array: NDArray[Any]) -> Any:
        """Page-lock an array where it is; the result is for `unlock`, None where refused."""

    def unlock(self, locked: Any) -> None:
        """Undo `lock`."""

    def copy(self, target: Any, source: Any, stream: Any) -> None:
        """Copy a matrix, on a stream of a GPU that one of them is on."""

    def multiply(self, a: Any, b: Any, c: Any, alpha: float, beta: float, stream: Any) -> None:
        """``c = alpha a b + beta c``, all on the GPU of the stream; zero means c is not read."""

    def record(self, stream: Any) -> Any:
        """An event that comes to pass when all that is on the stream now is done."""

    def wait(self, stream: Any, event: Any) -> None:
        """Let later work of a stream wait for an event of any GPU's stream."""

    def finish(self, what: Any) -> None:
        """Wait, on the host, for an event or for all that is on a stream."""

    def reuse_events(self) -> None:
        """Take all events back: they have come to pass, and nobody asks for them any more."""


class Products:
    """Kernels, loaded on every GPU that asks for them.

    Args:
        kernels: best first, and all for one element type and kind of GPU. The first that is valid
            for some sizes serves them; sizes that none is valid for get the nearest configuration
            to the first one that is.
        programs: holds sources and binaries.

    Raises:
        InputError: a family is not here, or not the one that a kernel was made from.
    """

    def __init__(self, kernels: Sequence[LocalKernel], programs: ProgramCache) -> None:
        families = catalog("cuda", languages={"cuda": CudaTarget.language()}, strict=False)
        self._dtype, self._limits = kernels[0].dtype, kernels[0].limits
        self._programs = programs
        self._kernels: list[tuple[Planner, Binary | None]] = []
        for kernel in kernels:
            name = kernel.candidate.family
            if name not in families or families[name].digest != kernel.digest:
                raise InputError(f"family {name!r} of target cuda must be the same on all nodes")
            planner = self._planner(families[name], kernel.candidate.configuration)
            self._kernels.append((planner, kernel.binary))
        self._loaded: dict[tuple[int, str, Configuration], GpuKernel] = {}
        self._lock = threading.Lock()
        self._launches: dict[tuple[int, int, int, int], Launch] = {}

    def launch(self, device: int, m: int, n: int, k: int) -> Launch:
        """A function that enqueues products of these sizes on a GPU.

        Raises:
            CompileError: the compiler refuses the kernel.
            LaunchError: the driver refuses it.
            SpaceError: nothing is valid for these sizes.
        """
        key = device, m, n, k
        launch = self._launches.get(key)
        if launch is None:
            with self._lock:
                launch = self._launches.get(key) or self._make(device, Gemm(m, n, k, self._dtype))
                self._launches[key] = launch
        return launch

    def compile(self, text: str, name: str) -> bytes:
        """The binary of a kernel that a program brings along; a refusal is a CompileError."""
        source = Source(text, name, (), "cuda", ".cu")
        request = CompileRequest(source, "hybrid", self._limits.architecture)
        reply = compile_kept(self._programs, request)
        if isinstance(reply, Refused):
            raise CompileError(f"the program's kernel {name} does not compile: {reply.reason}")
        return reply.cubin

    def close(self) -> None:
        """Unload the kernels."""
        self._launches.clear()
        for kernel in self._loaded.values():
            kernel.close()
        self._loaded.clear()

    def _make(self, device: int, problem: Gemm) -> Launch:
        planner, binary, plan = self._plan(problem)
        family, configuration = planner.family, planner.configuration
        key = device, family.name, configuration
        kernel = self._loaded.get(key)
        if kernel is None:
            program = make_program(
                family, configuration, problem, self._limits, self._programs, binary
            )
            kernel = self._loaded[key] = GpuKernel(program, device)
        return kernel.launcher(plan)

    def _plan(self, problem: Gemm) -> tuple[Planner, Binary | None, LaunchPlan]:
        """The configuration for these sizes, its binary and its launch."""
        for planner, binary in self._kernels:
            plan = planner.find(problem)
            if plan is not None:
                return planner, binary, plan
        best, _ = self._kernels[0]
        nearest = nearest_valid(best.family, best.configuration, problem, self._limits)
        planner = self._planner(best.family, nearest)
        return planner, None, planner.plan(problem)

    def _planner(self, family: KernelFamily, configuration: Configuration) -> Planner:
        return Planner(family, configuration, self._dtype, self._limits)


def nearest_valid(
    family: KernelFamily, wanted: Configuration, problem: Gemm, limits: GpuLimits
) -> Configuration:
    """The configuration that is valid for a problem and nearest to the one that is wanted.

    Raises:
        SpaceError: the family has none.
    """
    space = family.space(problem, limits)
    row = space.nearest(wanted, ())
    return family.default(problem, limits) if row is None else space[row]


_Kind: TypeAlias = tuple[int, bool]
"""A stream's GPU, and whether the stream is urgent."""

_BLOCK = (256, 1, 1)
_GRID = (8, 512, 1)


class GpuMachine:
    """GPUs of this host; see `autotune.distributed.hybrid.kernel.Machine`.

    `close` frees what has not been freed.

    Args:
        devices: the driver's numbers of the GPUs.
        dtype: of all matrices.
        products: multiply within a GPU; closed with the machine.
        using: makes streams and events; None takes the process's driver.

    Raises:
        MissingDependencyError: the driver or its bindings are missing.
    """

    def __init__(
        self,
        devices: Sequence[int],
        dtype: str,
        products: Products,
        using: Driver | None = None,
    ) -> None:
        self.devices = len(devices)
        self._ordinals = devices
        self._dtype = DTYPES[dtype].numpy
        self._products = products
        self._driver = using or driver()
        self._held: dict[int, tuple[int, Memory]] = {}  # by address, or identity on the host
        # What nobody holds is destroyed, with PyCUDA in whatever context is current then: all of
        # this is held until `close`, and used again.
        self._streams: dict[int, tuple[_Kind, Any]] = {}  # with their kinds, by identity
        self._idle_streams: defaultdict[_Kind, list[Any]] = defaultdict(list)
        self._idle_events: dict[int, list[Any]] = {device: [] for device in devices}
        self._used_events: dict[int, list[Any]] = {device: [] for device in devices}
        self._functions: dict[tuple[int, str], tuple[Module, Run]] = {}  # by device and source
        for device in devices:  # where the hardware can, every GPU reaches the others' memory
            with activated(device):
                for other in devices:
                    if other != device:
                        self._driver.let_reach(other)

    def here(self, device: int) -> contextlib.AbstractContextManager[None]:
        return activated(device)

    def stream(self, device: int, *, urgent: bool = False) -> Any:
        """A new stream; blocks of an urgent one get multiprocessors before others'."""
        kind = device, urgent
        if self._idle_streams[kind]:
            return self._idle_streams[kind].pop()
        with activated(device):
            stream = self._driver.stream(blocking=False, urgent=urgent)
        self._streams[id(stream)] = kind, stream
        return stream

    def memory(self, device: int, rows: int, columns: int) -> DeviceMatrix:
        """A new matrix, whose rows start at multiples of 16 bytes."""
        itemsize = self._dtype.itemsize
        unit = max(1, 16 // itemsize)
        stride = -(-columns // unit) * unit
        allocation = self.allocate(device, rows * stride * itemsize)
        address = int(allocation)
        self._held[address] = device, allocation
        return DeviceMatrix(device, address, (rows, columns), (stride, 1), self._dtype)

    def allocate(self, device: int, size: int) -> Memory:
        """Bytes of a GPU's memory, which live as long as the returned object."""
        with activated(device):
            return self._driver.allocate(max(1, size))

    def pinned(self, count: int, dtype: Any = None) -> NDArray[Any]:
        """Page-locked memory for so many elements, of the matrices' dtype unless one is given."""
        with activated(self._ordinals[0]):
            elements, memory = self._driver.pinned(count, dtype or self._dtype)
        self._held[id(elements)] = self._ordinals[0], memory
        return elements

    def lock(self, array: NDArray[Any]) -> Any:
        start, end = DeviceMatrix.of_host(array).span
        with activated(self._ordinals[0]):
            return start if self._driver.lock(start, end - start) else None

    def unlock(self, locked: Any) -> None:
        if locked is not None:
            with activated(self._ordinals[0]):
                self._driver.unlock(locked)

    def is_locked(self, array: NDArray[Any]) -> bool:
        return self._driver.is_locked(array.ctypes.data)

    def copy(self, target: Any, source: Any, stream: Any) -> None:
        to, of = (
            matrix if isinstance(matrix, DeviceMatrix) else DeviceMatrix.of_host(matrix)
            for matrix in (target, source)
        )
        if not to.size:
            return
        rows, row_bytes = 1, to.nbytes
        pitches = row_bytes, row_bytes
        if not (to.contiguous and of.contiguous):
            itemsize = to.dtype.itemsize
            rows, row_bytes = to.shape[0], to.shape[1] * itemsize
            pitches = to.stride * itemsize, of.stride * itemsize
        ends = (to.address, pitches[0]), (of.address, pitches[1])
        if HOST in (to.device, of.device) or to.device == of.device:
            self._driver.copy_rows(*ends, row_bytes, rows, stream)
        else:
            devices = to.device, of.device
            self._driver.copy_across(*ends, row_bytes, rows, devices, stream)

    def multiply(self, a: Any, b: Any, c: Any, alpha: float, beta: float, stream: Any) -> None:
        (m, n), k = a.shape, b.shape[1]
        launch = self._products.launch(c.device, m, n, k)
        launch(a.address, a.stride, b.address, b.stride, c.address, c.stride, alpha, beta, stream)

    def kernel(self, source: str, name: str) -> Callable[[Any, Any, Any], None]:
        """A kernel of arguments ``(target, stride, source, stride, rows, columns)``."""
        if (self._ordinals[0], source) not in self._functions:
            cubin = self._products.compile(source, name)
            step = LaunchStep(name, _GRID, _BLOCK)
            for device in self._ordinals:
                with activated(device):
                    module = self._driver.load(cubin)
                    self._functions[device, source] = module, module.runner([step])

        def run(target: DeviceMatrix, other: DeviceMatrix, stream: Any) -> None:
            places = target.address, target.stride, other.address, other.stride
            arguments = struct.pack("PqPqqq", *places, *target.shape)
            _, launch = self._functions[target.device, source]
            launch(arguments, stream)

        return run

    def record(self, stream: Any) -> Any:
        """An event of a stream, whose GPU is current."""
        (device, _), _ = self._streams[id(stream)]
        try:
            event = self._idle_events[device].pop()
        except IndexError:
            event = self._driver.event(timed=False)
        event.record(stream)
        self._used_events[device].append(event)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_for_event(event)

    def finish(self, what: Any) -> None:
        what.synchronize()

    def is_past(self, event: Any) -> bool:
        return bool(event.query())

    def reuse_events(self) -> None:
        for device, used in self._used_events.items():
            self._idle_events[device].extend(used)
            used.clear()

    def free(self, what: Any) -> None:
        if id(what) in self._streams:
            self._idle_streams[self._streams[id(what)][0]].append(what)
            return
        key = what.address if isinstance(what, DeviceMatrix) else id(what)
        device, memory = self._held.pop(key)
        with activated(device):
            memory.free()

    def close(self) -> None:
        """Free everything; plans must have been freed first."""
        self._products.close()
        for (device, _), (module, _) in self._functions.items():
            with activated(device):
                module.unload()
        self._functions.clear()
        for device, memory in self._held.values():
            with activated(device):
                memory.free()
        self._held.clear()
        for device in self._ordinals:
            with activated(device):
                self._idle_events[device].clear()
                self._used_events[device].clear()
                for urgent in (False, True):
                    self._idle_streams[device, urgent].clear()
                self._streams = {k: v for k, v in self._streams.items() if v[0][0] != device}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None or not issubclass(kind, driver_errors()):
            self.close()
