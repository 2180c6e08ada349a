"""Twelve kernels from nothing: tuned on the processor, cached and loaded; compiled for a GPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from example_kernels import NAMES, SOURCES, agree, expected, kernel, module, source, valid

from autotune.core.errors import NotTunedError
from autotune.families.rendering import render
from autotune.gpu.nvidia.nvrtc import compile_cuda
from autotune.operations.cases import cases_of
from autotune.targets.families import catalog

FEW = ("prefix_sum",)
"""Of several kernels."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[] if each in FEW else pytest.mark.thorough) for each in NAMES],
)
def test_a_kernel_is_tuned_cached_and_loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example = module(name)
    given = example.operands(np.random.default_rng(3))
    wanted = expected(example, given)
    monkeypatch.setenv("AUTOTUNE_TUNE", "0")
    with pytest.raises(NotTunedError, match="tuning at a call is forbidden"):
        kernel(example, "cpu")(*given)
    kernel(example, "cpu").tune(*given, trials=1, timeout=150)
    for each in (example, module(name)):  # another one, as in another process
        found = kernel(each, "cpu")(*(operand.copy() for operand in given))
        agree(found, wanted, 1e-12, least=name == "quantisation")


def test_twelve_kernels_are_shown() -> None:
    assert len(NAMES) == 12


@pytest.mark.parametrize("path", SOURCES)
def test_every_source_compiles(path: str) -> None:
    own = source(path)
    family = catalog("cuda", own.name, [own.folder])[own.name]
    problem = own.problem(**dict.fromkeys(own.operation.sizes, 7))
    rng = np.random.default_rng(11)
    for case, dtype in zip(cases_of(problem)[:2], itertools.cycle(family.dtypes), strict=False):
        values = valid(family, own.operation.at(case.sizes, dtype=dtype), rng)
        chosen = {each.name: values[each.name] for each in family.parameters}
        assert compile_cuda(render(family, chosen, dtype=dtype).text, "sm_90")
