"""Operations that are gemm with an epilogue, and plain families of gemm that compute them."""

from __future__ import annotations

from pathlib import Path

LINEAR_RELU = """\
operation = "linear_relu"
summary = "A layer of a perceptron"
product = "gemm"
sizes = ["M", "N", "K"]
result = "relu(alpha * A @ B + beta * C + bias)"
flops = "2 * M * N * K + 2 * M * K"
cases = ["1x1x1", "5x1x3", "17x33x9", "65x16x31"]

[operands]
A = { shape = ["M", "N"] }
B = { shape = ["N", "K"] }
bias = { shape = ["K"] }
C = { shape = ["M", "K"], role = "out" }

[scalars]
alpha = 1.0
beta = 0.0
"""

GATED = """\
operation = "gated"
summary = "Neither alpha nor beta, an operand of every kind and a scalar"
product = "gemm"
sizes = ["M", "N", "K"]
result = "scale * tanh(A @ B + shift_of_row) - minimum(residual, 0.5)"
flops = "2 * M * N * K + 5 * M * K"
cases = ["1x1x1", "5x1x3", "17x33x9", "65x16x31"]

[operands]
A = { shape = ["M", "N"] }
B = { shape = ["N", "K"] }
shift_of_row = { shape = ["M", "1"] }
residual = { shape = ["M", "K"] }
C = { shape = ["M", "K"], role = "out" }

[scalars]
scale = 1.5
"""

_FAMILY = """\
family = "{name}"
operation = "gemm"
target = "{target}"
template = "{name}_{target}.j2"
accuracy = "ieee"
summary = "One element of C at a time"
dtypes = {dtypes}
epilogue = {epilogue}

[parameters]
{parameter} = {{ values = [1], default = 1 }}
"""

_PARAMETER = {"cpu": "threads", "cuda": "elements"}
_DTYPES = {
    "cpu": '["float32", "float64"]',
    "cuda": '["float32", "float64", "float16", "bfloat16"]',
}

_LAUNCH = """
[derived]
threads = "256"
registers = "40"
shared_bytes = "0"

[launch]
grid = ["ceildiv(K, 32)", "ceildiv(M, 8)", "1"]
block = ["32", "8", "1"]
shared_bytes = "0"
"""

_NUMBA = """\
{% include "_lib/numba_prelude.py.j2" %}
from math import exp, tanh

{% for name, value in absent %}
{{ name }} = REAL({{ value }})
{% endfor %}


@njit(**INLINE)
def maximum(a, b):
    return a if a > b or a != a else b


@njit(**INLINE)
def minimum(a, b):
    return a if a < b or a != a else b


@njit("{{ signature }}", cache=True, **OPTIONS)
def {{ entry }}({{ arguments }}):
    for row in range(m):
        a = view(np.int64(a_address) + row * lda * ITEMSIZE, n)
        c = view(np.int64(c_address) + row * ldc * ITEMSIZE, k)
{% for each in (epilogue.operands if epilogue else []) %}
{% if each.along == "row" %}
        {{ each.name }} = view(np.int64({{ each.name }}_address), m * {{ each.stride }})
        {{ each.name }} = {{ each.name }}[::{{ each.stride }}]
{% else %}
{% set offset = " + row * " ~ each.stride ~ " * ITEMSIZE" if each.stride else "" %}
        {{ each.name }} = view(np.int64({{ each.name }}_address){{ offset }}, k)
{% endif %}
{% endfor %}
        for column in range(k):
            value = REAL(0)
            for step in range(n):
                b = view(np.int64(b_address) + step * ldb * ITEMSIZE, k)
                value += a[step] * b[column]
            value = alpha * value
            if beta != REAL(0):
                value += beta * c[column]
            c[column] = {{ epilogue.expression if epilogue else "value" }}
"""

_CUDA = """\
/* {{ banner }} */
{{ includes }}
using T = {{ acc_ctype }};
using Operand = {{ ctype }};
{% for name, value in absent %}
constexpr T {{ name }} = {{ value }};
{% endfor %}

__device__ T maximum(T a, T b) { return a > b || a != a ? a : b; }
__device__ T minimum(T a, T b) { return a < b || a != a ? a : b; }

extern "C" __global__ void {{ entry }}({{ arguments }}) {
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= m || column >= k) return;
  T value = 0;
  for (int step = 0; step < n; ++step) {
    const Operand left = a[static_cast<long long>(row) * lda + step];
    const Operand right = b[static_cast<long long>(step) * ldb + column];
    value += T(left) * T(right);
  }
  value *= alpha;
  auto& element = c[static_cast<long long>(row) * ldc + column];
  if (beta != T(0)) value += beta * T(element);
  element = {{ epilogue.expression if epilogue else "value" }};
}
"""


def write_operations(folder: Path) -> Path:
    """A folder with two such operations and nothing else."""
    for name, text in (("linear_relu", LINEAR_RELU), ("gated", GATED)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "operation.toml").write_text(text)
    return folder


def write_families(folder: Path, name: str = "plain", *, epilogue: bool = True) -> Path:
    """A folder with a family of gemm for CPUs and one for CUDA."""
    folder.mkdir(parents=True, exist_ok=True)
    for target, template in (("cpu", _NUMBA), ("cuda", _CUDA)):
        text = _FAMILY.format(
            name=name,
            target=target,
            epilogue=str(epilogue).lower(),
            dtypes=_DTYPES[target],
            parameter=_PARAMETER[target],
        )
        text += _LAUNCH if target == "cuda" else ""
        (folder / f"{name}_{target}.toml").write_text(text)
        (folder / f"{name}_{target}.j2").write_text(template)
    return folder
