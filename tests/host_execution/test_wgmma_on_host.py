"""Products of warp groups (wgmma): barriers, tensor maps, clusters and turns, executed without a GPU."""

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
