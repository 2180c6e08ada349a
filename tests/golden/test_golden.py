"""Emitted sources, character for character: a template change shows what it changes.

A family has one whole source here; what other configurations make of it is kept as the difference.
``AUTOTUNE_UPDATE_GOLDEN=1 pytest -n0 tests/golden``, run twice, rewrites the files: differences are
of whole ones as they are. Review them as a diff.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from epilogue_families import GATED, write_operations

from autotune.core.configuration import Value
from autotune.targets.families import load_families
from autotune.families.family import KernelFamily
from autotune.families.rendering import render

TILES = {"sm": 128, "sn": 128, "sk": 128}
UNSHARED = {"threads": 1, "schedule": "static", "chunk": 0}
GUIDED = {"threads": 2, "schedule": "guided", "chunk": 1}
GRID = {"shared": "grid", **UNSHARED}
GOTO = {"sm": 192, "sn": 512, "sk": 2048, "pack_a": 1, "pack_b": 1, "parts": 1}
STREAM = {"sn": 8, "sk": 2048, "parts": 1}
CASES: Mapping[str, tuple[str, Mapping[str, Value], str, str]] = {
    "loops_ikj": ("loops", {"order": "ikj", "threads": 1}, "float32", "nn"),
    "loops_jik_threads": ("loops", {"order": "jik", "threads": 2}, "float64", "nn"),
    "unrolled": ("unrolled", {"unroll": 4, "tx": 2, "threads": 1}, "float32", "nn"),
    "unrolled_nt_threads": ("unrolled", {"unroll": 1, "tx": 1, "threads": 4}, "float32", "nt"),
    "blocked": ("blocked", {"unroll": 4, **TILES, "threads": 1}, "float32", "nn"),
    "packed": ("packed", {"ty": 4, "unroll": 4, **TILES, **GRID}, "float32", "nn"),
    "packed_tt_dynamic": (
        "packed",
        {"ty": 2, "unroll": 3, **TILES, **GRID, "threads": 2, "schedule": "dynamic"},
        "float64",
        "tt",
    ),
    "packed_reduction": (
        "packed",
        {"ty": 4, "unroll": 4, **TILES, **GRID, "threads": 2, "shared": "reduction"},
        "float32",
        "nn",
    ),
    "simd": (
        "simd",
        {"vector": 256, "unroll": 2, "row": "registers", "block": 64, **UNSHARED},
        "float32",
        "nn",
    ),
    "simd_memory_guided": (
        "simd",
        {"vector": 512, "unroll": 1, "row": "memory", "block": 0, **GUIDED},
        "float64",
        "nn",
    ),
    "goto": (
        "goto",
        {"vector": 512, "ty": 14, "tx": 32, **GOTO, **UNSHARED},
        "float32",
        "nn",
    ),
    "goto_tt_threads": (
        "goto",
        {"vector": 256, "ty": 6, "tx": 8, **GOTO, **GUIDED},
        "float64",
        "tt",
    ),
    "skinny": (
        "skinny",
        {"vector": 512, "side": "rows", "ty": 8, "vectors": 2, **STREAM, **UNSHARED},
        "float32",
        "nn",
    ),
    "skinny_columns_threads": (
        "skinny",
        {"vector": 256, "side": "columns", "ty": 4, "vectors": 2, **STREAM, **GUIDED},
        "float64",
        "nn",
    ),
    "unpacked_nt_threads": (
        "unpacked",
        {"vector": 512, "ty": 8, "vectors": 2, "sm": 128, "sk": 256, **GUIDED},
        "float32",
        "nt",
    ),
    "divide": ("divide", {"unroll": 2, "cutoff": 64, "threads": 1}, "float32", "nn"),
    "strassen": (
        "strassen",
        {"ty": 4, "unroll": 4, "cutoff": 512, "sn": 256, "sk": 512, "threads": 1},
        "float32",
        "nn",
    ),
}

SQUARE: Mapping[str, Value] = {"sm": 64, "sk": 64, "sn": 16, "group": 1, "fragment_buffers": 1}
CUDA_CASES: Mapping[str, tuple[str, Mapping[str, Value], str, str]] = {
    "block_float32": ("block", {}, "float32", "float32"),
    "dmma": ("dmma", {}, "float64", "float64"),
    "mma_float16": ("mma", {}, "float16", "float16"),
    "mma_tf32": ("mma_tf32", {"fragments": 1}, "float32", "float32"),
    "block_float16": ("block", SQUARE, "float16", "float16"),
    "naive_float32": ("naive", {}, "float32", "float32"),
    "naive_bfloat16_to_float32": ("naive", {}, "bfloat16", "float32"),
    "outer_float32": ("outer", {}, "float32", "float32"),
    "pipelined": ("pipelined", {}, "float32", "float32"),
    "skinny_float32": ("skinny", {}, "float32", "float32"),
    "streamed_float32": ("streamed", {}, "float32", "float32"),
    "tiled_float32": ("tiled", {}, "float32", "float32"),
    "tiled_bfloat16": (
        "tiled",
        {"tile": 16, "unroll": 16, "boundary": "expanded"},
        "bfloat16",
        "bfloat16",
    ),
    "volkov_float32": ("volkov", {}, "float32", "float32"),
    "wgmma_float16": ("wgmma", {"sk": 128}, "float16", "float16"),
    "wgmma_clusters_bfloat16": (
        "wgmma",
        {"sm": 64, "sk": 64, "consumers": 1, "cluster_m": 1, "cluster_n": 4},
        "bfloat16",
        "bfloat16",
    ),
    "wgmma_tma_bfloat16": ("wgmma", {"sk": 128, "store": "tma"}, "bfloat16", "bfloat16"),
    "wgmma_tma_float16_to_float32": (
        "wgmma",
        {"sk": 128, "cluster_m": 1, "ping_pong": 1, "store": "tma"},
        "float16",
        "float32",
    ),
}
"""Families of gemm, what differs from their defaults, and types of operands and of results."""

EPILOGUE_CASES: Mapping[str, tuple[str, str, str]] = {
    "naive_gated_float16": ("naive", "gated", "float16"),
    "outer_linear_relu": ("outer", "linear_relu", "float32"),
    "mma_gated_bfloat16": ("mma", "gated", "bfloat16"),
}
"""Families of gemm, and operations with an epilogue that they compute."""


OTHER_TARGETS: Mapping[str, tuple[str, str, Mapping[str, Value], str]] = {
    "numba_cuda_block": (
        "numba-cuda",
        "block",
        {"sm": 64, "sk": 64, "sn": 16, "ty": 4, "tx": 4, "pad": 1},
        "float32",
    ),
    "mpi_summa": (
        "mpi",
        "summa",
        {"rows": 2, "columns": 2, "panel": 128, "lookahead": 1, "threads": 1},
        "float64",
    ),
    "hybrid_rows": (
        "hybrid",
        "rows",
        {
            "devices": 2,
            "threads": 4,
            "pieces": 4,
            "panels": 2,
            "exchange": "peer",
            "staging": "pinned",
        },
        "float32",
    ),
}

VARIANTS: Mapping[str, str] = {
    "wgmma_tma_float16_to_float32.cu": "wgmma_tma_bfloat16.cu",
    "wgmma_float16.cu": "wgmma_tma_bfloat16.cu",
    "wgmma_clusters_bfloat16.cu": "wgmma_tma_bfloat16.cu",
    "mma_gated_bfloat16.cu": "mma_float16.cu",
    "dmma.cu": "mma_float16.cu",
    "mma_tf32.cu": "mma_float16.cu",
    "streamed_float32.cu": "pipelined.cu",
    "block_float16.cu": "block_float32.cu",
    "outer_linear_relu.cu": "outer_float32.cu",
    "naive_bfloat16_to_float32.cu": "naive_float32.cu",
    "goto_tt_threads.py": "goto.py",
    "packed_tt_dynamic.py": "packed.py",
    "packed_reduction.py": "packed.py",
    "simd_memory_guided.py": "simd.py",
    "unrolled_nt_threads.py": "unrolled.py",
    "gated_threads.py": "blocked.py",
    "loops_jik_threads.py": "loops_ikj.py",
}
"""Sources kept as their difference from another one's."""


