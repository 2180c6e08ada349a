"""What is refused in one line, before any work; shapes as BLAS says them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.samplers import TPESampler
from records import record

from autotune import Gemm, load, sweep, tune
from autotune.cli import main, parse
from autotune.cli.problems import shapes_text
from autotune.core import arguments
from autotune.core.errors import InputError, ProblemError, UnknownNameError
from autotune.cpu.target import CpuTarget
from autotune.search import make_sampler
from autotune.space import SearchSpace
from autotune.store import EffortRecord
from autotune.surveying.preset_run import run_preset
from autotune.surveying.presets import find_preset
from autotune.targets.families import catalog, find_families, select_families

PROBLEM = Gemm(8, 8, 8)


def preset(**given: Any) -> None:
    next(run_preset(find_preset("cpu"), **{"target": "cpu", **given}))


def of_problem(function: Callable[..., Any]) -> Callable[..., Any]:
    def asked(**given: Any) -> Any:
        return function(given.pop("problem", PROBLEM), **{"target": "cpu", **given})

    return asked


LOAD, TUNE, SWEEP = map(of_problem, (load, tune, sweep))
EVERYWHERE = {"load": LOAD, "tune": TUNE, "sweep": SWEEP, "preset": preset}

WRONG = [
    *[
        ("load tune sweep", "problem", value, r"problem must be a problem, like Gemm\(")
        for value in (None, "96x64x80", (96, 64, 80), 3, Gemm)
    ],
    *[
        ("load tune sweep", "target", value, "target must be None, the name of a target")
        for value in (3, b"cpu", CpuTarget)
    ],
    *[
        ("preset", "target", value, "target must be one line of text")
        for value in (3, b"cpu", CpuTarget())
    ],
    *[
        ("load tune sweep preset", "device", value, "device must be None, a number or a name")
        for value in ([], 0.5, True, False, b"0")
    ],
    *[
        ("load tune sweep preset", "cache", value, "cache must be the path of a file or a folder")
        for value in (3, "", [], "a\0b", b"cache")
    ],
    *[
        ("load tune sweep preset", "extra_families", value, "extra_families must be (a list|the)")
        for value in (3, None, [3], [""], b"here", {"here": 1})
    ],
    *[
        ("tune sweep preset", "families", value, "families must be (a list of texts|one line)")
        for value in (3, None, [3], "", {"simd": 1})
    ],
    *[
        ("tune sweep preset", "workers", value, "workers must be a whole number >= 1, got")
        for value in (-1, 0, 1.5, "x", [], True, math.nan)
    ],
    ("tune sweep preset", "workers", 10**9, "workers must be a whole number <= 1024, got 10{9}"),
    *[
        ("tune sweep preset", "seed", value, "seed must be a whole number >= 0, got")
        for value in (-1, 0.5, True, "0", None)
    ],
    ("tune sweep preset", "seed", 2**63, r"seed must be a whole number < 2\^63, got 92233"),
    ("tune sweep preset", "seed", 2**999, r"seed must be .* < 2\^63, got an integer of 1000 bits"),
    *[
        ("tune", "trials", value, "trials must be a whole number >= 1, got")
        for value in (0, 1.5, math.nan, "x", None)
    ],
    ("preset", "trials", 1.5, "trials must be a whole number >= 1, got"),
    ("sweep", "limit", 1.5, "limit must be a whole number >= 1, got"),
    *[
        ("tune", "timeout", value, "timeout must be more than 0 seconds, got")
        for value in (0, -1, math.nan, "x", None, True, 10**400)
    ],
    ("preset", "seconds", math.nan, "timeout must be more than 0 seconds, got nan"),
    *[("tune sweep", "study", value, "study must be one line") for value in (3, "", "a\nb")],
    ("tune sweep preset", "storage", 3, "storage must be one line of text"),
    *[
        ("tune preset", "sampler", value, "sampler must be one line of text")
        for value in (3, None, TPESampler())
    ],
    ("tune sweep", "effort", 3, "effort must be None or an autotune.Effort"),
    ("tune sweep", "progress", 3, "progress must be None or a function"),
]


@pytest.mark.parametrize(
    ("where", "name", "value", "message"),
    [(each, *rest) for names, *rest in WRONG for each in names.split()],
)
def test_what_cannot_be_used_is_refused_before_any_work(
    where: str, name: str, value: Any, message: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(InputError, match=message) as caught:
        EVERYWHERE[where](**{"cache": cache, name: value})
    assert "\n" not in str(caught.value)
    assert not cache.exists()


@pytest.mark.parametrize("seed", [-1, True, 0.5, "0", None, 2**63])
def test_samplers_have_the_same_rule_for_seeds(seed: Any) -> None:
    with pytest.raises(InputError, match=r"^seed must be a whole number"):
        make_sampler("random", SearchSpace({"x": [1]}), seed)


@pytest.mark.parametrize("prior", [3, [3], "near", None])
def test_what_is_no_prior_is_refused(prior: Any) -> None:
    with pytest.raises(InputError, match="prior must be a list of priors"):
        make_sampler("auto", SearchSpace({"x": [1]}), prior=prior)


def test_a_record_says_which_limit_a_seed_is_beyond() -> None:
    assert EffortRecord(1, 1.0, "auto", 2**63 - 1).seed == 2**63 - 1
    with pytest.raises(InputError, match=r"effort\.seed must be a whole number < 2\^63"):
        replace(record(), effort=EffortRecord(1, 1.0, "auto", 2**63))
    with pytest.raises(InputError, match=r"effort\.seed must be a whole number >= 0, got -1"):
        replace(record(), effort=EffortRecord(1, 1.0, "auto", -1))


def test_one_path_or_text_alone_is_taken_as_a_list_of_one(tmp_path: Path) -> None:
    assert arguments.paths("it", "/tmp") == arguments.paths("it", Path("/tmp")) == (Path("/tmp"),)
    assert arguments.paths("it", iter(["a", Path("b")])) == (Path("a"), Path("b"))
    assert arguments.texts("it", "simd") == ("simd",)
    families = catalog("cpu")
    assert list(select_families(families, "simd")) == ["simd"]
    for ask in (find_families, lambda extra: catalog("cpu", extra=extra)):
        with pytest.raises(InputError, match=f"^{tmp_path} must be a folder with kernel families"):
            ask(str(tmp_path))
    with pytest.raises(UnknownNameError, match=r"family must be one of .*, got 'sim'"):
        select_families(families, "sim")


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), 3])
def test_numbers_of_numpy_become_python_s(value: Any) -> None:
    assert type(arguments.whole("it", value)) is int
    assert type(arguments.seed(value)) is int
    assert type(arguments.seconds("it", value)) is float
    assert arguments.seconds("it", math.inf) == math.inf


@pytest.mark.parametrize("shape", [(), (1,), (1, 2), (1, 2, 3, 4)])
def test_other_sizes_are_as_many_as_there_are(shape: tuple[int, ...]) -> None:
    with pytest.raises(ProblemError, match="a shape of gemm is MxNxK, got"):
        PROBLEM.with_sizes(*shape)


@pytest.mark.parametrize("accuracy", [[], {}, 0, False, ()])
def test_only_no_accuracy_stands_for_the_usual_one(accuracy: Any) -> None:
    assert Gemm(2, 2, 2, accuracy="") == Gemm(2, 2, 2)
    with pytest.raises(ProblemError, match="accuracy must be one of ieee"):
        Gemm(2, 2, 2, accuracy=accuracy)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--sampler", "foo"], "no sampler 'foo'"),
        (["--sampler", "no.such.Sampler"], "no sampler 'no.such.Sampler'"),
        (["--storage", "foo"], "'foo' is not a storage URL"),
        (["--storage", "sqlite:////no/such/folder/x.db"], "cannot open storage"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [["tune", "--shape", "8x8x8"], ["tune", "--preset", "cpu"]],
)
def test_samplers_and_storages_are_refused_before_anything_is_printed(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: list[str],
    options: list[str],
    told: str,
) -> None:
    target = ["--target", "cpu", "--cache", str(tmp_path)]
    assert main([*command, *options, *target]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("autotune: error: ")
    assert told in line


SIZES = st.integers(1, 40)


@given(SIZES, SIZES, SIZES)
def test_a_problem_is_the_product_that_blas_makes(m: int, n: int, k: int) -> None:
    problem = Gemm.from_blas(m, n, k, dtype="float64", layout="nt")
    assert problem == Gemm(m=m, n=k, k=n, dtype="float64", layout="nt")
    assert problem.blas == (m, n, k)
    a, b = np.ones((m, k)), np.ones((k, n))
    assert problem.c_shape == (a @ b).shape
    assert problem.flops == 2 * m * n * k


@pytest.mark.parametrize("command", ["tune", "bench", "space", "sweep", "emit goto"])
def test_commands_take_it(command: str) -> None:
    args = parse([*command.split(), "--blas", "10,20,30", "--blas=1, 2,3"])
    assert args.blas == ["10x30x20", "1x3x2"]


def test_it_is_what_is_counted_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["space", "loops", "--target", "cpu"]
    assert main([*where, "--blas", "10,20,30", "--json"]) == 0
    [one] = json.loads(capsys.readouterr().out)
    assert main([*where, "--shape", "10x30x20", "--json"]) == 0
    [other] = json.loads(capsys.readouterr().out)
    assert one["problem"] == other["problem"]
    assert main([*where, "--shape", "10x30x20"]) == 0
    out = capsys.readouterr().out
    assert "C[10x20] = A[10x30] @ B[30x20]  float32  (BLAS m=10, n=20, k=30) on" in out
    assert out.count("BLAS") == 1


def test_progress_does_not_repeat_it() -> None:
    problem = Gemm.from_blas(1, 2, 3)
    assert shapes_text(problem) == "C[1x2] = A[1x3] @ B[3x2]  float32"
    assert shapes_text(problem, blas=True).endswith("float32  (BLAS m=1, n=2, k=3)")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tune", "--blas", "10,20"], "must be three sizes, m,n,k"),
        (["tune", "--blas", "10x20x30"], "must be three sizes"),
        (["space", "--target", "cpu", "--blas", "8,0,8"], "got '8x8x0'"),
        (["space", "--blas", "8,8,8", "--shape", "8x8x8"], "not allowed with argument"),
        (["tune", "--preset", "cpu", "--blas", "8,8,8"], "--preset cpu says itself"),
        (["emit", "--record", "abc", "--blas", "8,8,8"], "--record says itself"),
    ],
)
def test_what_cannot_be_meant(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1)
    assert told in err
