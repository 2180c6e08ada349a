"""Emitted sources, character for character: a template change shows what it changes.

A file here has the lines of a source that no template has as they stand, in order. Between them
stand ``@@ COUNT lines DIGEST`` for those that templates have.

``AUTOTUNE_UPDATE_GOLDEN=1 pytest -n0 tests/golden`` rewrites the files; review them as a diff.
``AUTOTUNE_EMITTED=FOLDER`` writes whole sources there, for ``diff -r`` with another commit's.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from epilogue_families import write_operations
from operation_examples import FOLDER as EXAMPLES

from autotune.core.configuration import Value
from autotune.families.rendering import render
from autotune.targets.families import load_families

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TEMPLATES = frozenset(
    line.strip()
    for folder in ("templates", "examples")
    for path in (ROOT / folder).rglob("*.j2")
    for line in path.read_text(encoding="utf-8").splitlines()
)


class Case(NamedTuple):
    """A source: its family, what differs from defaults, types, layout, target and operation."""

    family: str
    changed: Mapping[str, Value] = {}
    dtype: str = "float32"
    out_dtype: str | None = None
    layout: str = "nn"
    target: str = "cpu"
    operation: str = "gemm"


TILES = {"sm": 128, "sn": 128, "sk": 128}
UNSHARED = {"threads": 1, "schedule": "static", "chunk": 0}
GUIDED = {"threads": 2, "schedule": "guided", "chunk": 1}
GRID = {"shared": "grid", **UNSHARED}
GOTO = {"sm": 192, "sn": 512, "sk": 2048, "pack_a": 1, "pack_b": 1, "parts": 1}
STREAM = {"sn": 8, "sk": 2048, "parts": 1}
PACKED = {"ty": 4, "unroll": 4, **TILES, **GRID}
SQUARE: Mapping[str, Value] = {"sm": 64, "sk": 64, "sn": 16, "group": 1, "fragment_buffers": 1}
CLUSTERS: Mapping[str, Value] = {
    "sm": 64, "sk": 64, "consumers": 1, "cluster_m": 1, "cluster_n": 4,
}  # fmt: skip
ROWS: Mapping[str, Value] = {
    "devices": 2, "threads": 4, "pieces": 4, "panels": 2, "exchange": "peer", "staging": "pinned",
}  # fmt: skip
SUMMA = {"rows": 2, "columns": 2, "panel": 128, "lookahead": 1, "threads": 1}
LANES = {"lanes": 64, "groups": 2, "rows": 4, "vector": 2, "unroll": 2}
BATCHED = {"sm": 32, "sk": 16, "sn": 8, "ty": 4, "tx": 2, "vector": 2, "batches": 4}
STENCIL = {"block_x": 64, "block_y": 2, "rows": 8, "vector": 4, "unroll": 4, "min_blocks": 1}


def cuda(
    family: str,
    dtype: str = "float32",
    out_dtype: str | None = None,
    operation: str = "gemm",
    **changed: Value,
) -> Case:
    """A source of CUDA."""
    return Case(family, changed, dtype, out_dtype, target="cuda", operation=operation)


CASES: Mapping[str, Case] = {
    "loops_ikj.py": Case("loops", {"order": "ikj", "threads": 1}),
    "loops_jik_threads.py": Case("loops", {"order": "jik", "threads": 2}, "float64"),
    "unrolled.py": Case("unrolled", {"unroll": 4, "tx": 2, "threads": 1}),
    "unrolled_nt_threads.py": Case("unrolled", {"unroll": 1, "tx": 1, "threads": 4}, layout="nt"),
    "blocked.py": Case("blocked", {"unroll": 4, **TILES, "threads": 1}),
    "gated_threads.py": Case("blocked", {"unroll": 4, **TILES, "threads": 2}, operation="gated"),
    "packed.py": Case("packed", PACKED),
    "packed_tt_dynamic.py": Case(
        "packed",
        {**PACKED, "ty": 2, "unroll": 3, "threads": 2, "schedule": "dynamic"},
        "float64",
        layout="tt",
    ),
    "packed_reduction.py": Case("packed", {**PACKED, "threads": 2, "shared": "reduction"}),
    "simd.py": Case(
        "simd", {"vector": 256, "unroll": 2, "row": "registers", "block": 64, **UNSHARED}
    ),
    "simd_memory_guided.py": Case(
        "simd", {"vector": 512, "unroll": 1, "row": "memory", "block": 0, **GUIDED}, "float64"
    ),
    "goto.py": Case("goto", {"vector": 512, "ty": 14, "tx": 32, **GOTO, **UNSHARED}),
    "goto_tt_threads.py": Case(
        "goto", {"vector": 256, "ty": 6, "tx": 8, **GOTO, **GUIDED}, "float64", layout="tt"
    ),
    "skinny.py": Case(
        "skinny",
        {"vector": 512, "side": "rows", "ty": 8, "vectors": 2, **STREAM, **UNSHARED},
    ),
    "skinny_columns_threads.py": Case(
        "skinny",
        {"vector": 256, "side": "columns", "ty": 4, "vectors": 2, **STREAM, **GUIDED},
        "float64",
    ),
    "unpacked_nt_threads.py": Case(
        "unpacked",
        {"vector": 512, "ty": 8, "vectors": 2, "sm": 128, "sk": 256, **GUIDED},
        layout="nt",
    ),
    "divide.py": Case("divide", {"unroll": 2, "cutoff": 64, "threads": 1}),
    "strassen.py": Case(
        "strassen",
        {"ty": 4, "unroll": 4, "cutoff": 512, "sn": 256, "sk": 512, "threads": 1},
    ),
    "block_float32.cu": cuda("block"),
    "block_float16.cu": cuda("block", "float16", **SQUARE),
    "dmma.cu": cuda("dmma", "float64"),
    "mma_float16.cu": cuda("mma", "float16"),
    "mma_tf32.cu": cuda("mma_tf32", fragments=1),
    "naive_float32.cu": cuda("naive"),
    "outer_float32.cu": cuda("outer"),
    "pipelined.cu": cuda("pipelined"),
    "skinny_float32.cu": cuda("skinny"),
    "streamed_float32.cu": cuda("streamed"),
    "tiled_float32.cu": cuda("tiled"),
    "tiled_bfloat16.cu": cuda("tiled", "bfloat16", tile=16, unroll=16, boundary="expanded"),
    "volkov_float32.cu": cuda("volkov"),
    "split_fp16.cu": cuda("split_fp16", sk=64, cluster_m=1),
    "split_fp64.cu": cuda("split_fp64", "float64", sk=64, stages=2),
    "split_mma_bf16.cu": cuda("split_mma_bf16"),
    "split_mma_fp64.cu": cuda("split_mma_fp64", "float64", moduli=15),
    "wgmma_float16.cu": cuda("wgmma", "float16", sk=128),
    "wgmma_clusters_bfloat16.cu": cuda("wgmma", "bfloat16", **CLUSTERS),
    "wgmma_tma_bfloat16.cu": cuda("wgmma", "bfloat16", sk=128, store="tma"),
    "wgmma_tma_float16_to_float32.cu": cuda(
        "wgmma", "float16", "float32", sk=128, cluster_m=1, ping_pong=1, store="tma"
    ),
    "naive_gated_float16.cu": cuda("naive", "float16", operation="gated"),
    "outer_linear_relu.cu": cuda("outer", operation="linear_relu"),
    "mma_gated_bfloat16.cu": cuda("mma", "bfloat16", operation="gated"),
    "gemv.cu": cuda("dots", "float64", operation="gemv", **LANES, splits=4),
    "row_sum.cu": cuda("sums", operation="row_sum", **LANES, splits=1),
    "batched_gemm.cu": cuda("tiles", operation="batched_gemm", **BATCHED),
    "stencil.cu": cuda("columns", operation="stencil", **STENCIL),
    "numba_cuda_block.py": Case(
        "block",
        {"sm": 64, "sk": 64, "sn": 16, "ty": 4, "tx": 4, "pad": 1},
        target="numba-cuda",
    ),
    "mpi_summa.py": Case("summa", SUMMA, "float64", target="mpi"),
    "hybrid_rows.py": Case("rows", ROWS, target="hybrid"),
}


def emitted(name: str, folder: Path) -> str:
    """A source as it is emitted; the folder is for operations' files."""
    case = CASES[name]
    extra = [] if case.operation == "gemm" else [write_operations(folder), EXAMPLES]
    families = load_families(target=case.target, operation=case.operation, extra=extra)
    family = families[case.family]
    declared = {each.name: each.default for each in family.parameters if each.default is not None}
    configuration = family.conform({**declared, **case.changed})
    types = {"dtype": case.dtype, "out_dtype": case.out_dtype}
    return render(family, configuration, layout=case.layout, **types).text


@pytest.mark.parametrize("name", CASES)
def test_emitted_source_is_unchanged(name: str, tmp_path: Path) -> None:
    text = emitted(name, tmp_path)
    if folder := os.environ.get("AUTOTUNE_EMITTED"):
        Path(folder, name).write_text(text, encoding="utf-8")
    golden = HERE / f"{name}.lines"
    made = difference_from_templates(text)
    if os.environ.get("AUTOTUNE_UPDATE_GOLDEN") == "1":
        golden.write_text(made, encoding="utf-8")
    assert made == golden.read_text(encoding="utf-8"), (
        "emitted source changed; if that is wanted, run with AUTOTUNE_UPDATE_GOLDEN=1"
    )


def difference_from_templates(text: str) -> str:
    """The lines of a source that no template has, and digests of those that stand in one."""
    parts = []
    for verbatim, group in itertools.groupby(
        text.splitlines(keepends=True), lambda line: line.strip() in TEMPLATES
    ):
        lines = list(group)
        part = "".join(lines)
        if verbatim and len(lines) > 1:
            digest = hashlib.sha256(part.encode()).hexdigest()[:16]
            part = f"@@ {len(lines)} lines {digest}\n"
        parts.append(part)
    return "".join(parts)


def test_every_golden_file_is_checked() -> None:
    assert {path.name for path in HERE.glob("*.lines")} == {f"{name}.lines" for name in CASES}
