"""Every CUDA family: random valid configurations, executed on the host against float64.

`AUTOTUNE_HOST_CONFIGURATIONS` is how many of each family, dtype and layout are tried, and
`AUTOTUNE_HOST_SEED` says which.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gemm_on_host import Case, relative_error, steps_at_once
from host_execution import ON_HOST

from autotune.core.configuration import Configuration, Value
from autotune.core.dtypes import DTYPES
from autotune.core.limits import GpuLimits
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

pytestmark = ON_HOST

CONFIGURATIONS = int(os.environ.get("AUTOTUNE_HOST_CONFIGURATIONS", "2"))
SEED = int(os.environ.get("AUTOTUNE_HOST_SEED", "0"))
CASES = 2
"""Calls of each compiled configuration."""

SHAPES = (
    (4096, 4096, 4096),
    (2047, 2051, 2049),
    (16, 4096, 4096),
    (4096, 4096, 128),
    (64, 65536, 64),
    (1, 4096, 4096),
    (4096, 4096, 1),
    (4, 4096, 4096),
    (8, 4096, 4096),
    (16, 16384, 4096),
    (4096, 4096, 8),
    (4096, 1, 4096),
    (4096, 16, 4096),
    (16, 65536, 16),
)
"""What presets are for."""

FAMILIES = {
    name: family
    for name, family in load_families(target="cuda", operation="gemm").items()
    if family.launch is not None and not family.launch.architecture_features
}
"""Those written in C++ alone: instructions of one architecture have no meaning here."""

SQUARE = ((512, 4096, 512),)
"""What configurations are drawn for: small C and a long reduction, so that it is split too."""

DRAWN_FOR = {
    "skinny": ((6, 4096, 512), (512, 4096, 3), (13, 4096, 512), (512, 4096, 1)),
    "outer": ((512, 1, 512), (600, 13, 300), (300, 4, 2000), (512, 30, 512)),
}
"""The same for families that serve C of certain shapes."""


@pytest.fixture(scope="module")
def limits() -> GpuLimits:
    return find_gpu("h200").limits


def tolerance(case: Case, accuracy: str = "ieee") -> float:
    """What rounding explains: errors of a sum grow with the square root of its length."""
    of_sums = 4 * DTYPES[case.dtype].accumulated.unit_roundoff * max(4.0, case.n**0.5)
    return of_sums + (2**-10 if accuracy == "tf32" else 0.0)


def largest_sizes(
    configuration: Configuration, names: Mapping[str, Value]
) -> tuple[int, int, int]:
    """Sizes up to which a configuration meets whole tiles, ragged ones, and several of each.

    `names` has the values of its derived names.
    """
    if "side" in configuration:
        few, strip = int(names["few"]) + 3, int(names["strip"]) + 9
        depth = 2 * int(names["sn"]) + 9
        return (few, depth, strip) if names["side"] == "rows" else (strip, depth, few)
    if "rows" in configuration:
        return int(names["rows"]) + 9, 2 * int(names["sn"]) + 3, int(names["strip"]) + 9

    def tile(name: str, otherwise: int) -> int:
        size = configuration.get(name, configuration.get("tile", otherwise))
        assert isinstance(size, int)
        return size

    return 2 * tile("sm", 32) + 9, 3 * tile("sn", 16) + 9, 2 * tile("sk", 32) + 9


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "layout", "dtype", "out_dtype"),
    [
        (name, layout, dtype, out_dtype)
        for name, family in FAMILIES.items()
        for layout in family.layouts
        for dtype in family.dtypes
        for out_dtype in family.results(dtype)
    ],
)
def test_random_configurations_compute_the_product(
    name: str, layout: str, dtype: str, out_dtype: str, limits: GpuLimits, tmp_path: Path
) -> None:
    family = FAMILIES[name]
    written = "" if out_dtype == dtype else f" {out_dtype}"
    seed = SEED, zlib.crc32(f"{name} {layout} {dtype}{written}".encode())
    shapes = DRAWN_FOR.get(name, SQUARE)
    m, n, k = shapes[sum(seed) % len(shapes)]
    problem = Gemm(m=m, n=n, k=k, dtype=dtype, layout=layout, out_dtype=out_dtype)
    space = family.space(problem, limits)
    rows = set(space.sample(CONFIGURATIONS, np.random.default_rng(seed)).tolist())

    def check(row: int) -> list[str]:
        rng = np.random.default_rng((*seed, row))
        configuration = space[row]
        # Blocks of threads take their time here.
        for runtime, most in (("splits", 5), ("rows", 128)):
            if runtime in configuration:
                fewer = min(int(configuration[runtime]), most)
                configuration = family.conform({**configuration, runtime: fewer})
        failures = []
        for number in range(CASES):
            sizes = largest_sizes(configuration, family.values(configuration, problem, limits))
            case = Case.random(rng, sizes, dtype, layout, problem.out_dtype)
            n = steps_at_once(name, configuration, dtype, case.n)
            case = replace(case, n=n, special=number % 2 == 1)
            error = relative_error(family, configuration, case, limits, rng, tmp_path)
            if not error < tolerance(case, family.accuracy):
                failures.append(f"{configuration} is off by {error:.2g} on {case}")
        return failures

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # most of the time goes to g++
        failures = [failure for each in pool.map(check, rows) for failure in each]
    assert failures == []


@pytest.mark.sampled(1)
@pytest.mark.skipif("pipelined" not in FAMILIES, reason="there is no family pipelined")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_operands_with_odd_rows_are_realigned(
    dtype: str, limits: GpuLimits, tmp_path: Path
) -> None:
    family = FAMILIES["pipelined"]
    space = family.space(Gemm(m=511, n=4095, k=513, dtype=dtype), limits)
    rng = np.random.default_rng((SEED, zlib.crc32(dtype.encode())))
    drawn = (space[int(row)] for row in space.sample(200, rng))
    realigned = [configuration for configuration in drawn if configuration["realign"] == 1]
    assert realigned
    for configuration in realigned[:2]:
        for extra in (0, 1, 3):  # rows of whole vectors too
            m, n, k = (size // 16 * 8 + extra for size in largest_sizes(configuration, {}))
            case = Case(m, n, k, misaligned=(1, 0, 3), alpha=-0.5, beta=1.5, dtype=dtype)
            error = relative_error(family, configuration, case, limits, rng, tmp_path)
            assert error < tolerance(case), (configuration, case)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 70, 3), (65, 1, 66), (67, 37, 1)])
@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n, f in FAMILIES.items() for d in f.dtypes if d != "float64"]
)
def test_degenerate_shapes(
    name: str,
    dtype: str,
    shape: tuple[int, int, int],
    limits: GpuLimits,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    family = FAMILIES[name]
    usual = DRAWN_FOR.get(name, ((2048, 2048, 2048),))[0]
    configuration = family.default(Gemm(*usual, dtype=dtype), limits)
    folder = tmp_path_factory.getbasetemp() / "degenerate"  # one compilation for all shapes
    m, n, k = shape
    n = steps_at_once(name, configuration, dtype, n)
    case = Case(m, n, k, dtype, misaligned=(1, 2, 3), alpha=0.5, beta=2.0)
    error = relative_error(family, configuration, case, limits, np.random.default_rng(3), folder)
    assert error < tolerance(case, family.accuracy)


@pytest.mark.parametrize(
    ("name", "preset"), [(name, each) for name, f in FAMILIES.items() for each in f.presets]
)
def test_presets_are_valid_for_some_shape(name: str, preset: str, limits: GpuLimits) -> None:
    family = FAMILIES[name]
    configuration = family.presets[preset].configuration
    rejections = []
    for shape in SHAPES:
        space = family.space(Gemm(*shape, dtype=family.dtypes[0]), limits)
        rejections.append(str(space.rejection(configuration)))
        if rejections[-1] == "None":
            return
    raise AssertionError(rejections)
