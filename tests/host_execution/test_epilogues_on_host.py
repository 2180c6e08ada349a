"""What follows a product: all CUDA families of gemm, executed on the host against float64."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from epilogue_families import write_operations
from gemm_on_host import steps_at_once
from host_execution import ON_HOST, HostProgram
from operations_on_host import relative_error

from autotune.core.configuration import Value
from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.cases import Case
from autotune.targets.families import find_operation, load_families

pytestmark = ON_HOST

LIMITS = find_gpu("h200").limits
FAMILIES = load_families(target="cuda", operation="gemm")

ATTENTION = """\
operation = "attention"
summary = "Exponentials of scores, by row and by column, with names of kernels' own"
product = "gemm"
sizes = ["M", "N", "K"]
result = "exp(minimum(alpha * A @ B - sum, 1)) * tile + maximum(0.25, tile) * acc"
flops = "2 * M * N * K + 5 * M * K"

[operands]
A = { shape = ["M", "N"] }
B = { shape = ["N", "K"] }
sum = { shape = ["M", "1"] }
tile = { shape = ["K"] }
acc = { shape = ["M", "K"] }
C = { shape = ["M", "K"], role = "out" }

[scalars]
alpha = 1.0
"""

ACTIVATED = """\
operation = "activated"
summary = "Every gate, some of what is more than a name"
product = "gemm"
sizes = ["M", "N", "K"]
result = "gelu(alpha * A @ B + x) * silu(tile - 1) + gelu_tanh(x) - sigmoid(2 * tile)"
flops = "2 * M * N * K + 30 * M * K"

[operands]
A = { shape = ["M", "N"] }
B = { shape = ["N", "K"] }
x = { shape = ["K"] }
tile = { shape = ["M", "K"] }
C = { shape = ["M", "K"], role = "out" }

[scalars]
alpha = 1.0
"""

WARP_TILES: Mapping[str, Value] = {"sm": 32, "sk": 32, "ty": 4, "tx": 4, "sn": 8, "lanes_m": 8}
THIN: Mapping[str, Value] = {"few": 4, "loads": 4, "held": 8, "warps": 4, "across": 8}
CONFIGURATIONS: Mapping[str, tuple[str, Mapping[str, Value]]] = {
    "naive": ("naive", {"block_x": 16, "block_y": 4}),
    "naive down": ("naive", {"block_x": 16, "block_y": 4, "x_along": "rows"}),
    "tiled": ("tiled", {"tile": 8, "unroll": 8}),
    "tiled, expanded": ("tiled", {"tile": 8, "unroll": 2, "boundary": "expanded"}),
    "volkov": ("volkov", {}),
    "block": ("block", {"sm": 32, "sk": 32, "ty": 4, "tx": 4, "vector": 4}),
    "block, single elements": (
        "block",
        {"sm": 32, "sk": 32, "ty": 4, "tx": 4, "vector": 1, "transposed": 0, "pad": 0, "group": 1},
    ),
    "pipelined": ("pipelined", WARP_TILES),
    "pipelined, parts": ("pipelined", {**WARP_TILES, "splits": 3}),
    "pipelined, parts in one launch": ("pipelined", {**WARP_TILES, "splits": 3, "last": 1}),
    "pipelined, realigned parts": ("pipelined", {**WARP_TILES, "splits": 2, "realign": 1}),
    "streamed": ("streamed", {**WARP_TILES, "least": 4}),
    "skinny rows": ("skinny", {**THIN, "splits": 1}),
    "skinny rows, parts": ("skinny", {**THIN, "splits": 3}),
    "skinny columns": ("skinny", {**THIN, "side": "columns", "splits": 1}),
    "skinny columns, parts": ("skinny", {**THIN, "side": "columns", "splits": 3}),
    "outer": ("outer", {"warps": 4, "across": 8, "rows": 32}),
    "outer, in turns": ("outer", {"sn": 4, "warps": 4, "across": 8, "rows": 32}),
}

SIZES = ((37, 21, 35), (64, 96, 80), (3, 40, 130), (70, 9, 4))
"""Ragged tiles, whole ones, and C of few rows and few columns."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_operations(tmp_path_factory.mktemp("epilogues"))
    for name, text in (("attention", ATTENTION), ("activated", ACTIVATED)):
        (folder / name).mkdir()
        (folder / name / "operation.toml").write_text(text)
    return folder


@pytest.mark.sampled(4)
@pytest.mark.parametrize("operation", ["linear_relu", "gated", "attention", "activated"])
@pytest.mark.parametrize(
    ("configuration", "dtype"),
    [
        (each, dtype)
        for each, (name, _) in CONFIGURATIONS.items()
        for dtype in FAMILIES[name].dtypes
    ],
)
def test_it_is_applied_once_to_every_element(
    configuration: str, operation: str, dtype: str, folder: Path
) -> None:
    name, changed = CONFIGURATIONS[configuration]
    family = load_families(target="cuda", operation=operation, extra=[folder])[name]
    defaults = {each.name: each.default for each in family.parameters if each.default is not None}
    wide = {"wide": 8, "loads": 8} if name == "skinny" and dtype.endswith("16") else {}
    narrow = {"vector": 2} if changed.get("vector") == 4 and dtype == "float64" else {}
    conformed = family.conform({**defaults, **changed, **wide, **narrow})
    program = HostProgram(render(family, conformed, dtype=dtype).text, folder / "programs")
    defined = find_operation(operation, [folder])
    rng = np.random.default_rng(11)
    factors = {"alpha": -0.75, "beta": 0.5}
    given = {name: factors[name] for name, _ in defined.scalars if name in factors}
    for number, (m, n, k) in enumerate(SIZES):
        sizes = m, steps_at_once(name, conformed, dtype, n), k
        for case in (Case(*sizes), Case(*sizes, scalars=given)):
            error = relative_error(
                program, family, conformed, case, defined, dtype, LIMITS, 3 * number, rng
            )
            assert error <= 1, (str(case), error)
