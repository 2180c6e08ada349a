"""Random valid configurations of the CUDA families, executed on the host against float64."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gemm_on_host import Case, relative_error
from host_execution import AVAILABLE, HostProgram

from autotune.catalog import load_families
from autotune.cuda_limits import CudaLimits
from autotune.family import KernelFamily
from autotune.known_gpus import find_gpu
from autotune.problem import Gemm

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="emitted CUDA C++ is compiled by g++ here")

CONFIGURATIONS = 2
"""Per family, dtype and layout; each is compiled, which takes about a second."""


@pytest.fixture(scope="module")
def limits() -> CudaLimits:
    return find_gpu("h200").limits


@pytest.fixture(scope="module")
def families() -> dict[str, KernelFamily]:
    return load_families(target="cuda", operation="gemm")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "layout"),
    [("block", "nn"), *(("pipelined", layout) for layout in ("nn", "nt", "tn", "tt"))],
)
def test_random_configurations_compute_the_product(
    name: str,
    dtype: str,
    layout: str,
    families: dict[str, KernelFamily],
    limits: CudaLimits,
    tmp_path: Path,
) -> None:
    family = families[name]
    assert layout in family.layouts
    rng = np.random.default_rng(7)
    for _ in range(CONFIGURATIONS):
        # Small C: split reductions are valid too.
        problem = Gemm(m=256, n=4096, k=256, dtype=dtype)
        space = family.space(problem, limits)
        configuration = space[int(rng.integers(len(space)))]
        sm, sn, sk = (int(configuration[size]) for size in ("sm", "sn", "sk"))
        tiles = 3 * min(4, int(configuration.get("splits", 1)))
        largest = (2 * sm + 9, sn * tiles + 9, 2 * sk + 9)
        for _ in range(2):
            case = Case.random(rng, largest, dtype, layout)
            error = relative_error(family, configuration, case, limits, rng, tmp_path)
            bound = 2 * np.finfo(dtype).eps * max(4.0, case.n**0.5)
            assert error < bound, f"{name} {configuration} on {case}"


@pytest.mark.parametrize("name", ["block", "pipelined"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 70, 3), (129, 1, 130), (131, 37, 1)])
def test_degenerate_shapes(
    name: str,
    shape: tuple[int, int, int],
    families: dict[str, KernelFamily],
    limits: CudaLimits,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    family = families[name]
    configuration = family.default(Gemm(m=2048, n=2048, k=2048), limits)
    folder = tmp_path_factory.getbasetemp() / "degenerate"  # one compilation for all shapes
    case = Case(*shape, misaligned=(1, 2, 3), alpha=0.5, beta=2.0)
    rng = np.random.default_rng(3)
    error = relative_error(family, configuration, case, limits, rng, folder)
    assert error < 1e-6


def test_a_partial_barrier_ends_the_process_with_its_place(tmp_path: Path) -> None:
    """The harness itself: what it must notice, it notices."""
    source = """
extern "C" __global__ void __launch_bounds__(32) half(int* out) {
  if (threadIdx.x < 16) __syncthreads();
  out[threadIdx.x] = 1;
}
"""
    script = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from host_execution import HostProgram\n"
        f"program = HostProgram({source!r}, Path({str(tmp_path)!r}))\n"
        "program.launch('half', (1, 1, 1), (32, 1, 1), [np.zeros(32, np.int32)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    assert done.returncode == 70
    assert "a barrier that not all threads reach in block (0, 0, 0), thread" in done.stderr


def test_copies_arrive_when_they_are_waited_for(tmp_path: Path) -> None:
    source = """
extern "C" __global__ void __launch_bounds__(1) late(const float* from, float* out) {
  __shared__ float tile[2];
  tile[0] = tile[1] = -1.0f;
  copy_async<1>(&tile[0], from);
  commit_copies();
  copy_async<1>(&tile[1], from + 1);
  commit_copies();
  out[0] = tile[0];
  wait_for_copies<1>();
  out[1] = tile[0];
  out[2] = tile[1];
  wait_for_copies<0>();
  out[3] = tile[1];
}
"""
    out = np.zeros(4, np.float32)
    given = np.array([5.0, 6.0], np.float32)
    HostProgram(source, tmp_path).launch("late", (1, 1, 1), (1, 1, 1), [given, out])
    assert out.tolist() == [-1.0, 5.0, -1.0, 6.0]
