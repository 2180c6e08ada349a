"""Tensor cores and warp groups: alignments, banks, rounding, barriers and clusters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gemm_on_host import FAMILIES, LIMITS, Case, launch_kernels, relative_error, small
from host_execution import ON_HOST, HostProgram, guarded

from autotune.core.dtypes import DTYPES
from autotune.families.rendering import render
from autotune.operations.problem import Gemm

pytestmark = ON_HOST

TYPES = {"dmma": "float64", "mma": "float16", "mma_tf32": "float32"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    ("sizes", "paddings", "misaligned"),
    [
        ((17, 64, 64), (0, 0, 0), (0, 0, 0)),  # fewer rows than a tile has, rows aligned
        ((64, 61, 20), (3, 4, 0), (0, 0, 0)),  # rows aligned, ends within 16 bytes
        ((64, 60, 64), (1, 0, 0), (0, 0, 0)),  # A's rows are not aligned, B's are
        ((40, 61, 37), (3, 0, 1), (0, 3, 1)),  # nothing is aligned
        ((65, 33, 33), (7, 7, 7), (0, 0, 0)),  # a tile and a row, step, column more
        ((33, 61, 35), (1, 1, 0), (0, 0, 0)),  # rows of words, ends within one
    ],
)
def test_operands_of_any_alignment(
    name: str,
    layout: str,
    sizes: tuple[int, int, int],
    paddings: tuple[int, int, int],
    misaligned: tuple[int, int, int],
    folder: Path,
) -> None:
    case = Case(*sizes, TYPES[name], layout, paddings, misaligned, beta=0.5)
    rounding = 2.0**-10 if name == "mma_tf32" else 0.0
    error = relative_error(
        FAMILIES[name], small(name), case, LIMITS, np.random.default_rng(1), folder
    )
    assert error < rounding + 40 * DTYPES[case.dtype].accumulated.unit_roundoff


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("fragments", [1, 2])
@pytest.mark.parametrize("multiprocessors", [1, 5, 12, 132])
@pytest.mark.parametrize(
    ("sizes", "paddings", "misaligned"),
    [
        ((96, 160, 128), (0, 0, 0), (0, 0, 0)),  # rows aligned, as many steps as buffers, and more
        ((100, 20, 120), (0, 0, 0), (0, 0, 0)),  # fewer steps than buffers
        ((70, 61, 99), (3, 0, 1), (0, 3, 1)),  # nothing is aligned
        ((33, 1, 200), (1, 1, 0), (0, 0, 0)),  # a step
    ],
)
def test_blocks_that_stay_copy_ahead_into_their_next_tile(
    layout: str,
    fragments: int,
    multiprocessors: int,
    sizes: tuple[int, int, int],
    paddings: tuple[int, int, int],
    misaligned: tuple[int, int, int],
    folder: Path,
) -> None:
    limits = replace(LIMITS, multiprocessor_count=multiprocessors)
    configuration = small("dmma", persistent=1, fragments=fragments)
    case = Case(*sizes, "float64", layout, paddings, misaligned, beta=0.5)
    rng = np.random.default_rng(multiprocessors)
    error = relative_error(FAMILIES["dmma"], configuration, case, limits, rng, folder)
    assert error < 40 * DTYPES["float64"].unit_roundoff


PLACES = """
extern "C" __global__ void __launch_bounds__(1) places(int* as, int* bs) {
  const Tiles& tiles = *reinterpret_cast<const Tiles*>(shared_memory);
  for (int lane = 0; lane < 32; ++lane) {
    const Parts parts(WARP_M, WARP_K, lane);
    as[lane] = parts.a.of(tiles.a[0], 1, 8) - tiles.a[0];
    bs[lane] = parts.b.of(tiles.b[0], 1, 8) - tiles.b[0];
  }
}
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["dmma", "mma_tf32"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    "tile",
    [
        {"sm": 32, "sk": 96, "sn": 16, "warp_m": 32, "warp_k": 32},
        {"sm": 32, "sk": 32, "sn": 32},
        {"sm": 64, "sk": 128, "sn": 8, "warp_m": 32, "warp_k": 64},
        {"sm": 192, "sk": 64, "sn": 32, "warp_m": 64, "warp_k": 32},
    ],
)
def test_a_warp_reads_a_block_from_different_banks(
    name: str, layout: str, tile: dict[str, int], tmp_path: Path
) -> None:
    family, item = FAMILIES[name], DTYPES[TYPES[name]].itemsize
    configuration = small(name, **tile, fragments=1)
    source = render(family, configuration, dtype=TYPES[name], layout=layout).text + PLACES
    found = np.zeros((2, 32), np.int32)
    HostProgram(source, tmp_path).launch("places", (1, 1, 1), (1, 1, 1), [*found])
    for elements in found:
        # 32 banks of 4 bytes serve 128 bytes at a time: half a warp's doubles.
        for together in np.split(elements, item // 4):
            first = together * item // 4 % 32
            banks = {int(bank) for word in range(item // 4) for bank in first + word}
            assert len(banks) == 32, elements.tolist()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    "tile",
    [
        {"sm": 16, "sk": 32, "sn": 16},
        {"sm": 32, "sk": 64, "sn": 64},
        {"sm": 192, "sk": 128, "sn": 32, "warp_m": 64, "warp_k": 64},
    ],
)
def test_matrices_are_read_from_different_banks(
    dtype: str, layout: str, tile: dict[str, int], folder: Path
) -> None:
    """What reads them on the host ends the process where two rows of a matrix share banks."""
    configuration = small("mma", **tile, fragments=1)
    case = Case(tile["sm"], tile["sn"], tile["sk"], dtype, layout)
    rng = np.random.default_rng(3)
    error = relative_error(FAMILIES["mma"], configuration, case, LIMITS, rng, folder)
    assert error < 40 * DTYPES["float32"].unit_roundoff


def test_operands_are_rounded_to_tf32_and_not_cut(folder: Path) -> None:
    # Lone products of numbers between two of TF32: cut, each would be off by nearly 2^-9.
    between = np.float32(1 + 2.0**-10 - 2.0**-20)
    case = Case(1, 1, 1, "float32")
    operands = {name: guarded((1, 1), 1, "float32") for name in "abc"}
    operands["a"][...], operands["b"][...] = between, np.float32(-1.5)
    launch_kernels(FAMILIES["mma_tf32"], small("mma_tf32"), case, LIMITS, operands, folder)
    assert operands["c"].item() == -1.5 * (1 + 2.0**-10)


def test_not_a_number_and_infinity_reach_c(folder: Path) -> None:
    for name, dtype in TYPES.items():
        case = Case(3, 5, 4, dtype)
        shapes = {"a": (3, 5), "b": (5, 4), "c": (3, 4)}
        operands = {key: guarded(shape, shape[1], dtype) for key, shape in shapes.items()}
        operands["a"][...], operands["b"][...] = 1, 1
        operands["a"][1, 4], operands["b"][0, 2] = np.nan, np.inf
        launch_kernels(FAMILIES[name], small(name), case, LIMITS, operands, folder)
        c = operands["c"].astype(np.float64)
        assert np.isnan(c[1]).all()
        assert np.isinf(c[[0, 2], 2]).all()
        assert (c[[0, 2]][:, [0, 1, 3]] == 5).all()


def test_classes_follow_the_types() -> None:
    for name, dtype in TYPES.items():
        family = FAMILIES[name]
        assert family.unsupported(Gemm(8, 8, 8, dtype, accuracy=family.accuracy)) is None
    assert "accuracy native, not ieee" in str(
        FAMILIES["mma"].unsupported(Gemm(8, 8, 8, "float16", accuracy="ieee"))
    )
    assert "accuracy tf32, not ieee" in str(FAMILIES["mma_tf32"].unsupported(Gemm(8, 8, 8)))


# --- wgmma: barriers, tensor maps and clusters


def check(name: str, preset: str, case: Case, folder: Path, early: bool, **changed: int) -> None:
    family = FAMILIES[name]
    configuration = family.conform({**family.presets[preset].configuration, **changed})
    rng = np.random.default_rng(5)
    error = relative_error(family, configuration, case, LIMITS, rng, folder, early=early)
    rounding = 2.0**-10 if name == "wgmma_tf32" else 0.0
    assert error < rounding + 40 * DTYPES["float32"].unit_roundoff


EARLY = pytest.mark.parametrize("early", [False, True], ids=["late", "early"])


@EARLY
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_layouts(layout: str, early: bool, folder: Path) -> None:
    case = Case(72, 200, 136, "bfloat16", layout, (8, 8, 8), alpha=-0.75, beta=0.5)
    check("wgmma", "small", case, folder, early, splits=1, sk=128)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("preset", "case"),
    [
        ("large", Case(300, 136, 264, "bfloat16", "nt", (0, 0, 3), (0, 0, 1), beta=0.5)),
        ("square-pairs", Case(136, 72, 270, "float16", "tn", (8, 2, 0), alpha=0.5)),
        ("three", Case(190, 200, 100, "bfloat16", "nn", (0, 4, 1), special=True)),
        ("turns-tma", Case(392, 456, 264, "float16", "tt", (0, 0, 8), alpha=-1.0)),
        ("turns-tma", Case(130, 72, 260, "float16", "nt", beta=-1.0)),
        ("few-tiles-clusters", Case(100, 600, 130, "bfloat16", "nn", (0, 6, 0), beta=0.5)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_presets(preset: str, case: Case, folder: Path) -> None:
    for early in (False, True):
        check("wgmma", preset, case, folder, early)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("sizes", [(300, 72, 264), (34, 80, 172), (36, 72, 48)], ids=str)
@pytest.mark.parametrize("swapped", [0, 1])
def test_tiles_end_with_their_matrices(
    swapped: int, sizes: tuple[int, int, int], layout: str, folder: Path
) -> None:
    """The last ones begin earlier, or are small, or belong to nobody: all by boxes in place."""
    m, n, k = sizes
    stored = n if layout[0] == "n" else m, k if layout[1] == "n" else n
    case = Case(m, n, k, "bfloat16", layout, (-stored[0] % 8, -stored[1] % 8, 0))
    changed = {"swapped": swapped, "cluster_m": 2, "cluster_k": 1, "sk": 112 - 32 * swapped}
    check("wgmma", "square", case, folder, False, **changed)


@pytest.mark.sampled(4)
@EARLY
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("shared", ["cluster_m", "cluster_k"])
def test_tiles_of_any_width_are_shared(
    layout: str, shared: str, early: bool, folder: Path
) -> None:
    case = Case(136, 328, 248, "bfloat16", layout, (8, 8, 6), alpha=0.5)
    changed = {"cluster_m": 1, "cluster_k": 1, shared: 2}
    check("wgmma", "square", case, folder, early, sk=112, **changed)


@pytest.mark.sampled(3)
@EARLY
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize(
    "cluster", [(2, 2, 2), (4, 1, 2), (1, 4, 1), (2, 2, 1), (1, 2, 4)], ids=str
)
def test_clusters_share_tiles_and_reductions(
    layout: str, cluster: tuple[int, int, int], early: bool, folder: Path
) -> None:
    case = Case(200, 456, 248, "bfloat16", layout, (8, 8, 8), alpha=0.5, beta=0.5)
    m, k, n = cluster
    changed = {"sm": 64, "consumers": 1, "cluster_m": m, "cluster_k": k, "cluster_n": n}
    check("wgmma", "square", case, folder, early, sk=64, splits=2, **changed)


SWAPPED = {
    "turns": {"sk": 72, "ping_pong": 1},
    "parts": {"sk": 40, "splits": 2},
    "cluster": {"sk": 72, "cluster_k": 2},
    "crossed": {"sk": 48, "cluster_m": 2, "cluster_k": 2},
    "reduced": {"sk": 24, "cluster_n": 2},
    "reduced in clusters": {"sk": 32, "cluster_m": 2, "cluster_n": 4, "splits": 2},
}
"""Programs that multiply C' = B' A', their rows in steps of 8."""


@pytest.mark.sampled(4)
@EARLY
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("program", SWAPPED)
def test_roles_are_swapped(program: str, layout: str, early: bool, folder: Path) -> None:
    columns = 200 if layout in ("nn", "tn") else 201  # rows of C begin anywhere
    rows = 139 if layout in ("nn", "nt") else 136
    case = Case(rows, 456, columns, "bfloat16", layout, (8, 8, 0), alpha=0.5, beta=0.5)
    base = {"swapped": 1, "sm": 128, "stages": 4, "cluster_m": 1, "cluster_k": 1}
    check("wgmma", "square", case, folder, early, **(base | SWAPPED[program]))


@EARLY
def test_swapped_roles_of_other_results(early: bool, folder: Path) -> None:
    wide = Case(30, 200, 133, "float16", "nt", (0, 0, 3), beta=-1.0, out_dtype="float32")
    base = {"swapped": 1, "sm": 128, "sk": 16, "cluster_m": 1}
    check("wgmma", "square", wide, folder, early, **base)
    special = Case(30, 200, 132, "bfloat16", "nt", special=True)
    check("wgmma", "square", special, folder, early, **base)
    check(
        "wgmma_tf32",
        "square",
        Case(20, 100, 132, "float32", "nt", (0, 4, 0)),
        folder,
        early,
        **base,
    )


@EARLY
@pytest.mark.parametrize("splits", [3, 7])
def test_parts_of_the_reduction(splits: int, early: bool, folder: Path) -> None:
    case = Case(72, 456, 133, "bfloat16", "nn", (0, 3, 0), alpha=2.0, beta=0.5)
    check("wgmma", "small", case, folder, early, splits=splits, sk=128)


@EARLY
@pytest.mark.parametrize("preset", ["small", "small-clusters"])
def test_parts_without_a_step_are_zero(preset: str, early: bool, folder: Path) -> None:
    case = Case(72, 136, 100, "bfloat16", "nt", (0, 0, 4), beta=0.5)
    check("wgmma", preset, case, folder, early, splits=5)


@EARLY
def test_results_of_float32_leave_in_boxes(early: bool, folder: Path) -> None:
    case = Case(136, 72, 260, "bfloat16", "nt", alpha=0.5, out_dtype="float32")
    check("wgmma", "large-tma", case, folder, early)


BOXED = {
    "narrow": {"sk": 112, "stages": 5},
    "four boxes": {"sk": 208, "stages": 3},
    "swapped": {"sk": 72, "swapped": 1},
    "swapped, in turns": {"sk": 136, "stages": 4, "swapped": 1, "ping_pong": 1},
    "swapped clusters": {"sk": 96, "swapped": 1, "cluster_k": 2},
    "two instructions": {"sm": 256, "sk": 144, "stages": 3},
    "three groups": {"sm": 192, "sk": 80, "consumers": 3, "stages": 3},
}
"""Tiles that are no whole boxes, whose last box has some of what the one before has."""


@pytest.mark.sampled(4)
@EARLY
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("sizes", [(139, 456, 200), (300, 72, 264), (72, 80, 48)], ids=str)
@pytest.mark.parametrize("program", BOXED)
@pytest.mark.parametrize("preset", ["turns", "turns-tma"])
def test_boxes_end_with_their_tiles(
    preset: str,
    program: str,
    sizes: tuple[int, int, int],
    out_dtype: str,
    early: bool,
    folder: Path,
) -> None:
    m, n, k = sizes
    case = Case(m, n, k, "bfloat16", "nt", (0, 0, 8), alpha=0.5, out_dtype=out_dtype)
    base = {"stages": 5, "cluster_m": 1, "cluster_k": 1, "ping_pong": 0}
    check("wgmma", preset, case, folder, early, **(base | BOXED[program]))


@EARLY
def test_tf32(early: bool, folder: Path) -> None:
    case = Case(200, 100, 132, "float32", "nt", (0, 4, 0), alpha=0.5)
    check("wgmma_tf32", "large-tma", case, folder, early)