@pytest.mark.parametrize("name", CASES)
def test_emitted_source_is_unchanged(name: str) -> None:
    family, configuration, dtype, layout = CASES[name]
    families = load_families(target="cpu", operation="gemm")
    emitted = render(families[family], configuration, dtype=dtype, layout=layout).text
    _compare(emitted, f"{name}.py")


@pytest.mark.parametrize("name", CUDA_CASES)
def test_emitted_cuda_is_unchanged(name: str) -> None:
    family, changed, dtype, out_dtype = CUDA_CASES[name]
    found = load_families(target="cuda", operation="gemm")[family]
    configuration = _defaults(found, changed)
    _compare(render(found, configuration, dtype=dtype, out_dtype=out_dtype).text, f"{name}.cu")


@pytest.mark.parametrize("name", EPILOGUE_CASES)
def test_emitted_cuda_epilogues_are_unchanged(name: str, tmp_path: Path) -> None:
    family, operation, dtype = EPILOGUE_CASES[name]
    folder = write_operations(tmp_path)
    found = load_families(target="cuda", operation=operation, extra=[folder])[family]
    _compare(render(found, _defaults(found, {}), dtype=dtype).text, f"{name}.cu")


def _defaults(family: KernelFamily, changed: Mapping[str, Value]) -> Mapping[str, Value]:
    """A configuration of the parameters' own defaults, but for what is changed."""
    declared = {each.name: each.default for each in family.parameters if each.default is not None}
    return family.conform({**declared, **changed})


