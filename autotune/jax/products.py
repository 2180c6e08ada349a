"""`matmul` of JAX's arrays: kernels as foreign functions, the rest XLA's own products.

Which it is, is decided when a program is traced: shapes are known then. A program that was
compiled before something was tuned keeps what it has until `jax.clear_caches()`.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from jax.custom_batching import custom_vmap

from autotune.core import session
from autotune.core.dtypes import DTYPES
from autotune.core.errors import OperandError, OperandTypeError
from autotune.core.session import Remembered
from autotune.jax.foreign import Buffer, register
from autotune.operations.problem import ACCURACIES, Gemm
from autotune.runtime.choosing import check_class, class_name, measured_kernel, of_class
from autotune.runtime.multiplying import kernel_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.serving.kernel import BoundKernel

_PLATFORMS = {"cpu": "cpu", "cuda": "CUDA"}
"""Targets, and what XLA's registry of foreign functions calls their platforms."""

_LAYOUTS = ("nn", "nt", "tn")
"""Of products and of those that their gradients are."""


def matmul(
    a: Any,
    b: Any,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    accuracy: str = "",
) -> jax.Array:
    """`jax.numpy.matmul` by a tuned kernel where one was measured for the shapes.

    Works under `jax.jit`, `jax.grad` and `jax.vmap`. A stack of A and one matrix B are one
    product of all rows; stacks of B are XLA's batched product. Forward-mode derivatives
    (`jax.jvp`, `jax.jacfwd`) are not supported where a kernel may serve.

    Args:
        a: A, ... x M x N or N, an array of JAX or what it makes one of.
        b: B, ... x N x K or N.
        precision: None or `jax.lax.Precision.DEFAULT`, as programs for `jax.numpy.matmul` say it.
        preferred_element_type: None or the type that the product has.
        accuracy: the loosest accuracy class that a kernel may have; empty is the usual one of the
            elements. Gradients are of the same class.

    Raises:
        InputError: there is no such class, or not for operands of the type.
        OperandError: another precision or type, which kernels do not have.
    """
    if type(accuracy) is not str:
        accuracy = class_name(accuracy)
    a, b = jnp.asarray(a), jnp.asarray(b)
    made = jnp.result_type(a, b)
    if precision not in (None, "default", jax.lax.Precision.DEFAULT):
        raise _refused("precision", precision, None)
    if preferred_element_type is not None and np.dtype(preferred_element_type) != made:
        raise _refused("preferred_element_type", preferred_element_type, made)
    if a.dtype.name in DTYPES:
        check_class(accuracy, a.dtype.name)
    product: jax.Array = _traced()(a, b, accuracy)
    return product


def _refused(name: str, given: Any, usual: Any) -> OperandError:
    return OperandError(
        f"{name} must be {usual}, got {given!r:.60}: kernels have no other, jax.numpy.matmul has"
    )


@session.cached()
def _traced() -> Any:
    """The product, traced once for each shape, in programs and out of them."""
    return jax.jit(_matmul, static_argnums=2)


def _matmul(a: jax.Array, b: jax.Array, accuracy: str) -> jax.Array:
    known = all(isinstance(size, int) for size in (*a.shape, *b.shape))  # else of any size
    fits = b.ndim == 2 and a.ndim >= 1 and a.dtype == b.dtype and a.shape[-1] == b.shape[0]
    if not known or not fits or a.dtype.name not in DTYPES or not a.size or not b.size:
        return jnp.matmul(a, b)
    a, b = _spread(a, b), _spread(b, a)
    rows = a.reshape(-1, a.shape[-1])
    return _product(Way("nn", accuracy), rows, b).reshape(*a.shape[:-1], b.shape[1])


def _spread(array: jax.Array, other: jax.Array) -> jax.Array:
    """An array that differs along those of `jax.shard_map`'s axes that another one differs along.

    So its gradient is summed along them, which JAX does for its own products by itself.
    """
    missing = _axes(other) - _axes(array)
    return jax.lax.pcast(array, tuple(missing), to="varying") if missing else array


def _axes(array: jax.Array) -> frozenset[Any]:
    kind = getattr(jax.typeof(array), "manual_axis_type", None)
    return frozenset() if kind is None else frozenset(kind.varying)


class Way(NamedTuple):
    """Properties of a product that no operand shows.

    Attributes:
        layout: which operands are stored turned.
        accuracy: the class that is asked for; empty is the usual one.
    """

    layout: str
    accuracy: str


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(way: Way, a: jax.Array, b: jax.Array) -> jax.Array:
    """The product of two matrices as they are stored."""
    return _stackable(way)(a, b)


