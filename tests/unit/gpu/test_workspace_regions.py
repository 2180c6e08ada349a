"""A matrix that one kernel writes to the workspace and another reads by hardware's copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.core.errors import FamilyError, SpaceError
from autotune.core.paths import data_dir
from autotune.families.family import KernelFamily
from autotune.families.gpu.cuda_source import kernels_of
from autotune.families.gpu.launch import (
    Binary,
    LaunchPlan,
    LaunchStep,
    MappedOperand,
    MappedRegion,
    architecture_of,
)
from autotune.families.gpu.planning import Planner
from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import compile_cuda
from autotune.operations.problem import Gemm
from autotune.store.binary import BinaryRecord
from autotune.targets.families import read_family

FAMILY = """\
family = "halves"
operation = "gemm"
target = "cuda"
template = "halves.cu.j2"
accuracy = "fp32"
summary = "A as the sum of two bfloat16 halves, split before the product"
dtypes = ["float32"]

[parameters]
sm = { values = [32, 64], default = 64 }
rows = { values = [64, 256, 1024], default = 256 }

[derived]
padded = "ceildiv(N, 8) * 8"
half = "M * padded * 2"
threads = "128"
registers = "64"
shared_bytes = "sm * 64 * 4 + 1024"

[launch]
grid = ["ceildiv(M, sm)", "ceildiv(K, 128)", "1"]
block = ["128", "1", "1"]
shared_bytes = "shared_bytes"
workspace_bytes = "ceildiv(half, 16) * 16 + half"
architecture_features = true

[[launch.before]]
kernel = "split"
when = "1"
grid = ["ceildiv(M * padded, rows * 64)", "1", "1"]
block = ["64", "1", "1"]
shared_bytes = "rows * 64 * 4"

[[launch.tensor_maps]]
region = "high"
dtype = "bfloat16"
rows = "M"
columns = "N"
leading = "padded"
box = ["sm", "64"]
swizzle = 128

[[launch.tensor_maps]]
region = "low"
dtype = "bfloat16"
offset = "ceildiv(half, 16) * 16"
rows = "M"
columns = "N"
leading = "padded"
box = ["sm", "64"]
swizzle = 128
"""

TEMPLATE = """\
/*
{{ banner }}
*/
#include <cuda_bf16.h>

typedef unsigned long long Barrier;
struct alignas(64) TensorMap { unsigned long long words[16]; };
constexpr int SM = {{ sm }};

__device__ unsigned shared_address(const void* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

__device__ void copy_box(void* to, const TensorMap& map, int row, int column, Barrier& arrived) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, { %3, %4 }], [%2];"
      :
      : "r"(shared_address(to)), "l"(&map), "r"(shared_address(&arrived)), "r"(column), "r"(row)
      : "memory");
}

extern "C" __global__ void split({{ arguments }}) {
  extern __shared__ float staged[];
  const int leading = (n + 7) / 8 * 8;
  const long long half = (2LL * m * leading + 15) / 16 * 8;
  __nv_bfloat16* high = reinterpret_cast<__nv_bfloat16*>(workspace);
  const long long first = static_cast<long long>(blockIdx.x) * {{ rows }} * 64;
  for (int step = threadIdx.x; step < {{ rows }} * 64; step += 64) {
    const long long i = first + step, row = i / leading, column = i % leading;
    staged[step] = row < m && column < n ? a[row * lda + column] : 0;
    if (row >= m) continue;
    high[i] = __float2bfloat16(staged[step]);
    high[half + i] = __float2bfloat16(staged[step] - __bfloat162float(high[i]));
  }
}

