"""GEMM families of the CUDA target, run on the host and compared with a float64 product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from host_execution import HostProgram, guarded

from autotune.core.configuration import Value
from autotune.core.dtypes import DTYPES, ELEMENTS
from autotune.core.limits import GpuLimits
from autotune.families.family import KernelFamily
from autotune.families.gpu.planning import Planner
from autotune.families.parts import AuxiliaryKernel
from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.cases import SPECIAL
from autotune.operations.drawing import random_elements
from autotune.operations.problem import Gemm
from autotune.operations.sums import product as multiplied
from autotune.space import Expression
from autotune.targets.families import load_families

FAMILIES = load_families(target="cuda", operation="gemm")
LIMITS = find_gpu("h200").limits
_WARPS = {"sm": 32, "sk": 32, "sn": 32, "warp_m": 16, "warp_k": 16, "stages": 3, "group": 1}
_THREADS = {"sm": 32, "sk": 64, "sn": 8, "ty": 4, "tx": 4, "load_run": 8, "group": 1}
_SMALL: Mapping[str, Mapping[str, Value]] = {
    "dmma": _WARPS,
    "mma": _WARPS,
    "mma_tf32": _WARPS,
    "pipelined": _THREADS,
    "streamed": {**_THREADS, "least": 4},
    "skinny": {"few": 2, "loads": 4, "held": 8, "warps": 4, "across": 8, "splits": 1},
    "outer": {"sn": 4, "warps": 4, "across": 16, "rows": 32},
}

_MAGIC = 0x6D61702D6F6E2D68  # of runtime_on_host.cpp


@dataclass(frozen=True, slots=True)
class Case:
    """One call: sizes, and everything about it that a kernel must cope with.

    Attributes:
        m: rows of A and C.
        n: the reduction.
        k: columns of B and C.
        dtype: element type of A and B.
        layout: which operands are stored transposed.
        paddings: elements between the rows of A, B and C as stored.
        misaligned: elements that A, B and C are off a 16-byte boundary.
        alpha: factor of the product.
        beta: factor of C; with 0, C holds NaN.
        out_dtype: element type of C; None means `dtype`.
        special: whether elements are NaN and infinite, too, and the last ones of A and B infinite:
            what is read again beyond an edge must not meet zeros.
    """

    m: int
    n: int
    k: int
    dtype: str = "float32"
    layout: str = "nn"
    paddings: tuple[int, int, int] = (0, 0, 0)
    misaligned: tuple[int, int, int] = (0, 0, 0)
    alpha: float = 1.0
    beta: float = 0.0
    out_dtype: str | None = None
    special: bool = False

    @property
    def problem(self) -> Gemm:
        """What is computed."""
        return Gemm(m=self.m, n=self.n, k=self.k, dtype=self.dtype, out_dtype=self.out_dtype)

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        largest: tuple[int, int, int],
        dtype: str,
        layout: str,
        out_dtype: str | None = None,
    ) -> Case:
        """A random case; half of them are aligned, so that vector paths are taken too."""
        m, n, k = (int(rng.integers(1, size + 1)) for size in largest)
        if rng.random() < 0.5:
            whole = 16 // DTYPES[dtype].itemsize
            n, k = -(-n // whole) * whole, -(-k // whole) * whole
            m = -(-m // whole) * whole if layout[0] == "t" else m
            paddings, misaligned = [0, whole, 8], [0]
        else:
            paddings, misaligned = [0, 1, 2, 3, 4, 5], [0, 1, 2, 3]

        def three(choices: list[int]) -> tuple[int, int, int]:
            first, second, third = rng.choice(choices, 3).tolist()
            return first, second, third

        return cls(
            m,
            n,
            k,
            dtype,
            layout,
            three(paddings),
            three(misaligned),
            alpha=float(rng.choice([1.0, 1.0, -0.75])),
            beta=float(rng.choice([0.0, 0.0, -1.0, 0.5])),
            out_dtype=out_dtype,
        )


def small(name: str, **changed: Value) -> Mapping[str, Value]:
    """A configuration of small tiles, compiled once for whatever is decided at the call."""
    family = FAMILIES[name]
    declared = {p.name: p.default for p in family.parameters if p.default is not None}
    return family.conform({**declared, **_SMALL[name], **changed})


def steps_at_once(name: str, configuration: Mapping[str, Value], dtype: str, n: int) -> int:
    """`n`, or what is valid of it: in 16 bits `outer` adds nothing to what it has rounded."""
    if name == "outer" and DTYPES[dtype].itemsize == 2:
        return min(n, int(configuration["sn"]))
    return n


def product(
    name: str,
    configuration: Mapping[str, Value],
    case: Case,
    folder: Path,
    limits: GpuLimits = LIMITS,
    **how: bool,
) -> bytes:
    """C's bytes, of operands that are the same at every call."""
    rng = np.random.default_rng(7)
    shapes = {"a": (case.m, case.n), "b": (case.n, case.k), "c": (case.m, case.k)}
    operands = {
        key: guarded(shape, shape[1] + padding, case.dtype, misaligned=off)
        for (key, shape), padding, off in zip(
            shapes.items(), case.paddings, case.misaligned, strict=True
        )
    }
    for each in operands.values():
        each[...] = rng.uniform(-1, 1, each.shape)
    launch_kernels(FAMILIES[name], configuration, case, limits, operands, folder, **how)
    return np.ascontiguousarray(operands["c"]).tobytes()


