"""What every implementation of the driver's interface must do: on a GPU, and on a stand-in.

The stand-in, `tests/stand_in_driver`, is loaded by a process of its own in place of the driver.
"""

from __future__ import annotations

import gc
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.families.gpu.launch import LaunchStep
from autotune.gpu.driver import driver
from autotune.gpu.interface import MAP_BYTES, Boxes, Driver, DriverError
from autotune.gpu.nvidia.bindings import BindingsDriver
from autotune.gpu.nvidia.vendor import has_pycuda

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADERS = Path("nvidia", "cu13", "include")
STAND_IN = Path(__file__).parents[1] / "stand_in_driver"

SOURCE = """
extern "C" __global__ void add(unsigned int* x, unsigned int by, int count) {
  extern __shared__ unsigned int staged[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  staged[threadIdx.x] = by;
  if (i < count) x[i] += staged[threadIdx.x];
}
"""
COUNT = 1000
STEP = LaunchStep("add", (4, 1, 1), (256, 1, 1), 60_000)


class DriverConformance:
    """In the primary context of the first GPU."""

    @pytest.fixture
    def here(self) -> Driver:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def entered(self, here: Driver) -> Iterator[None]:
        here.enter(0)
        yield
        here.leave()

    @pytest.fixture
    def cubin(self) -> bytes:
        """Of `SOURCE`."""
        raise NotImplementedError

    def test_memory_is_allocated_copied_and_given_back(self, here: Driver) -> None:
        values = np.arange(COUNT, dtype=np.uint32)
        first, second = here.allocate(values.nbytes), here.allocate(values.nbytes)
        here.upload(int(first), values)
        here.duplicate(int(second), int(first), values.nbytes)
        here.clear(int(first), COUNT // 2)
        got = np.empty_like(values)
        here.download(got, int(second))
        assert (got == values).all()
        here.download(got, int(first))
        assert (got[: COUNT // 2] == 0).all()
        assert (got[COUNT // 2 :] == values[COUNT // 2 :]).all()
        first.free()
        second.free()

    def test_memory_that_nobody_holds_is_given_back(self, here: Driver) -> None:
        size = int(0.4 * here.free_bytes())
        for _ in range(5):
            assert int(here.allocate(size))
            gc.collect()

    def test_too_much_is_refused(self, here: Driver) -> None:
        with pytest.raises(here.errors, match=r"(?i)out.of.memory"):
            here.allocate(2**50)

    @pytest.mark.parametrize("where", ["default", "own", "another library's"])
    def test_kernels_run_in_order(self, here: Driver, cubin: bytes, where: str) -> None:
        values = np.arange(COUNT, dtype=np.uint32)
        memory = here.allocate(values.nbytes)
        here.upload(int(memory), values)
        module = here.load(cubin)
        run = module.runner([STEP, STEP])
        own = here.stream()
        chosen = {"default": None, "own": own, "another library's": own.handle}[where]
        run(struct.pack("PIi", int(memory), 3, COUNT), chosen)
        here.synchronize()
        got = np.empty_like(values)
        here.download(got, int(memory))
        assert (got == values + 6).all()
        del run
        module.unload()

    def test_what_is_wrong_with_a_binary(self, here: Driver, cubin: bytes) -> None:
        with pytest.raises(here.errors):
            here.load(b"no binary at all\0" * 8)
        with pytest.raises(here.errors):
            here.load(cubin).runner([LaunchStep("subtract", (1, 1, 1), (1, 1, 1))])
        with pytest.raises(here.errors):
            here.load(cubin).runner([LaunchStep("add", (1, 1, 1), (1, 1, 1), 10**6)])

    def test_tensor_maps_are_of_whole_rows(self, here: Driver) -> None:
        boxes = Boxes("float16", 40, 72, (8, 64), 128)
        memory = here.allocate(40 * 80 * 2)
        address = int(memory)
        told = here.tensor_map(boxes, address, 80)
        assert len(told) == MAP_BYTES
        assert told == here.tensor_map(boxes, address, 80)
        assert told != here.tensor_map(boxes, address, 72)
        for place, leading in ((address + 2, 80), (address, 73)):
            with pytest.raises(here.errors, match="cuTensorMapEncodeTiled"):
                here.tensor_map(boxes, place, leading)
        memory.free()

    @pytest.mark.parametrize("blocking", [True, False])
    def test_events_tell_order_and_time(self, here: Driver, blocking: bool) -> None:
        stream, other = here.stream(blocking=blocking), here.stream(blocking=blocking)
        assert stream.handle != other.handle
        start, end = here.event(), here.event()
        start.record(stream)
        end.record(stream)
        other.wait_for_event(end)
        other.synchronize()
        stream.synchronize()
        assert start.query()
        assert end.query()
        assert 0 <= end.time_since(start) < 1e4
        untimed = here.event(timed=False)
        untimed.record(stream)
        untimed.synchronize()
        with pytest.raises(here.errors):
            untimed.time_since(start)

    @pytest.mark.parametrize("locked", [True, False])
    @pytest.mark.parametrize("columns", [40, 64])
    def test_rows_travel(self, here: Driver, locked: bool, columns: int) -> None:
        """`columns` of 64: rows with and without gaps."""
        stream = here.stream(blocking=False)
        elements, memory = here.pinned(20 * 64, np.float64)
        assert here.is_locked(elements.ctypes.data)
        whole = elements.reshape(20, 64) if locked else np.empty((20, 64))
        whole[:] = np.random.default_rng(0).random((20, 64))
        source, target = whole[:, :columns], np.zeros((20, columns))
        slabs = [here.allocate(20 * 80 * 8) for _ in range(2)]
        row_bytes, pitch = columns * 8, 64 * 8
        host, back = (source.ctypes.data, pitch), (target.ctypes.data, row_bytes)
        first, second = (int(slabs[0]), 80 * 8), (int(slabs[1]), 64 * 8)
        here.copy_rows(first, host, row_bytes, 20, stream)
        here.copy_across(second, first, row_bytes, 20, (0, 0), stream)
        here.copy_rows(back, second, row_bytes, 20, stream)
        stream.synchronize()
        assert (target == source).all()
        flat, again = ((int(slab), row_bytes) for slab in slabs)
        dense = np.ascontiguousarray(source)
        here.copy_rows(flat, (dense.ctypes.data, row_bytes), row_bytes, 20, stream)
        here.copy_across(again, flat, row_bytes, 20, (0, 0), stream)
        here.copy_rows(back, again, row_bytes, 20, stream)
        stream.synchronize()
        assert (target == dense).all()
        del elements, whole, source
        memory.free()

    def test_memory_of_the_host_is_locked_in_place(self, here: Driver) -> None:
        array = np.zeros(2**20)
        assert not here.is_locked(array.ctypes.data)
        assert here.lock(array.ctypes.data, array.nbytes)
        assert here.is_locked(array.ctypes.data)
        assert not here.lock(array.ctypes.data, array.nbytes)
        here.unlock(array.ctypes.data)
        assert not here.is_locked(array.ctypes.data)

    def test_threads_enter_for_themselves(self, here: Driver) -> None:
        told: list[Any] = []

        def work() -> None:
            try:
                here.allocate(16)
            except here.errors as error:
                told.append(error)
            here.enter(0)
            told.append(int(here.allocate(16)))
            here.leave()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert isinstance(told[0], Exception)
        assert told[1] > 0


class OnGpu:
    """With the kernel compiled for the GPU that is here."""

    @pytest.fixture(scope="class")
    @classmethod
    def cubin(cls) -> bytes:
        from autotune.gpu.nvidia.device import read_gpu
        from autotune.gpu.nvidia.nvrtc import compile_cuda

        architecture: str = read_gpu().limits.architecture  # type: ignore[attr-defined]
        return compile_cuda(SOURCE, architecture).cubin


@pytest.mark.gpu
class TestBindings(OnGpu, DriverConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def here(cls) -> Driver:
        return BindingsDriver()

    def test_errors_begin_with_their_names(self, here: Driver) -> None:
        with pytest.raises(DriverError, match=r"^CUDA_ERROR_OUT_OF_MEMORY: cuMemAlloc failed"):
            here.allocate(2**50)

    def test_urgent_streams(self, here: BindingsDriver) -> None:
        assert here.stream(blocking=False, urgent=True).handle


@pytest.mark.gpu
@pytest.mark.skipif(not has_pycuda(), reason="PyCUDA is not installed")
class TestPycuda(OnGpu, DriverConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def here(cls) -> Driver:
        from autotune.gpu.nvidia.pycuda_driver import make

        return make()


@pytest.mark.gpu
def test_pycuda_is_taken_where_it_is_installed() -> None:
    assert driver().name == ("PyCUDA" if has_pycuda() else "cuda-bindings")


def test_the_bindings_on_a_stand_in(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="pip install '.[compile]'")
    compiler = shutil.which("cc") or shutil.which("gcc")
    places = [Path(place) / HEADERS for place in sys.path]  # of the CUDA runtime's package
    headers = next((place for place in places if (place / "cuda.h").exists()), None)
    if compiler is None or headers is None:
        pytest.skip("a C compiler and cuda.h are needed: pip install '.[numba-cuda]'")
    library = tmp_path / "libcuda.so.1"
    options = ("-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", f"-I{headers}")
    command = [compiler, *options, "-o", str(library), str(STAND_IN / "driver.c"), "-ldl"]
    subprocess.run(command, check=True)
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    checks = [str(STAND_IN / name) for name in ("check_bindings.py", "check_shapes.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", *checks],
        env={**os.environ, "PYTHONPATH": path, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout
