"""The example operations: spaces that make sense, and CPU kernels that are right at every size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from cpu_machines import AVX2, AVX512, SINGLE
from operation_examples import LARGE, entry_values, example, family_of

from autotune.core.configuration import Configuration
from autotune.core.device import DeviceLimits
from autotune.families.family import KernelFamily
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.cases import cases_of, special_cases
from autotune.operations.verification import Check

DTYPES = ("float32", "float64")
DEVICES: tuple[tuple[str, DeviceLimits], ...] = (
    ("cpu", AVX512),
    ("cpu", AVX2),
    ("cpu", SINGLE),
    ("cuda", find_gpu("t4").limits),
    ("cuda", find_gpu("h200").limits),
)
OTHERS: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "gemv": ((16, 65536), (65536, 128)),
    "row_sum": ((16, 65536), (65536, 128)),
    "batched_gemm": ((1000, 8, 8, 8), (64, 512, 512, 512)),
    "stencil": ((256, 256),),
}
"""Shapes that presets are for."""
IDS = ("avx512", "avx2", "single", "t4", "h200")


@pytest.mark.parametrize(("target", "limits"), DEVICES, ids=IDS)
@pytest.mark.parametrize("name", LARGE)
def test_spaces_are_large_enough_to_search_and_small_enough_to_list(
    name: str, target: str, limits: DeviceLimits
) -> None:
    family = family_of(name, target)
    for dtype in DTYPES:
        space = family.space(example(name).at(LARGE[name], dtype=dtype), limits)
        least = 5 if limits is SINGLE else 200
        assert least <= space.size <= 50_000, dtype


@pytest.mark.parametrize(("target", "limits"), DEVICES, ids=IDS)
@pytest.mark.parametrize("name", LARGE)
def test_no_problem_has_an_empty_space(name: str, target: str, limits: DeviceLimits) -> None:
    family, operation = family_of(name, target), example(name)
    count = len(operation.sizes)
    long = [tuple(5000 if at == place else 1 for at in range(count)) for place in range(count)]
    for shape in ((1,) * count, *operation.cases, *long):
        for dtype in DTYPES:
            assert family.space(operation.at(shape, dtype=dtype), limits).size, (shape, dtype)


@pytest.mark.parametrize(
    ("target", "limits"), [("cpu", AVX512), ("cuda", find_gpu("h200").limits)]
)
@pytest.mark.parametrize("name", LARGE)
def test_defaults_and_presets_are_valid(name: str, target: str, limits: DeviceLimits) -> None:
    family, operation = family_of(name, target), example(name)
    default = family.default(operation.at(LARGE[name]), limits)
    for parameter in family.parameters:
        if parameter.name != "threads":
            assert default[parameter.name] == parameter.default
    spaces = [family.space(operation.at(shape), limits) for shape in (LARGE[name], *OTHERS[name])]
    for preset in family.presets.values():
        rejections = [space.rejection(preset.placed(space)) for space in spaces]
        assert None in rejections, (preset.name, [str(each) for each in rejections])


def chosen(family: KernelFamily, name: str, dtype: str) -> list[Configuration]:
    """The default, which has two threads, and a configuration of a single one."""
    space = family.space(example(name).at(LARGE[name], dtype=dtype), AVX512)
    rng = np.random.default_rng(len(name))
    drawn = [space[int(row)] for row in space.sample(200, rng)]
    single = [each for each in drawn if each["threads"] == 1]
    default = family.default(example(name).at(LARGE[name], dtype=dtype), AVX512)
    assert default["threads"] == 2
    return [default, single[0]]


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LARGE)
def test_cpu_kernels_are_right_at_every_size(name: str, dtype: str, tmp_path: Path) -> None:
    family, operation = family_of(name, "cpu"), example(name)
    problem = operation.at(LARGE[name], dtype=dtype)
    programs = ProgramCache(tmp_path)
    for configuration in chosen(family, name, dtype):
        source = render(family, configuration, dtype=dtype)
        kernel = getattr(load_module(programs.write(source, family.name)), name)
        runtime = [configuration[each] for each in source.runtime_parameters]
        cases = cases_of(problem)
        for case in (*cases, *special_cases(problem, cases)):
            check = Check(case, problem, np.random.default_rng(7), sealed=True)
            values = entry_values(
                operation, case.sizes, check.operands, case.scalars_of(operation)
            )
            addresses = [
                each.ctypes.data if isinstance(each, np.ndarray) else each for each in values
            ]
            check.prepare()
            kernel(*addresses, *runtime)
            verdict = check.judge("ieee")
            assert verdict.right, (configuration, verdict.reason)
