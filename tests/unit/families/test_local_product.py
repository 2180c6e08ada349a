"""What a family's file says of the kernel that its programs multiply with, and of its threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.core.configuration import Configuration
from autotune.core.errors import FamilyError, SpaceError
from autotune.core.limits import HybridLimits, MpiLimits
from autotune.cpu.kernel import write_program
from autotune.distributed.mpi.local import mpi_program
from autotune.distributed.mpi.messages import LocalProduct
from autotune.families.family import KernelFamily
from autotune.families.local import local_problem
from autotune.families.program_cache import ProgramCache
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families, read_family

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
