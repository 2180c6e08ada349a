"""Programs are run: their folders are private, and kept apart by Numba's settings."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core.device import SETTINGS
from autotune.core.errors import CacheError, CompileError
from autotune.core.file_lock import alone
from autotune.cpu.identity import read_cpu
from autotune.families import program_cache
from autotune.families.compiled_files import CompiledFiles
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source
from autotune.serving.numba_settings import numba_settings
from autotune.store.matching import toolchain_changes

TEXT = """
from numba import njit

@njit("int64(int64)", cache=True)
def gemm(x):
    return x + 1
"""
LOAD = """
import os, sys
from pathlib import Path
os.umask(0)
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source
path = ProgramCache(Path(sys.argv[1])).write(Source(sys.argv[2], "gemm", (), "cpu"), "tiny")
module = load_module(path)
print(module.gemm(1), sum(module.gemm.stats.cache_hits.values()))
"""


def load(folder: Path, text: str = TEXT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LOAD, str(folder), text]
    return subprocess.run(command, capture_output=True, text=True, check=True)


class Trap:
    """Unpickling one makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.path),)


def test_compiled_files_are_private_and_checked_before_they_are_unpickled(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "programs"
    assert load(folder).stdout == "2 0\n"
    for private in (folder.parent, folder, folder / "cpu", folder / "cpu" / "__pycache__"):
        assert private.stat().st_mode & 0o777 == 0o700
    assert load(folder).stdout == "2 1\n"
    (index,) = (folder / "cpu" / "__pycache__").glob("*.nbi")
    index.write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    done = load(folder)
    assert (done.stdout, (tmp_path / "sprung").exists()) == ("2 0\n", False)
    assert f"{index.name} was altered since it was compiled: compiled again" in done.stderr
    assert load(folder).stdout == "2 1\n"


@pytest.mark.parametrize("which", ["programs", "programs/cpu"])
def test_folders_are_refused_in_words_that_are_true(tmp_path: Path, which: str) -> None:
    programs = ProgramCache(tmp_path / "programs")
    source = Source("x = 1\n", "gemm", (), "cpu")
    programs.write(source, "tiny")
    folder = tmp_path / which
    folder.chmod(0o770)
    with pytest.raises(CacheError, match=f"{folder}, which its group may write .*mode 770"):
        programs.write(source, "tiny")
    folder.chmod(0o700)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheError, match="is a symbolic link"):
        programs.write(source, "tiny")
    folder.unlink()
    (tmp_path / "elsewhere").rename(folder)
    if os.geteuid() == 0:
        os.chown(folder, 12345, -1)
        with pytest.raises(CacheError, match=r"belongs to another user \(uid 12345\)"):
            programs.write(source, "tiny")


def test_a_full_disk_is_no_fault_of_the_source(tmp_path: Path) -> None:
    path = tmp_path / "full.py"
    path.write_text('raise OSError(28, "No space left on device")\n')
    with pytest.raises(CacheError, match="No space left on device"):
        load_module(path)
    path = tmp_path / "bad.py"
    path.write_text("raise ValueError('bad')\n")
    with pytest.raises(CompileError, match="does not compile: ValueError: bad"):
        load_module(path)


def numba_files(path: Path) -> dict[str, str]:
    """Digests of what Numba keeps of a module; what Python keeps says where the module is."""
    known = CompiledFiles(path).known
    return {name: digest for name, digest in known.items() if not name.endswith(".pyc")}


@pytest.fixture
def unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-wide cache with a compiled program in it, that this process may not write."""
    site = tmp_path / "site" / "programs"
    load(site)
    monkeypatch.setattr(
        program_cache, "can_write", lambda folder: not folder.is_relative_to(tmp_path / "site")
    )
    monkeypatch.setattr(
        program_cache.platformdirs, "user_cache_path", lambda *_, **__: tmp_path / "home"
    )
    program_cache._own_folder.cache_clear()
    return site


def test_programs_of_a_read_only_cache_are_used_from_a_place_of_ones_own(
    unwritable: Path, tmp_path: Path
) -> None:
    before = sorted(unwritable.rglob("*"))
    programs = ProgramCache(unwritable)
    path = programs.write(Source(TEXT, "gemm", (), "cpu"), "tiny")
    assert path.is_relative_to(tmp_path / "home" / "programs")
    assert programs.cache == unwritable.parent
    module = load_module(path)
    assert sum(module.gemm.stats.cache_hits.values()) == 1  # compiled for the site
    assert sorted(unwritable.rglob("*")) == before
    assert numba_files(path) == numba_files(unwritable / "cpu" / path.name) != {}


def test_without_any_writable_folder_programs_are_the_processs_own(
    unwritable: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(program_cache, "can_write", lambda folder: False)
    with caplog.at_level(logging.WARNING):
        first, second = ProgramCache(unwritable).folder, ProgramCache(unwritable).folder
    assert first == second
    assert first.stat().st_mode & 0o777 == 0o700
    assert len(caplog.records) == 1
    assert f"programs are compiled into {first}, for this process alone" in caplog.text
    program_cache._remove(first, os.getpid())
    assert not first.exists()
    program_cache._own_folder.cache_clear()


SITE = """
import os, sys
from pathlib import Path
site, home = map(Path, sys.argv[1:])
import numpy as np
from autotune import matmul, load, Gemm
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source
def add(text):
    path = ProgramCache(site / "programs").write(Source(text, "gemm", (), "cpu"), "tiny")
    return path, load_module(path)
