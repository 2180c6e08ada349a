"""Which family serves where nothing was tuned, and what files say of a program's own kernel."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from cpu_machines import AVX2, AVX512, SINGLE
from epilogue_families import write_families

from autotune import Gemm
from autotune.core.configuration import Configuration
from autotune.core.device import DeviceLimits
from autotune.core.errors import FamilyError, SpaceError
from autotune.core.limits import HybridLimits, MpiLimits
from autotune.cpu.kernel import write_program
from autotune.distributed.mpi.loading import mpi_program
from autotune.distributed.mpi.messages import LocalProduct
from autotune.families.family import KernelFamily
from autotune.families.local import local_problem
from autotune.families.offers import default_family
from autotune.families.program_cache import ProgramCache
from autotune.gpu.nvidia.known_gpus import find_gpu, known_gpus
from autotune.targets.families import catalog, find_families, load_families, read_family


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
        ({"accuracy": "fp32-normwise"}, {75: "block", 80: "pipelined", 90: "pipelined"}),
        (
            {"dtype": "float64", "accuracy": "fp64"},
            {75: "block", 80: "dmma", 89: "split_mma_fp64", 90: "dmma"},
        ),
        ({"accuracy": "fp32"}, {75: "block", 90: "pipelined"}),
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


MPI = load_families(target="mpi")
RANKS = MpiLimits(ranks=8, nodes=1, cores=16)

TEXT = """\
family = "tiles"
operation = "gemm"
target = "mpi"
template = "tiles.py.j2"
accuracy = "ieee"
summary = "The grid, its sides under other names"

[parameters]
p = { values = [1, 2, 3, 4], default = 2 }
q = { values = [1, 2, 3, 4], default = 2 }
workers = { values = [1, 2, 4], default = 2 }

[derived]
used = "p * q"

[local]
m = "ceildiv(M, p)"
n = "N"
k = "ceildiv(K, q)"
on = "cpu"
threads = "workers"

[[restrictions]]
expr = "used <= ranks and p <= M and q <= K"
reason = "there are no more ranks"
"""
TEMPLATE = """\
{% set rows, columns, transfer = p, q, "broadcast" %}
{% include "gemm/mpi/grid.py.j2" %}
"""
SHIPPED = Path(__file__).parents[3] / "templates"


def read(folder: Path, text: str = TEXT) -> KernelFamily:
    path = folder / "tiles.toml"
    path.write_text(text)
    (folder / "tiles.py.j2").write_text(TEMPLATE)
    return read_family(path, (folder, SHIPPED))


def test_a_grid_of_whatever_name_gets_the_kernel_of_its_blocks(tmp_path: Path) -> None:
    family = read(tmp_path)
    problem = Gemm(1000, 300, 900, "float64")
    chosen = Configuration({"p": 4, "q": 2, "workers": 1})
    wanted = local_problem(family, chosen, problem, RANKS)
    assert wanted == Gemm(256, 512, 512, "float64", threads=1)
    grid = {"rows": 4, "columns": 2, "transfer": "broadcast", "threads": 1}
    programs = ProgramCache(tmp_path)
    mine = mpi_program(family, chosen, problem, RANKS, programs)
    theirs = mpi_program(MPI["grid"], Configuration(grid), problem, RANKS, programs)
    assert isinstance(mine.local, LocalProduct)
    assert mine.local == theirs.local


def test_its_threads_are_those_that_the_file_names(tmp_path: Path) -> None:
    chosen = Configuration({"p": 1, "q": 1, "workers": 4})
    problem = Gemm(100, 100, 100)
    assert local_problem(read(tmp_path), chosen, problem, RANKS).threads == 4
    unnamed = read(tmp_path, TEXT.replace('threads = "workers"\n', ""))
    assert local_problem(unnamed, chosen, problem, RANKS).threads == 1
    assert (
        local_problem(
            MPI["rows"], Configuration({"threads": 8, "rows": 2}), problem, RANKS
        ).threads
        == 8
    )


FAULTS = {
    "no table": (TEXT[TEXT.index("[local]") : TEXT.index("[[r")], "", "local is missing: a table"),
    "no key": ('n = "N"\n', "", r"local\.n is missing"),
    "another key": ('n = "N"\n', 'n = "N"\np = "1"\n', r"local\.p is not a key.*threads"),
    "a name": ("ceildiv(M, p)", "ceildiv(M, rows)", r"local\.m = .* uses 'rows'.*workers"),
    "no expression": ("ceildiv(M, p)", "ceildiv(M p)", r"local\.m is not an expression"),
    "a number": ('"N"', "64", r"local\.n must be one line of text, got 64"),
    "a place": ('"cpu"', '"gpu"', r"local\.on must be one of cpu, cuda.*, got 'gpu'"),
    "threads": ('"cpu"', '"cuda"', r"local\.threads is not a key"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_table_that_is_wrong_is_refused(fault: str, tmp_path: Path) -> None:
    before, after, message = FAULTS[fault]
    assert before in TEXT
    with pytest.raises(FamilyError, match=rf"tiles\.toml: {message}"):
        read(tmp_path, TEXT.replace(before, after))


def test_programs_of_host_threads_multiply_on_gpus_alone(tmp_path: Path) -> None:
    text = TEXT.replace('"mpi"', '"hybrid"').replace(" <= ranks", " <= gpus")
    with pytest.raises(FamilyError, match=r"local\.on must be one of cuda"):
        read(tmp_path, text)
    text = text.replace('"cpu"\nthreads = "workers"\n', '"cuda"\n')
    family = read(tmp_path, text)
    chosen = Configuration({"p": 3, "q": 1, "workers": 4})
    limits = HybridLimits(3, peers=1, host_operands=1, block_operands=0)
    wanted = local_problem(family, chosen, Gemm(100, 100, 100), limits)
    assert (wanted.m, wanted.threads) == (64, None)


def test_families_of_kernels_have_no_table(tmp_path: Path) -> None:
    text = TEXT.replace('"mpi"', '"cpu"').replace("used <= ranks", "used > 0")
    with pytest.raises(FamilyError, match=r"tiles\.toml: local is not a key"):
        read(tmp_path, text)


def test_ranks_must_have_what_the_kernel_runs_on(tmp_path: Path) -> None:
    on_cpus = read(tmp_path)
    problem = Gemm(64, 64, 64)
    gpus = MpiLimits(ranks=4, nodes=1, cores=4, gpus=4)
    assert on_cpus.space(problem, RANKS).size
    assert not on_cpus.space(problem, gpus).size
    text = TEXT.replace('"cpu"\nthreads = "workers"\n', '"cuda"\n')
    on_gpus = read(tmp_path, text)
    assert on_gpus.space(problem, gpus).size
    assert not on_gpus.space(problem, RANKS).size


def test_divisions_must_be_whole_and_sizes_positive(tmp_path: Path) -> None:
    divided = read(tmp_path, TEXT.replace("ceildiv(M, p)", "M / p"))
    rejection = divided.space(Gemm(10, 10, 10), RANKS).rejection({"p": 3, "q": 1, "workers": 1})
    assert "M / p must be a whole number (local.m)" in str(rejection)
    empty = read(tmp_path, TEXT.replace('n = "N"', 'n = "N - 10"'))
    chosen = Configuration({"p": 1, "q": 1, "workers": 1})
    with pytest.raises(SpaceError, match=r"'tiles' .*10x10x10.*N - 10 must be .* >= 1, is 0"):
        local_problem(empty, chosen, Gemm(10, 10, 10), RANKS)


@pytest.mark.parametrize(
    ("name", "values", "sizes"),
    [
        ("rows", {"rows": 3}, (512, 1024, 512)),
        ("grid", {"rows": 2, "columns": 3, "transfer": "aggregated"}, (512, 1024, 256)),
        ("master_worker", {"rows": 2, "columns": 2, "master_works": True}, (512, 1024, 256)),
        ("summa", {"rows": 2, "columns": 2, "panel": 128, "lookahead": 1}, (512, 128, 256)),
        ("cannon", {"side": 2, "overlap": True}, (512, 512, 256)),
        (
            "reduction",
            {"rows": 1, "columns": 2, "reduction": 4, "combine": "reduce"},
            (1024, 256, 256),
        ),
        (
            "overlapped",
            {"rows": 2, "columns": 1, "cut": "columns", "transfer": "isend", "panel": 64},
            (512, 1024, 64),
        ),
        (
            "overlapped",
            {"rows": 2, "columns": 1, "cut": "reduction", "transfer": "isend", "panel": 64},
            (512, 64, 512),
        ),
        (
            "shared_memory",
            {"rows": 2, "columns": 2, "panels": 4, "wait": "yield"},
            (512, 256, 256),
        ),
    ],
)
def test_shipped_families_say_what_a_rank_multiplies(
    name: str, values: dict[str, int | str], sizes: tuple[int, int, int]
) -> None:
    problem = Gemm(1001, 1000, 500)
    chosen = Configuration({**values, "threads": 2})
    local = local_problem(MPI[name], chosen, problem, RANKS)
    assert (local.m, local.n, local.k, local.threads) == (*sizes, 2)


CPU = """\
family = "plain"
operation = "gemm"
target = "cpu"
template = "plain.py.j2"
accuracy = "ieee"
summary = "Rows on the threads of two teams"
threads = "teams * 2"

