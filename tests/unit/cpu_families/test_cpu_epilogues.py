"""What follows a product in families for CPUs, against NumPy in double precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from epilogue_families import GATED, LINEAR_RELU
from operation_examples import entry_values

from autotune.core.configuration import Value
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.targets.families import catalog, find_operation

Arrays = Mapping[str, np.ndarray]

CLIPPED = """\
operation = "clipped"
summary = "A row's own limit, nothing by column, alpha without beta; called as kernels call theirs"
product = "gemm"
sizes = ["M", "N", "K"]
result = "np * minimum(alpha * A @ B, exp(view)) + prange"
flops = "2 * M * N * K + 3 * M * K"

[operands]
A = { shape = ["M", "N"] }
B = { shape = ["N", "K"] }
view = { shape = ["M", "1"] }
C = { shape = ["M", "K"], role = "out" }

[scalars]
alpha = 1.0
np = 2.0
prange = 0.25
"""

POSITIVE = """\
operation = "positive"
summary = "Nothing but the product is read"
product = "gemm"
sizes = ["M", "N", "K"]
result = "maximum(A @ B, 0)"
flops = "2 * M * N * K + M * K"

[operands]
A = { shape = ["M", "N"] }
B = { shape = ["N", "K"] }
C = { shape = ["M", "K"], role = "out" }
"""

GATES = """\
operation = "gates"
summary = "Gates that Numba has"
product = "gemm"
sizes = ["M", "N", "K"]
result = "silu(A @ B + x) * sigmoid(-x) + gelu_tanh(x)"
flops = "2 * M * N * K + 9 * M * K"

