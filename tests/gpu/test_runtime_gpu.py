"""Tuned kernels as users call them: on arrays and streams of the libraries they use."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import statistics
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune import Gemm, Kernel, MatchQuality, load, matmul, tune
from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import OperandError
from autotune.families.gpu.planning import planner_of
from autotune.families.program_cache import ProgramCache
from autotune.gpu.driver import activated, driver
from autotune.gpu.launch import kernel as launching
from autotune.gpu.nvidia.device import load_driver
from autotune.gpu.nvidia.nvrtc import compile_cuda
from autotune.measuring.effort import Effort
from autotune.store import sources
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from autotune.core.device import Device
    from autotune.families.family import KernelFamily

PROBLEM = Gemm(129, 200, 67)
SPIN_NS = 2 * 10**9

SPIN = """
extern "C" __global__ void spin(unsigned long long nanoseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < nanoseconds);
}
"""


EMPTY = """
extern "C" __global__ void gemm(
    int, int, int, float, const float*, int, const float*, int, float, float*, int) {}
"""

# Of libraries while they are imported.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]


class Library:
    """What the tests need of a library of device arrays."""

    def __init__(self, name: str) -> None:
        self.name = name

    def device(self, array: NDArray[Any]) -> Any:
        match self.name:
            case "cupy":
                return self._cupy.asarray(array)
            case "torch":
                return self._torch.from_numpy(array.copy()).cuda()
            case "numba":
                return self._numba.to_device(array)
            case "pycuda":
                return self._pycuda.to_gpu(array)
            case _:
                return Exporter(self._cupy.asarray(array))

    def host(self, array: Any) -> NDArray[Any]:
        """The values, after everything on the device is done."""
        self.synchronize()
        match self.name:
            case "torch":
                return np.asarray(array.cpu())
            case "numba":
                return np.asarray(array.copy_to_host())
            case "dlpack":
                return np.asarray(array.array.get())
            case _:
                return np.asarray(array.get())

    def stream(self) -> Any:
        match self.name:
            case "torch":
                return self._torch.cuda.Stream()
            case "numba":
                return self._numba.stream()
            case "pycuda":
                return driver().stream()
            case _:
                return self._cupy.cuda.Stream(non_blocking=True)

    def working_on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the library's current one, where it has such a thing."""
        match self.name:
            case "torch":
                context: AbstractContextManager[Any] = self._torch.cuda.stream(stream)
                return context
            case "cupy":
                return stream  # type: ignore[no-any-return]
            case _:
                return contextlib.nullcontext()

    def synchronize(self) -> None:
        with activated(0):
            driver().synchronize()

    @property
    def _cupy(self) -> Any:
        return pytest.importorskip("cupy")

    @property
    def _torch(self) -> Any:
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("PyTorch is without CUDA")
        return torch

    @property
    def _numba(self) -> Any:
        return pytest.importorskip("numba.cuda")

    @property
    def _pycuda(self) -> Any:
        return pytest.importorskip("pycuda.gpuarray")


