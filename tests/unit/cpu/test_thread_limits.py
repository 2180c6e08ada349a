"""How many threads kernels use: what the process may, whatever a record was tuned with."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import threadpoolctl
from hypothesis import given
from hypothesis import strategies as st
from records import record

from autotune.core.configuration import Candidate, Configuration
from autotune.core.paths import CacheLocations
from autotune.core.processors import parse_quota, read_quota
from autotune.cpu.identity import read_cpu
from autotune.cpu.target import CpuTarget
from autotune.cpu.threads import pool_limit, usable_threads
from autotune.operations.problem import Gemm
from autotune.serving.lookup import look_up
from autotune.store import TuningCache
from autotune.targets.families import load_families

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = st.integers(1, 256)


@pytest.mark.parametrize(
    ("affinity", "quota", "numba_threads", "pools", "threads"),
    [
        (8, None, None, None, 8),
        (8, 2.5, None, None, 3),
        (8, 2.0, None, None, 2),
        (8, 0.5, None, None, 1),
        (8, 16.0, "4", None, 4),
        (8, None, "16", None, 8),
        (8, None, "", None, 8),
        (8, None, "many", None, 8),
        (8, None, "-1", None, 8),
        (8, None, None, 2, 2),
        (8, 3.0, "4", 16, 3),
    ],
)
def test_the_least_limit_counts(
    affinity: int, quota: float | None, numba_threads: str | None, pools: int | None, threads: int
) -> None:
    assert usable_threads(affinity, quota, numba_threads, pools) == threads


@given(COUNTS, st.none() | st.floats(0.01, 300), st.none() | COUNTS, st.none() | COUNTS)
def test_no_limit_is_exceeded_and_one_is_reached(
    affinity: int, quota: float | None, numba_threads: int | None, pools: int | None
) -> None:
    text = None if numba_threads is None else str(numba_threads)
    threads = usable_threads(affinity, quota, text, pools)
    whole = [limit for limit in (affinity, numba_threads, pools) if limit is not None]
    assert 1 <= threads <= min(whole)
    assert threads in whole or (quota is not None and quota <= threads < quota + 1)


@pytest.mark.parametrize(
    ("text", "quota"),
    [("max 100000", None), ("150000 100000", 1.5), ("50000 100000", 0.5), ("", None), ("1", None)],
)
def test_quotas(text: str, quota: float | None) -> None:
    assert parse_quota(text) == quota


def test_the_tightest_quota_up_the_tree_counts(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/cpu.max").write_text("200000 100000\n")
    (tmp_path / "a/b/cpu.max").write_text("max 100000\n")
    assert read_quota(tmp_path, "1:cpu:/x\n0::/a/b\n") == 2
    (tmp_path / "a/b/cpu.max").write_text("100000 100000\n")
    assert read_quota(tmp_path, "0::/a/b\n") == 1
    assert read_quota(tmp_path, "0::/\n") is None
    (tmp_path / "cpu.max").write_text("300000 100000\n")
    assert read_quota(tmp_path, "0::/hidden/path/of/the/host\n") == 3
    assert read_quota(tmp_path, "4:memory:/a\n") is None


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_quotas_of_the_first_control_groups(mount: str, tmp_path: Path) -> None:
    group = tmp_path / mount / "docker/abc"
    group.mkdir(parents=True)
    membership = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n0::/\n"
    assert read_quota(tmp_path, membership) is None
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert read_quota(tmp_path, membership) is None
    (group / "cpu.cfs_quota_us").write_text("250000\n")
    assert read_quota(tmp_path, membership) == 2.5


@pytest.mark.parametrize("membership", ["", "\n", "no separator", "0:", ":::"])
def test_foreign_memberships_limit_nothing(membership: str, tmp_path: Path) -> None:
    assert read_quota(tmp_path, membership) is None


def blas(library: str, threads: int, layer: str = "pthreads") -> dict[str, object]:
    return {
        "user_api": "blas",
        "internal_api": library,
        "num_threads": threads,
        "threading_layer": layer,
    }


OPENMP = {"user_api": "openmp", "internal_api": "openmp", "num_threads": 3}


@pytest.mark.parametrize(
    ("pools", "limit"),
    [
        ([], None),
        ([blas("openblas", 2)], 2),
        ([blas("openblas", 4), OPENMP], 3),
        ([blas("openblas", 64)], None),
        ([blas("openblas", 1, "disabled")], None),
        ([blas("mkl", 4)], None),
        ([blas("blis", 1)], None),
        ([OPENMP, blas("mkl", 1)], 3),
    ],
)
def test_pools_that_tell_of_limits(pools: list[dict[str, object]], limit: int | None) -> None:
    assert pool_limit(pools) == limit


@pytest.mark.skipif(pool_limit() is None, reason="NumPy's BLAS is not OpenBLAS here")
def test_threadpoolctls_limits_are_seen() -> None:
    before = read_cpu().limits
    with threadpoolctl.threadpool_limits(1):
        assert pool_limit() == 1
        assert read_cpu().limits.names()["max_threads"] == 1
    assert read_cpu().limits == before


READ = """\
import os
{before}
from autotune.cpu.identity import read_cpu
device = read_cpu()
print(device.fingerprint.digest, device.limits.max_threads, device.state["affinity"])
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no processor affinity here")
def test_affinity_caps_threads_and_is_no_identity() -> None:
    before = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    script = READ.format(before=before)
    output = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert output.split() == [read_cpu().fingerprint.digest, "1", "1"]


