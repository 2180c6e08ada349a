"""What is refused in one line, before any work; shapes as BLAS says them; ladders."""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Callable, Sequence
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
from autotune.cli import bench, main, parse
from autotune.cli.bench import NEAR, measure, rungs
from autotune.cli.problems import shapes_text
from autotune.cli.terminal import plain
from autotune.core import arguments
from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import InputError, ProblemError, UnknownNameError
from autotune.core.interrupt import STOP_S
from autotune.core.measurement import Measurement, Outcome, Series
from autotune.cpu.target import CpuTarget
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.measuring.effort import Baseline, Finals
from autotune.search import make_sampler
from autotune.space import SearchSpace
from autotune.store import EffortRecord
from autotune.surveying.preset_run import run_preset
from autotune.surveying.presets import find_preset
from autotune.targets.families import catalog, find_families, load_families, select_families

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
        for value in (3, "", [], "a\0b", "a\ud800b", b"cache")
    ],
    *[
        ("load tune sweep preset", "extra_families", value, "extra_families must be (a list|the)")
        for value in (3, None, [3], [""], ["\ud800"], b"here", {"here": 1})
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
        ("tune", "devices", value, "devices must be numbers of GPUs, got")
        for value in (0, None, 1.5, "0-3")
    ],
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
    assert "C[10x20] = A[10x30] @ B[30x20]  float32  (BLAS m=10, n=20, k=30)\non " in out
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
        (["space", "--target", "cpu", "--blas", "8,0,8"], "whole numbers >= 1"),
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


SQUARE = Gemm(64, 64, 64)
VENDOR = Baseline("vendor 1.0", 1e-3, (1e-3, 1e-3), 1, {})


class ScriptedEvaluator:
    """Medians by configuration; those of the finals are half as long."""

    def __init__(self, medians: dict[int, float | None], baseline: Baseline | None) -> None:
        self._medians = medians
        self._baseline = baseline
        self.finalists: list[int] = []

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        pass

    def baseline(self) -> Baseline | None:
        return self._baseline

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        median = self._medians[candidate.configuration["x"]]
        if median is None:
            return Measurement(Outcome.REJECTED, reason="too large")
        return Measurement(Outcome.OK, median, (median, median), 5, 0.1)

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        self.finalists = [candidate.configuration["x"] for candidate in candidates]
        medians = [self._medians[x] / 2 for x in self.finalists]
        return Finals(
            tuple(Measurement(Outcome.OK, median, (median, median), 9, 0.1) for median in medians),
            tuple(None if self._baseline is None else 7.0 for _ in medians),
            self._baseline,
        )


def contestants(count: int) -> list[tuple[str, Candidate]]:
    return [(f"k{x}", Candidate("f", Configuration({"x": x}))) for x in range(count)]


def test_near_kernels_take_turns_and_far_ones_are_measured_alone() -> None:
    evaluator = ScriptedEvaluator({0: 0.9e-3, 1: NEAR * 1e-3, 2: NEAR * 2e-3, 3: None}, VENDOR)
    notes: list[str] = []
    rows = measure(evaluator, SQUARE, contestants(4), notes.append)
    # The yardstick is the fastest of all.
    assert evaluator.finalists == [0]
    assert [row.kernel for row in rows] == ["vendor 1.0", "k0", "k1", "k2", "k3"]
    assert [row.median_s for row in rows] == [1e-3, 0.45e-3, NEAR * 1e-3, NEAR * 2e-3, None]
    assert [row.ratio_to_vendor for row in rows] == [1.0, 7.0, 1 / NEAR, 1 / NEAR / 2, None]
    assert rows[4].reason == "too large"
    assert len(notes) == 4
    assert "too large" in notes[3]


def test_without_a_vendor_library_the_best_is_the_yardstick() -> None:
    evaluator = ScriptedEvaluator({0: 1.0, 1: 2.0, 2: 5.0}, None)
    rows = measure(evaluator, SQUARE, contestants(3), lambda line: None)
    assert evaluator.finalists == [0, 1]
    assert [row.median_s for row in rows] == [0.5, 1.0, 5.0]
    assert all(row.ratio_to_vendor is None for row in rows)


def test_where_nothing_runs_there_are_no_finals() -> None:
    evaluator = ScriptedEvaluator({0: None}, VENDOR)
    rows = measure(evaluator, SQUARE, contestants(1), lambda line: None)
    assert evaluator.finalists == []
    assert [row.median_s for row in rows] == [1e-3, None]


def test_kernels_that_were_held_have_a_table_of_their_own() -> None:
    class Holding(ScriptedEvaluator):
        def finals(self, candidates: Sequence[Candidate]) -> Finals:
            held = [Series(t, (t, t), 9, {"joules": 0.5, "watts": 600.0}) for t in (2e-3, 1.9e-3)]
            turns = ((held[0],) * 2, *[()] * (len(candidates) - 1))
            found = super().finals(candidates)
            return replace(found, sustained=turns, sustained_baseline=(held[1],) * 2)

    evaluator = Holding({0: 1e-3, 1: 1e-3}, VENDOR)
    rows = measure(evaluator, SQUARE, contestants(2), lambda line: None)
    assert [row.ratio_sustained for row in rows] == [1.0, pytest.approx(0.95), None]
    (vendor, first, second) = (row.document() for row in rows)
    assert vendor["sustained"]["median_s"] == 1.9e-3
    assert first["sustained"] == {
        "median_s": 2e-3,
        "joules": 0.5,
        "watts": 600.0,
        "sm_clock_mhz": None,
    }
    assert second["sustained"] is None
    text = plain(bench._text(rows))
    assert "without a pause  median ms  GFLOP/s  % of vendor  J a call    W  MHz" in text
    assert re.search(r"k0 +2 +0\.3 +95\.0 +0\.5 +600 +-", text)
    assert "k1" not in text.partition("without a pause")[2]


def test_rungs_are_all_presets_and_defaults_each_once() -> None:
    families = load_families(target="cuda")
    found = list(rungs(families, Gemm(1024, 1024, 1024), find_gpu("h200").limits))
    names = [name for name, _ in found]
    assert len(names) == len(set(names))
    for family in families.values():
        assert {f"{family.name} ({preset})" for preset in family.presets} <= set(names)
    # Two rungs may be one configuration under two names; a default is no further rung then.
    defaults = [candidate for name, candidate in found if name.endswith("(default)")]
    presets = [candidate for name, candidate in found if not name.endswith("(default)")]
    assert not set(defaults) & set(presets)


def test_a_request_to_stop_leaves_rows_of_what_was_measured() -> None:
    evaluator = ScriptedEvaluator({0: 1e-3, 1: 1e-3, 2: 1e-3}, VENDOR)
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        if len(notes) == 2:
            signal.raise_signal(signal.SIGINT)

    rows = measure(evaluator, SQUARE, contestants(3), note)
    assert [row.kernel for row in rows] == ["vendor 1.0", "k0", "k1"]
    assert evaluator.finalists == [0, 1]
    assert evaluator.deadline.left_s <= STOP_S
