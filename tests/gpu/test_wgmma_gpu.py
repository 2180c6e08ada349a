"""`wgmma` and `wgmma_tf32`: products are right in every layout, wherever operands lie."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from epilogue_families import write_operations

from autotune.core.configuration import Candidate, Configuration
from autotune.core.dtypes import DTYPES
from autotune.core.measurement import Outcome
from autotune.core.paths import data_dir
from autotune.families.program_cache import ProgramCache
from autotune.gpu.driver import activated, driver
from autotune.gpu.launch.code import make_program
from autotune.gpu.launch.kernel import GpuKernel
from autotune.gpu.measure.evaluator import GpuEvaluator
from autotune.measuring.effort import Effort, Work
from autotune.operations.problem import Gemm
from autotune.targets.families import catalog, load_families, read_family

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from autotune.core.device import Device
    from autotune.families.family import KernelFamily

FAMILIES = load_families(target="cuda", operation="gemm")
PRESETS = [(name, each) for name in ("wgmma", "wgmma_tf32") for each in FAMILIES[name].presets]
LAYOUTS = ("nn", "nt", "tn", "tt")


@dataclass(frozen=True)
class Call:
    """A product, and where its operands lie.

    Attributes:
        shape: M, N and K.
        gap: elements between rows.
        offset: elements before the first one.
        alpha: factor of the product.
        beta: factor of C.
    """

    shape: tuple[int, int, int]
    gap: int = 0
    offset: int = 0
    alpha: float = 1.0
    beta: float = 0.0


CALLS = (
    Call((1, 1, 1)),
    Call((512, 512, 512)),
    Call((300, 200, 136), alpha=1.5, beta=-0.5),
    Call((1000, 333, 777), beta=0.75),
    Call((17, 4096, 1030), gap=3, beta=1.0),
    Call((640, 1024, 520), gap=8, offset=1, beta=0.5),
)


# C has a tensor map but in the last two, where it lies between 16 bytes.
MAPPED_CALLS = (
    Call((8, 64, 8)),
    Call((1, 100, 72), alpha=2.0),
    Call((777, 200, 1032), alpha=1.5, beta=-0.5),
    Call((2900, 136, 2056), beta=0.75),  # more tiles than blocks
    Call((333, 96, 520), gap=8, offset=8, alpha=-1.0, beta=1.0),
    Call((200, 72, 1001), gap=7, offset=16),  # rows begin at whole 16 bytes, and end between
    Call((200, 72, 1001), beta=0.5),
    Call((300, 128, 264), offset=1, alpha=0.5),
)
STORES = {
    "shared": {},
    "turns": {"sk": 128, "ping_pong": 1},
    "tall": {"sm": 256, "sk": 128},
    "across": {"sk": 128, "cluster_m": 1, "cluster_k": 2},
    "alone": {"sm": 64, "sk": 64, "consumers": 1, "cluster_m": 1, "min_blocks": 2},
    "three": {"sm": 192, "sk": 192, "consumers": 3, "stages": 2, "cluster_m": 1},
    "ragged-slabs": {"sm": 64, "sk": 192, "ping_pong": 1, "cluster_m": 1},
    "narrow": {"sk": 112},
    "swapped": {"sk": 96, "swapped": 1, "cluster_m": 1, "cluster_k": 2},
    "swapped-turns": {"sk": 136, "swapped": 1, "ping_pong": 1, "cluster_m": 1},
}


@pytest.fixture(autouse=True)
def hopper(gpu: Device) -> None:
    if gpu.limits.names()["compute_capability"] != 90:
        pytest.skip("wgmma is a feature of compute capability 9.0")


def spread(matrix: NDArray[Any], call: Call) -> NDArray[Any]:
    """A matrix among NaN."""
    rows, columns = matrix.shape
    flat = np.full(call.offset + rows * (columns + call.gap) + 64, np.nan, matrix.dtype)
    inside(flat, matrix.shape, call)[:] = matrix
    return flat


def inside(flat: NDArray[Any], shape: tuple[int, int], call: Call) -> NDArray[Any]:
    rows, columns = shape
    size = rows * (columns + call.gap)
    return flat[call.offset : call.offset + size].reshape(rows, columns + call.gap)[:, :columns]


def uneven(values: NDArray[Any]) -> NDArray[Any]:
    """Float32 numbers of which none lies halfway between two of TF32.

    Which one hardware takes for those the driver's documentation does not say.
    """
    return (values.view(np.uint32) | np.uint32(1)).view(np.float32)


def to_tf32(values: NDArray[Any]) -> NDArray[Any]:
    """Rounded to 11 bits of significand."""
    bits = values.astype(np.float32).view(np.uint32) + np.uint32(0x1000)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_products_are_right(
    name: str, preset: str, layout: str, gpu: Device, programs: ProgramCache
) -> None:
    family = FAMILIES[name]
    kernel: GpuKernel | None = None
    for call in CALLS:
        dtype, accuracy = family.dtypes[0], family.accuracy
        problem = Gemm(*call.shape, dtype, layout=layout, accuracy=accuracy)
        configuration = family.presets[preset].configuration
        limits: Any = gpu.limits
        program = make_program(family, configuration, problem, limits, programs)
        kernel = kernel or GpuKernel(program)
        check(kernel, program.plan, problem, call)
    assert kernel is not None
    kernel.close()


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "layout"),
    [
        ("float16", None, "nn"),
        ("bfloat16", None, "tt"),
        ("float16", "float32", "nt"),
        ("bfloat16", "float32", "tn"),
    ],
)
@pytest.mark.parametrize("changes", STORES.values(), ids=STORES)
def test_results_stored_by_tensor_maps_are_right(
    changes: dict[str, int],
    dtype: str,
    out_dtype: str | None,
    layout: str,
    gpu: Device,
    programs: ProgramCache,
) -> None:
    """Whether C is stored by a tensor map or not; by the direct way too, bit for bit."""
    family = FAMILIES["wgmma"]
    default = family.presets["large"].configuration
    limits: Any = gpu.limits
    kernels: dict[str, GpuKernel] = {}
    for call in MAPPED_CALLS:
        problem = Gemm(*call.shape, dtype, out_dtype, layout, family.accuracy)
        found = set()
        for store in ("direct", "tma"):
            chosen = Configuration({**default, "stages": 3, **changes, "store": store})
            program = make_program(family, chosen, problem, limits, programs)
            kernel = kernels.setdefault(store, GpuKernel(program))
            found.add(check(kernel, program.plan, problem, call))
        assert len(found) == 1, call
    for kernel in kernels.values():
        kernel.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tf32_stored_by_tensor_maps_is_right(
    layout: str, gpu: Device, programs: ProgramCache
) -> None:
    family = FAMILIES["wgmma_tf32"]
    chosen = family.presets["large-tma"].configuration
    limits: Any = gpu.limits
    kernel: GpuKernel | None = None
    for call in MAPPED_CALLS:
        problem = Gemm(*call.shape, "float32", None, layout, "tf32")
        program = make_program(family, chosen, problem, limits, programs)
        kernel = kernel or GpuKernel(program)
        check(kernel, program.plan, problem, call)
    assert kernel is not None
    kernel.close()


@pytest.mark.parametrize("operation", ["linear_relu", "gated"])
@pytest.mark.parametrize("out_dtype", [None, "float32"])
@pytest.mark.parametrize("preset", ["large-tma", "turns-tma", "small-clusters"])
def test_what_follows_a_product_is_stored_with_it(
    preset: str, out_dtype: str | None, operation: str, gpu: Device, tmp_path: Path
) -> None:
    """As every trial is verified: ragged and large, rows padded, C full of NaN where it is new."""
    families = catalog("cuda", operation, [write_operations(tmp_path / "operations")])
    family = families["wgmma"]
    # Few tiles: clusters of four are for no others.
    problem = family.defined.at((384, 256, 512), dtype="bfloat16", out_dtype=out_dtype)
    candidate = Candidate("wgmma", family.presets[preset].configuration)
    folder = ProgramCache(tmp_path / "programs")
    effort = Effort(budget_s=0.02)
    with GpuEvaluator(
        Work(problem, {"wgmma": family}, gpu, folder, effort=effort, workers=1)
    ) as evaluator:
        measurement = evaluator.evaluate(candidate, None)
    assert measurement.ok, measurement


REDUCED_CALLS = (
    Call((100, 72, 40)),  # most blocks of a cluster have no step
    Call((65, 1000, 129), gap=3, alpha=1.5),
    Call((200, 2048, 264), beta=0.5),
    Call((333, 1096, 520), gap=8, offset=8, alpha=-1.0, beta=1.0),
    Call((7, 5000, 1001), offset=1),
)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("dtype", "out_dtype", "layout"), [("float16", "float32", "nt"), ("bfloat16", None, "nn")]
)
@pytest.mark.parametrize("tile", [(64, 64, 1), (64, 128, 1), (128, 128, 2), (128, 256, 2)])
@pytest.mark.parametrize("blocks", [2, 4, 8])
def test_sums_of_a_cluster_are_right(
    blocks: int,
    tile: tuple[int, int, int],
    dtype: str,
    out_dtype: str | None,
    layout: str,
    splits: int,
    gpu: Device,
    programs: ProgramCache,
) -> None:
    """Of reductions that blocks of a cluster share, in the workspace's parts or alone."""
    family = FAMILIES["wgmma"]
    limits: Any = gpu.limits
    sm, sk, consumers = tile
    chosen = Configuration(
        {
            **family.presets["small-clusters"].configuration,
            "sm": sm,
            "sk": sk,
            "consumers": consumers,
            "stages": 4,
            "cluster_n": blocks,
            "splits": splits,
        }
    )
    kernel: GpuKernel | None = None
    for call in REDUCED_CALLS:
        problem = Gemm(*call.shape, dtype, out_dtype, layout, family.accuracy)
        program = make_program(family, chosen, problem, limits, programs)
        kernel = kernel or GpuKernel(program)
        check(kernel, program.plan, problem, call)
    assert kernel is not None
    kernel.close()


