"""Which family serves where nothing was tuned: what families say, and who comes first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from cpu_machines import AVX2, AVX512, SINGLE
from epilogue_families import write_families

from autotune import Gemm
from autotune.core.device import DeviceLimits
from autotune.core.errors import FamilyError
from autotune.core.limits import HybridLimits, MpiLimits
from autotune.families.family import KernelFamily
from autotune.families.offers import default_family
from autotune.gpu.nvidia.known_gpus import find_gpu, known_gpus
from autotune.targets.families import catalog, find_families


def every_limits() -> Iterator[tuple[str, DeviceLimits]]:
    for cpu in (AVX512, AVX2, SINGLE):
        yield "cpu", cpu
    h200 = find_gpu("h200").limits
    gpus = [find_gpu(name).limits for name in known_gpus()]
    capabilities = [replace(h200, compute_capability=each) for each in range(50, 130)]
    yield from itertools.product(("cuda", "numba-cuda"), (*gpus, *capabilities))
    for count, *bits in itertools.product((1, 2, 8), *[(0, 1)] * 4):
        distributed, gpus_of_ranks, aware, nccl = bits
        yield "mpi", MpiLimits(count, 1, count, distributed, gpus_of_ranks * count, aware, nccl)
    for count, *three in itertools.product((1, 2, 8), *[(0, 1)] * 3):
        yield "hybrid", HybridLimits(count, *three)


SHAPES = ((1, 1, 1), (1, 512, 512), (300, 9, 8), (9, 1, 700), (512, 512, 512))
SQUARE = Gemm(512, 512, 512)


def test_one_shipped_family_and_no_other_is_the_default_everywhere() -> None:
    families = {target: dict(catalog(target)) for target, _ in every_limits()}
    for (target, limits), shape in itertools.product(every_limits(), SHAPES):
        problem = Gemm(*shape)
        claiming = claims(families[target], problem, limits)
        assert len(claiming) == 1, (target, limits, shape, claiming)
        assert default_family(families[target], problem, limits) == claiming[0]


def claims(families: Mapping[str, KernelFamily], problem: Gemm, limits: DeviceLimits) -> list[str]:
    """The families that can serve a problem and say that they are the default."""
    known = {**problem.sizes, **limits.names()}
    return [
        name
        for name, family in families.items()
        if family.default_for is not None
        and family.default_for.holds(known)
        and family.unsupported(problem) is None
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"dtype": "float32"}, {75: "block", 80: "pipelined", 89: "pipelined", 90: "pipelined"}),
        ({"dtype": "float64"}, {75: "block", 80: "dmma", 89: "pipelined", 90: "dmma"}),
        ({"dtype": "float16"}, {75: "block", 80: "mma", 89: "mma", 90: "wgmma"}),
        ({"dtype": "bfloat16"}, {75: "block", 80: "mma", 90: "wgmma", 120: "mma"}),
        ({"accuracy": "tf32"}, {75: "block", 80: "mma_tf32", 90: "wgmma_tf32", 120: "mma_tf32"}),
        ({"dtype": "float16", "accuracy": "ieee"}, {75: "block", 90: None}),
    ],
)
def test_the_most_special_of_the_class_asked_for_is_the_default(
    fields: dict[str, str], expected: dict[int, str | None]
) -> None:
    families = catalog("cuda")
    for capability, name in expected.items():
        limits = replace(find_gpu("h200").limits, compute_capability=capability)
        assert default_family(families, Gemm(512, 512, 512, **fields), limits) == name


def test_what_the_defaults_are() -> None:
    for limits, name in (
        (MpiLimits(4, 1, 4), "rows"),
        (MpiLimits(4, 1, 4, distributed=1), "summa"),
        (MpiLimits(4, 1, 4, distributed=1, gpus=4), "gpu_summa"),
        (MpiLimits(4, 1, 4, gpus=4), "gpu_summa"),
    ):
        assert default_family(catalog("mpi"), Gemm(512, 512, 512), limits) == name
    for shape in SHAPES:
        name = "skinny" if min(shape[0], shape[2]) <= 8 else "goto"
        assert default_family(catalog("cpu"), Gemm(*shape), AVX2) == name


def test_a_family_of_the_user_comes_before_the_shipped_ones(tmp_path: Path) -> None:
    write_families(tmp_path)
    file = tmp_path / "plain_cpu.toml"
    text = file.read_text()
    for line, expected in (
        ('default_for = "vector_bits >= 512"\n', {AVX512: "plain", AVX2: "goto"}),
        ('default_for = "1"\n', {AVX512: "plain", AVX2: "plain"}),
        ("", {AVX512: "goto", AVX2: "goto"}),
    ):
        file.write_text(line + text)
        families = catalog("cpu", extra=[tmp_path])
        for limits, name in expected.items():
            assert default_family(families, SQUARE, limits) == name
    assert default_family({}, SQUARE, AVX2) is None
    assert default_family({"plain": families["plain"]}, SQUARE, AVX2) is None


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("vector_bits >=", "default_for is not an expression"),
        ("m >= 512", "default_for = 'm >= 512' uses 'm'; the names there are: K, M, N"),
        ("threads == 1", "uses 'threads'"),
    ],
)
def test_it_speaks_of_sizes_and_limits_alone(
    expression: str, message: str, tmp_path: Path
) -> None:
    write_families(tmp_path)
    file = tmp_path / "plain_cpu.toml"
    file.write_text(f'default_for = "{expression}"\n{file.read_text()}')
    with pytest.raises(FamilyError, match=message):
        find_families([tmp_path])


def test_the_engine_names_no_family() -> None:
    names = {family.name for family in find_families()}
    package = Path(__file__).parents[3] / "autotune"
    quoted = {f'"{name}"' for name in names}
    # Words that mean something else as well: an accuracy class, a range, how operands lie.
    words = "strassen outer rows block reduction grid naive packed"
    others = {f'"{word}"' for word in words.split()}
    for path in package.rglob("*.py"):
        found = {name for name in quoted - others if name in path.read_text()}
        assert not found, (path, found)