class Exporter:
    """An array that has nothing but DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


@pytest.fixture(params=["cupy", "torch", "numba", "pycuda", "dlpack"])
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    with activated(0):  # PyCUDA's arrays need it; the kernels do not
        yield Library(request.param)


@pytest.fixture(params=["cupy", "torch"])
def streaming(request: pytest.FixtureRequest) -> Library:
    """Libraries with current streams."""
    return Library(request.param)


def operands(problem: Gemm = PROBLEM) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(1)
    a, b, c = (
        rng.standard_normal(shape).astype(problem.dtype)
        for shape in (problem.a_shape, problem.b_shape, problem.c_shape)
    )
    return a, b, c


def product(
    problem: Gemm, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], alpha: float, beta: float
) -> NDArray[Any]:
    a, b, c = (each.astype(np.float64) for each in (a, b, c))
    left = a.T if problem.layout[0] == "t" else a
    right = b.T if problem.layout[1] == "t" else b
    return np.asarray(alpha * left @ right + beta * c)


def check(problem: Gemm, got: NDArray[Any], wanted: NDArray[Any]) -> None:
    scale = 1e-4 if problem.dtype == "float32" else 1e-11
    np.testing.assert_allclose(got, wanted, rtol=scale, atol=scale * problem.n**0.5)


def default_kernel(problem: Gemm = PROBLEM) -> Kernel:
    return load(problem, "cuda", match="nearest")


def wanted_splits(family: KernelFamily, gpu: Device, splits: int) -> Configuration:
    """The configuration nearest to the default one that divides the reduction."""
    space = family.space(PROBLEM, gpu.limits)
    row = space.nearest({**family.default(PROBLEM, gpu.limits), "splits": splits}, ())
    assert row is not None
    assert space[row]["splits"] > 1
    return space[row]


def split_kernel(gpu: Device, tmp_path: Path) -> Callable[..., Any]:
    """One that sums parts of the reduction in a workspace."""
    target, family = make_target("cuda"), load_families(target="cuda")["pipelined"]
    candidate = Candidate(family.name, wanted_splits(family, gpu, 4))
    return target.kernel(family, candidate, PROBLEM, gpu, ProgramCache(tmp_path))


@pytest.mark.parametrize("layout", ["nn", "tn", "nt", "tt"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products(library: Library, layout: str, dtype: str) -> None:
    problem = Gemm(129, 200, 67, dtype, layout=layout)
    kernel = default_kernel(problem)
    a, b, c = operands(problem)
    on_device = [library.device(each) for each in (a, b, c)]
    assert kernel(*on_device, 1.5, -0.5) is on_device[2]
    check(problem, library.host(on_device[2]), product(problem, a, b, c, 1.5, -0.5))


def test_out_is_allocated(library: Library) -> None:
    a, b, c = operands()
    left, right = library.device(a), library.device(b)
    if library.name == "dlpack":
        with pytest.raises(OperandError, match="pass out="):
            default_kernel()(left, right)
        return
    out = default_kernel()(left, right)
    assert type(out) is type(left)
    check(PROBLEM, library.host(out), product(PROBLEM, a, b, c, 1.0, 0.0))


def test_out_that_holds_nothing_is_not_read(library: Library) -> None:
    a, b, c = operands()
    out = library.device(np.full_like(c, np.nan))
    default_kernel()(library.device(a), library.device(b), out)
    check(PROBLEM, library.host(out), product(PROBLEM, a, b, c, 1.0, 0.0))


def test_rows_apart(streaming: Library) -> None:
    a, b, c = operands()
    wide = [streaming.device(np.full((each.shape[0], 240), 7, each.dtype)) for each in (a, b, c)]
    views = [w[:, 3 : 3 + each.shape[1]] for w, each in zip(wide, (a, b, c), strict=True)]
    for view, each in zip(views, (a, b, c), strict=True):
        view[...] = streaming.device(each)
    default_kernel()(*views, 2.0, 1.0)
    got = streaming.host(wide[2])
    check(PROBLEM, got[:, 3:70], product(PROBLEM, a, b, c, 2.0, 1.0))
    assert (got[:, :3] == 7).all()
    assert (got[:, 70:] == 7).all()


def test_matmul_where_the_operands_are(streaming: Library) -> None:
    a, b, c = operands()
    got = matmul(streaming.device(a), streaming.device(b))
    check(PROBLEM, streaming.host(got), product(PROBLEM, a, b, c, 1.0, 0.0))
    assert isinstance(matmul(a, b), np.ndarray)


def test_host_arrays_are_refused(library: Library) -> None:
    a, b, _ = operands()
    with pytest.raises(OperandError, match="must be in the memory of a GPU"):
        default_kernel()(a, library.device(b))


class Spinner:
    """A kernel that runs for two seconds, to see who waits for it."""

    def __init__(self, architecture: str) -> None:
        self._driver = load_driver()
        with activated(0):
            cubin = compile_cuda(SPIN, architecture).cubin
            self._module = self._call(self._driver.cuModuleLoadData, cubin)
            self._function = self._call(self._driver.cuModuleGetFunction, self._module, b"spin")

    def enqueue(self, stream: int) -> Callable[[], bool]:
        """Start it; what is returned says whether it is still running."""
        with activated(0):
            arguments = ((SPIN_NS,), (ctypes.c_ulonglong,))
            self._call(
                self._driver.cuLaunchKernel,
                self._function,
                *(1, 1, 1, 1, 1, 1, 0, stream),
                arguments,
                0,
            )
            event = self._call(self._driver.cuEventCreate, 0)
            self._call(self._driver.cuEventRecord, event, stream)
        not_ready = self._driver.CUresult.CUDA_ERROR_NOT_READY
        return lambda: self._driver.cuEventQuery(event)[0] == not_ready

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        status, *values = function(*arguments)
        assert int(status) == 0, (function.__name__, status)
        return values[0] if values else None


@pytest.fixture(scope="module")
def spinner(gpu: Device) -> Spinner:
    architecture: str = gpu.limits.architecture  # type: ignore[attr-defined]
    return Spinner(architecture)


def handle(stream: Any) -> int:
    from autotune.arrays.device import stream_handle

    return stream_handle(stream)


@pytest.mark.parametrize("way", ["current", "given", "handle"])
def test_side_stream_without_waiting(streaming: Library, spinner: Spinner, way: str) -> None:
    kernel = default_kernel()
    a, b, c = operands()
    on_device = [streaming.device(each) for each in (a, b, c)]
    kernel(*on_device)  # loads the code
    streaming.synchronize()
    stream = streaming.stream()
    spinning = spinner.enqueue(handle(stream))
    if way == "current":
        with streaming.working_on(stream):
            out = kernel(on_device[0], on_device[1])
            kernel(*on_device)
    else:
        given = stream if way == "given" else handle(stream)
        out = kernel(on_device[0], on_device[1], stream=given)
        kernel(*on_device, stream=given)
    assert spinning(), "the call waited for what was on the stream"
    wanted = product(PROBLEM, a, b, c, 1.0, 0.0)
    check(PROBLEM, streaming.host(on_device[2]), wanted)
    check(PROBLEM, streaming.host(out), wanted)


def test_other_libraries_do_not_wait_either(library: Library, spinner: Spinner) -> None:
    kernel = default_kernel()
    a, b, c = operands()
    on_device = [library.device(each) for each in (a, b, c)]
    kernel(*on_device)
    library.synchronize()
    stream = library.stream()
    spinning = spinner.enqueue(handle(stream))
    kernel(*on_device, 1.0, 0.0, stream)
    assert spinning(), "the call waited for what was on the stream"
    check(PROBLEM, library.host(on_device[2]), product(PROBLEM, a, b, c, 1.0, 0.0))


def test_kernel_waits_for_the_streams_of_its_operands(spinner: Spinner) -> None:
    torch, cupy = Library("torch"), Library("cupy")
    kernel = default_kernel()
    a, b, c = operands()
    left, out = torch.device(a), torch.device(c)
    right = cupy.device(np.zeros_like(b))
    late = cupy.device(b)
    kernel(left, right, out)
    cupy.synchronize()
    stream = cupy.stream()
    with stream:
        spinning = spinner.enqueue(handle(stream))
        right[...] = late  # after the spinner
        kernel(left, right, out)  # on PyTorch's stream
        assert spinning()
    check(PROBLEM, torch.host(out), product(PROBLEM, a, b, c, 1.0, 0.0))


def test_workspace_on_several_streams_and_threads(
    streaming: Library, gpu: Device, tmp_path: Path
) -> None:
    kernel = split_kernel(gpu, tmp_path)
    rng = np.random.default_rng(2)
    wrong: list[str] = []
    shared = streaming.stream()

    def work(number: int) -> None:
        try:
            stream = shared if number % 2 else streaming.stream()
            with streaming.working_on(stream):
                a, b, c = (each * rng.uniform(0.5, 2) for each in operands())
                a, b = a.astype(np.float32), b.astype(np.float32)
                left, right = streaming.device(a), streaming.device(b)
                outs = [kernel(left, right) for _ in range(50)]
                for out in outs:
                    got = streaming.host(out)
                    check(PROBLEM, got, product(PROBLEM, a, b, c, 1.0, 0.0))
        except BaseException as error:
            wrong.append(f"{number}: {error}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


def test_one_binary_for_many_shapes(
    streaming: Library, gpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is loaded once, and workspaces of all sizes are one block of memory."""
    target, family = make_target("cuda"), load_families(target="cuda")["pipelined"]
    programs = ProgramCache(tmp_path)
    candidate = Candidate(family.name, wanted_splits(family, gpu, 4))
    planner = planner_of(family, candidate.configuration, PROBLEM.dtype, gpu.limits)
    shapes = itertools.product((65, 129), (200, 333), (67, 96))
    problems = [
        each for each in itertools.starmap(PROBLEM.with_sizes, shapes) if planner.valid(each)
    ]
    assert len(problems) > 3
    monkeypatch.setattr(launching, "_LOADED", {})
    kernels = [target.kernel(family, candidate, each, gpu, programs) for each in problems]
    assert len(launching._LOADED) == 1
    held = [(each, operands(each)) for each in problems]
    arrays = [[streaming.device(array) for array in each[:2]] for _, each in held]
    streams = [streaming.stream() for _ in range(2)]
    for stream in streams:
        with streaming.working_on(stream):
            outs = [kernel(*each) for kernel, each in zip(kernels, arrays, strict=True)]
            for out, (problem, (a, b, c)) in zip(outs, held, strict=True):
                check(problem, streaming.host(out), product(problem, a, b, c, 1.0, 0.0))


