"""What `streamed` deals out among a few blocks: every tile is finished, by any number of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gemm_on_host import Case, launch_kernels, relative_error
from host_execution import AVAILABLE, HostProgram, guarded

from autotune.core.configuration import Value
from autotune.core.dtypes import DTYPES
from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.targets.families import load_families

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not AVAILABLE, reason="emitted CUDA C++ is compiled by g++ here"),
]

FAMILY = load_families(target="cuda", operation="gemm")["streamed"]
SMALL = {"sm": 32, "sk": 64, "sn": 8, "ty": 4, "tx": 4, "load_run": 8, "group": 1, "least": 4}


def small(**changed: Value) -> Mapping[str, Value]:
    """A configuration of small tiles, compiled once for whatever is decided at the call."""
    declared = {p.name: p.default for p in FAMILY.parameters if p.default is not None}
    return FAMILY.conform({**declared, **SMALL, **changed})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.mark.parametrize("least", [4, 16])
@pytest.mark.parametrize("multiprocessors", [1, 2, 3, 4, 5, 7, 11, 132])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (32, 500, 64), (33, 150, 65), (97, 70, 260)])
def test_any_number_of_blocks_computes_the_product(
    sizes: tuple[int, int, int], multiprocessors: int, least: int, folder: Path
) -> None:
    limits = replace(find_gpu("h200").limits, multiprocessor_count=multiprocessors)
    case = Case(*sizes, paddings=(1, 3, 2), misaligned=(0, 1, 2), alpha=-0.5, beta=0.75)
    rng = np.random.default_rng(multiprocessors)
    error = relative_error(FAMILY, small(least=least), case, limits, rng, folder)
    assert error < 4 * DTYPES["float32"].unit_roundoff * max(4.0, sizes[1] ** 0.5)


def test_random_shapes_and_devices(folder: Path) -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        m, n, k = (int(size) for size in np.exp(rng.uniform(0, np.log([200, 300, 400]))))
        limits = replace(find_gpu("h200").limits, multiprocessor_count=int(rng.integers(1, 40)))
        case = Case(m, n, k, beta=float(rng.integers(2)))
        configuration = small(least=int(rng.choice([4, 16])), group=int(rng.choice([1, 8])))
        error = relative_error(FAMILY, configuration, case, limits, rng, folder)
        assert error < 4 * DTYPES["float32"].unit_roundoff * max(4.0, n**0.5), (case, limits)


def test_equal_calls_give_equal_bits(folder: Path) -> None:
    limits = replace(find_gpu("h200").limits, multiprocessor_count=6)
    case = Case(64, 333, 130)
    rng = np.random.default_rng(1)
    shapes = {"a": (case.m, case.n), "b": (case.n, case.k), "c": (case.m, case.k)}
    operands = {name: guarded(shape, shape[1], case.dtype) for name, shape in shapes.items()}
    for each in operands.values():
        each[...] = rng.uniform(-1, 1, each.shape)
    results = set()
    for _ in range(2):
        launch_kernels(FAMILY, small(), case, limits, operands, folder)
        results.add(bytes(np.ascontiguousarray(operands["c"]).data))
    assert len(results) == 1


PIECES = """
extern "C" __global__ void list_pieces(int m, int n, int k, int most, int* listed) {
  const Shares shares(m, n, k);
  const int count = count_pieces(shares, blockIdx.x);
  for (int number = 0; number < count && number < most; ++number) {
    const Piece piece = piece_at(shares, blockIdx.x, number);
    int* row = listed + (blockIdx.x * most + number) * 3;
    row[0] = piece.tile;
    row[1] = piece.begin;
    row[2] = piece.end;
  }
}
"""


@pytest.mark.parametrize("seed", range(40))
def test_no_block_waits_longer_than_its_share_takes(seed: int, folder: Path) -> None:
    """Where a step takes as long everywhere, all are done after the largest share."""
    rng = np.random.default_rng(seed)
    blocks = int(rng.integers(1, 140))
    m, k = 32 * int(rng.integers(1, 30)), 64 * int(rng.integers(1, 30))
    n = 8 * int(rng.integers(1, 40))
    tiles, steps = m // 32 * (k // 64), n // 8
    blocks = min(blocks, tiles * steps)
    most = tiles * steps // blocks + 3
    listed = np.zeros((blocks, most, 3), np.int32)
    program = HostProgram(render(FAMILY, small()).text + PIECES, folder)
    program.launch("list_pieces", (blocks, 1, 1), (1, 1, 1), (m, n, k, most, listed))

    pieces = [[(t, b, e) for t, b, e in own.tolist() if b < e] for own in listed]
    dealt_out = sorted(piece for own in pieces for piece in own)
    covered = [(tile, step) for tile, begin, end in dealt_out for step in range(begin, end)]
    assert covered == [(tile, step) for tile in range(tiles) for step in range(steps)]
    there: dict[int, int] = {}  # when all of a tile that its last block waits for is there
    for own in pieces:  # of lower numbers first: nobody waits for a higher one
        now = 0
        for tile, begin, end in own:
            now += end - begin
            if end < steps:
                there[tile] = max(there.get(tile, 0), now)
            elif begin > 0:
                now = max(now, there[tile])
        assert now <= -(-tiles * steps // blocks)
