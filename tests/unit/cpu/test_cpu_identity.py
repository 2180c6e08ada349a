"""What a processor is, and how many threads kernels use."""

from __future__ import annotations

import dataclasses
import os
import platform
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import threadpoolctl
from hypothesis import given
from hypothesis import strategies as st
from records import record

from autotune.core.configuration import Candidate, Configuration
from autotune.core.limits import CpuLimits
from autotune.core.paths import CacheLocations
from autotune.core.processors import parse_quota, read_quota
from autotune.cpu import identity
from autotune.cpu.baseline import Blas, numpy_blas, numpy_vendor
from autotune.cpu.identity import (
    CpuCaches,
    CpuModel,
    feature_digest,
    parse_cpuinfo,
    parse_size,
    read_caches,
    read_cpu,
    vector_unit,
)
from autotune.cpu.target import CpuTarget
from autotune.cpu.threads import pool_limit, usable_threads
from autotune.operations.problem import Gemm
from autotune.serving.lookup import look_up
from autotune.store import TuningCache
from autotune.targets.families import load_families

if TYPE_CHECKING:
    from pathlib import Path


INTEL = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 106
model name\t: Intel(R) Xeon(R)  Platinum 8375C CPU @ 2.90GHz
stepping\t: 6
microcode\t: 0xd0003d1
cpu MHz\t\t: 3500.012
cache size\t: 55296 KB
flags\t\t: fpu vme avx512f
bugs\t\t: spectre_v1

processor\t: 1
vendor_id\t: GenuineIntel
model\t\t: 107
stepping\t: 7
"""

AMD = """\
processor       : 0
vendor_id       : AuthenticAMD
cpu family      : 26
model           : 2
model name      : AMD EPYC
stepping        : 1
microcode       : 0x1000065
cache size      : 1024 KB
address sizes   : 48 bits physical, 48 bits virtual
power management:
"""

ARM = """\
processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm aes sve
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1

"""

OTHER = """\
processor\t: 0
hart\t\t: 1
isa\t\t: rv64imafdc
uarch\t\t: sifive,u74-mc
"""


def test_intel() -> None:
    assert parse_cpuinfo(INTEL) == CpuModel(
        "GenuineIntel", "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", 6, 106, 6, "0xd0003d1"
    )


def test_amd() -> None:
    assert parse_cpuinfo(AMD) == CpuModel("AuthenticAMD", "AMD EPYC", 26, 2, 1, "0x1000065")


def test_arm_has_numbers_for_a_name() -> None:
    assert parse_cpuinfo(ARM) == CpuModel("ARM", "", 8, 0xD40, 0x11)
    unknown = ARM.replace("0x41", "0x99")
    assert parse_cpuinfo(unknown).vendor == "implementer 0x99"


@pytest.mark.parametrize("text", ["", "\n\n", OTHER, "no separator", "model : x\nstepping:"])
def test_foreign_texts_give_unknowns(text: str) -> None:
    assert parse_cpuinfo(text) == CpuModel()


def write_cache(folder: Path, index: int, level: str, kind: str, size: str) -> None:
    place = folder / f"index{index}"
    place.mkdir(parents=True)
    for name, value in (
        ("level", level),
        ("type", kind),
        ("size", size),
        ("coherency_line_size", "64"),
    ):
        (place / name).write_text(value + "\n")


def test_caches_of_one_core(tmp_path: Path) -> None:
    write_cache(tmp_path, 0, "1", "Data", "48K")
    write_cache(tmp_path, 1, "1", "Instruction", "32K")
    write_cache(tmp_path, 2, "2", "Unified", "1280K")
    write_cache(tmp_path, 3, "3", "Unified", "54M")
    assert read_caches(tmp_path) == CpuCaches(48 << 10, 1280 << 10, 54 << 20, 64)


def test_a_container_without_caches(tmp_path: Path) -> None:
    assert read_caches(tmp_path / "cache") == CpuCaches()
    (tmp_path / "index0").mkdir()
    assert read_caches(tmp_path) == CpuCaches()


@pytest.mark.parametrize(
    ("text", "size"),
    [("32K", 32768), ("1M", 1 << 20), ("1G", 1 << 30), ("512", 512), ("", 0), ("K", 0), ("x", 0)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("features", "machine", "unit"),
    [
        ({"avx512f": True, "avx": True}, "x86_64", (512, 32)),
        ({"avx512f": False, "avx": True}, "x86_64", (256, 16)),
        ({"sse2": True}, "AMD64", (128, 16)),
        ({"neon": True, "sve": True}, "aarch64", (128, 32)),
        ({}, "arm64", (128, 32)),
        ({}, "riscv64", (128, 16)),
    ],
)
def test_vector_units(features: dict[str, bool], machine: str, unit: tuple[int, int]) -> None:
    assert vector_unit(features, machine) == unit


def test_features_that_are_off_are_no_identity() -> None:
    assert feature_digest({"avx": True, "sse": True}) == feature_digest(
        {"sse": True, "amx": False, "avx": True}
    )
    assert feature_digest({"avx": True}) != feature_digest({"sse": True})


def test_this_machine_reads_the_same_twice() -> None:
    device, again = read_cpu(), read_cpu()
    assert device.fingerprint.digest == again.fingerprint.digest
    assert device.fingerprint.kind == "cpu"
    assert isinstance(device.limits, CpuLimits)
    assert all(value >= 0 for value in device.limits.names().values())
    assert device.limits.max_threads >= 1
    assert device.toolchain["numpy"].count(".") >= 1
    assert device.toolchain["blas"] == numpy_blas().description
    assert device.toolchain["python"] == platform.python_version()
    assert all(isinstance(value, str) for value in {**device.toolchain, **device.state}.values())


def test_a_machine_that_shows_nothing_still_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "text_of", lambda path: "")
    monkeypatch.setattr(identity, "_processor", identity._processor.__wrapped__)  # not as it was
    device = read_cpu()
    assert device.fingerprint.name.startswith("unknown ")
    assert device.fingerprint.fields["l2_bytes"] == 0
    assert device.limits.names()["l1_bytes"] == 32768
    assert device.state["governor"] == "unknown"


def test_reading_imports_no_compiler() -> None:
    script = (
        "import sys; from autotune.cpu.identity import read_cpu; read_cpu()\n"
        "print([m for m in ('numba', 'optuna', 'jinja2') if m in sys.modules])\n"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"


def test_the_baselines_name_says_what_was_measured() -> None:
    blas = Blas("OpenBLAS", "0.3.31", "Haswell")
    assert numpy_vendor(blas, 1).name.endswith(" (OpenBLAS 0.3.31, Haswell, 1 thread)")
    assert numpy_vendor(Blas(), 4).name.endswith(" (unknown BLAS, 4 threads)")


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


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no processor affinity here")
def test_a_kernel_is_loaded_with_the_threads_that_affinity_leaves(tuned: Configuration) -> None:
    assert output_of("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})") == CAPPED


@pytest.mark.thorough
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
