"""Calls captured in CUDA graphs: right when replayed, whatever was loaded meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kernels_at_once import kernels_at_once

from autotune import Gemm, matmul
from autotune.core.configuration import Candidate
from autotune.core.errors import LaunchError
from autotune.core.session import forget
from autotune.families.program_cache import ProgramCache
from autotune.gpu.arrays.kernel import DeviceProduct
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.core.device import Device

# Of libraries while they are imported.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]

KINDS = {
    "plain": ("block", "nn"),
    "splits": ("pipelined", "nn"),  # parts of the reduction, summed in a workspace
    "tickets": ("pipelined", "nn"),  # the same, in a workspace that starts with zeros
    "shares": ("streamed", "nn"),  # blocks that wait for each other, by flags in such a workspace
    "copies": ("naive", "tt"),  # operands that are transposed on the way
}
"""Families and layouts whose calls differ in what they need beside their operands."""

SIZES = (129, 200, 67)


class TorchGraphs:
    """PyTorch: captures forbid unsafe calls in all threads."""

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch")
        if not self.torch.cuda.is_available():
            pytest.skip("PyTorch is without CUDA")

    def device(self, values: NDArray[Any]) -> Any:
        return self.torch.from_numpy(values.copy()).cuda()

    def assign(self, array: Any, values: NDArray[Any]) -> None:
        array.copy_(self.torch.from_numpy(values.copy()).cuda())

    def host(self, array: Any) -> NDArray[Any]:
        self.torch.cuda.synchronize()
        return np.asarray(array.cpu())

    def stream(self) -> Any:
        return self.torch.cuda.Stream()

    def working_on(self, stream: Any) -> Any:
        return self.torch.cuda.stream(stream)

    def handle(self, stream: Any) -> int:
        return int(stream.cuda_stream)

    @contextlib.contextmanager
    def capture(self, stream: Any) -> Iterator[list[Callable[[], None]]]:
        graph = self.torch.cuda.CUDAGraph()
        made: list[Callable[[], None]] = []
        with self.torch.cuda.graph(graph, stream=stream):
            yield made
        made.append(graph.replay)

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()


class CupyGraphs:
    """CuPy: captures forbid nothing."""

    def __init__(self) -> None:
        self.cupy = pytest.importorskip("cupy")

    def device(self, values: NDArray[Any]) -> Any:
        return self.cupy.asarray(values)

    def assign(self, array: Any, values: NDArray[Any]) -> None:
        array[...] = self.cupy.asarray(values)

    def host(self, array: Any) -> NDArray[Any]:
        self.synchronize()
        return np.asarray(array.get())

    def stream(self) -> Any:
        return self.cupy.cuda.Stream(non_blocking=True)

    def working_on(self, stream: Any) -> Any:
        return stream

    def handle(self, stream: Any) -> int:
        return int(stream.ptr)

    @contextlib.contextmanager
    def capture(self, stream: Any) -> Iterator[list[Callable[[], None]]]:
        made: list[Callable[[], None]] = []
        with stream:
            stream.begin_capture()
            try:
                yield made
            finally:
                graph = stream.end_capture()
        made.append(lambda: graph.launch(self.cupy.cuda.get_current_stream()))

    def synchronize(self) -> None:
        self.cupy.cuda.Device().synchronize()


@pytest.fixture(params=[TorchGraphs, CupyGraphs], ids=["torch", "cupy"])
def library(request: pytest.FixtureRequest) -> Any:
    return request.param()


class Subject:
    """A kernel that has never been called, and operands for it."""

    def __init__(self, kind: str, gpu: Device, programs: ProgramCache) -> None:
        name, layout = KINDS[kind]
        self.problem = Gemm(*SIZES, layout=layout)
        family = load_families(target="cuda")[name]
        configuration = family.default(self.problem, gpu.limits)
        if kind in ("splits", "tickets"):
            space = family.space(self.problem, gpu.limits)
            row = space.nearest({**configuration, "splits": 4, "last": int(kind == "tickets")}, ())
            assert row is not None
            configuration = space[row]
            assert configuration["splits"] > 1
        candidate = Candidate(name, configuration)
        target = make_target("cuda")
        self.kernel = target.kernel(family, candidate, self.problem, gpu, programs)

    def operands(self, seed: int) -> list[NDArray[Any]]:
        rng = np.random.default_rng(seed)
        shapes = (self.problem.a_shape, self.problem.b_shape, self.problem.c_shape)
        return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]

    def check(
        self, got: NDArray[Any], operands: list[NDArray[Any]], alpha: float = 1, beta: float = 0
    ) -> None:
        a, b, c = (each.astype(np.float64) for each in operands)
        if self.problem.layout == "tt":
            a, b = a.T, b.T
        np.testing.assert_allclose(got, alpha * a @ b + beta * c, rtol=1e-4, atol=2e-3)


@pytest.fixture(params=list(KINDS))
def subject(request: pytest.FixtureRequest, gpu: Device, programs: ProgramCache) -> Subject:
    return Subject(request.param, gpu, programs)


@pytest.mark.parametrize("warm", [False, True], ids=["first call", "warm"])
@pytest.mark.parametrize("given", [True, False], ids=["out", "no out"])
def test_a_captured_call_is_replayed_on_new_contents(
    library: Any, subject: Subject, given: bool, warm: bool
) -> None:
    a, b, out = map(library.device, subject.operands(0))
    if warm:
        subject.kernel(a, b, out)
    library.synchronize()
    with library.capture(library.stream()) as graph:
        c = subject.kernel(a, b, out if given else None)
    for seed in (1, 2):
        fresh = subject.operands(seed)
        library.assign(a, fresh[0])
        library.assign(b, fresh[1])
        library.assign(c, np.full_like(fresh[2], np.nan))
        graph[0]()
        subject.check(library.host(c), fresh)


@pytest.mark.parametrize("way", ["current", "given"])
def test_alpha_beta_and_the_stream_are_captured(library: Any, subject: Subject, way: str) -> None:
    a, b, c = map(library.device, subject.operands(3))
    library.synchronize()
    stream = library.stream()
    with library.capture(stream) as graph:
        subject.kernel(a, b, c, 1.5, -0.5, None if way == "current" else library.handle(stream))
    for seed in (4, 5):
        fresh = subject.operands(seed)
        for array, values in zip((a, b, c), fresh, strict=True):
            library.assign(array, values)
        library.synchronize()
        with library.working_on(library.stream()):
            graph[0]()
        subject.check(library.host(c), fresh, 1.5, -0.5)


def test_graphs_of_one_stream_run_at_once_with_each_other_and_with_calls(
    library: Any, subject: Subject
) -> None:
    stream = library.stream()
    sets = [[library.device(each) for each in subject.operands(seed)] for seed in range(3)]
    library.synchronize()
    graphs = []
    for a, b, c in sets[:2]:
        with library.capture(stream) as graph:
            subject.kernel(a, b, c)
        graphs.append(graph[0])
    streams = [library.stream(), library.stream()]
    for _ in range(50):
        for graph, other in zip(graphs, streams, strict=True):
            with library.working_on(other):
                graph()
        with library.working_on(stream):
            subject.kernel(*sets[2])
    for seed, (_, _, c) in enumerate(sets):
        subject.check(library.host(c), subject.operands(seed))


def test_loading_and_calling_disturbs_no_capture_of_another_thread(
    library: Any, gpu: Device, programs: ProgramCache
) -> None:
    captured = Subject("splits", gpu, programs)
    sets = [[library.device(each) for each in captured.operands(seed)] for seed in range(2)]
    side = library.stream()
    library.synchronize()
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for kind in ("splits", "plain"):
                other = Subject(kind, gpu, programs)
                other.kernel(*sets[1], 1.0, 0.0, library.handle(side))
        except BaseException as error:
            wrong.append(error)

    with library.capture(library.stream()) as graph:
        captured.kernel(*sets[0])
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        captured.kernel(*sets[0])
    assert not wrong, wrong[0]
    graph[0]()
    for seed, (_, _, c) in enumerate(sets):
        captured.check(library.host(c), captured.operands(seed))


def test_matmul_is_captured(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a kernel: libraries may refuse to be captured before their first call, or ever."""
    kernels_at_once(monkeypatch)
    forget()
    rng = np.random.default_rng(7)
    values = [rng.standard_normal(shape).astype(np.float32) for shape in ((75, 130), (130, 91))]
    a, b = map(library.device, values)
    library.synchronize()
    with library.capture(library.stream()) as graph:
        c = matmul(a, b)
    library.assign(a, 2 * values[0])
    graph[0]()
    np.testing.assert_allclose(library.host(c), 2 * values[0] @ values[1], rtol=1e-4, atol=2e-3)


