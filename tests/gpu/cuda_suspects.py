"""A CUDA kernel family with every fault a kernel can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.configuration import Candidate, Configuration
from autotune.targets.families import read_family

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.families.family import KernelFamily

FAMILY = """\
family = "suspect"
operation = "gemm"
target = "cuda"
template = "suspect.cu.j2"
accuracy = "ieee"
summary = "One thread per element, with a fault"
layouts = ["nn", "tn"]

[parameters]
fault = { values = ["none", "wrong", "ragged", "one_element", "overrun", "underrun", "partial",
    "reads_c", "modifies_a", "stops", "errs_when_fresh", "hangs", "illegal", "misaligned",
    "trap", "local_memory", "does_not_compile", "compiles_forever"], default = "none" }
step = { values = [1, 2, 3, 1000], default = 1, summary = "reduction steps unrolled" }
label = { values = [0, 1], default = 0, summary = "makes no difference to the binary" }
more_shared = { values = [0, 60000, 300000], default = 0, summary = "dynamic shared memory" }
more_workspace = { values = [0, 1, 1000000], default = 0, summary = "MiB of workspace" }

[derived]
threads = "64"
registers = "32"
shared_bytes = "0"

[[restrictions]]
expr = "step <= M"
reason = "no more at once than there is"

[launch]
grid = ["ceildiv(K, 8)", "ceildiv(M, 8)", "1"]
block = ["8", "8", "1"]
shared_bytes = "more_shared"
workspace_bytes = "more_workspace * 1048576"
"""

TEMPLATE = """\
/*
{{ banner | replace('"label": ' ~ label, '"label": any') }}
*/
typedef {{ ctype }} T;

{% if fault == "hangs" %}
__device__ unsigned long long nanoseconds()
{
#ifdef AUTOTUNE_HOST
    return 0;
#else
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
#endif
}

{% endif %}
{% if fault == "stops" %}
__device__ unsigned launches;

{% elif fault == "errs_when_fresh" %}
__device__ T seen[8];
__device__ int contents;

{% endif %}
extern "C" __global__ void __launch_bounds__(64) gemm({{ arguments }})
{
    const long long row = blockIdx.y * 8 + threadIdx.y;
    const long long column = blockIdx.x * 8 + threadIdx.x;
{% if fault == "does_not_compile" %}
    undeclared();
{% elif fault == "hangs" %}
    // Longer than any harness waits; it ends by itself, since the device is shared.
    const unsigned long long start = nanoseconds();
    while (start != 0 && nanoseconds() - start < 35000000000ull) {
    }
{% elif fault == "illegal" %}
    reinterpret_cast<T*>(16ull + (m < 0))[0] = alpha;
{% elif fault == "misaligned" %}
    *reinterpret_cast<T*>(reinterpret_cast<char*>(c) + 1 + (m < 0)) = alpha;
{% elif fault == "trap" %}
#ifndef AUTOTUNE_HOST
    __trap();
#endif
{% endif %}
{% if fault == "stops" %}
    if (launches > 200) {
        return;
    }
{% endif %}
    if (row >= m || column >= k) {
        return;
    }
    T total = 0;
#pragma unroll {{ step }}
    for (int i = 0; i < n{{ " - 1" if fault == "wrong" }}; ++i) {
{% if layout[0] == "t" %}
        total += a[i * (long long)lda + row] * b[i * (long long)ldb + column];
{% else %}
        total += a[row * lda + i] * b[i * (long long)ldb + column];
{% endif %}
    }
{% if fault == "local_memory" %}
    T spread[400];
    for (int i = 0; i < 400; ++i) {
        spread[i * 7 % 400] = total + i;
    }
    for (int i = 0; i < n; ++i) {
        spread[i * 11 % 400] += spread[(i + lda) % 400];
    }
    total = spread[(m + n) % 400];
{% elif fault == "compiles_forever" %}
#pragma unroll
    for (int i = 0; i < 64; ++i) {
#pragma unroll
        for (int j = 0; j < 64; ++j) {
            total = total * total + a[(i * 7919 + j * 31 + lda) % n];
        }
    }
{% elif fault == "partial" %}
    if (row == m - 1) {
        return;
    }
{% elif fault == "ragged" %}
    if (m % 8 != 0 && row == m - 1) {
        total *= 2;
    }
{% elif fault == "one_element" %}
    if (m > 1000 && row == m / 2 && column == k / 2) {
        total += 1;
    }
{% elif fault == "stops" %}
    if (row == 0 && column == 0) {
        launches = launches + 1;
    }
{% elif fault == "errs_when_fresh" %}
    // The tests' own problem: right for the first two contents of A, for others no more.
    if (n == 30 && row == 0 && column == 0) {
        int known = 0;
        while (known < contents && seen[known] != a[0]) {
            ++known;
        }
        if (known == contents && contents < 8) {
            seen[contents] = a[0];
            contents = contents + 1;
        }
        total += known >= 2 ? 1 : 0;
    }
{% elif fault == "modifies_a" %}
    if (row == 0 && column == 0) {
        const_cast<T*>(a)[0] = a[0] + 1;
    }
{% elif fault == "overrun" %}
    if (row == 0 && column == 0) {
        c[m * (long long)ldc + 1] = 1;
    }
{% elif fault == "underrun" %}
    if (row == 0 && column == 0) {
        c[-3] = 1;
    }
{% endif %}
    T* const place = c + row * ldc + column;
{% if more_workspace == 1 %}
    // Every element passes through the workspace, as partial sums do.
    T* const partial = workspace + row * k + column;
    *partial = total;
    total = *partial;
{% endif %}
{% if fault == "reads_c" %}
    *place = alpha * total + beta * *place;
{% else %}
    *place = beta == 0 ? alpha * total : alpha * total + beta * *place;
{% endif %}
}
"""


def write_suspects(folder: Path) -> KernelFamily:
    """The family, in files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "suspect.toml").write_text(FAMILY)
    (folder / "suspect.cu.j2").write_text(TEMPLATE)
    return read_family(folder / "suspect.toml", (folder,))


def suspect(
    fault: str = "none",
    *,
    step: int = 1,
    label: int = 0,
    more_shared: int = 0,
    more_workspace: int = 0,
) -> Candidate:
    """One of its candidates."""
    return Candidate(
        "suspect",
        Configuration(
            {
                "fault": fault,
                "step": step,
                "label": label,
                "more_shared": more_shared,
                "more_workspace": more_workspace,
            }
        ),
    )
