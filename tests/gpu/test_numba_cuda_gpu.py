"""The target numba-cuda on a GPU: tuned, kept, loaded without Numba, called on anyone's arrays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba_here import needs_numba
from test_runtime_gpu import Library, check, operands, product

pytest.importorskip("numba_cuda", reason="pip install '.[numba-cuda]'")
needs_numba()

from autotune import Gemm, MatchQuality, load, tune  # noqa: E402
from autotune.cli import main  # noqa: E402
from autotune.core.configuration import Candidate  # noqa: E402
from autotune.core.device import Device  # noqa: E402
from autotune.core.measurement import Outcome  # noqa: E402
from autotune.families.gpu.planning import Planner  # noqa: E402
from autotune.families.modules import load_module  # noqa: E402
from autotune.families.program_cache import ProgramCache  # noqa: E402
from autotune.families.rendering import render  # noqa: E402
from autotune.gpu.driver import activated  # noqa: E402
from autotune.gpu.nvidia.target import NumbaCudaTarget  # noqa: E402
from autotune.measuring.effort import Effort  # noqa: E402
from autotune.serving.target import Work  # noqa: E402
from autotune.targets.families import load_families  # noqa: E402

PROBLEM = Gemm(129, 200, 67)
FAMILIES = load_families(target="numba-cuda")
CONFIGURATIONS = 3
WIDTH = 240  # of what operands are cut from
MARGIN = 3

# Of libraries while they are imported.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]


@pytest.fixture(scope="module")
def device() -> Device:
    return NumbaCudaTarget().device()


@pytest.fixture(params=["cupy", "torch", "numba"])
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    """Libraries whose arrays can be cut out of others."""
    with activated(0):
        yield Library(request.param)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FAMILIES)
def test_random_configurations_of_operands_with_rows_apart(
    name: str, dtype: str, library: Library, device: Device, programs: ProgramCache
) -> None:
    problem = Gemm(129, 200, 67, dtype)
    family = FAMILIES[name]
    space = family.space(problem, device.limits)
    drawn = space.sample(CONFIGURATIONS, np.random.default_rng(4))
    a, b, c = operands(problem)
    wide = [np.full((each.shape[0], WIDTH), 7, dtype) for each in (a, b, c)]
    views = [
        w[:, MARGIN : MARGIN + each.shape[1]] for w, each in zip(wide, (a, b, c), strict=True)
    ]
    for view, each in zip(views, (a, b, c), strict=True):
        view[...] = each
    for row, (alpha, beta) in zip(drawn, [(1.0, 0.0), (1.5, -0.5), (-2.0, 1.0)], strict=True):
        candidate = Candidate(name, space[int(row)])
        kernel = NumbaCudaTarget().kernel(family, candidate, problem, device, programs)
        on_device = [library.device(each) for each in wide]
        cut = [
            w[:, MARGIN : MARGIN + each.shape[1]]
            for w, each in zip(on_device, (a, b, c), strict=True)
        ]
        kernel(*cut, alpha, beta)
        got = library.host(on_device[2])
        inside = slice(MARGIN, MARGIN + c.shape[1])
        check(problem, got[:, inside], product(problem, a, b, c, alpha, beta))
        assert (got[:, :MARGIN] == 7).all(), candidate
        assert (got[:, inside.stop :] == 7).all(), candidate


@pytest.mark.parametrize("layout", ["tn", "nt", "tt"])
def test_operands_stored_transposed(layout: str, library: Library) -> None:
    problem = Gemm(129, 200, 67, layout=layout)
    kernel = load(problem, "numba-cuda", match="nearest")
    assert kernel.candidate.family == "block"
    a, b, c = operands(problem)
    out = library.device(np.full_like(c, np.nan))
    kernel(library.device(a), library.device(b), out)
    check(problem, library.host(out), product(problem, a, b, c, 1.0, 0.0))


@pytest.mark.filterwarnings("ignore:.*low occupancy")  # the grids of small problems are small
@pytest.mark.parametrize("name", FAMILIES)
def test_numba_itself_runs_what_is_emitted(
    name: str, device: Device, programs: ProgramCache
) -> None:
    """On arrays of one dimension, compiled for the arguments of the call."""
    library = Library("numba")
    family = FAMILIES[name]
    configuration = family.default(PROBLEM, device.limits)
    module: Any = load_module(programs.write(render(family, configuration), name))
    (step,) = Planner(family, configuration, PROBLEM.dtype, device.limits).plan(PROBLEM).steps
    a, b, c = operands()
    flat = [library.device(each.ravel()) for each in (a, b, c)]
    launch = module.gemm[step.grid, step.block, 0, step.shared_bytes]
    m, n, k = PROBLEM.m, PROBLEM.n, PROBLEM.k
    alpha, beta = np.float32(1.5), np.float32(-0.5)
    launch(m, n, k, alpha, flat[0], n, flat[1], k, beta, flat[2], k)
    got = library.host(flat[2]).reshape(m, k)
    check(PROBLEM, got, product(PROBLEM, a, b, c, 1.5, -0.5))


LOAD_WITHOUT_NUMBA = """
import sys
for name in ("numba", "numba_cuda", "cuda.bindings.nvrtc", "cuda.bindings.nvjitlink"):
    sys.modules[name] = None