def test_parts_of_a_reduction_are_stored_as_ever(gpu: Device, programs: ProgramCache) -> None:
    """By the kernel that stores whole results through a tensor map."""
    family = FAMILIES["wgmma"]
    limits: Any = gpu.limits
    for call in (Call((200, 2048, 264), beta=0.5), Call((65, 1000, 129), gap=3)):
        problem = Gemm(*call.shape, "float16", accuracy="native")
        chosen = {**family.presets["turns-tma"].configuration, "splits": 4}
        program = make_program(family, chosen, problem, limits, programs)
        kernel = GpuKernel(program)
        check(kernel, program.plan, problem, call)
        kernel.close()


def check(kernel: GpuKernel, plan: Any, problem: Gemm, call: Call) -> bytes:
    """Equal calls give equal bits, which are right, and nothing is written outside C; the bits."""
    row, result = DTYPES[problem.dtype], DTYPES[problem.result_dtype]
    rng = np.random.default_rng(problem.m)
    shapes = problem.a_shape, problem.b_shape, problem.c_shape
    types = row.numpy, row.numpy, result.numpy
    a, b, c = (
        rng.uniform(-1, 1, shape).astype(each) for shape, each in zip(shapes, types, strict=True)
    )
    if row.itemsize == 4:
        a, b = uneven(a), uneven(b)
    launch = kernel.launcher(plan)
    given = [spread(a, call), spread(b, call)]
    given.append(spread(c if call.beta else np.full_like(c, np.nan), call))
    results = set()
    with activated(0):
        memory = [driver().allocate(each.nbytes) for each in given]
        places = [
            int(place) + call.offset * each.itemsize
            for place, each in zip(memory, given, strict=True)
        ]
        leading = [shape[1] + call.gap for shape in shapes]
        operands = [number for pair in zip(places, leading, strict=True) for number in pair]
        for _ in range(3):
            for place, each in zip(memory, given, strict=True):
                driver().upload(int(place), each)
            launch(*operands, call.alpha, call.beta)
            got = np.empty_like(given[2])
            driver().download(got, int(memory[2]))
            results.add(got.tobytes())
        for place in memory:
            place.free()
    assert len(results) == 1
    x, y = (to_tf32(each) if row.itemsize == 4 else each for each in (a, b))
    x, y = (each.astype(np.float64) for each in (x, y))
    x = x.T if problem.layout[0] == "t" else x
    y = y.T if problem.layout[1] == "t" else y
    old = call.beta * c.astype(np.float64)
    expected = call.alpha * (x @ y) + old
    scale = abs(call.alpha) * (np.abs(x) @ np.abs(y)) + np.abs(old)
    allowed = 2.0**-21 * max(8.0, problem.n**0.5) * scale
    allowed += 1.01 * result.unit_roundoff * np.abs(expected) + result.smallest
    found = inside(got, problem.c_shape, call).astype(np.float64)
    assert (np.abs(found - expected) <= allowed).all(), call
    inside(got, problem.c_shape, call)[:] = np.nan
    assert np.isnan(got).all(), f"{call}: wrote outside C"
    return results.pop()