def relative_error(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    case: Case,
    limits: GpuLimits,
    rng: np.random.Generator,
    folder: Path,
    *,
    early: bool = False,
) -> float:
    """Run one configuration on one case.

    Args:
        family: a GEMM family of the CUDA target.
        configuration: a valid one.
        case: the call.
        limits: the device it would run on.
        rng: fills the operands with uniform numbers.
        folder: where compiled programs are kept.
        early: whether copies in bulk are carried out when they are begun.

    Returns:
        The largest error of an element of C in units of |A| |B| (and |C|) in that element, beyond
        the rounding of results where they are shorter than sums; NaN when an element was not
        written, infinity when one outside of C was.
    """
    sums, result = DTYPES[case.dtype].accumulated, DTYPES[case.problem.result_dtype]
    stored = {
        "a": (case.m, case.n) if case.layout[0] == "n" else (case.n, case.m),
        "b": (case.n, case.k) if case.layout[1] == "n" else (case.k, case.n),
        "c": (case.m, case.k),
    }
    operands = {}
    for (name, shape), padding, off in zip(
        stored.items(), case.paddings, case.misaligned, strict=True
    ):
        ld = shape[1] + padding
        dtype = result.name if name == "c" else case.dtype
        operands[name] = guarded(shape, ld, dtype, misaligned=off)
    a, b, c = operands.values()
    distribution = SPECIAL if case.special else "uniform"
    a[...] = random_elements(rng, a.shape, distribution, case.dtype, False)
    b[...] = random_elements(rng, b.shape, distribution, case.dtype, False)
    if case.beta != 0:
        c[...] = rng.uniform(-1, 1, c.shape)
    left = np.asarray(a if case.layout[0] == "n" else a.T, dtype=np.float64)
    right = np.asarray(b if case.layout[1] == "n" else b.T, dtype=np.float64)
    alpha, beta = sums.numpy.type(case.alpha), sums.numpy.type(case.beta)
    with np.errstate(invalid="ignore"):
        expected = float(alpha) * multiplied(left, right)
        scale = abs(float(alpha)) * multiplied(np.abs(left), np.abs(right))
    if case.beta != 0:
        expected += float(beta) * np.asarray(c, np.float64)
        scale += abs(float(beta)) * np.abs(np.asarray(c, np.float64))

    launch_kernels(family, configuration, case, limits, operands, folder, early=early)
    if not _gaps_untouched(c):
        return float("inf")
    if not (np.isfinite(expected) == np.isfinite(np.asarray(c, np.float64))).all():
        return float("inf")
    known = np.isfinite(expected)
    if not np.array_equal(np.asarray(c, np.float64)[~known], expected[~known], equal_nan=True):
        return float("inf")
    if not known.any():
        return 0.0
    expected, scale = expected[known], scale[known]
    error = np.abs(np.asarray(c, np.float64)[known] - expected)
    if result is not sums:
        error -= result.unit_roundoff * np.abs(expected) + result.smallest / 2
    return float(np.max(error / scale))


