"""`skinny` and `outer`: what is decided at the call, what rows allow, and what blocks add up."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from gemm_on_host import Case, launch_kernels, relative_error
from host_execution import AVAILABLE, guarded

from autotune.core.configuration import Value
from autotune.core.dtypes import DTYPES
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.targets.families import load_families

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not AVAILABLE, reason="emitted CUDA C++ is compiled by g++ here"),
]

FAMILIES = load_families(target="cuda", operation="gemm")
LIMITS = find_gpu("h200").limits
SMALL: Mapping[str, Mapping[str, Value]] = {
    "skinny": {"few": 2, "loads": 4, "held": 8, "warps": 4, "across": 8, "splits": 1},
    "outer": {"sn": 4, "warps": 4, "across": 16, "rows": 32},
}


def small(name: str, **changed: Value) -> Mapping[str, Value]:
    """A configuration of few threads, compiled once for whatever is decided at the call."""
    family = FAMILIES[name]
    declared = {p.name: p.default for p in family.parameters if p.default is not None}
    return family.conform({**declared, **SMALL[name], **changed})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


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
    launch_kernels(FAMILIES["skinny"], configuration, case, LIMITS, operands, folder, **how)
    return bytes(np.ascontiguousarray(operands["c"]).data)


@pytest.mark.parametrize("sizes", [(2, 1500, 65), (3, 900, 40), (1, 511, 64)])
@pytest.mark.parametrize("splits", [2, 5, 64])
def test_whichever_block_is_last_the_bits_are_the_same(
    sizes: tuple[int, int, int], splits: int, folder: Path
) -> None:
    case = Case(*sizes, paddings=(1, 3, 2), misaligned=(0, 1, 2), alpha=-0.5, beta=0.75)
    results = {
        product(small("skinny", splits=splits), case, folder, backwards=backwards)
        for backwards in (False, True)
    }
    assert len(results) == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("side", ["rows", "columns"])
@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize(
    ("paddings", "misaligned"),
    [
        ((0, 0, 0), (0, 0, 0)),
        ((4, 8, 4), (0, 0, 0)),
        ((1, 3, 5), (0, 0, 0)),
        ((0, 0, 0), (1, 3, 2)),
    ],
)
def test_any_threads_and_parts_on_any_rows(
    side: str,
    layout: str,
    paddings: tuple[int, int, int],
    misaligned: tuple[int, int, int],
    folder: Path,
) -> None:
    rng = np.random.default_rng(3)
    for across, splits in ((1, 1), (4, 3), (32, 1), (128, 2)):
        for sizes in ((3, 520, 68), (68, 520, 3), (1, 7, 1)):
            case = Case(*sizes, layout=layout, paddings=paddings, misaligned=misaligned, beta=0.5)
            configuration = small("skinny", side=side, across=across, splits=splits)
            error = relative_error(FAMILIES["skinny"], configuration, case, LIMITS, rng, folder)
            assert error < 60 * DTYPES["float32"].unit_roundoff, (configuration, case)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("side", ["rows", "columns"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("few", [1, 4])
def test_rows_begin_anywhere(dtype: str, side: str, layout: str, few: int, folder: Path) -> None:
    """Leading dimensions and bases of every kind modulo 16 bytes, and NaN all around."""
    rng = np.random.default_rng(few)
    vector = 16 // DTYPES[dtype].itemsize
    sizes = [(3, 520, 300), (2, 75, 37), (1, 2100, 21)]
    sizes += [(2, *rng.integers(1, 41, 2).tolist()) for _ in range(5)]
    for index, ((short, n, long), padding) in enumerate(
        zip(sizes, rng.permutation(8).tolist(), strict=True)
    ):
        m, k = (short, long) if side == "rows" else (long, short)
        stored_a = (m, n) if layout[0] == "n" else (n, m)
        stored_b = (n, k) if layout[1] == "n" else (k, n)
        # What is at a page's very end is guarded to the byte.
        ends = tuple(
            -((rows - 1) * (columns + padding) + columns) % vector
            for rows, columns in (stored_a, stored_b)
        )
        across, splits = ((4, 1), (8, 3), (32, 1), (16, 2), (2, 1), (64, 2))[index % 6]
        for wide, bases in (
            (8, (0, 0)),
            (16, ends),
            (8, ends),
            (8, rng.integers(1, vector, 2).tolist()),
        ):
            case = Case(
                *(m, n, k, dtype, layout),
                paddings=(padding, padding, 1),
                misaligned=(*bases, 0),
                special=splits > 1,
                out_dtype="float32" if DTYPES[dtype].itemsize == 2 else None,
            )
            chosen = {"few": few, "wide": wide, "loads": 16, "held": 16}
            how = {"across": max(few, across), "splits": splits}
            configuration = small("skinny", side=side, **how, **chosen)
            error = relative_error(FAMILIES["skinny"], configuration, case, LIMITS, rng, folder)
            sums = DTYPES[dtype].accumulated
            assert error < 60 * sums.unit_roundoff, (configuration, case)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("n", [1, 3, 4, 11])
def test_reductions_shorter_and_longer_than_what_is_in_registers(
    layout: str, n: int, folder: Path
) -> None:
    rng = np.random.default_rng(n)
    for (across, rows), k in itertools.product([(1, 16), (16, 32), (128, 128)], [64, 67]):
        case = Case(150, n, k, layout=layout, misaligned=(1, 2, 0), alpha=1.5, beta=-0.25)
        configuration = small("outer", across=across, rows=rows)
        error = relative_error(FAMILIES["outer"], configuration, case, LIMITS, rng, folder)
        assert error < 20 * DTYPES["float32"].unit_roundoff, (configuration, case)