def test_arrays_of_other_libraries_are_captured(subject: Subject) -> None:
    """What keeps operands alive, and orders streams, asks nothing of a stream in a capture."""
    cupy = CupyGraphs()

    class Exporter:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

    a, b, c = map(cupy.device, subject.operands(8))
    cupy.synchronize()
    stream = cupy.stream()
    with cupy.capture(stream) as graph:
        subject.kernel(Exporter(a), Exporter(b), Exporter(c), 1.0, 0.0, cupy.handle(stream))
    fresh = subject.operands(9)
    cupy.assign(a, fresh[0])
    cupy.assign(b, fresh[1])
    graph[0]()
    subject.check(cupy.host(c), fresh)


def test_a_tensor_of_pytorch_with_an_array_of_cupy(subject: Subject) -> None:
    torch, cupy = TorchGraphs(), CupyGraphs()
    a, b, c = subject.operands(10)
    left, right, out = torch.device(a), cupy.device(b), torch.device(c)
    cupy.synchronize()
    with torch.capture(torch.stream()) as graph:
        subject.kernel(left, right, out)
    graph[0]()
    subject.check(torch.host(out), [a, b, c])


def test_a_kept_b_serves_calls_on_two_streams_and_graphs(
    library: Any, gpu: Device, programs: ProgramCache
) -> None:
    """With the bits that the kernel gives without it."""
    capability = gpu.limits.names()["compute_capability"]
    if capability < 80:
        pytest.skip("families that split need compute capability 8.0")
    name = "split_fp16" if capability == 90 else "split_mma_fp16"
    problem = Gemm(*SIZES, accuracy="fp32-normwise")
    family = load_families(target="cuda")[name]
    candidate = Candidate(name, family.default(problem, gpu.limits))
    kernel = make_target("cuda").kernel(family, candidate, problem, gpu, programs)
    rng = np.random.default_rng(11)
    values = [rng.standard_normal(problem.a_shape).astype(np.float32) for _ in range(2)]
    b = library.device(rng.standard_normal(problem.b_shape).astype(np.float32))
    lefts = [library.device(each) for each in values]
    outs = [library.device(np.zeros(problem.c_shape, np.float32)) for _ in lefts]
    expected = [library.host(kernel(a, b)) for a in lefts]
    assert isinstance(kernel, DeviceProduct)
    kept = kernel.keep(b, None)
    assert kept is not None
    assert kept.bytes > 0
    streams = [library.stream(), library.stream()]
    for _ in range(50):
        for stream, a, out in zip(streams, lefts, outs, strict=True):
            with library.working_on(stream):
                kept.call(a, b, out)
    for out, wanted in zip(outs, expected, strict=True):
        np.testing.assert_array_equal(library.host(out), wanted)
    with library.capture(streams[0]) as graph:
        kept.call(lefts[0], b, outs[0])
    for number in (1, 0):
        library.assign(lefts[0], values[number])
        library.synchronize()
        graph[0]()
        np.testing.assert_array_equal(library.host(outs[0]), expected[number])
    kept.close()
    with pytest.raises(LaunchError, match="keep it again"):
        kept.call(lefts[0], b, outs[0])
