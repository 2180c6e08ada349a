"""Kernels of one's own for real: tuned at the first call, loaded in this and other processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import own_kernels
import pytest
from own_kernels import BRIEF, damp, damping, gemv
from shared_programs import SharedPrograms

import autotune
from autotune.core.errors import TuningFailedError
from autotune.core.interrupt import SIGNALS
from autotune.cpu.kernel import load_kernel
from autotune.families.program_cache import ProgramCache
from autotune.operations.cases import cases_of, special_cases
from autotune.operations.verification import Check
from autotune.store import TuningCache
from autotune.targets.families import catalog

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cache(
    tmp_path_factory: pytest.TempPathFactory, shared_programs: SharedPrograms
) -> Iterator[Path]:
    with shared_programs.at(tmp_path_factory.mktemp("cache")) as folder:
        yield folder


def another_process(cache: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, own_kernels.__file__],
        env={**os.environ, "OWN_KERNEL": str(cache), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job's children ignore Ctrl-C.
        preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in SIGNALS],
    )


def test_the_first_call_tunes_and_all_others_load(cache: Path) -> None:
    kernel = gemv(cache=cache)
    a, x = np.ones((24, 16), np.float32), np.ones(16, np.float32)
    results: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: results.append(kernel(a, x, alpha=2.0))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(each == 32).all() for each in results] == [True] * 3
    (record,) = TuningCache(cache / "tuning.sqlite").records()
    assert (record.operation, record.candidate.family) == ("gemv", "gemv")
    out = np.empty(24, np.float32)
    assert kernel(a, x, out=out) is out
    assert (out == 16).all()
    wide = np.ones((24, 20), np.float32)
    assert (kernel(wide[:, 2:18], x) == 16).all()
    assert kernel.load(M=24, N=16).record == record
    child = os.fork()
    if child == 0:
        os._exit(0 if (kernel(a, x) == 16).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    # A new process: nothing is tuned there.
    process = another_process(cache, AUTOTUNE_TUNE="0", AUTOTUNE_LOG="stderr")
    output, error = process.communicate(timeout=120)
    assert output.split()[1:] == [kernel.folder.name, str(24 * 32.0)], error
    assert f"autotune: gemv 24x16-float32 on cpu: {record.candidate}, EXACT\n" in error


def test_a_function_may_be_the_reference_and_threads_share_loops(cache: Path) -> None:
    kernel = damping(cache=cache, **BRIEF)
    rng = np.random.default_rng(1)
    a, bias = rng.standard_normal((30, 20)), rng.standard_normal(20)
    result = kernel.tune(M=30, N=20, dtype="float64")
    # A slow one may be given up; none may be wrong.
    assert result.counts.keys() <= {autotune.Outcome.OK, autotune.Outcome.ABANDONED}
    for alpha in (1.0, -2.0):
        np.testing.assert_allclose(kernel(a, bias, alpha=alpha), damp(a, bias, alpha), rtol=1e-13)
    family = catalog("cpu", kernel.name, [kernel.folder])[kernel.name]
    chosen = {"threads": 2, "tile": 8, "order": "plain"}
    shared = load_kernel(family, chosen, result.problem, ProgramCache(cache / "programs"))
    cases = cases_of(result.problem)[:10]
    for case in (*cases, *special_cases(result.problem, cases)):
        verdict = Check(case, result.problem, np.random.default_rng(2)).run(shared, "ieee")
        assert verdict.right, verdict.reason


def wrong(A, x, y, alpha, rows):
    for i in range(A.shape[0]):
        y[i] = 0


def test_a_wrong_kernel_is_not_stored(cache: Path) -> None:
    kernel = gemv(wrong, cache=cache)
    with pytest.raises(TuningFailedError, match=r"^wrong: no candidate .* wrong_result") as caught:
        kernel(np.ones((8, 8), np.float32), np.ones(8, np.float32))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_ctrl_c_ends_a_first_call_in_one_line_and_loses_nothing(cache: Path) -> None:
    fresh = cache / "interrupted"
    process = another_process(fresh)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        database = TuningCache(fresh / "tuning.sqlite")
        while process.poll() is None and not any(
            row.measurement.ok for row in database.measurements()
        ):
            threading.Event().wait(0.1)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=120)
    finally:
        process.kill()
    records = TuningCache(fresh / "tuning.sqlite").records()
    assert [record.operation for record in records] == ["gemv"]
    if process.returncode != 0:  # it was not over before it heard
        last = error.strip().splitlines()[-1]
        assert last.startswith("KeyboardInterrupt: tuning gemv for 24x16-float32 was stopped")
