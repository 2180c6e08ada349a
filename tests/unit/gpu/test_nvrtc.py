from __future__ import annotations

import builtins
import dataclasses
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from autotune.core.errors import CompileError, MissingDependencyError
from autotune.core.limits import GpuLimits
from autotune.gpu.compiling import SPILL_LIMIT, check_resources
from autotune.gpu.nvidia import nvrtc
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import Compiled, check_driver, compile_cuda

SOURCE = """
extern "C" __global__ void __launch_bounds__(128) gemm(float* c, int n) {
  __shared__ float s[256];
  s[threadIdx.x] = c[threadIdx.x];
  __syncthreads();
  c[threadIdx.x] = s[n - threadIdx.x];
}
"""

H200 = find_gpu("h200").limits


def test_a_source_becomes_a_binary() -> None:
    compiled = compile_cuda(SOURCE, "sm_90")
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.architecture == "sm_90"
    gemm = compiled.kernels["gemm"]
    assert f"Used {gemm.registers} registers" in compiled.log
    assert compiled.spill_bytes == {"gemm": 0}
    assert compiled.seconds > 0
    assert pickle.loads(pickle.dumps(compiled)) == compiled


def test_comments_do_not_change_the_binary() -> None:
    noted = "/* banner */\n\n" + SOURCE
    assert compile_cuda(noted, "sm_80").cubin == compile_cuda(SOURCE, "sm_80").cubin
    lines = compile_cuda(SOURCE, "sm_80", line_info=True).cubin
    assert b"kernel.cu" in lines
    assert b"kernel.cu" not in compile_cuda(SOURCE, "sm_80").cubin


def test_options_reach_the_compiler() -> None:
    defined = SOURCE.replace("256", "SIZE")
    assert compile_cuda(defined, "sm_80", ["-DSIZE=512"]).kernels["gemm"].shared_bytes == 2048


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("int x = ;", r"^kernel\.cu\(1\): error: "),
        ("\n\n__global__ void gemm() { undeclared = 1; }", r'^kernel\.cu\(3\): error: .*"undecl'),
        ('static_assert(1 + 1 == 3, "sums");', r"static assertion failed with \"sums\""),
        ("#include <nothing.h>", r'open source file "nothing\.h": neither CUDA has'),
        (
            'extern "C" __global__ void gemm(char* c) { __shared__ char s[300000]; '
            "s[threadIdx.x] = c[0]; __syncthreads(); c[0] = s[c[1]]; }",
            "too much shared data",
        ),
    ],
)
def test_the_first_error_is_the_message(source: str, message: str) -> None:
    with pytest.raises(CompileError, match=message) as caught:
        compile_cuda(source, "sm_90")
    assert "\n" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_unknown_architectures_and_options() -> None:
    assert {"sm_75", "sm_80", "sm_89", "sm_90", "sm_100"} <= set(nvrtc.supported_architectures())
    with pytest.raises(
        MissingDependencyError, match=r"NVRTC \d+\.\d+ compiles for sm_\d+, .*sm_13.*\[cuda12\]"
    ):
        compile_cuda(SOURCE, "sm_13")
    assert compile_cuda(SOURCE, "sm_90a").architecture == "sm_90a"
    with pytest.raises(CompileError, match="--nonsense"):
        compile_cuda(SOURCE, "sm_90", ["--nonsense"])


def test_an_nvrtc_that_is_newer_than_the_driver_is_refused() -> None:
    major, minor = nvrtc.nvrtc_version()
    check_driver((major, 0))
    check_driver((major, minor + 1))
    check_driver((major + 1, 0))
    with pytest.raises(MissingDependencyError, match=rf"supports CUDA {major - 1}\.8, and is"):
        check_driver((major - 1, 8))


@pytest.mark.parametrize(
    ("driver", "remedy"),
    [
        ((12, 8), "or in a new environment pip install '.[cuda12]' from a checkout"),
        ((11, 8), "update the driver"),
    ],
)
def test_what_is_advised_can_be_installed(
    monkeypatch: pytest.MonkeyPatch, driver: tuple[int, int], remedy: str
) -> None:
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: (13, 5))
    with pytest.raises(MissingDependencyError) as caught:
        check_driver(driver)
    assert str(caught.value).endswith(remedy)