extern "C" __global__ void gemm({{ arguments }}) {
  extern __shared__ __align__(1024) __nv_bfloat16 tiles[];
  __shared__ Barrier arrived;
  if (threadIdx.x == 0) {
    copy_box(tiles, high_map, blockIdx.x * SM, 0, arrived);
    copy_box(tiles + SM * 64, low_map, blockIdx.x * SM, 0, arrived);
  }
}
"""

H200 = find_gpu("h200").limits
PROBLEM = Gemm(100, 70, 300, accuracy="fp32")
VALUES = {"sm": 64, "rows": 256}


def halves(folder: Path, text: str = FAMILY) -> KernelFamily:
    (folder / "halves.toml").write_text(text)
    (folder / "halves.cu.j2").write_text(TEMPLATE)
    return read_family(folder / "halves.toml", (folder, data_dir("templates")))


def plan_of(family: KernelFamily) -> LaunchPlan:
    return Planner(family, VALUES, "float32", H200).plan(PROBLEM)


def test_a_plan_has_regions_and_memory_of_kernels_before(tmp_path: Path) -> None:
    plan = plan_of(halves(tmp_path))
    assert plan.steps == (
        LaunchStep("split", (1, 1, 1), (64, 1, 1), 65536),
        LaunchStep("gemm", (2, 3, 1), (128, 1, 1), 17408),
    )
    assert plan.workspace_bytes == 28800
    assert plan.maps == tuple(
        MappedOperand(
            name, False, (64, 64), 128, region=MappedRegion("bfloat16", offset, 100, 70, 72)
        )
        for name, offset in (("high", 0), ("low", 14400))
    )


def test_the_source_says_so_and_compiles(tmp_path: Path) -> None:
    family = halves(tmp_path)
    source = render(family, VALUES)
    told = " ".join(source.text.split())
    assert "before it: split, grid" in told
    assert "65536 bytes of dynamic shared memory" in told
    assert "low_map: boxes of 64 rows and 64 columns of M x N bfloat16, rows padded apart" in told
    assert "workspace, const __grid_constant__ TensorMap high_map, const __grid" in told
    assert kernels_of(source.text) == ("split", "gemm")
    compiled = compile_cuda(source.text, architecture_of(family, H200.architecture))
    assert {"split", "gemm"} <= set(compiled.kernels)


def test_the_memory_of_kernels_before_is_limited(tmp_path: Path) -> None:
    space = halves(tmp_path).space(PROBLEM, H200)
    assert {row["rows"] for row in space} == {64, 256}  # 1024 rows take 256 KiB


def test_records_keep_regions(tmp_path: Path) -> None:
    plan = plan_of(halves(tmp_path))
    kept = BinaryRecord.of(Binary(b"\x7fELF", "sm_90a", plan))
    assert BinaryRecord.from_json(kept.to_json()) == kept


FAULTS = {
    "no workspace": (
        'workspace_bytes = "ceildiv(half, 16) * 16 + half"\n',
        "",
        r"tensor_maps\[1\]\.region must lie in a workspace, and workspace_bytes is missing",
    ),
    "twice": ('region = "low"', 'region = "HIGH"', r"\[2\]\.region must not be HIGH twice"),
    "dtype": ('"bfloat16"', '"bf16"', r"tensor_maps\[1\]\.dtype must be one of "),
    "key": ("leading", "stride", r"tensor_maps\[1\]\.stride is not a key"),
    "transposed": (
        "swizzle = 128",
        'swizzle = 128\ntransposed_box = ["sm", "64"]',
        r"tensor_maps\[1\]\.transposed_box is not a key",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), FAULTS.values(), ids=FAULTS)
def test_faults_name_file_key_and_expectation(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in FAMILY
    with pytest.raises(FamilyError, match=message):
        halves(tmp_path, FAMILY.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('padded = "ceildiv(N, 8) * 8"', 'padded = "N"', "must begin, and its rows must lie"),
        ("* 16 + half", "* 16", r"ends at 28796"),
        ('"ceildiv(half, 16) * 16"', '"half + 4"', "must begin, and its rows must lie"),
        ('box = ["sm", "64"]', 'box = ["sm", "63"]', "rows of whole 16 bytes"),
    ],
)
def test_regions_that_hardware_cannot_copy_are_no_launch(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in FAMILY
    with pytest.raises(SpaceError, match=message):
        plan_of(halves(tmp_path, FAMILY.replace(old, new)))
