"""Products of warp groups (wgmma): barriers, tensor maps and clusters, executed on the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gemm_on_host import Case, relative_error
from host_execution import AVAILABLE

from autotune.core.dtypes import DTYPES
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.targets.families import load_families

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not AVAILABLE, reason="emitted CUDA C++ is compiled by g++ here"),
]

FAMILIES = load_families(target="cuda", operation="gemm")
LIMITS = find_gpu("h200").limits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


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


@pytest.mark.parametrize(
    ("preset", "case"),
    [
        ("large", Case(300, 136, 264, "bfloat16", "nt", (0, 0, 3), (0, 0, 1), beta=0.5)),
        ("square-pairs", Case(136, 72, 270, "float16", "tn", (8, 2, 0), alpha=0.5)),
        ("three", Case(190, 200, 100, "bfloat16", "nn", (0, 4, 1), special=True)),
        ("turns-tma", Case(392, 456, 264, "float16", "tt", (0, 0, 8), beta=-1.0)),
        ("few-tiles-clusters", Case(100, 600, 130, "bfloat16", "nn", (0, 6, 0), beta=0.5)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_presets(preset: str, case: Case, folder: Path) -> None:
    for early in (False, True):
        check("wgmma", preset, case, folder, early)


@EARLY
@pytest.mark.parametrize("splits", [3, 7])
def test_parts_of_the_reduction(splits: int, early: bool, folder: Path) -> None:
    case = Case(72, 456, 133, "bfloat16", "nn", (0, 3, 0), alpha=2.0, beta=0.5)
    check("wgmma", "small", case, folder, early, splits=splits, sk=128)


@EARLY
def test_results_of_float32_leave_in_boxes(early: bool, folder: Path) -> None:
    case = Case(136, 72, 260, "bfloat16", "nt", beta=0.5, out_dtype="float32")
    check("wgmma", "large-tma", case, folder, early)


@EARLY
def test_tf32(early: bool, folder: Path) -> None:
    case = Case(200, 100, 132, "float32", "nt", (0, 4, 0), beta=0.5)
    check("wgmma_tf32", "large-tma", case, folder, early)
