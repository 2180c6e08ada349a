"""The ladder of CUDA kernels beside cuBLAS and beside what its authors published:
``python benchmarks/gpu_ladder.py``.

Runs ``autotune bench --ladder`` in a process of its own and prints Markdown: a table for each
size. Kernels near cuBLAS take turns with it. "First call" and "later calls" are whole calls from
host arrays to a host result; the first one is that of a fresh process. About two minutes a size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_environment import GpuWatch, describe_gpu, read_gpu


@dataclass(frozen=True)
class Published:
    """Times of one document, by the name that `autotune bench` gives the same kernel.

    Attributes:
        label: for the column.
        source: what was measured where.
        size: of the square matrices; None where it is another size, quoted beside every one.
        vendor_ms: cuBLAS in the same document; None where there is none.
        ms: each kernel's time.
    """

    label: str
    source: str
    size: int | None
    vendor_ms: float | None
    ms: Mapping[str, float]


def _block(threads: str, rungs: Mapping[tuple[str, int], float]) -> dict[str, float]:
    return {f"block ({rung}-{threads}-sn{sn})": ms for (rung, sn), ms in rungs.items()}


REPORT = Published(
    "report",
    "a student's report on parallel GEMM: GeForce RTX 4070, 2048³, 16 x 16 threads, kernel times",
    None,
    1.023,
    {"naive (naive-16x16-rows)": 9.086}
    | _block(
        "16x16",
        {
            ("blocked", 8): 1.568,
            ("blocked", 16): 1.625,
            ("vectorised", 8): 1.234,
            ("vectorised", 16): 1.249,
            ("conflict-free", 8): 1.097,
            ("conflict-free", 16): 1.043,
            ("double-buffered", 8): 0.980,
            ("double-buffered", 16): 0.943,
        },
    ),
)

LECTURE = Published(
    "lecture",
    "a lecture on CUDA: GeForce RTX 4070, a product of 2.13 GFLOP (about 1021³), kernel times. "
    "Its whole calls: 48.7 ms with matmul8, 57.9 ms with cuBLAS",
    None,
    0.166,
    {
        "naive (matmul3)": 1.039,
        "tiled (matmul4)": 1.147,
        "tiled (matmul5)": 1.122,
        "tiled (matmul6)": 0.734,
        "volkov (matmul7)": 0.309,
        "volkov (matmul8)": 0.287,
    },
)

CHAPTER = Published(
    "chapter",
    "a textbook's chapter on GEMM: a GPU of 29.8 TFLOP/s in FP32, a product of 8.58 GFLOP, kernel "
    "times. Its rungs without shared memory (6.232 and 3.188 ms) have no counterpart here",
    None,
    0.613,
    {
        "naive (naive-16x16-rows)": 48.961,
        "block (float4-tiles)": 0.617,
        "block (transposed-tiles)": 0.610,
        "block (hidden-shared-latency)": 0.585,
        "block (hidden-global-latency)": 0.542,
    },
)

_LABS = (
    "lab A: the host's clock around whole calls, 32 threads in a line and tiles of 32 x 32; "
    "lab B: kernel times on an unnamed GPU, threads in a line (its cuBLAS, timed with its "
    "start-up: 228, 249 and 312 ms at 1024, 2048 and 4096)"
)


def _lab_a(size: int, naive: float, tiled: float) -> Published:
    return Published(
        "lab A", _LABS, size, None, {"naive (naive-32)": naive, "tiled (tiled-32)": tiled}
    )


def _lab_b(size: int, *ms: float) -> Published:
    threads = (32, 64, 128, 256, 512)
    kernels = {f"naive (naive-{n})": each for n, each in zip(threads, ms, strict=True)}
    return Published("lab B", _LABS, size, None, kernels)


PUBLISHED = (
    REPORT,
    LECTURE,
    CHAPTER,
    _lab_a(1024, 248, 8),
    _lab_a(2048, 346, 25),
    _lab_a(4096, 1333, 124),
    _lab_b(1024, 5.93, 5.76, 6.01, 6.54, 6.57),
    _lab_b(2048, 35.41, 35.84, 40.89, 39.61, 44.37),
    _lab_b(4096, 221.68, 245.56, 282.26, 281.74, 291.69),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--limit", type=float, default=500.0, help="seconds for each size")
    args = parser.parse_args()

    device = read_gpu()
    print(describe_gpu(device))
    print(f"- {args.dtype}; x% is the speed relative to cuBLAS, here and in each document\n")
    for document in (REPORT, LECTURE, CHAPTER):
        print(f"- {document.label}: {document.source}")
    print(f"- {_LABS}")
    for size in args.sizes:
        with GpuWatch(device) as watch:
            rows = bench(size, args.dtype, args.limit)
        print(f"\n## {size}³\n\n{watch.summary()}\n\n{markdown(size, rows)}", flush=True)


def bench(size: int, dtype: str, limit_s: float) -> list[dict[str, Any]]:
    """The rows of ``autotune bench --ladder`` for one size."""
    command = [sys.executable, "-m", "autotune", "bench", "--ladder", "--target", "cuda", "--json"]
    command += ["--shape", f"{size}x{size}x{size}", "--dtype", dtype]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=limit_s)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def markdown(size: int, rows: list[dict[str, Any]]) -> str:
    """One size's table, with the columns of the documents that have something beside it."""
    documents = [each for each in PUBLISHED if each.size in (None, size)]
    head = ["kernel", "ms", "TFLOP/s", "of cuBLAS", "first call ms", "later calls ms"]
    head += [document.label for document in documents]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        if row["median_s"] is None:
            cells = [row["kernel"], row["reason"], *[""] * 4]
        else:
            ratio = row["ratio_to_vendor"]
            cells = [
                row["kernel"],
                f"{row['median_s'] * 1e3:.4g}",
                f"{row['gflops'] / 1e3:.2f}",
                "-" if ratio is None else f"{100 * ratio:.1f}%",
                *(milliseconds(row[key]) for key in ("host_cold_s", "host_warm_s")),
            ]
        cells += [published(document, row["kernel"]) for document in documents]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g}"


def published(document: Published, kernel: str) -> str:
    """A document's cell: percent of its cuBLAS where it has one, else its time."""
    ms = document.ms.get(kernel)
    if ms is None and kernel.startswith("cuBLAS"):
        ms = document.vendor_ms
    if ms is None:
        return ""
    if document.vendor_ms is None:
        return f"{ms:g} ms"
    return f"{100 * document.vendor_ms / ms:.1f}%"


if __name__ == "__main__":
    main()
