"""Calls that portfolios keep of their programs: splits that a layer wants are among them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autotune.core.limits import GpuLimits
from autotune.core.paths import data_dir
from autotune.families.gpu.planning import planner_of
from autotune.model import Calls, Choice, Chooser, with_calls
from autotune.model.portfolio import Entry, Units, chip_of
from autotune.model.terms import Sizes
from autotune.operations.problem import Gemm
from autotune.store.files import read_portfolios
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

FAMILIES = load_families(target="cuda", operation="gemm")
LAYERS = 60


def shipped(device: str, layout: str) -> tuple[tuple[Entry, ...], GpuLimits]:
    """The programs for bfloat16 that come with the package, and the device's limits."""
    (file,) = data_dir("cache").glob(f"cuda-nvidia-{device}*/gemm.portfolio.jsonl")
    (portfolio,) = (each for each in read_portfolios(file) if each.dtype == "bfloat16")
    entries = tuple(each for each in portfolio.entries if each.layout == layout)
    limits = make_target("cuda").device(None, device).limits
    assert isinstance(limits, GpuLimits)
    return entries, limits


@pytest.mark.parametrize(("device", "layout"), [("h200", "nt"), ("h100", "nn")])
def test_little_is_lost_on_layers_by_calls_that_are_not_kept(device: str, layout: str) -> None:
    entries, limits = shipped(device, layout)
    kept = with_calls(entries, FAMILIES, Gemm(64, 64, 64, "bfloat16"), limits)
    calls = {each.key: set(each.calls) for each in kept}
    assert [each.calls for each in entries] == [each.calls for each in kept], "shipped as kept now"

    def offered(entry: Entry) -> Calls:
        units = Units(FAMILIES[entry.family], entry.configuration, "bfloat16", limits)
        return Calls(entry, *units.variants())

    chooser = Chooser([*map(offered, entries)], chip_of(limits), itemsize=2)

    def is_kept(choice: Choice) -> bool:
        free = (choice.candidate.configuration[name] for name in choice.entry.free)
        return tuple(free) in calls[choice.entry.key]

    def is_valid(choice: Choice, problem: Gemm) -> bool:
        family, call = FAMILIES[choice.entry.family], choice.candidate.configuration
        return planner_of(family, call, problem.dtype, limits).valid(problem)

    rng, losses = np.random.default_rng(20), []
    for _ in range(LAYERS):
        tokens = int(np.exp(rng.uniform(0.0, np.log(4096))))
        inputs, outputs = 128 * np.exp(rng.uniform(np.log(4), np.log(230), 2)).astype(int)
        problem = Gemm(tokens, int(inputs), int(outputs), "bfloat16", layout=layout)
        ranked = chooser.ranked(Sizes.of(problem))
        valid = (choice for choice in ranked if is_valid(choice, problem))
        best = next(valid)
        served = next(filter(is_kept, itertools.chain([best], valid)))
        losses.append(served.seconds / best.seconds - 1)
    assert max(losses) < 0.03
    assert np.mean(losses) < 0.002
