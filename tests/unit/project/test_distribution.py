"""How the tests are shared among processes, and what they share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from shared_programs import SharedPrograms

from autotune.families.compiled_files import CompiledFiles
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source

TESTS = Path(__file__).parents[2]
MODULE = """
import os
from pathlib import Path
import pytest

pytestmark = [{marks}]

@pytest.mark.parametrize("number", range(6))
def test_one(number):
    with open({log!r}, "a") as log:
        print(os.environ["PYTEST_XDIST_WORKER"], Path(__file__).stem, file=log)
"""


@pytest.mark.thorough
def test_modules_stay_in_one_process_and_long_ones_begin(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    for path in (TESTS.parent / "pyproject.toml", *TESTS.glob("*.py")):
        shutil.copy(path, tmp_path / path.relative_to(TESTS.parent))
    log = tmp_path / "log"
    brief = ("brief/test_a", "brief/test_b")
    long = ("test_c", "gpu/test_hybrid_gpu", "mpi/test_e", "mpi/test_f")
    for name in (*brief, *long):
        module = tmp_path / "tests" / f"{name}.py"
        module.parent.mkdir(exist_ok=True)
        marks = "pytest.mark.slow" if name in long else ""
        module.write_text(MODULE.format(marks=marks, log=str(log)))
    kept = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

    runs = [line.split() for line in log.read_text().splitlines()]
    assert len(runs) == 6 * len((*brief, *long))
    workers = {module: {worker for worker, other in runs if other == module} for _, module in runs}
    assert all(len(found) == 1 for found in workers.values()), workers
    # These start ranks on all cores, one at a time.
    assert workers["test_e"] == workers["test_f"]
    begun = list(dict.fromkeys(module for _, module in runs))
    assert set(begun[:2]).isdisjoint({"test_a", "test_b"})


def test_what_a_strange_plugin_says_of_itself_stops_nothing(tmp_path: Path) -> None:
    """As pytest-benchmark does beside pytest-xdist: it warns while pytest starts."""
    (tmp_path / "strange.py").write_text(
        "import warnings, pytest\n"
        "def pytest_configure(config):\n"
        "    warnings.warn(pytest.PytestWarning('benchmarks are disabled'))\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "strange", "--collect-only", __file__],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr


CASES = """
import pytest

@pytest.mark.sampled(4)
@pytest.mark.parametrize("second", range(5))
@pytest.mark.parametrize("first", "abcd")
def test_many(first, second):
    print("ran", first, second)

@pytest.mark.sampled(3)
@pytest.mark.parametrize("second", range(5))
@pytest.mark.parametrize("first", "abc")
def test_fewer(first, second):
    print("ran", "fewer", first, second)

@pytest.mark.thorough
def test_long():
    print("ran long")

@pytest.mark.sampled(9)
@pytest.mark.parametrize("first", "ab")
def test_few(first):
    print("ran", first)
"""


@pytest.mark.thorough
def test_a_sample_of_cases_has_every_value_and_is_the_same_again(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    for path in (TESTS.parent / "pyproject.toml", *TESTS.glob("*.py")):
        shutil.copy(path, tmp_path / path.relative_to(TESTS.parent))
    (tmp_path / "tests" / "test_cases.py").write_text(CASES)
    kept = {name: value for name, value in os.environ.items() if "PYTEST" not in name}

    def ran(*options: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-n", "0", *options]
        done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return [line for line in done.stdout.splitlines() if "ran " in line]

    sample = ran()
    assert sample == ran()
    drawn = [line.split("ran ")[1].split() for line in sample]
    many = [each for each in drawn if len(each) == 2]
    assert len(many) == 4
    assert {first for first, _ in many} == set("abcd")
    assert len({second for _, second in many}) == 4
    assert [each for each in drawn if len(each) == 1] == [["a"], ["b"]]
    fewer = [each[1:] for each in drawn if len(each) == 3]
    assert len(fewer) == 3
    assert len(ran("--thorough")) == 38


TURNS = """
import contextlib
import os
import signal
import time
import pytest

pytestmark = [pytest.mark.gpu, *[{marks}]]

def told(what):
    with open({log!r}, "a") as log:
        print(what, os.getpid(), __name__, file=log)

@pytest.fixture
def context():
    told("begun")
    yield
    told("ended")

