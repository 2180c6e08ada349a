"""GPUs that are here, with and without what is needed to use them. The driver is a stub."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.core.errors import MissingDependencyError
from autotune.gpu import driver
from autotune.gpu.interface import DriverError
from autotune.gpu.nvidia import bindings as driver_bindings
from autotune.gpu.nvidia import vendor as nvidia

ROOT = Path(__file__).parents[3]

DRIVER = """
#include <string.h>
typedef unsigned long size;
int cuInit(unsigned flags) { return INIT; }
int cuDeviceGetCount(int* count) { *count = 2; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char* name, int length, int device) {
  strncpy(name, device ? "Stub B" : "Stub A", length);
  return 0;
}
int cuDeviceTotalMem_v2(size* bytes, int device) { *bytes = 24ul << 30; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 8 : 9;
  return 0;
}
"""

NVML = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  strncpy(text, "580.1.2", length);
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) { *handle = 0; return 0; }
int nvmlDeviceGetName(void* handle, char* name, unsigned length) {
  strncpy(name, "Stub C", length);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* handle, unsigned long long* memory) {
  memory[0] = 16ull << 30;
  return 0;
}
"""


def build(folder: Path, name: str, source: str, *options: str) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to build a stub of the driver")
    file = folder / f"{name}.c"
    file.write_text(source)
    command = [compiler, "-shared", "-fPIC", "-w", *options, "-o", str(folder / name), str(file)]
    subprocess.run(command, check=True)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder for stubs of the driver's libraries; Python finds no bindings of CUDA's there."""
    hidden = tmp_path / "hidden" / "cuda"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").touch()
    return tmp_path


def run(machine: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    places = [str(machine / "hidden"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        **{name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "LD_LIBRARY_PATH": str(machine),
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_a_gpu_that_cannot_be_used_is_said_and_listed(machine: Path) -> None:
    build(machine, "libcuda.so.1", DRIVER, "-DINIT=0")
    done = run(machine, "device", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        "autotune: 2 GPUs (Stub A) are here and not used: cuda-bindings is not installed; "
        "pip install '.[cuda]' from a checkout, or choose target cpu\n"
    )
    document = json.loads(done.stdout)
    assert document["fingerprint"]["kind"] == "cpu"
    assert document["gpus"] == [
        {
            "name": name,
            "memory_bytes": 24 * 2**30,
            "compute_capability": "8.9",
            "usable": False,
        }
        for name in ("Stub A", "Stub B")
    ]


def test_whoever_chooses_the_cpu_hears_nothing_of_it(machine: Path) -> None:
    build(machine, "libcuda.so.1", DRIVER, "-DINIT=0")
    done = run(machine, "device", "--target", "cpu")
    assert done.stderr == ""
    assert "GPUs here (not used: cuda-bindings is not installed" in done.stdout
    assert "  1  Stub B, 24 GiB, compute capability 8.9" in done.stdout


def test_whoever_chooses_the_gpu_gets_an_error(machine: Path) -> None:
    build(machine, "libcuda.so.1", DRIVER, "-DINIT=0")
    done = run(machine, "tune", "--target", "cuda")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the CUDA target needs cuda-bindings" in done.stderr
    assert "pip install '.[cuda]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_gpu_whose_driver_does_not_start_is_said(machine: Path) -> None:
    build(machine, "libcuda.so.1", DRIVER, "-DINIT=803")
    build(machine, "libnvidia-ml.so.1", NVML)
    done = run(machine, "device", "--json")
    assert "Stub C is here and not used: its driver does not start (error 803)" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [gpu["name"] for gpu in json.loads(done.stdout)["gpus"]] == ["Stub C"]


def test_hidden_gpus_are_no_news(machine: Path) -> None:
    build(machine, "libcuda.so.1", DRIVER, "-DINIT=100")
    build(machine, "libnvidia-ml.so.1", NVML)
    done = run(machine, "device", "--json", CUDA_VISIBLE_DEVICES="")
    assert done.stderr == ""
    assert json.loads(done.stdout)["gpus"] == []


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The choice of the driver is made again, on a machine that has one."""
    monkeypatch.setattr(nvidia, "load_driver", lambda: None)
    driver.driver.cache_clear()
    yield monkeypatch
    driver.driver.cache_clear()


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: object() if name in names else None
    )


def test_without_pycuda_the_bindings_are_taken(fresh: pytest.MonkeyPatch) -> None:
    installed(fresh)
    assert type(driver.driver()) is driver_bindings.BindingsDriver
    assert driver.driver().name == "cuda-bindings"


def test_pycuda_is_taken_where_it_is(fresh: pytest.MonkeyPatch) -> None:
    started: list[bool] = []
    pycuda: Any = types.ModuleType("pycuda.driver")
    pycuda.init = lambda: started.append(True)
    pycuda.Error = RuntimeError
    package: Any = types.ModuleType("pycuda")
    package.driver = pycuda
    fresh.setitem(sys.modules, "pycuda", package)
    fresh.setitem(sys.modules, "pycuda.driver", pycuda)
    fresh.delitem(sys.modules, "autotune.gpu.nvidia.pycuda_driver", raising=False)
    installed(fresh, "pycuda.driver")
    assert driver.driver().name == "PyCUDA"
    assert driver.driver().errors == (RuntimeError, DriverError)
    assert started == [True]
    fresh.delitem(sys.modules, "autotune.gpu.nvidia.pycuda_driver")


def test_a_pycuda_that_does_not_start_is_said(fresh: pytest.MonkeyPatch) -> None:
    fresh.setitem(sys.modules, "pycuda", None)
    fresh.delitem(sys.modules, "autotune.gpu.nvidia.pycuda_driver", raising=False)
    installed(fresh, "pycuda.driver")
    with pytest.raises(MissingDependencyError, match="pip uninstall pycuda") as caught:
        driver.driver()
    assert "\n" not in str(caught.value)
