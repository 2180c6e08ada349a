"""GPUs of a vendor that there is not: kernels run on the host, in memory of the host.

All of it comes from outside: a vendor, its driver, its compiler, and a target that names them.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from autotune.core.device import Device, DeviceFingerprint
from autotune.core.errors import CompileError, UnknownNameError
from autotune.core.limits import GpuLimits
from autotune.families.family import Language
from autotune.families.gpu import cuda_source
from autotune.families.gpu.occupancy import limit_restrictions
from autotune.gpu import driver
from autotune.gpu.interface import DriverError
from autotune.gpu.target import LIMIT_NAMES, GpuTarget
from autotune.gpu.vendor import Compiled, KernelResources

LIMITS = GpuLimits(
    compute_capability=942,
    multiprocessor_count=1,
    warp_size=64,
    max_threads_per_block=1024,
    max_threads_per_multiprocessor=2048,
    max_blocks_per_multiprocessor=32,
    registers_per_thread=512,
    registers_per_block=131072,
    registers_per_multiprocessor=131072,
    shared_bytes_static=65536,
    shared_bytes_per_block=65536,
    shared_bytes_per_multiprocessor=65536,
    shared_bytes_reserved=0,
    shared_granularity=512,
    l2_bytes=4096,
    isa="gfx",
)
_LETTERS = {
    ctypes.c_int: "i",
    ctypes.c_longlong: "q",
    ctypes.c_float: "f",
    ctypes.c_double: "d",
    ctypes.c_ushort: "H",
    ctypes.c_uint: "I",
    ctypes.c_ulonglong: "Q",
}
GPUS = 3
_MAGIC = b"stand-in binary\n"
WATTS = 250.0
LIBRARY_S = 0.002


class Memory:
    def __init__(self, size: int) -> None:
        self._buffer = ctypes.create_string_buffer(size + 256)

    def __int__(self) -> int:
        return -(-ctypes.addressof(self._buffer) // 256) * 256

    def free(self) -> None:
        pass


class Stream:
    handle = 7

    def synchronize(self) -> None:
        pass

    def wait_for_event(self, event: Any) -> None:
        pass


class Event:
    at = 0.0

    def record(self, stream: Any = None) -> Event:
        self.at = time.perf_counter()
        return self

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def time_since(self, earlier: Event) -> float:
        return 1e3 * max(self.at - earlier.at, 1e-7)


class Module:
    def __init__(self, driver: StandInDriver, binary: bytes) -> None:
        if not binary.startswith(_MAGIC):
            raise DriverError("STAND_IN_INVALID: this is no binary")
        from host_execution import HostProgram

        self._driver = driver
        folder = Path(tempfile.gettempdir(), "autotune-stand-in")
        folder.mkdir(exist_ok=True)
        self._program = HostProgram(binary.removeprefix(_MAGIC).decode(), folder)

    def runner(self, steps: Any, places: Any = ()) -> Callable[[bytes, Any], None]:
        def launch(step: Any, arguments: bytes) -> None:
            kinds = self._program._kernels[step.kernel]
            values = struct.unpack("".join(_LETTERS.get(kind, "P") for kind in kinds), arguments)
            self._program.launch(
                step.kernel, step.grid, step.block, values, shared_bytes=step.shared_bytes
            )

        def run(arguments: bytes, stream: Any) -> None:
            for step in steps:
                self._driver.do(lambda step=step: launch(step, arguments))

        return run

    def unload(self) -> None:
        pass


class Graph:
    def __init__(self, tasks: list[Callable[[], None]]) -> None:
        self._tasks = tasks

    def replay(self) -> None:
        for task in self._tasks:
            task()

    def close(self) -> None:
        self._tasks.clear()


class StandInDriver:
    name = "stand-in"
    errors = (DriverError,)

    def __init__(self) -> None:
        self._recorded: list[Callable[[], None]] | None = None

    def do(self, task: Callable[[], None]) -> None:
        if self._recorded is None:
            task()
        else:
            self._recorded.append(task)

    def describe(self, error: Exception) -> str:
        return str(error)

    def enter(self, ordinal: int) -> None:
        pass

    def leave(self) -> None:
        pass

    def context(self, ordinal: int) -> int:
        return ordinal

    def is_current(self, ordinal: int) -> bool:
        return True

    @contextlib.contextmanager
    def relaxed(self) -> Iterator[None]:
        yield

    def synchronize(self) -> None:
        pass

    def free_bytes(self) -> int:
        return 2**28

    def allocate(self, size: int) -> Memory:
        return Memory(size)

    def upload(self, target: int, values: Any) -> None:
        ctypes.memmove(target, values.ctypes.data, values.nbytes)

    def download(self, values: Any, source: int) -> None:
        ctypes.memmove(values.ctypes.data, source, values.nbytes)

    def duplicate(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    def clear(self, target: int, words: int) -> None:
        ctypes.memset(target, 0, 4 * words)

    def device_of(self, address: int) -> int | None:
        return 0

    def stream(self, *, blocking: bool = True, urgent: bool = False) -> Stream:
        return Stream()

    def event(self, *, timed: bool = True) -> Event:
        return Event()

    def mark(self, handle: int, *, timed: bool = False) -> Event:
        return Event().record()

    def wait_for(self, handle: int, event: Event) -> None:
        pass

    def finish(self, handle: int) -> None:
        pass

    def is_capturing(self, handle: int) -> bool:
        return False

    def capture_of(self, handle: int) -> int | None:
        return None

    def record(self, enqueue: Callable[[], None], stream: Stream) -> Graph:
        self._recorded = []
        try:
            enqueue()
            return Graph(self._recorded)
        finally:
            self._recorded = None

    def enqueue_zeros(self, address: int, size: int, handle: int) -> None:
        ctypes.memset(address, 0, size)

    def load(self, binary: bytes) -> Module:
        return Module(self, binary)


class Compiler:
    """Keeps the source: it is compiled for the host when it is loaded."""

    def load(self) -> None:
        pass

    def label(self, source: Any) -> str:
        return "standin1"

    def compile(self, source: Any, path: Path, architecture: str) -> Compiled:
        assert architecture == "gfx942"
        if "__global__" not in source.text:
            raise CompileError("there is no kernel")
        binary = _MAGIC + source.text.encode()
        kernels = self.read(binary)
        return Compiled(binary, architecture, kernels, dict.fromkeys(kernels, 0), "", 0.01)

    def read(self, binary: bytes) -> Mapping[str, KernelResources]:
        words = binary.decode().split("(")
        names = {word.split()[-1] for word in words[:-1] if word.split()}
        known = {name for name in names if f"void {name}(".encode() in binary} | {"gemm"}
        return dict.fromkeys(known, KernelResources(32, 0, 0, None))


class Monitor:
    """Of a device that takes `WATTS` at whatever it does; its clock falls with every look."""

    def __init__(self) -> None:
        self._looks = 0

    def read(self, names: Any = None) -> dict[str, str]:
        self._looks += 1
        clock = f"{1000 + 1000 / self._looks:.0f}"
        readings = {"sm_clock_mhz": clock, "energy_j": f"{WATTS * time.monotonic():.6f}"}
        return {name: value for name, value in readings.items() if names is None or name in names}


class Blas:
    """NumPy, on memory of the host; every product takes `LIBRARY_S` besides."""

    library, version, mode, accuracy = "NumPy", "2", "float32", "ieee"

    def __init__(self, problem: Any) -> None:
        self._problem = problem

    def launch(self, *operands: int) -> None:
        m, n, k = self._problem.shape
        driver.driver().do(lambda: self._multiply(operands, m, n, k))

    def _multiply(self, operands: Any, m: int, n: int, k: int) -> None:
        shapes = ((m, n), (n, k), (m, k))
        a, b, c = (
            np.ctypeslib.as_array(
                (ctypes.c_float * (rows * stride)).from_address(address)
            ).reshape(rows, stride)[:, :columns]
            for (rows, columns), address, stride in zip(
                shapes, operands[:6:2], operands[1:6:2], strict=True
            )
        )
        np.matmul(a, b, out=c)
        time.sleep(LIBRARY_S)

    def close(self) -> None:
        pass


class StandIn:
    """See `autotune.gpu.vendor.Vendor`."""

    def __init__(self) -> None:
        compiler = Compiler()
        self.compilers = {"stand-in": compiler}
        self.support_target = "stand-in"

    def driver(self) -> Any:
        return StandInDriver()

    def is_usable(self) -> bool:
        return True

    def read_gpu(self, index_or_name: int | str | None = None) -> Device:
        fingerprint = DeviceFingerprint("stand-in", "Stand-in 942", {"cores": 4})
        number = str(index_or_name or 0)
        ordinal = int(number) if number.isdecimal() else 0
        if ordinal >= GPUS:
            raise UnknownNameError(f"there is no GPU {number}")
        return Device(fingerprint, LIMITS, {"stand_in": "1"}, {"ordinal": str(ordinal)})

    def described(self, name: str) -> Device:
        raise UnknownNameError(f"there is no {name}")

    def check(self, device: Device) -> None:
        pass

    def alone(self, device: Device) -> dict[str, str]:
        return {}

    def monitor(self, device: str) -> Any:
        return Monitor()

    def blas(self, problem: Any, stream: Any) -> Any:
        return [Blas(problem)]


STAND_IN = StandIn()


class StandInTarget(GpuTarget):
    """Emitted C++ on a GPU of the vendor's."""

    name: ClassVar[str] = "stand-in"
    vendor: ClassVar[str] = "stand_in:STAND_IN"

    @classmethod
    def language(cls) -> Language:
        return Language(
            limits=LIMIT_NAMES,
            check=cuda_source.check,
            names=cuda_source.names,
            reserved=cuda_source.reserved,
            suffix=".cu",
            block_restrictions=limit_restrictions,
        )


class Array:
    """An array in the memory of the first GPU."""

    def __init__(self, values: Any) -> None:
        self.values = np.ascontiguousarray(values)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.values.shape,
            "typestr": self.values.dtype.str,
            "data": (self.values.ctypes.data, False),
            "version": 3,
        }