import numpy as np
from autotune import Gemm, load
import cupy
kernel = load(Gemm(129, 200, 67, layout=sys.argv[1]), "numba-cuda", match="stale")
assert kernel.record is not None and kernel.record.binary is not None
shapes = kernel.problem.a_shape, kernel.problem.b_shape
a, b = (cupy.asarray(np.ones(shape, np.float32)) for shape in shapes)
c = kernel(a, b).get()
assert (c == 200).all(), c
"""


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_tuned_kernel_loads_without_numba(layout: str, own_cache: Path) -> None:
    problem = Gemm(129, 200, 67, layout=layout)
    outcomes = []
    result = tune(
        problem,
        target="numba-cuda",
        trials=8,
        timeout=60.0,
        sampler="random",
        effort=Effort(budget_s=0.02, finals_s=0.1),
        progress=outcomes.append,
    )
    assert outcomes
    assert result.best.binary is not None
    assert result.best.candidate.family in FAMILIES
    assert result.best.toolchain.keys() >= {"numba_cuda", "nvjitlink", "nvrtc"}
    kernel = result.kernel
    assert kernel.match is MatchQuality.EXACT
    assert kernel.record == result.best
    for program in (own_cache / "programs").rglob("*.cubin"):
        program.unlink()
    subprocess.run([sys.executable, "-c", LOAD_WITHOUT_NUMBA, layout], check=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shipped_families_are_verified_and_timed(
    dtype: str, device: Device, programs: ProgramCache
) -> None:
    problem = Gemm(1000, 1030, 990, dtype)
    candidates = [
        Candidate(name, each.default(problem, device.limits)) for name, each in FAMILIES.items()
    ]
    effort = Effort(budget_s=0.02, finals_s=0.2)
    with NumbaCudaTarget().evaluator(
        Work(problem, FAMILIES, device, programs, effort, workers=2)
    ) as evaluator:
        evaluator.prepare(candidates)
        for candidate in candidates:
            measurement = evaluator.evaluate(candidate, None)
            assert measurement.outcome is Outcome.OK, (candidate, measurement)
            assert measurement.details["registers"] > 0
        assert all(each.ok for each in evaluator.finals(candidates).measurements)


def test_the_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    common = [
        "--target",
        "numba-cuda",
        "--shape",
        "512x384x640",
        "--cache",
        str(tmp_path),
        "--json",
    ]
    assert main(["tune", *common, "--trials", "6", "--timeout", "60"]) == 0
    (tuned,) = json.loads(capsys.readouterr().out)
    assert tuned["target"] == "numba-cuda"
    assert tuned["best"]["median_s"] > 0
    assert main(["bench", *common, "--ladder", "--family", "tiled"]) == 0
    rows = {row["kernel"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"tiled (tiled-static)", "tiled (tiled-dynamic)"} <= rows.keys()
    for row in rows.values():
        assert row["median_s"] is not None, row
        assert row["host_cold_s"] > row["median_s"]