text = '''
from numba import njit
@njit("int64(int64)", cache=True)
def gemm(x):
    return x + 1
'''
add(text)
for path in (site, *site.rglob("*")):
    path.chmod(0o755 if path.is_dir() else 0o644)
os.environ["HOME"] = str(home)
os.environ.pop("XDG_CACHE_HOME", None)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
path, module = add(text)
print(path.is_relative_to(site), module.gemm(1), sum(module.gemm.stats.cache_hits.values()))
path, module = add(text + "# another")
print(module.gemm(1), sum(module.gemm.stats.cache_hits.values()))
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_another_user_uses_roots_cache_without_a_home() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", SITE, f"{folder}/site", "/nonexistent"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == "False 2 1\n2 0\n", done.stderr
    assert "for this process alone" in done.stderr


@pytest.mark.thorough
def test_a_pipe_in_the_place_of_a_program_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache" / "programs"
    assert load(folder).stdout == "2 0\n"
    (program,) = (folder / "cpu").glob("*.py")
    compiled = [*(folder / "cpu" / "__pycache__").iterdir()]
    for path in (program, *compiled):
        path.unlink()
        os.mkfifo(path)
    assert load(folder).stdout == "2 0\n"
    assert program.is_file()
    assert all(not path.is_fifo() for path in compiled)
    os.mkfifo(folder / "lock")
    with alone(folder / "lock"):
        pass


SOURCE = Source("# a program\n", "gemm", (), "cpu")


def in_process(code: str, **environment: str) -> str:
    """What a process of its own prints with these settings and no others."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    command = [sys.executable, "-c", code]
    told = subprocess.run(
        command, env={**plain, **environment}, capture_output=True, text=True, check=True
    )
    return told.stdout.strip()


TELL = (
    "import sys; from autotune.serving.numba_settings import numba_settings; "
    "said = numba_settings(); print(said, 'numba' in sys.modules)"
)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        (
            {"NUMBA_LOOP_VECTORIZE": "0", "NUMBA_SLP_VECTORIZE": "1"},
            "LOOP_VECTORIZE=0 SLP_VECTORIZE=1",
        ),
        ({"NUMBA_OPT": "max"}, "OPT=max"),
        ({"NUMBA_BOUNDSCHECK": "1"}, "BOUNDSCHECK=1"),
        ({"NUMBA_DEBUGINFO": "1"}, "DEBUGINFO_DEFAULT=1"),
        ({"NUMBA_ENABLE_AVX": "0"}, "ENABLE_AVX=0"),
        ({"NUMBA_LOOP_VECTORIZE": "1", "NUMBA_OPT": "3"}, ""),
    ],
)
def test_the_environment_says_what_differs(environment: dict[str, str], settings: str) -> None:
    assert in_process(TELL, **environment) == f"{settings} True".strip()


def test_defaults_are_told_without_numba() -> None:
    assert in_process(TELL, NUMBA_NUM_THREADS="1") == "False"
    assert in_process("import numba; " + TELL) == "True"  # the table has Numba's own defaults


def test_programs_are_kept_apart_and_records_go_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = ProgramCache(tmp_path)

    def source() -> Source:
        return replace(SOURCE, settings=numba_settings())

    def written() -> Path:
        return programs.written("gemm", "cpu", "key", source, numba_settings())

    plain, toolchain = programs.write(source(), "gemm"), read_cpu().toolchain
    assert plain.parent == tmp_path / "cpu"
    assert SETTINGS not in toolchain
    assert written() == plain
    monkeypatch.setenv("NUMBA_LOOP_VECTORIZE", "0")
    other = programs.write(source(), "gemm")
    assert other.name == plain.name
    assert other.parent != plain.parent
    assert programs.known("gemm", "cpu", "key", numba_settings()) is None
    assert written() == other
    changes = toolchain_changes(read_cpu().toolchain, toolchain)
    assert changes == ["settings LOOP_VECTORIZE=0 → none"]
    monkeypatch.undo()
    assert numba_settings() == ""
    assert programs.known("gemm", "cpu", "key", numba_settings()) == plain


def test_a_program_may_change_them_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba import config

    monkeypatch.setattr(config, "SLP_VECTORIZE", 1)
    assert numba_settings() == "SLP_VECTORIZE=1"