@pytest.mark.parametrize("number", range(4))
def test_one(number, context):
    time.sleep(0.05)

def test_killed():
    if os.fork() == 0:  # lives on, with the lock's file open, as what the killed one began would
        for each in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if not os.readlink("/proc/self/fd/" + each).endswith(".lock"):
                    os.close(int(each))
        time.sleep(15)
        os._exit(0)
    told("killed")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.thorough
def test_what_has_the_device_alone_takes_turns(tmp_path: Path) -> None:
    """Of a device that nobody needs: beside a test that is alone no other one has it."""
    shutil.copy(TESTS / "device_turns.py", tmp_path)
    (tmp_path / "conftest.py").write_text("from device_turns import pytest_runtest_protocol\n")
    markers = "    gpu: has it\n    alone: has it alone\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{markers}")
    log = tmp_path / "log"
    for name in ("test_a", "test_b", "test_c"):
        marks = "" if name == "test_c" else "pytest.mark.alone"
        (tmp_path / f"{name}.py").write_text(TURNS.format(log=str(log), marks=marks))
    kept = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    kept["CUDA_VISIBLE_DEVICES"] = f"none,{tmp_path.name}"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "load"]
    done = subprocess.run(
        [*command, "-p", "no:randomly"], cwd=tmp_path, env=kept, capture_output=True, text=True
    )
    assert "3 failed, 12 passed" in done.stdout, done.stdout + done.stderr

    told = [line.split() for line in log.read_text().splitlines() if "killed" not in line]
    assert len(told) == 24
    alone: str | None = None
    running: set[str] = set()
    for event, process, module in told:
        if event == "ended":
            running.discard(process)
            alone = None
            continue
        assert alone is None, told
        alone = process if module != "test_c" else None
        assert not (alone and running), told
        running.add(process)


TEXT = """import numba


@numba.njit("int64(int64)", cache=True)
def gemm(x):
    return x + {added}
"""


def compiled(cache: Path, added: int = 1) -> Path:
    source = Source(TEXT.format(added=added), "gemm", (), "cpu")
    path = ProgramCache(cache / "programs").write(source, "tiny")
    assert load_module(path).gemm(2) == 2 + added
    return path


def times(path: Path) -> dict[str, int]:
    folder = path.parent / "__pycache__"
    return {each.name: each.stat().st_mtime_ns for each in folder.glob(f"{path.stem}.*.nb?")}


def test_a_later_cache_has_what_an_earlier_one_compiled(tmp_path: Path) -> None:
    shared = SharedPrograms(tmp_path / "pool")
    with shared.at(tmp_path / "first") as first:
        path = compiled(first)
        before = times(path)
        assert len(before) == 2
        with shared.at(tmp_path / "second") as second:  # while the first is in use
            copy = second / path.relative_to(first)
            assert times(copy) == before
            compiled(second)
            assert times(copy) == before, "nothing was compiled again"
    with shared.at(tmp_path / "third") as third:
        compiled(third)
        assert times(third / path.relative_to(first)) == before


def test_what_one_cache_does_is_nothing_to_another(tmp_path: Path) -> None:
    shared = SharedPrograms(tmp_path / "pool")
    with shared.at(tmp_path / "first") as first:
        path = compiled(first)
    with shared.at(tmp_path / "second") as second, shared.at(tmp_path / "third") as third:
        copies = [each / path.relative_to(first) for each in (second, third)]
        for file in copies[0].parent.joinpath("__pycache__").glob(f"{path.stem}.*.nb?"):
            file.write_bytes(b"damaged")
        copies[0].write_text("damaged")
        assert copies[1].read_text() == TEXT.format(added=1)
        assert CompiledFiles(copies[1]).known == CompiledFiles(path).known
        compiled(third)
        assert times(copies[1]) == times(path)


@pytest.mark.parametrize("count", [1, 3])
def test_programs_of_several_caches_come_together(tmp_path: Path, count: int) -> None:
    shared = SharedPrograms(tmp_path / "pool")
    for number in range(count):
        with shared.at(tmp_path / str(number)) as cache:
            compiled(cache, added=number)
    with shared.at(tmp_path / "last") as last:
        assert len(list((last / "programs" / "cpu").glob("tiny_*.py"))) == count
