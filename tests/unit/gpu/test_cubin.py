from __future__ import annotations

import functools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.errors import InputError
from autotune.gpu.nvidia.cubin import KernelResources, read_cubin
from autotune.gpu.nvidia.nvrtc import Compiled, compile_cuda, supported_architectures

SOURCE = """
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
    return compile_cuda(SOURCE, architecture)


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
