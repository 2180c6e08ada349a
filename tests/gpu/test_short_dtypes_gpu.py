"""16-bit types on a GPU: verified, timed beside cuBLAS, tuned, loaded and called."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune import Gemm, MatchQuality, load, matmul, tune
from autotune.core.configuration import Candidate
from autotune.core.dtypes import DTYPES
from autotune.core.measurement import Outcome
from autotune.families.program_cache import ProgramCache
from autotune.gpu.measure.evaluator import GpuEvaluator
from autotune.measuring.effort import Effort, Work
from autotune.targets.families import load_families, read_family

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.core.device import Device

SHORT = ("float16", "bfloat16")
FAMILIES = ("naive", "tiled", "block")
QUICK = Effort(budget_s=0.02, finals_s=0.2, timeout_s=20.0)

SHORT_SUMS = """\
family = "short_sums"
operation = "gemm"
target = "cuda"
template = "short_sums.cu.j2"
accuracy = "ieee"
summary = "Sums of the operands' own type, which are wrong"
dtypes = ["float16", "bfloat16"]
out_dtypes = ["float32"]

[parameters]
side = { values = [8], default = 8 }

[derived]
threads = "side * side"
registers = "40"
shared_bytes = "0"

[launch]
grid = ["ceildiv(K, side)", "ceildiv(M, side)", "1"]
block = ["side", "side", "1"]
shared_bytes = "0"
"""

SHORT_SUMS_TEMPLATE = """\
// {{ banner.splitlines() | join(" ") }}
{{ includes }}
extern "C" __global__ void __launch_bounds__(64) gemm({{ arguments }}) {
  const long long row = blockIdx.y * 8 + threadIdx.y;
  const long long column = blockIdx.x * 8 + threadIdx.x;
  if (row >= m || column >= k) return;
  {{ ctype }} sum(0.0f);
  for (int step = 0; step < n; ++step) {
    const float product = float(a[row * lda + step]) * float(b[step * (long long)ldb + column]);
    sum = {{ ctype }}(float(sum) + product);
  }
  float value = alpha * float(sum);
  if (beta != 0) value += beta * float(c[row * ldc + column]);
  c[row * ldc + column] = {{ out_ctype }}(value);
}
"""

# Of libraries while they are imported.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]


@pytest.mark.parametrize("out_dtype", ["own", "float32"])
@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize(
    ("sizes", "layout"),
    [((129, 257, 65), "nn"), ((256, 512, 320), "tt"), ((1300, 1290, 1300), "nn")],
)
def test_kernels_and_cublas_are_verified_and_timed(
    sizes: tuple[int, int, int],
    layout: str,
    dtype: str,
    out_dtype: str,
    gpu: Device,
    programs: ProgramCache,
) -> None:
    written = None if out_dtype == "own" else out_dtype
    problem = Gemm(*sizes, dtype=dtype, layout=layout, out_dtype=written)
    families = {name: load_families(target="cuda")[name] for name in FAMILIES}
    candidates = [
        Candidate(name, each.default(problem, gpu.limits)) for name, each in families.items()
    ]
    with GpuEvaluator(
        Work(problem, families, gpu, programs, effort=QUICK, workers=2)
    ) as evaluator:
        evaluator.prepare(candidates)
        for candidate in candidates:
            measurement = evaluator.evaluate(candidate, None)
            assert measurement.ok, (candidate, measurement)
        finals = evaluator.finals(candidates[:2])
        assert all(measurement.ok for measurement in finals.measurements), finals
        baseline = evaluator.baseline()
        assert baseline is not None, "cuBLAS is missing, or its product is not accurate"
        assert baseline.name.endswith(f"({dtype}, sums in float32)")


@pytest.mark.parametrize("dtype", SHORT)
def test_many_configurations_of_block_are_right(
    dtype: str, gpu: Device, programs: ProgramCache
) -> None:
    problem = Gemm(512, 384, 640, dtype=dtype)
    family = load_families(target="cuda")["block"]
    space = family.space(problem, gpu.limits)
    rows = space.sample(16, np.random.default_rng(11))
    candidates = [Candidate("block", space[int(row)]) for row in rows]
    with GpuEvaluator(
        Work(problem, {"block": family}, gpu, programs, effort=QUICK, workers=4)
    ) as evaluator:
        evaluator.prepare(candidates)
        for candidate in candidates:
            measurement = evaluator.evaluate(candidate, None)
            assert measurement.outcome in (Outcome.OK, Outcome.REJECTED), (candidate, measurement)


@pytest.mark.parametrize("out_dtype", [None, "float32"])
@pytest.mark.parametrize("dtype", SHORT)
def test_sums_in_16_bits_are_wrong(
    dtype: str, out_dtype: str | None, gpu: Device, programs: ProgramCache, tmp_path: Path
) -> None:
    (tmp_path / "short_sums.toml").write_text(SHORT_SUMS)
    (tmp_path / "short_sums.cu.j2").write_text(SHORT_SUMS_TEMPLATE)
    family = read_family(tmp_path / "short_sums.toml", (tmp_path,))
    problem = Gemm(64, 4096, 64, dtype=dtype, out_dtype=out_dtype)
    candidate = Candidate(family.name, family.default(problem, gpu.limits))
    with GpuEvaluator(
        Work(problem, {family.name: family}, gpu, programs, effort=QUICK, workers=1)
    ) as evaluator:
        measurement = evaluator.evaluate(candidate, None)
        assert measurement.outcome is Outcome.WRONG_RESULT, measurement
        assert "times what ieee allows" in measurement.reason


def product(problem: Gemm, a: Any, b: Any) -> tuple[Any, Any]:
    """What C must be, in float64, and how far it may be off."""
    left = a.T if problem.layout[0] == "t" else a
    right = b.T if problem.layout[1] == "t" else b
    expected = left.double() @ right.double()
    scale = left.double().abs() @ right.double().abs()
    result = DTYPES[problem.result_dtype]
    return expected, 2.0**-19 * scale + 1.01 * result.unit_roundoff * expected.abs() + 2.0**-24


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "layout"),
    [(*each, "nn") for each in itertools.product(SHORT, (None, "float32"))]
    + [("bfloat16", None, "tt")],
)
def test_tuned_kernels_are_loaded_and_called_on_tensors(
    dtype: str, out_dtype: str | None, layout: str, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    problem = Gemm(192, 256, 320, dtype=dtype, out_dtype=out_dtype, layout=layout)
    result = tune(
        problem,
        target="cuda",
        families=FAMILIES,
        trials=8,
        timeout=90.0,
        cache=tmp_path,
        effort=QUICK,
    )
    assert result.best.binary is not None
    kernel = load(problem, "cuda", cache=tmp_path)
    assert kernel.match is MatchQuality.EXACT
    short, wide = getattr(torch, dtype), getattr(torch, problem.result_dtype)
    a = torch.randn(problem.a_shape, device="cuda").to(short)
    b = torch.randn(problem.b_shape, device="cuda").to(short)
    out = kernel(a, b)
    assert out.dtype is wide
    expected, allowed = product(problem, a, b)
    assert bool(((out.double() - expected).abs() <= allowed).all())
    before = torch.randn(problem.c_shape, device="cuda").to(wide)
    both = before.clone()
    assert kernel(a, b, both, alpha=0.5, beta=2.0) is both
    wanted = 0.5 * expected + 2.0 * before.double()
    unit = DTYPES[problem.result_dtype].unit_roundoff
    limit = allowed + 1.01 * unit * wanted.abs() + 2.0**-20 * before.double().abs()
    assert bool(((both.double() - wanted).abs() <= limit).all())


@pytest.mark.parametrize("dtype", SHORT)
def test_matmul_of_tensors(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    problem = Gemm(100, 300, 70, dtype)
    a = torch.randn(problem.a_shape, device="cuda").to(getattr(torch, dtype))
    b = torch.randn(problem.b_shape, device="cuda").to(getattr(torch, dtype))
    out = matmul(a, b)
    expected, allowed = product(problem, a, b)
    assert out.dtype is a.dtype
    assert bool(((out.double() - expected).abs() <= allowed).all())


def test_float16_arrays_of_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(shape).astype("float16") for shape in ((96, 128), (128, 80)))
    kernel = load(Gemm(96, 128, 80, "float16", "float32"), "cuda", match="nearest")
    out = kernel(cupy.asarray(a), cupy.asarray(b))
    assert out.dtype == np.float32
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(cupy.asnumpy(out), expected, rtol=1e-4, atol=1e-3)
