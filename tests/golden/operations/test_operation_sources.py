"""Emitted CUDA sources of the example operations, character for character.

``AUTOTUNE_UPDATE_GOLDEN=1 pytest tests/golden`` rewrites the files; review them as a diff.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from operation_examples import family_of

from autotune.core.configuration import Configuration, Value
from autotune.families.rendering import render

LANES = {"lanes": 64, "groups": 2, "rows": 4, "vector": 2, "unroll": 2}
CASES: Mapping[str, tuple[Mapping[str, Value], str]] = {
    "gemv": ({**LANES, "splits": 4}, "float64"),
    "row_sum": ({**LANES, "splits": 1}, "float32"),
    "batched_gemm": (
        {"sm": 32, "sk": 16, "sn": 8, "ty": 4, "tx": 2, "vector": 2, "batches": 4},
        "float32",
    ),
    "stencil": (
        {
            "block_x": 64, "block_y": 2, "rows": 8, "vector": 4, "unroll": 4,
            "min_blocks": 1,
        },
        "float32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_emitted_source_is_unchanged(name: str) -> None:
    configuration, dtype = CASES[name]
    emitted = render(family_of(name, "cuda"), Configuration(configuration), dtype=dtype).text
    golden = Path(__file__).parent / f"{name}.cu"
    if os.environ.get("AUTOTUNE_UPDATE_GOLDEN") == "1":
        golden.write_text(emitted, encoding="utf-8")
    assert emitted == golden.read_text(encoding="utf-8"), (
        "emitted source changed; if that is wanted, run with AUTOTUNE_UPDATE_GOLDEN=1"
    )
