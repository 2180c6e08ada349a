"""A kernel family with every fault a kernel can have, for tests of what deals with them."""

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
target = "cpu"
template = "suspect.py.j2"
accuracy = "ieee"
summary = "Textbook loops, with a fault"
layouts = ["nn", "tn"]

[parameters]
fault = { values = ["none", "wrong", "ragged", "overrun", "underrun", "partial", "reads_c",
    "modifies_a", "hangs", "raises", "crashes", "does_not_compile", "compiles_forever"] }
step = { values = [1, 2, 3, 1000], default = 1, runtime = true }
threads = { values = [1, 2, 64], default = 1 }

[[restrictions]]
expr = "step <= M"
reason = "no more rows at once than there are"

[[restrictions]]
expr = "threads <= max_threads"
reason = "no more threads than processors"
"""

TEMPLATE = '''\
"""{{ banner }}"""

from numba import carray, njit, prange, types, uintp
from numba.extending import intrinsic
{% if fault == "compiles_forever" %}

while True:
    pass
{% endif %}


@intrinsic
def pointer(typing_context, address):
    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.{{ dtype }})(types.uintp), codegen


@njit("{{ signature }}", cache=True, nogil=True, parallel={{ threads > 1 }})
def gemm({{ arguments }}):
    a = carray(pointer(a_address), m * lda)
    b = carray(pointer(b_address), n * ldb)
    c = carray(pointer(c_address), m * ldc)
{% if fault == "does_not_compile" %}
    a = m.no_such_attribute
{% elif fault == "raises" %}
    if m > 0:
        raise ValueError("this kernel refuses")
{% elif fault == "crashes" %}
    carray(pointer(uintp(m * 0 + 8)), 1)[0] = 1
{% elif fault == "hangs" %}
    while m > 0:
        c[0] += 1
{% endif %}
    zero = alpha * 0
    for start in range(0, m, step):
        for i in {{ "prange" if threads > 1 else "range" }}(start, min(m, start + step)):
            for j in range(k):
                total = zero
                for p in range(n{{ " - 1" if fault == "wrong" }}):
{% if layout[0] == "t" %}
                    total += a[p * lda + i] * b[p * ldb + j]
{% else %}
                    total += a[i * lda + p] * b[p * ldb + j]
{% endif %}
{% if fault == "partial" %}
                if i == m - 1:
                    continue
{% elif fault == "ragged" %}
                if m % 8 and i == m - 1:
                    total = total * 2
{% endif %}
                if beta == 0{{ " and False" if fault == "reads_c" }}:
                    c[i * ldc + j] = alpha * total
                else:
                    c[i * ldc + j] = alpha * total + beta * c[i * ldc + j]
{% if fault == "overrun" %}
    c[m * ldc + 1] = 1
{% elif fault == "underrun" %}
    c[uintp(0) - 3] = 1
{% elif fault == "modifies_a" %}
    a[0] = a[0] + 1
{% endif %}
'''


def write_suspects(folder: Path) -> KernelFamily:
    """The family, in files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "suspect.toml").write_text(FAMILY)
    (folder / "suspect.py.j2").write_text(TEMPLATE)
    return read_family(folder / "suspect.toml", (folder,))


def suspect(fault: str = "none", step: int = 1, threads: int = 1) -> Candidate:
    """One of its candidates."""
    configuration = Configuration({"fault": fault, "step": step, "threads": threads})
    return Candidate("suspect", configuration)
