"""Kernels, cuBLAS and Triton on the same operands: ``python benchmarks/triton_peer.py`` on a GPU.

The kernel that `load(match="nearest")` gives, PyTorch's product and a blocked product in Triton,
which Triton's own autotuner chooses the tiles of, take turns. Each turn is a CUDA graph of calls
whose operands go round through more than the level-2 cache. Results are compared with PyTorch's.
Prints Markdown.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from frameworks import captured, in_turns, ratio
from gpu_environment import GpuWatch, describe_gpu, read_gpu

from autotune import Gemm, load
from autotune.gpu.measure.memory import rotation_sets

TILES = (
    (128, 256, 64, 3, 8),
    (128, 256, 64, 4, 8),
    (256, 128, 64, 3, 8),
    (128, 128, 64, 3, 4),
    (128, 128, 64, 4, 8),
    (128, 128, 128, 3, 8),
    (64, 256, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 64, 64, 5, 4),
    (32, 128, 64, 5, 4),
    (16, 128, 128, 5, 4),
)
"""Rows, columns and steps of tiles, stages and warps: what Triton's autotuner may choose."""

DOWN = 8
"""Tiles that programs take downwards before the next column."""


@triton.autotune(
    configs=[
        triton.Config({"SM": sm, "SK": sk, "SN": sn}, num_stages=stages, num_warps=warps)
        for sm, sk, sn, stages, warps in TILES
    ],
    key=["m", "n", "k"],
)
@triton.jit
def product(  # type: ignore[no-untyped-def]
    a, b, c, m, n, k, SM: tl.constexpr, SK: tl.constexpr, SN: tl.constexpr, GROUP: tl.constexpr
):
    """C[m x k] = A[m x n] B[n x k], contiguous; a program for each tile of C."""
    number = tl.program_id(0)
    rows, columns = tl.cdiv(m, SM), tl.cdiv(k, SK)
    band = number // (GROUP * columns)
    height = min(GROUP, rows - band * GROUP)
    within = number % (GROUP * columns)
    row = (band * GROUP + within % height) * SM + tl.arange(0, SM)
    column = within // height * SK + tl.arange(0, SK)
    # Beyond the last row and column the first ones are read: what comes of it is not stored.
    own_a = a + (row % m)[:, None] * n + tl.arange(0, SN)[None, :]
    own_b = b + tl.arange(0, SN)[:, None] * k + (column % k)[None, :]
    sums = tl.zeros((SM, SK), dtype=tl.float32)
    for step in range(tl.cdiv(n, SN)):
        left = n - step * SN
        of_a = tl.load(own_a, mask=tl.arange(0, SN)[None, :] < left, other=0.0)
        of_b = tl.load(own_b, mask=tl.arange(0, SN)[:, None] < left, other=0.0)
        sums = tl.dot(of_a, of_b, sums)
        own_a += SN
        own_b += SN * k
    places = c + row[:, None] * k + column[None, :]
    inside = (row[:, None] < m) & (column[None, :] < k)
    tl.store(places, sums.to(c.dtype.element_ty), mask=inside)


def by_triton(a: Any, b: Any, c: Any) -> None:
    """C = A B."""
    (m, n), k = a.shape, b.shape[1]

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, meta["SM"]) * triton.cdiv(k, meta["SK"]),)

    product[grid](a, b, c, m, n, k, GROUP=DOWN)


def operands(problem: Gemm, l2_bytes: int) -> list[tuple[Any, Any, Any]]:
    """So many A, B and C that none is in the cache when its turn comes."""
    m, n, k = problem.shape
    dtype = getattr(torch, problem.dtype)
    free_bytes, _ = torch.cuda.mem_get_info()
    count = rotation_sets(problem.traffic, l2_bytes, free_bytes)

    def matrix(rows: int, columns: int) -> Any:
        return torch.rand(rows, columns, device="cuda", dtype=torch.float32).sub_(0.5).to(dtype)

    return [(matrix(m, n), matrix(n, k), matrix(m, k)) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--shapes", nargs="+", default=["2048x2048x2048", "4096x4096x4096"])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.05, help="of each turn")
    args = parser.parse_args()
    # Parts of a reduction are added up in float32 by all of them.
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False
    device = read_gpu()
    print(describe_gpu(device))
    print(f"- {args.dtype}; PyTorch {torch.__version__}, Triton {triton.__version__}\n")
    print("| M x N x K | ours | us | cuBLAS / ours (quartiles) | Triton / ours | Triton's tiles |")
    print("|---|---|---|---|---|---|")
    with GpuWatch(device) as watch:
        for text in args.shapes:
            shape = tuple(map(int, text.split("x")))
            print(measured(shape, args, int(device.limits.names()["l2_bytes"])), flush=True)
    print(f"\n{watch.summary()}")


def measured(shape: Sequence[int], args: argparse.Namespace, l2_bytes: int) -> str:
    """A line of the table."""
    m, n, k = shape
    problem = Gemm(m, n, k, dtype=args.dtype)
    kernel = load(problem, "cuda", match="nearest", background=False)
    sets = operands(problem, l2_bytes)
    ways: dict[str, Callable[[Any, Any, Any], Any]] = {
        "ours": lambda a, b, c: kernel(a, b, out=c),
        "cuBLAS": lambda a, b, c: torch.mm(a, b, out=c),
        "Triton": by_triton,
    }
    a, b, c = sets[0]
    wanted = torch.mm(a.float(), b.float())
    for name, way in ways.items():
        c.fill_(torch.nan)
        way(a, b, c)
        torch.testing.assert_close(
            c.float(), wanted, rtol=2e-2, atol=2e-2, msg=lambda text, name=name: f"{name}: {text}"
        )

    def once(way: Callable[[Any, Any, Any], Any]) -> Callable[[], None]:
        def through() -> None:
            for each in sets:
                way(*each)

        return captured(through)

    graphs = [once(way) for way in ways.values()]
    rough = in_turns(graphs, 2, 1)[0][0]
    times = in_turns(graphs, max(1, round(args.seconds / rough)), args.turns)
    ours, cublas, theirs = times
    best = product.best_config
    tiles = f"{best.kwargs['SM']}x{best.kwargs['SK']}x{best.kwargs['SN']}"
    tiles += f", {best.num_stages} stages, {best.num_warps} warps"
    microseconds = 1e6 * statistics.median(ours) / len(sets)
    return (
        f"| {m}x{n}x{k} | {kernel.candidate.family} | {microseconds:.1f} | {ratio(cublas, ours)} "
        f"| {ratio(theirs, ours)} | {tiles} |"
    )


if __name__ == "__main__":
    main()