[operands]
A = { shape = ["M", "N"] }
B = { shape = ["N", "K"] }
x = { shape = ["K"] }
C = { shape = ["M", "K"], role = "out" }
"""


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gates(x: Arrays, scalars: Mapping[str, float]) -> np.ndarray:
    value, own = x["A"] @ x["B"] + x["x"], x["x"]
    inner = np.sqrt(2 / np.pi) * (own + 0.044715 * own**3)
    return value * sigmoid(value) * sigmoid(-own) + 0.5 * own * (1 + np.tanh(inner))


OPERATIONS: Mapping[str, tuple[str, Callable[[Arrays, Mapping[str, float]], np.ndarray]]] = {
    "linear_relu": (
        LINEAR_RELU,
        lambda x, s: np.maximum(
            s["alpha"] * (x["A"] @ x["B"]) + s["beta"] * x["C"] + x["bias"], 0.0
        ),
    ),
    "gated": (
        GATED,
        lambda x, s: (
            s["scale"] * np.tanh(x["A"] @ x["B"] + x["shift_of_row"])
            - np.minimum(x["residual"], 0.5)
        ),
    ),
    "clipped": (
        CLIPPED,
        lambda x, s: (
            s["np"] * np.minimum(s["alpha"] * (x["A"] @ x["B"]), np.exp(x["view"])) + s["prange"]
        ),
    ),
    "positive": (POSITIVE, lambda x, s: np.maximum(x["A"] @ x["B"], 0.0)),
    "gates": (GATES, gates),
}

TILES = {"sm": 12, "sn": 24, "sk": 40}
GOTO = {"vector": 256, "ty": 4, "tx": 16, "sm": 8, "sn": 16, "sk": 48, "pack_a": 1, "pack_b": 1}
SKINNY = {"vector": 256, "ty": 4, "vectors": 2, "sn": 8, "sk": 24, "chunk": 1}
STATIC = {"threads": 1, "schedule": "static", "chunk": 0}
DYNAMIC = {"threads": 2, "schedule": "dynamic", "chunk": 1}
PACKED = {"ty": 2, "unroll": 3, **TILES}
PROGRAMS: Mapping[str, tuple[str, Mapping[str, Value]]] = {
    "goto": ("goto", {**GOTO, **STATIC, "parts": 1}),
    "goto, columns in parts": ("goto", {**GOTO, **DYNAMIC, "parts": 2}),
    "skinny, rows": ("skinny", {**SKINNY, **STATIC, "side": "rows", "parts": 1}),
    "skinny, parts": ("skinny", {**SKINNY, **DYNAMIC, "side": "rows", "parts": 3}),
    "skinny, columns": ("skinny", {**SKINNY, **STATIC, "side": "columns", "parts": 1}),
    "skinny, columns, parts": ("skinny", {**SKINNY, **DYNAMIC, "side": "columns", "parts": 2}),
    "unpacked": ("unpacked", {"vector": 256, "ty": 4, "vectors": 2, **TILES, **STATIC}),
    "unpacked, threads": ("unpacked", {"vector": 256, "ty": 8, "vectors": 1, **TILES, **DYNAMIC}),
    "packed": ("packed", {**PACKED, **STATIC, "shared": "grid"}),
    "packed, rows": ("packed", {**PACKED, **DYNAMIC, "shared": "rows"}),
    "packed, columns": ("packed", {**PACKED, **DYNAMIC, "shared": "columns"}),
    "packed, reduction": ("packed", {**PACKED, **DYNAMIC, "shared": "reduction"}),
    "blocked": ("blocked", {"unroll": 4, **TILES, "threads": 1}),
    "blocked, threads": ("blocked", {"unroll": 2, **TILES, "threads": 2}),
    "simd": ("simd", {"vector": 256, "unroll": 2, "row": "registers", "block": 16, **STATIC}),
    "simd, threads": (
        "simd",
        {"vector": 256, "unroll": 1, "row": "memory", "block": 0, **DYNAMIC},
    ),
    "loops": ("loops", {"order": "ikj", "threads": 1}),
    "loops, rows": ("loops", {"order": "ijk", "threads": 2}),
    "loops, columns": ("loops", {"order": "jik", "threads": 2}),
    "unrolled": ("unrolled", {"unroll": 4, "tx": 2, "threads": 1}),
    "unrolled, threads": ("unrolled", {"unroll": 2, "tx": 4, "threads": 2}),
    "divide": ("divide", {"unroll": 2, "cutoff": 16, "threads": 1}),
    "divide, threads": ("divide", {"unroll": 4, "cutoff": 8, "threads": 2}),
}
SIZES = ((1, 1, 1), (1, 37, 70), (70, 37, 1), (5, 1, 3), (33, 50, 67), (67, 33, 130))


def padded(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An array with NaN between its rows, as many as it happens."""
    gap = int(rng.integers(1, 8)) if len(shape) == 2 else 0
    whole = np.full((*shape[:-1], shape[-1] + gap), np.nan, dtype)
    whole[..., : shape[-1]] = rng.normal(size=shape)
    return whole[..., : shape[-1]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("program", "name", "dtype"), [*product(PROGRAMS, OPERATIONS, ("float32", "float64"))]
)
def test_what_follows_a_product_is_computed_once_for_every_element(
    program: str, name: str, dtype: str, tmp_path: Path
) -> None:
    text, expected = OPERATIONS[name]
    (tmp_path / "operation.toml").write_text(text)
    operation = find_operation(name, [tmp_path])
    family_name, chosen = PROGRAMS[program]
    family = catalog("cpu", name, [tmp_path])[family_name]
    # What is passed at the call may be anything: small blocks make many of small products.
    compiled_in = {
        each.name: each.default if each.name in family.runtime_parameters else chosen[each.name]
        for each in family.parameters
    }
    source = render(family, compiled_in, dtype=dtype)
    path = ProgramCache(tmp_path / "programs").write(source, family.name)
    kernel: Any = getattr(load_module(path), name)
    runtime = [chosen[each] for each in source.runtime_parameters]
    scalars = {key: value + 0.5 for key, value in operation.scalars}
    rng = np.random.default_rng(11)
    for sizes in SIZES:
        extents = dict(zip(operation.sizes, sizes, strict=True)) | {"1": 1}
        arrays = {
            each.name: padded(rng, tuple(extents[size] for size in each.shape), dtype)
            for each in operation.operands
        }
        arrays["A"][0, 0] = np.nan  # goes on to its row, through what is larger or smaller too
        wide = {key: array.astype(np.float64) for key, array in arrays.items()}
        rounded = {key: float(np.dtype(dtype).type(value)) for key, value in scalars.items()}
        wanted = expected(wide, rounded)
        gaps = arrays["C"].base[:, sizes[2] :]
        if "beta" not in scalars:
            arrays["C"][...] = np.nan  # is not read
        values = entry_values(operation, sizes, [*arrays.values()], scalars)
        kernel(*(x.ctypes.data if isinstance(x, np.ndarray) else x for x in values), *runtime)
        tolerance = 40 * sizes[1] * np.finfo(dtype).eps
        np.testing.assert_allclose(
            arrays["C"], wanted, rtol=tolerance, atol=tolerance, err_msg=str(sizes)
        )
        assert np.isnan(wanted[0]).all()
        assert np.isnan(gaps).all()


def test_every_family_that_offers_epilogues_is_tried() -> None:
    offering = {name for name, family in catalog("cpu").items() if family.epilogue}
    assert offering == {family for family, _ in PROGRAMS.values()}
