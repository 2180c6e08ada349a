"""What `autotune doctor` finds: on a healthy machine, and where something is wrong."""

from __future__ import annotations

import ctypes
import importlib.util
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from records import record

from autotune.cli import machine as commands
from autotune.cli import main
from autotune.cli.machine import OTHERS, VARIABLES, environment_checks, installation_checks
from autotune.core.check import Check, Status, attempt
from autotune.core.errors import AutotuneError, CacheError
from autotune.core.paths import CacheLocations
from autotune.cpu.target import CpuTarget
from autotune.distributed.hybrid.target import HybridTarget
from autotune.distributed.mpi import processes
from autotune.distributed.mpi.ranks import world
from autotune.distributed.mpi.target import MpiTarget
from autotune.gpu.nvidia.target import CudaTarget
from autotune.gpu.nvidia.vendor import has_pycuda
from autotune.serving.examining import Apart
from autotune.store import TuningCache, examining, export_records
from autotune.store.examining import cache_checks, layer_checks
from autotune.targets.registry import target_names

ROOT = Path(__file__).parents[3]
STAND_IN = ROOT / "tests" / "stand_in_driver" / "driver.c"


def by_name(checks: Iterable[Check]) -> dict[str, Check]:
    found = {check.name: check for check in checks}
    for check in found.values():
        assert "\n" not in check.found + (check.remedy or "")
        assert check.status is not Status.PROBLEM or check.found
    return found


@pytest.fixture
def cache() -> CacheLocations:
    """A cache with a record in it."""
    place = CacheLocations.at().create()
    TuningCache(place.database).add(record())
    return place


