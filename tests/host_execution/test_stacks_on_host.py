"""Products of stacks, and of groups of rows, by warp groups: tensor maps, groups and edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gemm_on_host import _MAGIC, LIMITS
from host_execution import ON_HOST, HostProgram
from operation_examples import entry_values

from autotune.core.configuration import Value
from autotune.families.family import KernelFamily
from autotune.families.gpu.planning import Planner
from autotune.families.rendering import render
from autotune.operations.cases import SPECIAL, Case
from autotune.operations.problem import Problem
from autotune.operations.verification import Check
from autotune.targets.families import find_operation, load_families

pytestmark = ON_HOST

FAMILIES: dict[str, KernelFamily] = {
    name: load_families(target="cuda", operation=name)["wgmma"]
    for name in ("bmm", "grouped", "grouped_masked")
}
MMA: dict[str, KernelFamily] = {
    name: load_families(target="cuda", operation=name)["mma"] for name in FAMILIES
}
WARPS = {"sm": 32, "sk": 32, "sn": 32, "warp_m": 16, "warp_k": 16, "stages": 3, "group": 4}
TINY = {"sm": 64, "sk": 64, "consumers": 1, "stages": 3, "group": 2}


class Kernel:
    """A configuration, launched on arrays of the host as the engine launches it.

    What a tensor map cannot describe is copied first; of an output there is no map then.
    """

    def __init__(
        self,
        problem: Problem,
        folder: Path,
        early: bool,
        preset: str = "",
        families: dict[str, KernelFamily] = FAMILIES,
        **changed: Value,
    ) -> None:
        self.family = families[problem.operation]
        start = {parameter.name: parameter.default for parameter in self.family.parameters}
        if preset:
            start = dict(self.family.presets[preset].configuration)
        self.configuration = self.family.conform({**start, **changed})
        self.problem, self.early = problem, early
        source = render(
            self.family,
            self.configuration,
            dtype=problem.dtype,
            layout=problem.layout,
            out_dtype=problem.out_dtype,
        )
        self.program = HostProgram(source.text, folder)

    def __call__(self, *given: Any) -> None:
        problem, operands = self.problem, list(given[: len(self.problem.operands)])
        scalars = dict(
            zip((name for name, _ in problem.defined.scalars), given[len(operands) :], strict=True)
        )
        plan = Planner(self.family, self.configuration, problem.dtype, LIMITS).plan(problem)
        maps = []
        for mapped in plan.maps:
            place = [each.name for each in problem.operands].index(mapped.operand)
            array = operands[place]
            if not _described(array) and not problem.operands[place].written:
                array = operands[place] = _copy(array)
            maps.append(_map(array, mapped))
        values = entry_values(problem.defined, problem.shape, operands, scalars)
        values += [*plan.runtime, *maps]
        (step,) = plan.steps
        self.program.launch(
            step.kernel,
            step.grid,
            step.block,
            values,
            shared_bytes=step.shared_bytes,
            early=self.early,
        )


def _described(array: np.ndarray) -> bool:
    outer = (stride for stride in array.strides[:-1])
    return array.ctypes.data % 16 == 0 and all(stride % 16 == 0 for stride in outer)


def _copy(array: np.ndarray) -> np.ndarray:
    columns = -(-array.shape[-1] // 8) * 8
    count = int(np.prod(array.shape[:-1])) * columns
    memory = np.zeros(count * array.itemsize + 16, np.uint8)
    start = -memory.ctypes.data % 16
    whole = memory[start : start + count * array.itemsize].view(array.dtype)
    copy = whole.reshape(*array.shape[:-1], columns)[..., : array.shape[-1]]
    copy[...] = array
    return copy


def _map(array: np.ndarray, mapped: Any) -> np.ndarray:
    words = np.zeros(16, np.uint64)
    *outer, rows, columns = array.shape
    apart, leading = (array.strides[0] if outer else 0), array.strides[-2]
    if _described(array) and (columns * array.itemsize % 16 == 0 or mapped.operand != "C"):
        words[:12] = [
            _MAGIC, array.ctypes.data, rows, columns, leading, *mapped.box, array.itemsize,
            mapped.swizzle, 0, outer[0] if apart else 1, apart,
        ]  # fmt: skip
    return words


def verify(
    problem: Problem, folder: Path, early: bool, case: Case, preset: str = "", **changed: Any
) -> None:
    check = Check(case, problem, np.random.default_rng(3), sealed=True)
    kernel = Kernel(check.problem, folder, early, preset, **changed)
    verdict = check.run(kernel, "native")
    assert verdict.right, verdict.reason


EARLY = pytest.mark.parametrize("early", [False, True], ids=["late", "early"])


@pytest.mark.sampled(4)
@EARLY
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("store", ["tma", "direct"])
def test_stacks_in_all_layouts(layout: str, store: str, early: bool, folder: Path) -> None:
    bmm = find_operation("bmm").problem(P=1, M=1, N=1, K=1, dtype="bfloat16", layout=layout)
    for sizes, scalars, padding in (
        ((3, 72, 200, 136), {"alpha": -0.75}, 0),
        ((2, 72, 72, 136), {"beta": 0.5}, 0),
        ((5, 33, 17, 7), {"alpha": 2.0, "beta": -1.0}, 3),
        ((2, 65, 64, 70), {}, 0),
    ):
        case = Case(*sizes, scalars=scalars, padding=padding)
        verify(bmm, folder, early, case, store=store, **TINY)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("preset", FAMILIES["bmm"].presets)
def test_presets_of_stacks(preset: str, folder: Path) -> None:
    bmm = find_operation("bmm").problem(P=1, M=1, N=1, K=1, dtype="float16", layout="nt")
    for early in (False, True):
        verify(bmm, folder, early, Case(3, 264, 136, 200), preset)
        verify(bmm, folder, early, Case(2, 130, 72, 263, distribution=SPECIAL), preset)


@pytest.mark.sampled(2)
@EARLY
@pytest.mark.parametrize("shared", ["cluster_m", "cluster_k"])
def test_blocks_of_a_cluster_share_tiles_of_stacks(shared: str, early: bool, folder: Path) -> None:
    for layout in ("nn", "tt"):
        bmm = find_operation("bmm").problem(P=1, M=1, N=1, K=1, dtype="bfloat16", layout=layout)
        verify(bmm, folder, early, Case(3, 136, 328, 248), **TINY, **{shared: 2})


def test_results_of_float32_leave_in_boxes(folder: Path) -> None:
    for name, case in (
        ("bmm", Case(2, 136, 72, 260)),
        ("grouped", Case(3, 200, 72, 132)),
    ):
        fields = dict.fromkeys(find_operation(name).sizes, 1)
        problem = find_operation(name).problem(**fields, dtype="bfloat16", out_dtype="float32")
        for early in (False, True):
            verify(problem, folder, early, case, **TINY)
            verify(problem, folder, early, case, **TINY, store="direct")


@EARLY
def test_matrices_lie_at_any_distance_and_one_may_be_all(early: bool, folder: Path) -> None:
    problem = find_operation("bmm").problem(P=3, M=70, N=72, K=136, dtype="float16", layout="nt")
    kernel = Kernel(problem, folder, early, **TINY)
    rng = np.random.default_rng(5)
    heads = rng.uniform(-1, 1, (70, 3, 72)).astype(np.float16).swapaxes(0, 1)  # side by side
    one = np.broadcast_to(rng.uniform(-1, 1, (136, 72)).astype(np.float16), (3, 136, 72))
    c = np.full((70, 3, 136), np.nan, np.float16).swapaxes(0, 1)
    kernel(heads, one, c, 1.0, 0.0)
    expected = heads.astype(float) @ one.astype(float).swapaxes(1, 2)
    np.testing.assert_allclose(c, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("preset", FAMILIES["grouped"].presets)
@pytest.mark.parametrize("name", ["grouped", "grouped_masked"])
def test_groups_of_rows(name: str, preset: str, layout: str, folder: Path) -> None:
    fields = dict.fromkeys(find_operation(name).sizes, 1)
    problem = find_operation(name).problem(**fields, dtype="bfloat16", layout=layout)
    for distribution, sizes in (
        ("uniform", (3, 300, 136, 264)),
        ("normal", (9, 150, 72, 133)),
        (SPECIAL, (3, 70, 64, 72)),
    ):
        case = Case(*sizes, distribution=distribution, padding=0 if sizes[-1] % 8 == 0 else 3)
        for early in (False, True):
            verify(problem, folder, early, case, preset)


ENDS = {
    "one has all rows": [0, 0, 190, 190],
    "none has any": [0, 0, 0, 0],
    "whole tiles": [64, 128, 128, 190],
    "a row each": [1, 2, 3, 4],
    "rows behind the last one": [10, 75, 76, 140],
    "beyond all rows, and descending": [-5, 400, 100, 90],
}


@EARLY
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("store", ["tma", "direct"])
def test_where_groups_end(ends: list[int], store: str, early: bool, folder: Path) -> None:
    problem = find_operation("grouped").problem(E=4, M=190, N=72, K=72, dtype="float16")
    ended(Kernel(problem, folder, early, store=store, **TINY), ends)


def ended(kernel: Kernel, ends: list[int]) -> None:
    problem = kernel.problem
    check = Check(Case(4, 190, 72, 72), problem, np.random.default_rng(7))
    a, b, _, c = check.operands
    given = np.array(ends, np.int32)
    check.prepare()
    kernel(a, b, given, c)
    assert not any(each.damage() for each in check.guarded.values())
    if (np.diff(given) >= 0).all() and given[0] >= 0:
        bounded = np.minimum(given, 190)
        expected = find_operation("grouped").result.evaluate({"A": a, "B": b, "ends": bounded})
        np.testing.assert_allclose(c, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("name", FAMILIES)
def test_warps_multiply_stacks_and_groups(name: str, layout: str, folder: Path) -> None:
    if layout not in MMA[name].layouts:
        return
    fields = dict.fromkeys(find_operation(name).sizes, 1)
    problem = find_operation(name).problem(**fields, dtype="float16", layout=layout)
    for sizes, how in (
        ((3, 72, 40, 136), {}),
        ((5, 33, 17, 7), {"padding": 3, "distribution": "normal"}),
        ((40, 65, 64, 70), {"distribution": "normal"}),
        ((2, 33, 64, 72), {"distribution": SPECIAL}),
    ):
        verify(problem, folder, False, Case(*sizes, **how), families=MMA, **WARPS)


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_where_groups_of_warps_end(ends: list[int], folder: Path) -> None:
    problem = find_operation("grouped").problem(E=4, M=190, N=72, K=72, dtype="float16")
    ended(Kernel(problem, folder, False, families=MMA, **WARPS), ends)


def test_groups_are_many(folder: Path) -> None:
    problem = find_operation("grouped").problem(E=1, M=1, N=1, K=1, dtype="float16")
    for count in (1, 31, 32, 33, 256):
        for early in (False, True):
            verify(problem, folder, early, Case(count, 290, 16, 24), **TINY)
    refused = find_operation("grouped").problem(E=257, M=1, N=1, K=1, dtype="float16")
    assert len(FAMILIES["grouped"].space(refused, LIMITS)) == 0