@pytest.mark.cold
def test_the_library_computes_while_a_kernel_is_compiled(
    streaming: Library, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    monkeypatch.setenv("AUTOTUNE_BACKGROUND", "1")
    monkeypatch.setattr(sources, "data_dir", lambda name: own_cache)  # nothing is shipped
    kernel = default_kernel()
    assert "is being compiled" in kernel.reason
    a, b, c = operands()
    left, right = streaming.device(a), streaming.device(b)
    wanted = product(PROBLEM, a, b, c, 1.0, 0.0)
    check(PROBLEM, streaming.host(kernel(left, right)), wanted)
    until = time.monotonic() + 120
    while "is being compiled" in kernel.reason and time.monotonic() < until:
        check(PROBLEM, streaming.host(kernel(left, right)), wanted)
    assert kernel.reason.startswith("no record fits")
    check(PROBLEM, streaming.host(kernel(left, right)), wanted)


def test_thread_without_a_context() -> None:
    library = Library("cupy")
    kernel = default_kernel()
    a, b, c = operands()
    on_device = [library.device(each) for each in (a, b, c)]
    library.synchronize()
    thread = threading.Thread(target=kernel, args=(*on_device, 1.0, 0.0, 0))
    thread.start()
    thread.join()
    check(PROBLEM, library.host(on_device[2]), product(PROBLEM, a, b, c, 1.0, 0.0))


def test_second_device() -> None:
    torch: Any = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    kernel = default_kernel()
    a, b, c = operands()
    for device in (1, 0, 1):
        left, right = (torch.from_numpy(each).to(f"cuda:{device}") for each in (a, b))
        out = kernel(left, right)
        assert out.get_device() == device
        check(PROBLEM, out.cpu().numpy(), product(PROBLEM, a, b, c, 1.0, 0.0))
    with pytest.raises(OperandError, match="on one device"):
        kernel(left, right.to("cuda:0"))


LOAD_WITHOUT_COMPILER = """
import sys
sys.modules["cuda.bindings.nvrtc"] = None
import numpy as np
from autotune import Gemm, load
import cupy
kernel = load(Gemm(129, 200, 67), "cuda", match="stale")
assert kernel.record is not None and kernel.record.binary is not None
a, b = np.ones((129, 200), np.float32), np.ones((200, 67), np.float32)
c = kernel(cupy.asarray(a), cupy.asarray(b)).get()
assert (c == 200).all(), c
"""


def test_tuned_kernel_loads_without_a_compiler(own_cache: Path) -> None:
    result = tune(
        PROBLEM,
        target="cuda",
        families=["naive"],
        trials=4,
        timeout=30.0,
        sampler="random",
        effort=Effort(budget_s=0.02, finals_s=0.1),
    )
    assert result.best.binary is not None
    kernel = result.kernel
    assert kernel.match is MatchQuality.EXACT
    assert kernel.record == result.best
    for program in (own_cache / "programs").rglob("*.cubin"):
        program.unlink()
    subprocess.run([sys.executable, "-c", LOAD_WITHOUT_COMPILER], check=True)


def test_overhead(streaming: Library, capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, not judged: microseconds of a call, beside PyCUDA's own."""
    pycuda = pytest.importorskip("pycuda.driver")
    problem = Gemm(16, 16, 16)
    kernel = default_kernel(problem)
    a, b, c = (streaming.device(each) for each in operands(problem))

    def measure(call: Callable[[], object]) -> float:
        # Fewer at once than the driver queues, so that the device is never waited for.
        rounds = []
        for _ in range(50):
            streaming.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                call()
            rounds.append((time.perf_counter() - start) / 200 * 1e6)
        return statistics.median(rounds)

    with activated(0):
        limits: Any = make_target("cuda").device().limits
        module = pycuda.module_from_buffer(compile_cuda(EMPTY, limits.architecture).cubin)
        bare = module.get_function("gemm").prepare("iiifPiPifPi")
        arguments = (16, 16, 16, 1.0, 0, 16, 0, 16, 0.0, 0, 16)
        prepared = measure(
            lambda: bare.prepared_async_call((1, 1, 1), (32, 1, 1), None, *arguments)
        )
        ours = measure(lambda: kernel(a, b, c))
        given = measure(lambda: kernel(a, b, c, stream=0))
        allocating = measure(lambda: kernel(a, b))
    with capsys.disabled():
        print(
            f"\ncall overhead with {streaming.name}: {ours:.2f} us, {ours / prepared:.2f}x "
            f"PyCUDA's prepared_async_call ({prepared:.2f} us); with a stream {given:.2f} us, "
            f"with allocation {allocating:.2f} us"
        )
