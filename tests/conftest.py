"""Shared by all tests: a cache of their own, what is skipped and why, Hypothesis' settings."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from brevity import be_brief
from device_turns import pytest_runtest_protocol  # noqa: F401 - a hook
from hypothesis import settings
from sampling_of_cases import left_out_of_samples
from shared_programs import SharedPrograms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

# Hundreds of processes import the package: each would compile all of it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# PyTorch's products pass gates in Python, but where a test names a compiler for them.
os.environ["CXX"] = os.environ.get("AUTOTUNE_TEST_CXX", "")

# Deadlines would assert wall-clock times.
settings.register_profile("autotune", deadline=None)
settings.load_profile("autotune")


@pytest.fixture(autouse=True, scope="session")
def other_tests_have_cores() -> Iterator[None]:
    """NumPy multiplies in one thread, since others spin for a while, and one process compiles."""
    import scipy.linalg  # noqa: F401 - it has a library of its own, which is limited once it is there
    from threadpoolctl import threadpool_limits

    from autotune.cpu import evaluator

    with threadpool_limits(1, user_api="blas"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "usable_processors", lambda: 1)
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's cache, or sees the user's families."""
    cache = tmp_path / "autotune-cache"
    monkeypatch.setenv("AUTOTUNE_CACHE", str(cache))
    monkeypatch.delenv("AUTOTUNE_FAMILIES", raising=False)
    # Tests measure beside each other: few compare times.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    # What is not about it is compiled where it is asked for.
    monkeypatch.setenv("AUTOTUNE_BACKGROUND", "0")
    return cache


@pytest.fixture(scope="session")
def shipped_for_gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is shipped, but for processors."""
    from autotune.core.paths import data_dir

    folder = tmp_path_factory.mktemp("shipped")
    for device in data_dir("cache").glob("cuda-*"):
        (folder / device.name).symlink_to(device)
    return folder


@pytest.fixture(autouse=True)
def nothing_is_known_of_processors(
    shipped_for_gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Portfolios that are shipped leave products alone that tests mean to be served otherwise."""
    from autotune.store import sources

    monkeypatch.setattr(sources, "data_dir", lambda name: shipped_for_gpus)


@pytest.fixture
def nothing_shipped(
    nothing_is_known_of_processors: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing at all is shipped: what the user's records do not fit, no others serve."""
    from autotune.store import sources

    monkeypatch.setattr(sources, "data_dir", lambda name: tmp_path / "nothing shipped")


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def shared_programs(run_folder: Path) -> SharedPrograms:
    """Programs that other tests of this run have compiled."""
    return SharedPrograms(run_folder / "programs")


@pytest.fixture(autouse=True)
def compiled_once(
    request: pytest.FixtureRequest,
    shared_programs: SharedPrograms,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """What is not about compiling takes programs that other tests of this run have compiled."""
    cold = request.node.get_closest_marker("cold") is not None
    with contextlib.nullcontext() if cold else shared_programs.behind_all(monkeypatch):
        yield


@pytest.fixture
def warm_cache(tmp_path: Path, shared_programs: SharedPrograms) -> Iterator[Path]:
    """A cache that is empty but for programs that other tests of this run have compiled."""
    with shared_programs.at(tmp_path / "warm-cache") as cache:
        yield cache


@pytest.fixture(autouse=True)
def heard_signals() -> Iterator[None]:
    """Requests to stop are heard: shells have what they start in the background ignore them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        heard = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, heard)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No measurement counts as noisy, for tests of what follows: machines that run tests are."""
    from autotune.store import record
    from autotune.tuning import deciding

    monkeypatch.setattr(deciding, "_noise", lambda *arguments: "")
    monkeypatch.setattr(record, "WIDE", float("inf"))


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever measures does so for a moment only, where nobody says how long."""
    be_brief(monkeypatch.setattr)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    if config.getvalue("dist") != "loadfile":
        return None
    from distribution import ModuleScheduling

    return ModuleScheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = "run all cases of tests marked `sampled`, and tests marked `thorough`"
    parser.addoption("--thorough", action="store_true", help=help_)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("thorough"):
        left_out = left_out_of_samples(items)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    # Long modules go first: one that began last would leave the other cores idle.
    marks = ("slow", "gpu", "mpi")
    long = {item.path for item in items if any(map(item.get_closest_marker, marks))}
    items.sort(key=lambda item: item.path not in long)


def pytest_runtest_setup(item: pytest.Item) -> None:
    lacks = {"gpu": _missing_gpu, "mpi": _missing_mpi, "browser": _missing_browser}
    for marker, missing in lacks.items():
        reason = missing() if item.get_closest_marker(marker) else None
        if reason is None:
            continue
        required = f"AUTOTUNE_REQUIRE_{marker.upper()}"
        if marker in ("gpu", "browser") and os.environ.get(required) == "1":
            pytest.fail(f"{required}=1, and {reason}", pytrace=False)
        pytest.skip(reason)


@functools.cache
def _missing_gpu() -> str | None:
    """Why tests that need a GPU cannot run, or None."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1)"
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return "the NVIDIA driver does not start"
    if count.value == 0:
        return "there is no NVIDIA GPU"
    if importlib.util.find_spec("cuda") is None:
        return "cuda-bindings is not installed: pip install '.[cuda]'"
    return None


@functools.cache
def _missing_browser() -> str | None:
    """Why tests that open a page in a browser cannot run, or None."""
    for module in ("selenium", "vl_convert"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: pip install '.[test]'"
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))):
        return "there is no Chromium: apt-get install chromium chromium-driver"
    if shutil.which("chromedriver") is None:
        return "there is no chromedriver: apt-get install chromium-driver"
    return None


@functools.cache
def _missing_mpi() -> str | None:
    """Why tests that start MPI ranks cannot run, or None."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install '.[mpi]'"
    # The one that pip installs lies beside the interpreter, which need not be on the path.
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if shutil.which("mpiexec", path=places) is None:
        return "there is no mpiexec: pip install '.[mpi]'"
    return None