@pytest.mark.parametrize("name", OTHER_TARGETS)
def test_emitted_programs_are_unchanged(name: str) -> None:
    target, family, configuration, dtype = OTHER_TARGETS[name]
    families = load_families(target=target, operation="gemm")
    _compare(render(families[family], configuration, dtype=dtype).text, f"{name}.py")


def test_emitted_cpu_epilogues_are_unchanged(tmp_path: Path) -> None:
    (tmp_path / "operation.toml").write_text(GATED)
    families = load_families(target="cpu", operation="gated", extra=[tmp_path])
    configuration = {"unroll": 4, **TILES, "threads": 2}
    _compare(render(families["blocked"], configuration, dtype="float32").text, "gated_threads.py")


def _compare(emitted: str, name: str) -> None:
    folder = Path(__file__).parent
    golden = folder / name
    if name in VARIANTS:
        whole = (folder / VARIANTS[name]).read_text(encoding="utf-8")
        lines = difflib.unified_diff(
            whole.splitlines(), emitted.splitlines(), VARIANTS[name], name, n=0, lineterm=""
        )
        emitted = "".join("@@\n" if line.startswith("@@") else f"{line}\n" for line in lines)
        golden = folder / f"{name}.diff"
    if os.environ.get("AUTOTUNE_UPDATE_GOLDEN") == "1":
        golden.write_text(emitted, encoding="utf-8")
    assert emitted == golden.read_text(encoding="utf-8"), (
        "emitted source changed; if that is wanted, run with AUTOTUNE_UPDATE_GOLDEN=1"
    )


def test_every_golden_file_is_checked() -> None:
    folder = Path(__file__).parent
    kept = {path.name.removesuffix(".diff") for path in folder.glob("[!.]*.*")}
    python = [*CASES, *OTHER_TARGETS, "gated_threads", "test_golden", "test_layout"]
    cuda = [*CUDA_CASES, *EPILOGUE_CASES]
    assert kept == {*(f"{name}.py" for name in python), *(f"{name}.cu" for name in cuda)}
