"""NVRTC and the machine code that it makes."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import pickle
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.errors import CompileError, InputError, MissingDependencyError
from autotune.core.limits import GpuLimits
from autotune.gpu.compiling import SPILL_LIMIT, check_resources
from autotune.gpu.nvidia import nvrtc
from autotune.gpu.nvidia.cubin import KernelResources, read_cubin
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import Compiled, check_driver, compile_cuda, supported_architectures

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
    assert judge(indexed, arrays=True) is None
    assert judge(spills, arrays=True) is not None


TWO_KERNELS = """
extern "C" __global__ void __launch_bounds__(16 * 8) bounded(float* c, int n) {
  __shared__ float s[256];
  s[threadIdx.x] = c[threadIdx.x];
  __syncthreads();
  c[threadIdx.x] = s[n - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(1024) spilling(float* c, int n) {
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
extern "C" __global__ void dynamic(float* c, int n) {
  extern __shared__ float d[];
  float local[40];
  for (int i = 0; i < 40; i++) local[i] = c[i * n];
  d[threadIdx.x] = local[n];
  __syncthreads();
  c[0] = d[n] + local[n + threadIdx.x];
}
extern "C" __global__ void empty() {}
"""

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


@functools.cache
def compiled(architecture: str) -> Compiled:
    return compile_cuda(TWO_KERNELS, architecture)


def said(log: str, kernel: str) -> dict[str, int]:
    """What the assembler says of a kernel."""
    part = log[log.index(f"Function properties for {kernel}") :]
    part = part[: part.index("Compile time")]
    patterns = {
        "registers": r"Used (\d+) registers",
        "local_bytes": r"(\d+) bytes stack frame",
        "shared_bytes": r"(\d+) bytes smem",
        "stores": r"(\d+) bytes spill stores",
        "loads": r"(\d+) bytes spill loads",
    }
    found = {name: re.search(pattern, part) for name, pattern in patterns.items()}
    return {name: int(match[1]) if match else 0 for name, match in found.items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_binary_says_what_the_assembler_said(architecture: str) -> None:
    assert architecture in supported_architectures()
    result = compiled(architecture)
    bounds = {"bounded": 128, "spilling": 1024, "dynamic": None, "empty": None}
    assert result.kernels.keys() == bounds.keys()
    for kernel, bound in bounds.items():
        wanted = said(result.log, kernel)
        assert result.spill_bytes[kernel] == wanted.pop("stores") + wanted.pop("loads")
        assert result.kernels[kernel] == KernelResources(max_threads=bound, **wanted)
    assert result.kernels["bounded"].shared_bytes == 1024
    assert result.kernels["dynamic"].shared_bytes == 0
    assert result.spill_bytes["spilling"] > 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be an ELF file, and this starts with b''"),
        (b"MZ" + bytes(200), "must be an ELF file"),
        (b"\x7fELF", "damaged"),
        (b"\x7fELF" + bytes(60), "not for machine 0"),
        (b"\x7fELF\2\1\1" + bytes(11) + b"\xbe\0" + bytes(100), "damaged"),
    ],
)
def test_other_content_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_cubin(content)
    assert "\n" not in str(caught.value)


@given(st.data())
def test_a_truncated_binary_is_refused(data: st.DataObject) -> None:
    whole = compiled("sm_90").cubin
    end = data.draw(st.integers(0, len(whole) - 1))
    try:
        kernels = read_cubin(whole[:end])
    except InputError:
        return
    # Program headers come last, and nothing here needs them.
    assert kernels == compiled("sm_90").kernels


@given(st.data())
def test_damage_never_surprises(data: st.DataObject) -> None:
    damaged = bytearray(compiled("sm_80").cubin)
    for position in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=8)):
        damaged[position] = data.draw(st.integers(0, 255))
    try:
        kernels = read_cubin(bytes(damaged))
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 (that it is raised is not demanded)
    else:
        assert all(isinstance(each, KernelResources) for each in kernels.values())


def test_a_table_farther_than_memory_goes_is_damage() -> None:
    damaged = bytearray(compiled("sm_80").cubin)
    damaged[47] = 0x80  # the highest byte of the section table's offset
    with pytest.raises(InputError, match="damaged"):
        read_cubin(bytes(damaged))


@given(st.binary(max_size=300))
def test_garbage_never_surprises(garbage: bytes) -> None:
    with pytest.raises(InputError):
        read_cubin(b"\x7fELF\2\1\1" + bytes(11) + b"\xbe\0" + garbage)