@pytest.fixture
def fresh_loader() -> Iterator[None]:
    nvrtc._nvrtc.cache_clear()
    yield
    nvrtc._nvrtc.cache_clear()


@pytest.mark.usefixtures("fresh_loader")
def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.startswith("cuda"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"pip install '.\[compile\]'"):
        compile_cuda(SOURCE, "sm_90")


# --- the gate ---

SPILLS = """
extern "C" __global__ void __launch_bounds__(1024) gemm(float* c, int n) {
  float r[100];
#pragma unroll
  for (int i = 0; i < 100; i++) r[i] = c[i * n + threadIdx.x];
  for (int k = 0; k < n; k++) {
#pragma unroll
    for (int i = 0; i < 100; i++) r[i] = r[i] * r[(i * 7 + 1) % 100] + c[k];
  }
#pragma unroll
  for (int i = 0; i < 100; i++) c[i * n + threadIdx.x] = r[i];
}
"""
INDEXED = """
extern "C" __global__ void gemm(float* c, int n) {
  float local[100];
  for (int i = 0; i < 100; i++) local[i] = c[i * n];
  // Written where nobody knows before: it cannot be kept in registers, or read again from C.
  for (int i = 0; i < n; i++) local[(i * n) % 100] += local[(i + n) % 100];
  c[threadIdx.x] = local[n] + local[n + threadIdx.x];
}
"""


def judge(compiled: Compiled, limits: GpuLimits = H200, **changes: int) -> str | None:
    arguments = {"threads": 128, "dynamic_shared_bytes": 0} | changes
    rejection = check_resources(compiled, limits, **arguments)
    return None if rejection is None else str(rejection)


def test_a_good_kernel_passes() -> None:
    compiled = compile_cuda(SOURCE, "sm_90")
    assert judge(compiled) is None
    assert judge(compiled, resident_blocks=16) is None
    assert judge(compiled, dynamic_shared_bytes=226 * 1024) is None


def test_needs_beyond_the_device_name_the_numbers() -> None:
    compiled = compile_cuda(SOURCE, "sm_90")
    assert "(threads = 1025, max_threads_per_block = 1024)" in str(judge(compiled, threads=1025))
    assert "(threads = 129, launch_bound = 128)" in str(judge(compiled, threads=129))
    # 1024 bytes are static.
    message = str(judge(compiled, dynamic_shared_bytes=226 * 1024 + 1))
    assert "(shared_bytes = 232449, shared_bytes_per_block = 232448)" in message
    message = str(judge(compiled, resident_blocks=17))
    assert message.startswith("17 * ceildiv(threads, warp_size) * warp_size <=")
    assert "threads of the blocks" in message
    assert judge(compiled, dynamic_shared_bytes=113 * 1024, resident_blocks=2) is not None


def test_registers_of_the_binary_count() -> None:
    compiled = compile_cuda(SOURCE, "sm_90")
    greedy = dataclasses.replace(compiled.kernels["gemm"], registers=200, max_threads=None)
    compiled = dataclasses.replace(compiled, kernels={"gemm": greedy})
    assert judge(compiled, threads=256) is None
    assert "registers per block" in str(judge(compiled, threads=512))
    assert "registers of the blocks" in str(judge(compiled, threads=256, resident_blocks=2))


def test_spills_and_local_arrays_are_dropped() -> None:
    spills = compile_cuda(SPILLS, "sm_90")
    amount = spills.spill_bytes["gemm"]
    assert amount > SPILL_LIMIT
    assert f"(spill_bytes = {amount}, spill_limit = {SPILL_LIMIT})" in str(judge(spills))
    assert judge(spills, spill_limit=amount) is None
    indexed = compile_cuda(INDEXED, "sm_90")
    assert indexed.spill_bytes == {"gemm": 0}
    assert "(local_bytes = 400, spill_limit = 64)" in str(judge(indexed))