@pytest.fixture
def never_complete(tmp_path: Path) -> KernelFamily:
    """`wgmma` that announces more bytes than it has copied: who waits for them waits for ever."""
    templates = tmp_path / "templates"
    shutil.copytree(data_dir("templates"), templates)
    template = templates / "gemm" / "cuda" / "wgmma.cu.j2"
    right = "arrived.expect(tile_bytes);"
    text = template.read_text()
    assert right in text
    template.write_text(text.replace(right, "arrived.expect(tile_bytes + 16);"))
    family = FAMILIES["wgmma"]
    return read_family(family.path, (templates,), (data_dir("search_spaces"),))


@pytest.mark.alone
def test_a_barrier_that_never_completes_costs_one_trial(
    never_complete: KernelFamily, gpu: Device, tmp_path: Path
) -> None:
    problem = Gemm(512, 512, 512, "float16", accuracy="native")
    families = {"wgmma": never_complete, "naive": FAMILIES["naive"]}
    hangs, right = (
        Candidate(name, each.default(problem, gpu.limits)) for name, each in families.items()
    )
    effort = Effort(budget_s=0.02, timeout_s=16.0)
    folder = ProgramCache(tmp_path / "programs")
    with GpuEvaluator(Work(problem, families, gpu, folder, effort=effort, workers=2)) as evaluator:
        for _ in range(2):
            measurement = evaluator.evaluate(hangs, None)
            assert measurement.outcome is Outcome.TIMEOUT, measurement
            assert evaluator.evaluate(right, None).ok


def test_a_captured_graph_replays_copies_and_maps(gpu: Device, programs: ProgramCache) -> None:
    """Of operands that maps cannot describe, as they are when the graph is replayed."""
    torch = pytest.importorskip("torch")
    family = FAMILIES["wgmma"]
    problem = Gemm(200, 300, 250, "float16", accuracy="native")
    limits: Any = gpu.limits
    program = make_program(
        family, family.presets["few-tiles"].configuration, problem, limits, programs
    )
    kernel = GpuKernel(program)
    a, b = (
        torch.empty(shape, dtype=torch.float16, device="cuda")
        for shape in ((200, 301), (300, 250))
    )
    c = torch.empty(200, 250, dtype=torch.float16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        kernel.launch(a.data_ptr(), 301, b.data_ptr(), 250, c.data_ptr(), 250, stream=stream)
    for seed in range(3):
        torch.manual_seed(seed)
        a.copy_(torch.randn(a.shape))
        b.copy_(torch.randn(b.shape))
        graph.replay()
        torch.cuda.synchronize()
        expected = a[:, :300].double() @ b.double()
        assert torch.allclose(c.double(), expected, rtol=2e-3, atol=2e-2)