def launch_kernels(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    case: Case,
    limits: GpuLimits,
    operands: Mapping[str, np.ndarray],
    folder: Path,
    *,
    backwards: bool = False,
    early: bool = False,
) -> None:
    """Run all that one call launches.

    Args:
        family: see `relative_error`, as for what follows.
        configuration: the same.
        case: the same.
        limits: the same.
        operands: A, B and C in this order, as they are stored.
        folder: the same.
        backwards: whether the last block of a kernel runs first.
        early: whether copies in bulk are carried out when they are begun.
    """
    source = render(
        family, configuration, dtype=case.dtype, layout=case.layout, out_dtype=case.out_dtype
    )
    program = HostProgram(source.text, folder)
    launch = family.launch
    assert launch is not None
    known: dict[str, Any] = {**case.problem.sizes, **limits.names(), **configuration}
    for name, expression in family.derived.items():
        known[name] = expression.evaluate(known)

    item = DTYPES[case.dtype].itemsize
    a, b, c = operands.values()
    lda, ldb, ldc = (array.strides[0] // array.itemsize for array in (a, b, c))
    arguments = [case.m, case.n, case.k, case.alpha, a, lda, b, ldb, case.beta, c, ldc]
    workspace = None
    if launch.workspace_bytes is not None:
        elements = max(1, _whole(launch.workspace_bytes, known) // item)
        workspace = guarded((1, elements), elements, case.dtype)
        zeroed = workspace[0, : _whole(launch.zeroed_bytes, known) // item]
        zeroed[...] = 0
        arguments.append(workspace)
    arguments += [int(configuration[name]) for name in family.runtime_parameters]
    arguments += maps_of(family, configuration, case, limits, operands, workspace)

    def run(kernels: tuple[AuxiliaryKernel, ...]) -> None:
        for each in kernels:
            if each.when.evaluate(known):
                grid = [_whole(size, known) for size in each.grid]
                block = [_whole(size, known) for size in each.block]
                shared = _whole(each.shared_bytes, known)
                program.launch(
                    each.kernel, grid, block, arguments, shared_bytes=shared, backwards=backwards
                )

    run(launch.before)
    program.launch(
        "gemm",
        [_whole(size, known) for size in launch.grid],
        [_whole(size, known) for size in launch.block],
        arguments,
        shared_bytes=_whole(launch.shared_bytes, known),
        backwards=backwards,
        early=early,
    )
    run(launch.after)
    if launch.workspace_bytes is not None:
        assert not zeroed.view(np.uint8).any(), "the workspace is not left as it was found"


def maps_of(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    case: Case,
    limits: GpuLimits,
    operands: Mapping[str, np.ndarray],
    workspace: np.ndarray | None,
) -> list[np.ndarray]:
    """Tensor maps as runtime_on_host.cpp reads them, one per mapped operand or region."""
    assert family.launch is not None
    if not family.launch.tensor_maps:
        return []
    problem = replace(case.problem, layout=case.layout, accuracy=family.accuracy)
    plan = Planner(family, configuration, case.dtype, limits).plan(problem)
    made = []
    for mapped in plan.maps:
        if mapped.region is None:
            matrix = operands[mapped.operand.lower()]
            (rows, columns), leading = matrix.shape, matrix.strides[0]
            item, address = matrix.itemsize, matrix.ctypes.data
        else:
            assert workspace is not None
            region, item = mapped.region, ELEMENTS[mapped.region.dtype].itemsize
            rows, columns, leading = region.rows, region.columns, region.leading * item
            address = workspace.ctypes.data + region.offset
        words = np.zeros(16, np.uint64)
        if address % 16 == 0 and leading % 16 == 0:
            words[:12] = [
                _MAGIC, address, rows, columns, leading, *mapped.box, item, mapped.swizzle,
                bool(mapped.rounded), 1, 0,
            ]  # fmt: skip
        made.append(words)
    return made


def _whole(expression: Expression, names: Mapping[str, Any]) -> int:
    return int(expression.evaluate(names))


def _gaps_untouched(c: np.ndarray) -> bool:
    """Whether the elements between the rows of C are still NaN."""
    rows, columns = c.shape
    ld = c.strides[0] // c.itemsize
    if rows == 1 or ld == columns:
        return True
    gaps = np.lib.stride_tricks.as_strided(c[:, -1:], (rows - 1, ld - columns + 1), c.strides)
    return bool(np.isnan(gaps[:, 1:]).all())