def test_numbas_variable_caps_threads() -> None:
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1"}
    script = READ.format(before="")
    output = subprocess.check_output([sys.executable, "-c", script], text=True, env=environment)
    assert output.split()[:2] == [read_cpu().fingerprint.digest, "1"]


# --- loading what was tuned with more threads than this process may use ---

PROBLEM = Gemm(24, 20, 22)

LOAD = """\
import os
{before}
import numpy as np
from autotune import Gemm, load
kernel = load(Gemm(24, 20, 22), "cpu")
a, b = np.ones((24, 20), "f4"), np.ones((20, 22), "f4")
assert (kernel(a, b) == 20).all()
print(kernel.match, kernel.candidate.configuration["threads"], kernel.reason, sep="; ")
"""
CAPPED = "EXACT; 1; tuned with 12 threads, and this process may use 1"


@pytest.fixture
def tuned(own_cache: Path) -> Configuration:
    """A record of this machine, tuned with more threads than the tests may use."""
    device = read_cpu()
    configuration = Configuration({"order": "ikj", "threads": 12})
    TuningCache(CacheLocations.at(own_cache).database).add(
        record(
            problem=PROBLEM,
            fingerprint=device.fingerprint,
            toolchain=device.toolchain,
            candidate=Candidate("loops", configuration),
            family_digest=load_families(target="cpu")["loops"].digest,
        )
    )
    return configuration


def output_of(before: str = "", **variables: str) -> str:
    """What a process prints that loads the tuned kernel and calls it."""
    return subprocess.check_output(
        [sys.executable, "-c", LOAD.format(before=before)],
        text=True,
        env={**os.environ, **variables},
    ).strip()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no processor affinity here")
def test_a_kernel_is_loaded_with_the_threads_that_affinity_leaves(tuned: Configuration) -> None:
    assert output_of("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})") == CAPPED


def test_a_kernel_is_loaded_with_the_threads_that_numba_has(tuned: Configuration) -> None:
    assert output_of(NUMBA_NUM_THREADS="1") == CAPPED


@pytest.mark.skipif(pool_limit() is None, reason="NumPy's BLAS is not OpenBLAS here")
def test_a_kernel_is_loaded_with_the_threads_that_threadpoolctl_leaves(
    tuned: Configuration,
) -> None:
    before = "import numpy, threadpoolctl; limits = threadpoolctl.threadpool_limits(1)"
    assert output_of(before) == CAPPED


def test_a_cap_moves_to_the_nearest_valid_configuration(
    tuned: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many as there were, or more, the record is taken as it is; with fewer, not."""
    for usable, threads in ((1, 1), (7, 6), (12, 12), (64, 12)):
        device = read_cpu()
        limits = dataclasses.replace(device.limits, max_threads=usable)
        there = dataclasses.replace(device, limits=limits)
        monkeypatch.setattr(CpuTarget, "device", lambda *args, there=there: there)
        found = look_up(PROBLEM, CpuTarget(), match="exact")
        assert found.candidate.configuration == {
            **tuned,
            "threads": {7: 6, 64: 12}.get(usable, usable),
        }
        assert bool(found.match.reason) == (threads < 12)
