"""A family of textbook loops for every layout, tuned in a cache: `matmul` finds it for any shape.

What is tested is how operands come to a kernel; this one is compiled in a moment.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from records import record

from autotune.core.configuration import Candidate, Configuration
from autotune.core.paths import CacheLocations
from autotune.cpu.identity import read_cpu
from autotune.operations.accuracy import unfit
from autotune.operations.problem import LAYOUTS, Gemm
from autotune.store import BaselineRecord, TuningCache
from autotune.targets.families import read_family

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FAMILY = """\
family = "textbook"
operation = "gemm"
target = "cpu"
template = "textbook.py.j2"
accuracy = "ieee"
summary = "three loops"
layouts = ["nn", "nt", "tn", "tt"]

[parameters]
step = { values = [1, 2], default = 1, runtime = true }
"""

TEMPLATE = '''\
"""{{ banner }}"""

from numba import carray, njit, types
from numba.extending import intrinsic


@intrinsic
def pointer(typing_context, address):
    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.{{ dtype }})(types.uintp), codegen


@njit("{{ signature }}", cache=True, nogil=True)
def gemm({{ arguments }}):
    a = carray(pointer(a_address), (m + n) * lda)
    b = carray(pointer(b_address), (n + k) * ldb)
    c = carray(pointer(c_address), m * ldc)
    for i in range(m):
        for j in range(k):
            total = alpha * 0
            for p in range(n):
                total += (
                    a[{{ "p * lda + i" if layout[0] == "t" else "i * lda + p" }}]
                    * b[{{ "j * ldb + p" if layout[1] == "t" else "p * ldb + j" }}]
                )
            c[i * ldc + j] = alpha * total + (0 if beta == 0 else beta * c[i * ldc + j])
'''


def tune_textbook(
    folder: Path,
    cache: Path,
    shapes: Iterable[tuple[int, int, int]] = ((4, 4, 4),),
    mark: int = 0,
    library: str = "NumPy 2",
    accuracy: str = "ieee",
) -> None:
    """Write the family into a folder, and records that say that it is the fastest to a cache.

    Args:
        folder: where the family goes.
        cache: where the records go.
        shapes: of the problems that have records.
        mark: what the family adds to every element of its results, so that they can be told.
        library: what it was faster than.
        accuracy: the class that it promises, and that the records' problems ask for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "textbook.toml").write_text(FAMILY.replace('"ieee"', f'"{accuracy}"'))
    marked = TEMPLATE.replace("alpha * total +", f"alpha * total + {mark} +")
    (folder / "textbook.py.j2").write_text(marked)
    family = read_family(folder / "textbook.toml", (folder,))
    device = read_cpu()
    records = [
        record(
            problem=Gemm(*shape, dtype, layout=layout, accuracy=accuracy),
            candidate=Candidate("textbook", Configuration({"step": 1})),
            family_digest=family.digest,
            fingerprint=device.fingerprint,
            toolchain=dict(device.toolchain),
            baseline=BaselineRecord(library, 1.5e-3, 1.2),
        )
        for shape, dtype, layout in itertools.product(shapes, ("float32", "float64"), LAYOUTS)
        if unfit(accuracy, dtype) is None
    ]
    TuningCache(CacheLocations.at(cache).database).add(*records)
