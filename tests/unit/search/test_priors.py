"""What a search knows before it begins: the resource model, and what was measured nearby."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.configuration import Candidate
from autotune.core.device import Device
from autotune.core.limits import GpuLimits
from autotune.core.measurement import Measurement, Outcome
from autotune.families.family import KernelFamily
from autotune.families.gpu.occupancy import blocks_per_multiprocessor, resident_blocks
from autotune.families.gpu.resource_model import expected_log_time
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
from autotune.search import make_sampler
from autotune.search.model import EstimatedPrior, MeasuredPrior
from autotune.serving.predicting import Predictor
from autotune.serving.target import Target
from autotune.store import TuningCache
from autotune.targets.families import load_families
from autotune.targets.registry import make_target
from autotune.tuning.known import priors

FAMILIES = load_families(target="cuda", operation="gemm")


@pytest.fixture(scope="module")
def limits() -> GpuLimits:
    return find_gpu("h200").limits


@given(data=st.data())
def test_occupancy_of_many_is_that_of_each(data: st.DataObject) -> None:
    limits = find_gpu(data.draw(st.sampled_from(["t4", "a100", "h200", "b200"]))).limits
    kernels = st.tuples(st.integers(1, 1200), st.integers(1, 300), st.integers(0, 250_000))
    drawn = data.draw(st.lists(kernels, min_size=1, max_size=20))
    threads, registers, shared = (np.array(each) for each in zip(*drawn, strict=True))
    found = resident_blocks(limits, threads=threads, registers=registers, shared_bytes=shared)
    assert found.tolist() == [
        blocks_per_multiprocessor(limits, threads=t, registers=r, shared_bytes=s)
        for t, r, s in drawn
    ]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (16, 4096, 4096), (64, 65536, 64)])
def test_the_model_has_an_opinion_of_everything_valid(
    name: str, shape: tuple[int, int, int], limits: GpuLimits
) -> None:
    problem = Gemm(*shape)
    space = FAMILIES[name].space(problem, limits)
    model = expected_log_time(FAMILIES[name], problem, limits)
    assert model is not None
    rows = space.sample(200, np.random.default_rng(0))
    drawn = [space[int(row)] for row in rows]
    columns = {key: np.array([each[key] for each in drawn]) for key in drawn[0]}
    expected = model(columns)
    assert expected.shape == (200,)
    assert np.isfinite(expected).all()


def cost(family: KernelFamily, problem: Gemm, limits: GpuLimits, **values: int) -> float:
    model = expected_log_time(family, problem, limits)
    assert model is not None
    configuration = {**family.default(problem, limits), **values}
    return float(model({name: np.array([value]) for name, value in configuration.items()})[0])


def test_the_model_ranks_what_is_known_to_be_far_apart(limits: GpuLimits) -> None:
    block, large, small = FAMILIES["block"], Gemm(8192, 8192, 8192), Gemm(256, 256, 256)
    # A thread that computes four elements reads two from shared memory for every product.
    assert cost(block, large, limits, tx=2, ty=2, sm=32, sk=32) > cost(block, large, limits)
    # Tiles of 128 x 128 leave all but four multiprocessors idle.
    assert cost(block, small, limits) > cost(block, small, limits, sm=32, sk=32, tx=4, ty=4)
    # A block whose registers do not fit cannot be launched.
    assert math.isnan(cost(block, large, limits, sm=256, sk=256, tx=2, ty=2))


def test_shares_of_a_last_wave_are_expected_to_pay(limits: GpuLimits) -> None:
    streamed, pipelined = FAMILIES["streamed"], FAMILIES["pipelined"]
    ragged = Gemm(128 * 17, 4096, 128 * 8)  # four blocks more than multiprocessors
    assert cost(streamed, ragged, limits) < cost(pipelined, ragged, limits)
    # A tile is as large with its reduction split as it is without.
    few = Gemm(512, 4096, 512)
    assert cost(pipelined, few, limits, splits=8) < cost(pipelined, few, limits, splits=1)


def nobody(device: Device) -> Predictor:
    """Who predicts where there is no portfolio."""
    return Predictor([], {}, device)


def context_of(
    problem: Gemm,
    target: Target,
    device: Device,
    families: Mapping[str, KernelFamily],
    store: TuningCache,
) -> Any:
    """A tuning context, as far as priors look at it."""
    return SimpleNamespace(
        problem=problem,
        target=target,
        device=device,
        families=families,
        union=SimpleNamespace(spaces=families),
        store=store,
        predictor=lambda operation: nobody(device),
    )


def test_measurements_of_the_nearest_problems_are_priors(tmp_path: Path) -> None:
    target = make_target("cpu")
    problem = Gemm(256, 256, 256)
    device = target.device(problem, None)
    families = {"loops": load_families(target="cpu", operation="gemm")["loops"]}
    store = TuningCache(tmp_path / "cache.sqlite")
    context = context_of(problem, target, device, families, store)
    assert priors(context) == []
    for size, count in ((512, 25), (1024, 25), (4096, 25), (300, 5)):
        other = Gemm(size, size, size)
        space = families["loops"].space(other, device.limits)
        rows = space.sample(min(count, space.size), np.random.default_rng(0))
        found = [
            (Candidate("loops", space[int(row)]), Measurement(Outcome.OK, 1e-3 * (1 + place)))
            for place, row in enumerate(np.resize(rows, count))
        ]
        store.add_measurements("study", device.fingerprint, other, "cpu", found)
        failed = Measurement(Outcome.TIMEOUT, reason="it hung")
        store.add_measurements(
            "study", device.fingerprint, other, "cpu", [(Candidate("loops", space[0]), failed)]
        )
    known = {row.problem["m"]: row.successes for row in store.measured_problems("gemm", "cpu")}
    assert known == {512: 25, 1024: 25, 4096: 25, 300: 5}
    found_priors = priors(context)
    assert [type(prior) for prior in found_priors] == [MeasuredPrior, MeasuredPrior]
    space = families["loops"].space(problem, device.limits)
    assert make_sampler("auto", space, 0, found_priors) is not None


def test_a_gpu_has_its_resource_model(tmp_path: Path) -> None:
    device = make_target("cuda").device(None, "h200")
    store = TuningCache(tmp_path / "cache.sqlite")
    cuda, problem = make_target("cuda"), Gemm(512, 512, 512)
    (only,) = priors(context_of(problem, cuda, device, FAMILIES, store))
    assert isinstance(only, EstimatedPrior)
