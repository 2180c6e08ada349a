"""What `pipelined` decides at the call: parts of the reduction, and how operands are copied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from gemm_on_host import Case, launch_kernels, relative_error
from host_execution import AVAILABLE, guarded

from autotune.core.configuration import Value
from autotune.core.dtypes import DTYPES
from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not AVAILABLE, reason="emitted CUDA C++ is compiled by g++ here"),
]

FAMILY = load_families(target="cuda", operation="gemm")["pipelined"]
LIMITS = find_gpu("h200").limits
PROBLEM = Gemm(m=512, n=4096, k=512)
SMALL = {"sm": 32, "sk": 64, "sn": 8, "ty": 4, "tx": 4, "load_run": 8, "group": 1}


def small(**changed: Value) -> Mapping[str, Value]:
    """A configuration of small tiles, compiled once for whatever is decided at the call."""
    declared = {p.name: p.default for p in FAMILY.parameters if p.default is not None}
    return FAMILY.conform({**declared, **SMALL, **changed})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


def test_one_binary_serves_whatever_is_decided_at_the_call() -> None:
    texts = {
        render(FAMILY, small(splits=splits, group=group, last=last, realign=realign)).text
        for splits, last in ((1, 0), (7, 0), (7, 1))
        for group in (1, 16)
        for realign in (0, 1)
    }
    assert len(texts) == 1


def product(configuration: Mapping[str, Value], case: Case, folder: Path, **how: bool) -> bytes:
    """C's bytes, of operands that are the same at every call."""
    rng = np.random.default_rng(7)
    shapes = {"a": (case.m, case.n), "b": (case.n, case.k), "c": (case.m, case.k)}
    operands = {
        name: guarded(shape, shape[1] + padding, case.dtype, misaligned=off)
        for (name, shape), padding, off in zip(
            shapes.items(), case.paddings, case.misaligned, strict=True
        )
    }
    for each in operands.values():
        each[...] = rng.uniform(-1, 1, each.shape)
    launch_kernels(FAMILY, configuration, case, LIMITS, operands, folder, **how)
    return bytes(np.ascontiguousarray(operands["c"]).data)


@pytest.mark.parametrize("sizes", [(33, 150, 65), (70, 301, 131), (1, 1, 1)])
@pytest.mark.parametrize("splits", [2, 5, 9, 24])
def test_whoever_adds_the_parts_and_whenever_the_bits_are_the_same(
    sizes: tuple[int, int, int], splits: int, folder: Path
) -> None:
    case = Case(*sizes, paddings=(1, 3, 2), misaligned=(0, 1, 2), alpha=-0.5, beta=0.75)
    results = {
        product(small(splits=splits, last=last), case, folder, backwards=backwards)
        for last in (0, 1)
        for backwards in (False, True)
    }
    assert len(results) == 1


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
@pytest.mark.parametrize("transpose_through", ["copies", "registers"])
@pytest.mark.parametrize(
    ("sizes", "paddings", "misaligned"),
    [
        ((17, 64, 128), (0, 0, 0), (0, 0, 0)),  # fewer rows than a tile has, rows aligned
        ((64, 64, 20), (0, 0, 0), (0, 0, 0)),  # fewer columns
        ((64, 60, 128), (1, 0, 0), (0, 0, 0)),  # A's rows are not aligned, B's are
        ((64, 60, 128), (0, 1, 3), (0, 0, 1)),  # the other way round
        ((64, 61, 128), (3, 0, 0), (0, 3, 0)),  # one base is not aligned, nor is the reduction
        ((65, 63, 129), (3, 3, 3), (0, 0, 0)),  # rows of whole vectors, sizes that are not
    ],
)
def test_each_operand_is_copied_as_its_rows_allow(
    layout: str,
    transpose_through: str,
    sizes: tuple[int, int, int],
    paddings: tuple[int, int, int],
    misaligned: tuple[int, int, int],
    folder: Path,
) -> None:
    case = Case(*sizes, layout=layout, paddings=paddings, misaligned=misaligned)
    rng = np.random.default_rng(1)
    for splits, realign in ((1, 0), (3, 0), (3, 1)):
        configuration = small(
            transpose_through=transpose_through,
            splits=splits,
            last=int(splits > 1),
            realign=realign,
        )
        error = relative_error(FAMILY, configuration, case, LIMITS, rng, folder)
        assert error < 40 * DTYPES["float32"].unit_roundoff, (configuration, case)


@pytest.mark.parametrize(
    "sizes", [{"sm": 96, "sk": 112}, {"sm": 112, "sk": 96}, {"sm": 48, "sk": 160}]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiles_that_are_no_powers_of_two(sizes: dict[str, int], dtype: str, folder: Path) -> None:
    space = FAMILY.space(Gemm(m=1000, n=4096, k=1000, dtype=dtype), LIMITS)
    drawn = (space[int(row)] for row in space.sample(20000, np.random.default_rng(2)))
    configuration = next(each for each in drawn if all(each[n] == v for n, v in sizes.items()))
    case = Case(161, 40, 225, dtype, misaligned=(1, 1, 1), beta=2.0)
    error = relative_error(FAMILY, configuration, case, LIMITS, np.random.default_rng(2), folder)
    assert error < 40 * DTYPES[dtype].unit_roundoff
