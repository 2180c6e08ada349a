"""The complete family among the examples: it is emitted, compiled, run, and right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from epilogue_families import write_operations
from gemm_on_host import Case, relative_error
from host_execution import NEEDS_COMPILER, HostProgram, guarded

from autotune.core.errors import MissingDependencyError
from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import compile_cuda, nvrtc_version
from autotune.operations.problem import Gemm
from autotune.targets.families import catalog

FAMILY = Path(__file__).parents[2] / "examples" / "one_each"
LIMITS = find_gpu("h200").limits


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """The family, and operations with an epilogue."""
    return [FAMILY, write_operations(tmp_path / "operations")]


@pytest.mark.parametrize("operation", ["gemm", "linear_relu", "gated"])
def test_it_compiles_and_needs_what_it_says(operation: str, folders: list[Path]) -> None:
    try:
        nvrtc_version()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    family = catalog("cuda", operation, folders)["one_each"]
    for dtype, out_dtype in (("float32", None), ("float64", None), ("bfloat16", "float32")):
        problem = family.defined.at((100, 200, 300), dtype=dtype, out_dtype=out_dtype)
        configuration = family.default(problem, LIMITS)
        source = render(family, configuration, dtype=dtype, out_dtype=out_dtype)
        assert all(len(line) <= 100 for line in source.text.splitlines())
        binary = compile_cuda(source.text, LIMITS.architecture)
        assert binary.kernels.keys() == {operation, "add_parts"}
        assert binary.kernels[operation].max_threads == 256
        assert binary.kernels[operation].registers <= 40


@NEEDS_COMPILER
@pytest.mark.parametrize("splits", [1, 4])
def test_it_computes_the_product(splits: int, folders: list[Path], tmp_path: Path) -> None:
    family = catalog("cuda", extra=folders)["one_each"]
    rng = np.random.default_rng(splits)
    configuration = {"rows": 2, "splits": splits}
    assert family.space(Gemm(40, 130, 70), LIMITS).rejection(configuration) is None
    for number in range(4):
        case = Case.random(rng, (40, 130, 70), "float32", "nn")
        error = relative_error(family, configuration, case, LIMITS, rng, tmp_path)
        assert error < 130 * 2**-23, (number, case)


@NEEDS_COMPILER
@pytest.mark.parametrize("splits", [1, 4])
def test_it_applies_an_epilogue_once(splits: int, folders: list[Path], tmp_path: Path) -> None:
    family = catalog("cuda", "linear_relu", folders)["one_each"]
    source = render(family, {"rows": 2, "splits": splits})
    program = HostProgram(source.text, tmp_path)
    m, n, k = 21, 130, 45
    rng = np.random.default_rng(2)
    a, b, bias, c = (
        guarded(shape, shape[1] + 3, "float32") for shape in ((m, n), (n, k), (1, k), (m, k))
    )
    workspace = guarded((1, splits * m * k), splits * m * k, "float32")
    for each in (a, b, bias, c):
        each[...] = rng.uniform(-1, 1, each.shape)
    expected = np.maximum(0.5 * a.astype("f8") @ b - 2.0 * c + bias, 0)
    sizes = [m, n, k, 0.5, -2.0]
    arguments = [*sizes, a, n + 3, b, k + 3, bias, c, k + 3, workspace, splits]
    blocks = -(-m // 2) * -(-k // 32)
    program.launch("linear_relu", (blocks, 1, splits), (32, 2, 1), arguments)
    if splits > 1:
        program.launch("add_parts", (blocks, 1, 1), (32, 2, 1), arguments)
    np.testing.assert_allclose(c, expected, atol=1e-4)
    assert (c == 0).any()