def _forward(way: Way, a: jax.Array, b: jax.Array) -> Any:
    return _product(way, a, b), (a, b)


def _backward(way: Way, kept: Any, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = kept
    nn, nt, tn = (way._replace(layout=layout) for layout in _LAYOUTS)
    if way.layout == "nn":
        return _product(nt, grad, b), _product(tn, a, grad)
    if way.layout == "nt":
        return _product(nn, grad, b), _product(tn, grad, a)
    return _product(nt, b, grad), _product(nn, a, grad)


_product.defvjp(_forward, _backward)


@session.cached()
def _stackable(way: Way) -> Any:
    """The product, and what `jax.vmap` makes of it."""
    product = custom_vmap(lambda a, b: _by_platform(a, b, way))

    def many(size: int, stacked: list[bool], a: jax.Array, b: jax.Array) -> Any:
        if stacked == [True, False] and way.layout[0] == "n":
            made = product(a.reshape(-1, a.shape[-1]), b)
            return made.reshape(size, -1, made.shape[-1]), True
        return jnp.matmul(*_turned(a, b, way.layout)), True

    product.def_vmap(many)
    return product


def _by_platform(a: jax.Array, b: jax.Array, way: Way) -> jax.Array:
    """A kernel of the platform that a program is compiled for, or XLA's own product."""
    left, right = _turned(a, b, way.layout)
    (m, n), k = left.shape, right.shape[1]
    problem = Gemm(m, n, k, a.dtype.name, layout=way.layout)
    # Of `jax.shard_map`'s axes, too, it says along which the result differs.
    result = jax.eval_shape(jnp.matmul, left, right)
    targets = ["cpu"] if jax.default_backend() == "cpu" else list(_PLATFORMS)
    ways = {
        target: jax.ffi.ffi_call(_name(target, way), result)
        for target in targets
        if measured_kernel(of_class(problem, way.accuracy, target), target, "jax matmul")
        is not None
    }
    if not ways:
        return jnp.matmul(left, right)
    return jax.lax.platform_dependent(
        a, b, default=lambda a, b: jnp.matmul(*_turned(a, b, way.layout)), **ways
    )


def _turned(a: Any, b: Any, layout: str) -> tuple[Any, Any]:
    """Operands as they are multiplied."""
    return (
        a.swapaxes(-1, -2) if layout[0] == "t" else a,
        b.swapaxes(-1, -2) if layout[1] == "t" else b,
    )


def _name(target: str, way: Way) -> str:
    return "_".join(filter(None, ("autotune_mm", way.layout, target, way.accuracy)))


def _compute(
    way: Way, target: str, inputs: list[Buffer], outputs: list[Buffer], stream: int | None
) -> None:
    """Compute for XLA. The kernel is found by the buffers: compiled programs may be kept."""
    a, b = inputs
    (c,) = outputs
    kernel = _KERNELS[*c.shape, a.shape[way.layout[0] == "n"], c.dtype, way, target]
    if stream is None:
        kernel(_host(a), _host(b), _host(c))
    else:
        kernel(_Device(a), _Device(b), _Device(c), stream=stream)


def _find_kernel(m: int, k: int, n: int, dtype: str, way: Way, target: str) -> BoundKernel:
    problem = Gemm(m, n, k, dtype, layout=way.layout)
    kernel = kernel_for(of_class(problem, way.accuracy, target), target)
    if kernel is None:  # a program that another process compiled and kept
        raise OperandTypeError(f"no kernel of target {target} multiplies elements of {dtype}")
    return kernel.bound


_KERNELS = Remembered(_find_kernel)


def _host(buffer: Buffer) -> NDArray[Any]:
    """A buffer of the host as NumPy's array."""
    dtype = DTYPES[buffer.dtype]
    size = math.prod(buffer.shape) * dtype.itemsize
    memory = (ctypes.c_char * size).from_address(buffer.address)
    return np.ndarray(buffer.shape, dtype.numpy, memoryview(memory))


class _Device:
    """A buffer of a GPU, as libraries pass each other arrays."""

    def __init__(self, buffer: Buffer) -> None:
        self.dtype = buffer.dtype
        self.shape = buffer.shape
        self.__cuda_array_interface__ = {
            "data": (buffer.address, False),
            "shape": buffer.shape,
            "strides": None,
            "typestr": DTYPES[buffer.dtype].typestrs[0],
            "version": 3,
        }


for _target, _platform in _PLATFORMS.items():
    for _way in itertools.starmap(Way, itertools.product(_LAYOUTS, ("", *ACCURACIES))):
        register(_name(_target, _way), _platform, functools.partial(_compute, _way, _target))
