"""The main job for real: tune on this machine's CPU, store, load in this and in new processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import brevity
import numpy as np
import pytest
from shared_programs import SharedPrograms

from autotune import Gemm, MatchQuality, NotTunedError, Outcome, load, tune
from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import InputError, StudyError, UnknownNameError
from autotune.core.interrupt import SIGNALS
from autotune.measuring.effort import Effort
from autotune.store import TuningCache

pytestmark = pytest.mark.slow

PROBLEM = Gemm(96, 70, 83)
FEW = ["blocked", "loops"]
BRIEF = Effort(budget_s=0.02, finals_s=0.1)


@pytest.fixture(scope="module")
def cache(
    tmp_path_factory: pytest.TempPathFactory, shared_programs: SharedPrograms
) -> Iterator[Path]:
    with shared_programs.at(tmp_path_factory.mktemp("cache")) as folder:
        yield folder


@pytest.fixture(scope="module")
def result(cache: Path):
    return tune(
        PROBLEM,
        target="cpu",
        families=FEW,
        trials=4,
        timeout=250,
        cache=cache,
        study="first",
        effort=BRIEF,
        workers=1,
    )


def operands(problem: Gemm) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return tuple(
        rng.standard_normal(shape).astype(problem.dtype)
        for shape in (problem.a_shape, problem.b_shape)
    )


def test_the_winner_is_verified_and_stored(result, cache: Path) -> None:
    assert result.baseline is not None
    assert result.baseline.name.startswith("NumPy")
    if result.best.baseline is not None:  # else other work disturbed it
        assert result.best.baseline.name == result.baseline.name
    assert result.best.interval_s[0] <= result.best.median_s <= result.best.interval_s[1]
    assert len(result.trials) == 4 == sum(result.counts.values())
    assert result.counts[Outcome.OK] >= 1
    assert [r.id for r in TuningCache(cache / "tuning.sqlite").records()] == [result.best.id]


def test_no_configuration_was_tried_twice(result) -> None:
    assert len({trial.candidate for trial in result.trials}) == len(result.trials)


def test_the_result_is_a_callable(result) -> None:
    a, b = operands(PROBLEM)
    c = result.kernel(a, b)
    np.testing.assert_allclose(c, a.astype(float) @ b, rtol=1e-4, atol=1e-4)
    assert result.kernel.match is MatchQuality.EXACT
    out = np.ones(PROBLEM.c_shape, np.float32)
    assert result.kernel(a, b, out, alpha=2.0, beta=-1.0) is out
    np.testing.assert_allclose(out, 2 * (a.astype(float) @ b) - 1, rtol=1e-4, atol=1e-4)


def test_a_new_process_loads_it(result, cache: Path) -> None:
    program = (
        "import numpy as np; from autotune import Gemm, load;"
        "k = load(Gemm(96, 70, 83), 'cpu');"
        "a = np.ones((96, 70), 'f4'); b = np.ones((70, 83), 'f4');"
        "c = k(a, b); assert (c == 70).all(); print(k.candidate.family)"
    )
    environment = os.environ | {"AUTOTUNE_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == result.best.candidate.family, done.stderr


def test_nothing_tuned_names_the_command(cache: Path, result) -> None:
    with pytest.raises(NotTunedError, match=r"autotune tune --shape 8x9x10 .*--dtype float64"):
        load(Gemm(8, 9, 10, dtype="float64"), "cpu", cache=cache)
    with pytest.raises(UnknownNameError, match="match must be one of"):
        load(PROBLEM, "cpu", match="best", cache=cache)


def test_near_sizes_get_the_nearest_record(cache: Path, result) -> None:
    near = Gemm(90, 75, 80)
    kernel = load(near, "cpu", match="nearest", cache=cache)
    assert kernel.match is MatchQuality.NEAREST
    assert kernel.candidate.family == result.best.candidate.family
    a, b = operands(near)
    np.testing.assert_allclose(kernel(a, b), a.astype(float) @ b, rtol=1e-4, atol=1e-4)


def test_a_record_of_other_parameters_is_passed_over(result, warm_cache: Path) -> None:
    # An older version of the family had a parameter more.
    candidate = result.best.candidate
    older = Configuration({**candidate.configuration, "prefetch": 1})
    record = replace(result.best, candidate=Candidate(candidate.family, older))
    TuningCache(warm_cache / "tuning.sqlite").add(record)
    with pytest.raises(NotTunedError, match="prefetch"):
        load(PROBLEM, "cpu", cache=warm_cache)
    assert load(PROBLEM, "cpu", match="nearest", cache=warm_cache).match is MatchQuality.DEFAULT
    again = tune(
        PROBLEM,
        target="cpu",
        families=[candidate.family],
        trials=1,
        timeout=250,
        cache=warm_cache,
        effort=BRIEF,
        workers=1,
    )
    assert sum(again.counts.values()) == 1


def test_a_named_study_goes_on(result, cache: Path) -> None:
    more = tune(
        PROBLEM,
        target="cpu",
        families=FEW,
        trials=2,
        timeout=250,
        cache=cache,
        study="first",
        effort=BRIEF,
        workers=1,
    )
    assert len(more.trials) == 2
    tried = {trial.candidate for trial in result.trials}
    assert not tried & {trial.candidate for trial in more.trials}


def test_a_study_of_another_space_is_refused(result, cache: Path) -> None:
    with pytest.raises(StudyError, match="first"):
        tune(
            Gemm(64, 64, 64),
            target="cpu",
            families=["loops"],
            trials=2,
            cache=cache,
            study="first",
        )


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"trials": 0}, "trials"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"families": ["pakced"]}, "packed"),
        ({"sampler": "nope"}, "nope"),
        ({"target": "gpu"}, "gpu"),
    ],
)
def test_bad_arguments_are_named(tmp_path: Path, fields: dict, named: str) -> None:
    with pytest.raises(InputError, match=named):
        tune(PROBLEM, cache=tmp_path, **({"target": "cpu"} | fields))


SEARCHES = {
    "tune": ["tune", "--shape", "128x128x128", "--threads", "1", "--timeout", "300"],
    "preset": ["tune", "--preset", "cpu", "--timeout", "3000"],
}


@pytest.mark.parametrize(
    ("search", "number"),
    [
        ("tune", signal.SIGINT),
        pytest.param("tune", signal.SIGHUP, marks=pytest.mark.thorough),
        pytest.param("preset", signal.SIGTERM, marks=pytest.mark.thorough),
    ],
)
def test_a_request_to_stop_keeps_what_was_measured(
    warm_cache: Path, search: str, number: signal.Signals
) -> None:
    # A family of many configurations and few programs: there is much left to do.
    command = [sys.executable, brevity.__file__, *SEARCHES[search], "--json"]
    command += ["--family", "blocked", "--trials", "100000", "--target", "cpu", "--workers", "1"]
    process = subprocess.Popen(
        [*command, "--cache", str(warm_cache)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job's children ignore Ctrl-C.
        preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in SIGNALS],
    )
    try:
        database = TuningCache(warm_cache / "tuning.sqlite")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if any(row.measurement.ok for row in database.measurements()):
                break
            time.sleep(0.05)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 128 + number, stderr
    assert "stopping: measuring the finalists; Ctrl-C again to stop now" in stderr
    document = json.loads(stdout)[0]
    assert document["best"]["median_s"] > 0
    assert [record.id for record in database.records()] == [document["id"]]


@pytest.mark.thorough
def test_two_tuners_share_one_cache_and_study(warm_cache: Path) -> None:
    command = [sys.executable, brevity.__file__, "tune", "--json", "--quiet", "--family", "loops"]
    command += ["--shape", "24x24x24", "--trials", "4", "--cache", str(warm_cache)]
    command += ["--study", "shared", "--target", "cpu", "--workers", "1"]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    rows = TuningCache(warm_cache / "tuning.sqlite").measurements()
    tried = [row.candidate for row in rows]
    assert len(tried) == len(set(tried))