[parameters]
teams = { values = [1, 2] }
"""
PLAIN = """\
import numba


@numba.njit("{{ signature }}")
def gemm({{ arguments }}):
    pass
"""


def read_plain(folder: Path, text: str) -> KernelFamily:
    (folder / "plain.toml").write_text(text)
    (folder / "plain.py.j2").write_text(PLAIN)
    return read_family(folder / "plain.toml", (folder,))


def test_threads_of_a_cpu_kernel_are_what_the_file_says(tmp_path: Path) -> None:
    family = read_plain(tmp_path, CPU)
    chosen = Configuration({"teams": 2})
    assert family.thread_count(chosen, "float32") == 4
    program = write_program(family, chosen, Gemm(4, 4, 4), ProgramCache(tmp_path / "programs"))
    assert program.threads == 4
    none = CPU.replace('threads = "teams * 2"\n', "")
    assert read_plain(tmp_path, none).thread_count(chosen, "float32") == 1
    named = read_plain(tmp_path, none.replace("teams", "threads"))
    assert named.thread_count(Configuration({"threads": 2}), "float32") == 2


def test_threads_that_are_none_are_refused(tmp_path: Path) -> None:
    before = 'threads = "teams * 2"'
    with pytest.raises(
        FamilyError, match=r"threads = 'M' uses 'M'; .* are: acc_itemsize, itemsize, teams"
    ):
        read_plain(tmp_path, CPU.replace(before, 'threads = "M"'))
    family = read_plain(tmp_path, CPU.replace(before, 'threads = "teams - 1"'))
    with pytest.raises(SpaceError, match=r"'plain' has no threads .* teams - 1 must .* is 0"):
        family.thread_count(Configuration({"teams": 1}), "float32")
    with pytest.raises(FamilyError, match="threads is not a key"):
        read(tmp_path, TEXT.replace("[parameters]", 'threads = "p"\n[parameters]'))


def test_one_cuda_family_serves_any_sizes() -> None:
    families = load_families(target="cuda")
    assert [each.name for each in families.values() if each.any_sizes] == ["naive"]