class TestCommand:
    @pytest.mark.mpi
    def test_a_healthy_machine(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert {row["group"] for row in rows} >= {"installation", "cache", *target_names()}
        assert all(row.keys() == ROW for row in rows)
        assert not [row for row in rows if row["status"] == "problem"]
        found = {row["name"]: row["status"] for row in rows}
        for name in ("ranks", "Numba", "threading layer", "processor", "BLAS", "folder"):
            assert found[name] in ("ok", "note"), rows
        assert found["ranks"] == "ok"

    def test_a_problem_is_told_with_its_remedy(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken() -> Iterator[Check]:
            yield Check.problem("disk", "full", "buy another")
            raise RuntimeError("and that is\nall")

        groups = [("here", lambda: [Check.ok("sun", "shines")]), ("there", broken)]
        monkeypatch.setattr(commands, "_groups", lambda cache: groups)
        assert main(["doctor"]) == 1
        assert capsys.readouterr().out.splitlines() == [
            "here",
            "  ok       sun  shines",
            "there",
            "  problem  disk   full",
            "                  → buy another",
            "  problem  there  RuntimeError: and that is all",
            "",
            "2 problems",
        ]

    def test_notes_alone_are_no_failure(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        groups = [("here", lambda: [Check.note("cat", "sleeps")])]
        monkeypatch.setattr(commands, "_groups", lambda cache: groups)
        assert main(["doctor"]) == 0
        assert capsys.readouterr().out.endswith("\n1 note\n")


ROW = {"group", "name", "status", "found", "remedy"}


class TestApart:
    """What hangs or crashes costs a check, never the command."""

    def test_what_hangs_is_ended(self) -> None:
        with Apart(limit_s=0.5) as apart:
            with pytest.raises(AutotuneError, match=r"no result within 0\.5 s"):
                apart(time.sleep, 60)
            assert apart(max, 1, 2) == 2

    def test_what_crashes_or_raises_is_told(self) -> None:
        with Apart() as apart:
            with pytest.raises(AutotuneError, match=r"SIGSEGV|signal 11"):
                apart(ctypes.string_at, 0)
            with pytest.raises(AutotuneError, match="ValueError"):
                apart(int, "none")
            assert attempt("x", lambda: apart(int, "none")).status is Status.PROBLEM

    def test_remedies_are_those_of_the_message(self) -> None:
        refused = Check.refused("x", CacheError("the place is: taken: take another"))
        assert (refused.found, refused.remedy) == ("the place is: taken", "take another")
        assert Check.refused("x", KeyError()).found == "KeyError"
        foreign = Check.refused("x", AutotuneError("ValueError: must be > 0."))
        assert (foreign.found, foreign.remedy) == ("ValueError: must be > 0.", None)


class TestCache:
    def test_none_yet(self) -> None:
        place = CacheLocations.at()
        found = by_name(cache_checks(place))
        assert {check.status for check in found.values()} == {Status.OK}
        assert not place.root.exists()

    def test_one_in_order(self, cache: CacheLocations) -> None:
        before = cache.database.read_bytes()
        found = by_name(cache_checks(cache))
        assert {check.status for check in found.values()} == {Status.OK}
        assert found.keys() >= {"folder", "programs", "database", "locks"}
        assert "1 record" in found["database"].found
        assert cache.database.read_bytes() == before

    def test_a_damaged_database(self, cache: CacheLocations) -> None:
        content = bytearray(cache.database.read_bytes())
        content[8192:12288] = b"\xff" * 4096
        cache.database.write_bytes(content)
        damaged = by_name(cache_checks(cache))["database"]
        assert (damaged.status, bool(damaged.remedy)) == (Status.PROBLEM, True)

    def test_what_is_no_database(self, cache: CacheLocations) -> None:
        cache.database.write_bytes(b"no database " * 100)
        found = by_name(cache_checks(cache))
        assert found["database"].status is Status.PROBLEM
        assert "move it away" in (found["database"].remedy or "")
        assert "locks" not in found

    def test_another_process_that_writes(
        self, cache: CacheLocations, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(examining, "_WAIT_S", 0.1)
        other = sqlite3.connect(cache.database, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        locked = by_name(cache_checks(cache))["locks"]
        other.close()
        assert locked.status is Status.PROBLEM
        assert "locked by another process" in locked.found
        assert by_name(cache_checks(cache))["locks"].status is Status.OK

    def test_folders_that_others_may_write(self, cache: CacheLocations) -> None:
        cache.root.chmod(0o777)
        open_root = by_name(cache_checks(cache))
        assert open_root["privacy"].status is Status.NOTE
        assert f"chmod go-w {cache.root}" in (open_root["privacy"].remedy or "")
        assert open_root["programs"].status is Status.OK
        cache.programs.chmod(0o777)
        programs = by_name(cache_checks(cache))["programs"]
        assert programs.status is Status.PROBLEM
        assert "mode 700" in (programs.remedy or "")

    def test_a_folder_among_the_programs_that_others_may_write(
        self, cache: CacheLocations
    ) -> None:
        folder = cache.programs / "of one compiler"
        folder.mkdir()
        (cache.programs / "a file").touch()
        assert by_name(cache_checks(cache))["programs"].status is Status.OK
        folder.chmod(0o777)
        programs = by_name(cache_checks(cache))["programs"]
        assert programs.status is Status.PROBLEM
        assert str(folder) in programs.found

    def test_a_full_disk(self, cache: CacheLocations, monkeypatch: pytest.MonkeyPatch) -> None:
        if not Path("/dev/full").exists():
            pytest.skip("there is no /dev/full")
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: io.FileIO("/dev/full", "w"))
        folder = by_name(cache_checks(cache))["folder"]
        assert folder.status is Status.PROBLEM
        assert "No space left" in folder.found
        assert "free some space" in (folder.remedy or "")

    def test_little_room(self, cache: CacheLocations, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = shutil.disk_usage(cache.root)._replace(free=5 << 20)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        folder = by_name(cache_checks(cache))["folder"]
        assert (folder.status, "5 MiB" in folder.found) == (Status.NOTE, True)

    def test_a_place_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        folder = by_name(cache_checks(CacheLocations.at(tmp_path / "file" / "cache")))["folder"]
        assert folder.status is Status.PROBLEM
        assert "is not a folder" in folder.found

    def test_a_folder_that_cannot_be_written(self) -> None:
        """As somebody else than root, who may write everywhere."""
        script = (
            "import os, sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
            "from records import record\n"
            "from autotune.core.paths import CacheLocations\n"
            "from autotune.store import TuningCache\n"
            "from autotune.store.examining import cache_checks\n"
            "place = CacheLocations.at(sys.argv[1])\n"
            "place.create(); TuningCache(place.database).add(record())\n"
            "for each in (place.root, *place.root.iterdir()):\n"
            "    each.chmod(0o555 if each.is_dir() else 0o444)\n"
            "if os.geteuid() == 0:\n"
            "    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "for check in cache_checks(place): print(check.name, check.status, check.remedy)\n"
        )
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            done = subprocess.run(
                [sys.executable, "-c", script, f"{folder}/cache", str(ROOT / "tests")],
                capture_output=True,
                text=True,
                check=True,
            )
            Path(folder, "cache").chmod(0o755)
        lines = done.stdout.splitlines()
        assert lines[0].startswith("folder note to tune, give another folder"), done
        assert "database ok None" in lines
        assert not [line for line in lines if "problem" in line]

    def test_a_cache_that_is_a_file(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "x.txt").touch()
        groups = list(commands._groups(str(tmp_path / "x.txt")))[2:3]
        monkeypatch.setattr(commands, "_groups", lambda cache: groups)
        assert main(["doctor"]) == 1
        assert "neither" in capsys.readouterr().out


def test_layers(cache: CacheLocations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, broken = tmp_path / "good.jsonl", tmp_path / "broken.jsonl"
    export_records([record()], lines)
    broken.write_text(lines.read_text() + '{"half": \n')
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"no database " * 100)
    layers = [cache.root, lines, broken, damaged, tmp_path / "nowhere"]
    monkeypatch.setenv("AUTOTUNE_RECORDS", os.pathsep.join(map(str, layers)))
    statuses = [check.status for check in layer_checks()][: len(layers)]
    good, note, problem = Status.OK, Status.NOTE, Status.PROBLEM
    assert statuses == [good, good, note, problem, note]


class TestInstallation:
    def test_it_is_whole(self) -> None:
        found = by_name(installation_checks())
        assert found.keys() == {"Python", "dependencies", "data", "families"}
        assert found["families"].status is found["data"].status is Status.OK

    def test_versions_out_of_range(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        info = tmp_path / "autotune_kernels-9.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: autotune-kernels\nVersion: 9\nRequires-Python: >=99\n"
            "Requires-Dist: numpy>=99\nRequires-Dist: no-such-thing\nRequires-Dist: scipy\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        found = by_name(installation_checks())
        assert found["Python"].status is found["dependencies"].status is Status.PROBLEM
        told = found["dependencies"].found
        assert "numpy" in told
        assert ">=99 is named" in told
        assert "no-such-thing is not installed" in told
        assert "scipy" not in told

    def test_versions_of_what_is_not_needed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        info = tmp_path / "autotune_kernels-9.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: autotune-kernels\nVersion: 9\nRequires-Python: >=3\n"
            "Requires-Dist: pytest<2; extra == 'test'\nRequires-Dist: pytest<1; extra == 'a'\n"
            "Requires-Dist: no-such-thing; extra == 'a'\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        dependencies = by_name(installation_checks())["dependencies"]
        assert dependencies.status is Status.NOTE
        assert "pytest" in dependencies.found
        assert "<2 or <1 is named" in dependencies.found
        assert "no-such" not in dependencies.found

    def test_families_that_cannot_be_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "mine.toml").write_text("family = 3\n")
        monkeypatch.setenv("AUTOTUNE_FAMILIES", str(tmp_path))
        broken = by_name(installation_checks())["families"]
        assert broken.status is Status.PROBLEM
        assert "mine.toml" in broken.found


class TestEnvironment:
    def test_misspelt_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AUTOTUNE_CAHCE", "x")
        check = by_name(environment_checks())["AUTOTUNE_CAHCE"]
        assert check.status is Status.NOTE
        assert check.remedy == "did you mean 'AUTOTUNE_CACHE'?"

    def test_values_that_are_none(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("AUTOTUNE_BACKGROUND", "perhaps")
        monkeypatch.setenv("AUTOTUNE_RECORD", str(tmp_path / "no" / "list.jsonl"))
        found = by_name(environment_checks())
        assert found["variables"].status is Status.PROBLEM
        assert found["AUTOTUNE_RECORD"].status is Status.NOTE

    @pytest.mark.parametrize(
        ("variable", "value", "name"),
        [
            ("AUTOTUNE_BACKGROUND", "7", "variables"),
            ("AUTOTUNE_TUNE", "x", "variables"),
            ("NUMBA_NUM_THREADS", "0", "NUMBA_NUM_THREADS"),
            ("NUMBA_NUM_THREADS", "abc", "NUMBA_NUM_THREADS"),
            ("NUMBA_NUM_THREADS", "-3", "NUMBA_NUM_THREADS"),
        ],
    )
    def test_values_that_are_problems_say_what_to_do(
        self, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, name: str
    ) -> None:
        monkeypatch.setenv(variable, value)
        check = by_name(environment_checks())[name]
        assert check.status is Status.PROBLEM
        assert f"{variable} must be" in check.found
        assert f"got {value!r}" in check.found
        assert "unset it" in (check.remedy or "")

    @pytest.mark.parametrize("command", ["tune", "sweep", "bench"])
    @pytest.mark.parametrize("value", ["0", "abc", "-3"])
    def test_no_thread_to_tune_with(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        command: str,
        value: str,
    ) -> None:
        monkeypatch.setenv("NUMBA_NUM_THREADS", value)
        assert main([command, "--target", "cpu"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert f"NUMBA_NUM_THREADS must be a whole number, at least 1, got {value!r}" in err

    def test_all_variables_are_known(self) -> None:
        """Every name in the package is in the table, and the table is in the documentation."""
        page = (ROOT / "docs" / "commands.md").read_text()
        source = "".join(path.read_text() for path in (ROOT / "autotune").rglob("*.py"))
        assert set(re.findall(r"\bAUTOTUNE_[A-Z_]+", source)) == {*VARIABLES, *OTHERS}
        for name in VARIABLES:
            assert f"| `{name}` |" in page
            assert source.count(name) > 1


class TestCpu:
    def test_no_thread_to_run_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NUMBA_NUM_THREADS", "0")
        found = by_name(CpuTarget.doctor.examine())
        for name in ("Numba", "threading layer"):
            assert found[name].status is Status.PROBLEM
            assert "NUMBA_NUM_THREADS is 0: set it to 1 or more" in (found[name].remedy or "")

    def test_a_threading_layer_that_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NUMBA_THREADING_LAYER", "nonsense")
        monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
        found = by_name(CpuTarget.doctor.examine())
        layer = found["threading layer"]
        assert layer.status is Status.PROBLEM
        assert "nonsense" in layer.found
        assert "unset NUMBA_THREADING_LAYER" in (layer.remedy or "")
        if (os.cpu_count() or 1) > 1:
            assert found["threads"].status is Status.NOTE
            assert "NUMBA_NUM_THREADS=1" in found["threads"].found


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose libraries are found first by processes that are started from now on."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def build(folder: Path, source: str, *options: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to build a stub of the driver")
    (folder / "driver.c").write_text(source)
    library = folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1"]
    command = [compiler, *flags, *options, "-o", str(library), str(folder / "driver.c"), "-ldl"]
    subprocess.run(command, check=True)
    return library


GPUS = """
#include <string.h>
#include <unistd.h>
int cuInit(unsigned flags) { START; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char* name, int length, int device) { strcpy(name, "Stub"); return 0; }
int cuDeviceTotalMem_v2(unsigned long* bytes, int device) { *bytes = 24ul << 30; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) { *value = 8; return 0; }
"""

# What the stand-in lacks of what a device is asked for, and what NVRTC asks a driver for.
DEVICE = f"""
#include "{STAND_IN}"
API cuGetExportTable(const void** table, const CUuuid* id) {{ return CUDA_ERROR_NOT_FOUND; }}
API cuDeviceGetCount(int* count) {{ return *count = 1, CUDA_SUCCESS; }}
API cuDeviceGetName(char* name, int n, CUdevice d) {{ return strcpy(name, "Stub"), CUDA_SUCCESS; }}
API cuDeviceTotalMem(size_t* bytes, CUdevice d) {{ return *bytes = total, CUDA_SUCCESS; }}
API cuDeviceGetPCIBusId(char* id, int n, CUdevice d) {{ return strcpy(id, "0:0"), CUDA_SUCCESS; }}
API cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {{
  return *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1024, CUDA_SUCCESS;
}}
"""


class TestGpu:
    def test_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        found = by_name(CudaTarget.doctor.examine())
        assert found["GPU"].status is not Status.PROBLEM
        assert not [each for each in found.values() if each.status is Status.PROBLEM]
        together = by_name(HybridTarget.doctor.examine())["GPUs together"]
        assert (together.status, together.found) == (Status.OK, "none that can be used")

    @pytest.mark.parametrize(
        ("start", "told"),
        [("return 803", "does not start"), ("kill(getpid(), 11)", "SIGSEGV|signal 11")],
    )
    def test_a_driver_that_does_not_start(self, machine: Path, start: str, told: str) -> None:
        build(machine, GPUS, f"-DSTART={start}")
        checks = list(CudaTarget.doctor.examine())
        [gpu] = [check for check in checks if check.name == "GPU"]
        assert gpu.status is Status.PROBLEM
        assert "nvidia-smi" in (gpu.remedy or "")
        assert any(part in gpu.found for part in told.split("|")), gpu

    def test_a_driver_that_hangs(self, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        build(machine, GPUS, "-DSTART=sleep(600)")
        module = importlib.import_module("autotune.gpu.nvidia.examining")
        monkeypatch.setattr(module, "Apart", lambda: Apart(limit_s=1.0))
        [gpu] = CudaTarget.doctor.examine()
        assert gpu.status is Status.PROBLEM
        assert "no result within 1 s" in gpu.found

    def test_bindings_that_are_missing(
        self, machine: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        build(machine, GPUS, "-DSTART=return 0")
        hidden = machine / "hidden" / "cuda"
        hidden.mkdir(parents=True)
        (hidden / "__init__.py").touch()
        monkeypatch.syspath_prepend(hidden.parent)
        found = by_name(CudaTarget.doctor.examine())
        assert found["GPU 0"].found.startswith("Stub, 24 GiB")
        assert found["GPU"].status is Status.PROBLEM
        assert found["GPU"].remedy == "pip install '.[cuda]' from a checkout"
        assert found["NVRTC"].status is Status.NOTE

    def test_one_that_works(self, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("cuda.bindings", reason="pip install '.[compile]'")
        if has_pycuda():
            pytest.skip("PyCUDA knows the stand-in for what it is")
        places = [Path(place, "nvidia", "cu13", "include") for place in sys.path]
        headers = next((place for place in places if (place / "cuda.h").exists()), None)
        if headers is None:
            pytest.skip("cuda.h is needed: pip install '.[numba-cuda]'")
        monkeypatch.setenv("LD_PRELOAD", str(build(machine, DEVICE, f"-I{headers}")))
        found = by_name(CudaTarget.doctor.examine())
        assert not [each for each in found.values() if each.status is Status.PROBLEM], found
        assert "sm_90" in found["NVRTC"].found
        assert "CUDA 13.0" in found["driver"].found
        assert "1024.0 GiB" in found["context"].found
        assert by_name(HybridTarget.doctor.examine())["GPUs together"].found == "1 x Stub"

    def test_descriptions_that_are_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        monkeypatch.setenv("AUTOTUNE_GPUS", str(tmp_path / "none.toml"))
        check = by_name(CudaTarget.doctor.examine())["AUTOTUNE_GPUS"]
        assert check.status is Status.PROBLEM
        assert check.found.endswith("none.toml: cannot be read: No such file or directory")
        assert check.remedy == "name files that describe GPUs, or unset AUTOTUNE_GPUS"


class TestMpi:
    def test_it_is_not_needed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == "mpi4py" else real(name)
        )
        [check] = MpiTarget.doctor.examine()
        assert (check.status, check.remedy) == (
            Status.NOTE,
            "pip install '.[mpi]' from a checkout",
        )

    @pytest.mark.mpi
    def test_ranks_that_do_not_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        false = tmp_path / "mpiexec"
        false.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\nsleep 600\n')
        false.chmod(0o755)
        monkeypatch.setenv("AUTOTUNE_MPI_TIMEOUT", "0.5")
        monkeypatch.setattr(world, "find_mpiexec", lambda: false)
        found = by_name(MpiTarget.doctor.examine())
        assert found["MPI"].status is found["mpiexec"].status is Status.OK
        assert found["mpiexec"].found == str(processes.find_mpiexec())
        assert found["ranks"].status is Status.NOTE
