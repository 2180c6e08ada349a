"""Matrix products of whatever operands: `matmul` picks a kernel by what they are."""

from __future__ import annotations

import functools
import logging
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.dtypes import DTYPES
from autotune.core.errors import CacheError, InputError, OperandError, OperandTypeError
from autotune.core.forking import LOADING
from autotune.families.catalog import catalog
from autotune.families.offers import refusal
from autotune.operations.problem import Gemm
from autotune.runtime.arrays.base import Library, Look
from autotune.runtime.arrays.kinds import NUMPY, is_torchs, library_of, overrides_products
from autotune.runtime.loading import load
from autotune.runtime.products import (
    BatchedProduct,
    LibraryProduct,
    PreparedProduct,
    Product,
    staged,
)
from autotune.runtime.routes import tell, way_of
from autotune.runtime.shapes import Products, Spread, products_of
from autotune.targets import resident
from autotune.targets.kernel import Kernel
from autotune.targets.registry import home_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_NAME = "matmul"
"""What the log calls it."""

_log = logging.getLogger(__name__)

_SHAPES = 4096
"""Kinds of operands that `matmul` remembers the product of, at a few kilobytes each."""


def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """``alpha a @ b + beta out`` by the best kernel there is for these shapes on this machine.

    It takes what `numpy.matmul` takes, and `torch.matmul` for tensors: vectors, stacks of matrices
    that are broadcast, any strides, no elements at all, and the element types that the library
    promotes to others. What no kernel has (integers, complex numbers, sparse tensors, products
    that gradients are wanted of, arrays of NumPy's subclasses) the library multiplies itself, and
    so it does where the shapes were tuned and it was faster, or where the cache cannot be read.

    Args:
        a: A, ... x M x N or N, in the memory of the host or of a GPU: the product is computed
            there. NumPy's arrays, or what it makes arrays of; PyTorch's tensors; CuPy's arrays;
            matrices of any library that has DLPack or ``__cuda_array_interface__``.
        b: B, ... x N x K or N, of the same library.
        out: C, as the library takes it; it may overlap A and B. None allocates it.
        alpha: scales the product.
        beta: scales what `out` holds; needs `out`.

    Returns:
        C: `out`, or what the library's own product returns.

    Raises:
        OperandError: the operands do not fit together; it is a ValueError.
        OperandTypeError: there is no product of such elements; it is a TypeError as well.
    """
    if type(a) is np.ndarray and type(b) is np.ndarray:
        product = _of_arrays(a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype)
        library: Library = NUMPY
    else:
        known = library_of(type(a))
        if known is None or library_of(type(b)) is not known:
            return _of_others(a, b, out, alpha, beta)
        product, library = _of_one_library(known, known.look(a), known.look(b)), known
    try:
        return product(a, b, out, alpha, beta)
    except OperandError:
        if out is None and library.aligned(a) is a and library.aligned(b) is b:
            raise
    return staged(library, product, (a, b), out, (alpha, beta))


@functools.lru_cache(maxsize=_SHAPES)
def _of_arrays(
    shape_a: tuple[int, ...],
    strides_a: tuple[int, ...],
    dtype_a: np.dtype[Any],
    shape_b: tuple[int, ...],
    strides_b: tuple[int, ...],
    dtype_b: np.dtype[Any],
) -> Product:
    """The product of plain arrays of NumPy that lie like these."""
    return _made(NUMPY, Look(shape_a, strides_a, dtype_a), Look(shape_b, strides_b, dtype_b))


@functools.lru_cache(maxsize=_SHAPES)
def _of_one_library(library: Library, a: tuple[Any, ...], b: tuple[Any, ...]) -> Product:
    """The product of arrays of one library, by their looks."""
    return _made(library, Look(*a), Look(*b))


def _made(library: Library, a: Look, b: Look) -> Product:
    """The product of operands that look like these.

    Raises:
        OperandError: there is none.
    """
    with LOADING:
        return _chosen(library, a, b)


def _chosen(library: Library, a: Look, b: Look) -> Product:
    target = library.target(a, b)
    dtype = None if target is None else library.dtype(a, b)
    if target is None or dtype is None:
        kinds = f"of {a.dtype} and {b.dtype}, {a.shape} and {b.shape}"
        tell(_NAME, None, "", f"{kinds}: the library, since no kernel has such operands")
        return LibraryProduct(library)
    products = products_of(library.spread(a, dtype), library.spread(b, dtype))
    m, n, k = products.sizes

    def made() -> Product:
        with LOADING:
            return _by_kernels(library, products, dtype, target, a, b)

    if products.stack and library.batches(a, m * n * k):
        return BatchedProduct(library, made)
    return made()


def _by_kernels(
    library: Library, products: Products, dtype: str, target: str, a: Look, b: Look
) -> Product:
    """Products by a kernel, or by the library where no family can serve them."""
    direct = library.is_direct(a)
    single = direct and not products.stack
    if min(*products.sizes, *products.stack) < 1:
        return PreparedProduct(library, products, dtype, None, single)
    try:
        kernel = _kernel_of(products, dtype, target)
        if kernel is None:  # of what is stored transposed, perhaps
            products = products.row_major()
            kernel = _kernel_of(products, dtype, target)
    except CacheError as error:  # programs must not end for what they can do without
        _warn(str(error))
        tell(_NAME, _problem_of(products, dtype), target, f"the library, since {error}")
        return LibraryProduct(library)
    problem = _problem_of(products, dtype)
    if kernel is None:
        tell(_NAME, problem, target, "the library, since no family can serve it")
        return LibraryProduct(library)
    tell(_NAME, problem, target, way_of(kernel))
    if direct and products.are_direct(a.shape, b.shape):
        return kernel.bound
    return PreparedProduct(library, products, dtype, kernel.bound, single)


@functools.cache
def _warn(reason: str) -> None:
    """Say once, and not for every shape, why libraries compute."""
    _log.warning("products are left to their libraries: %s", reason)


def _kernel_of(products: Products, dtype: str, target: str) -> Kernel | None:
    return kernel_for(_problem_of(products, dtype), target)


def _problem_of(products: Products, dtype: str) -> Gemm:
    m, n, k = products.sizes
    return Gemm(m, n, k, dtype, layout=products.layout)


@functools.lru_cache(maxsize=_SHAPES)
def kernel_for(problem: Gemm, target: str) -> Kernel | None:
    """The best kernel there is for a problem; None where no family can serve it."""
    try:
        return load(problem, target, match="nearest", fallback="library")
    except InputError:
        if refusal(catalog(target), problem) is None:
            raise
        return None


def _of_others(a: Any, b: Any, out: Any, alpha: Any, beta: Any) -> Any:
    """The product of whatever is not two plain arrays of one library."""
    homes = {home_of(a), home_of(b)}
    if is_torchs(a) and is_torchs(b):
        tensors = library_of(sys.modules["torch"].Tensor)
        assert tensors is not None
        return tensors.multiply(a, b, out, alpha, beta)
    if homes == {_host()}:
        if is_torchs(a) or is_torchs(b):
            kinds = " and ".join(type(each).__name__ for each in (a, b))
            raise OperandTypeError(f"a and b must be of one library, got {kinds}")
        if overrides_products(a) or overrides_products(b):
            return NUMPY.multiply(a, b, out, alpha, beta)
        return matmul(_as_array("a", a), _as_array("b", b), out, alpha, beta)
    if len(homes) > 1:
        raise OperandError(
            "a and b must both be in the memory of the host or of a GPU, got "
            f"{type(a).__name__} and {type(b).__name__}: move one of them"
        )
    return _of_matrices(a, b, homes.pop())(a, b, out, alpha, beta)


def _as_array(name: str, operand: Any) -> NDArray[Any]:
    """An operand as NumPy makes an array of it."""
    try:
        return np.asarray(operand)
    except (TypeError, ValueError) as error:
        raise OperandError(
            f"{name} must be an array, or what NumPy makes one of: {error}"
        ) from error


def _of_matrices(a: Any, b: Any, target: str) -> Product:
    """The product of matrices in the memory of a GPU, of any libraries.

    Raises:
        OperandError: they are no matrices, have no elements, or such as no kernel takes.
    """
    shapes = [tuple(getattr(each, "shape", ())) for each in (a, b)]
    products = products_of(*(Spread(shape, None) for shape in shapes))
    if [len(shape) for shape in shapes] != [2, 2] or min(products.sizes) < 1:
        raise OperandError(
            f"arrays of {type(a).__module__.partition('.')[0]} must be matrices that are not "
            f"empty, got shapes {shapes[0]} and {shapes[1]}: convert them to CuPy's or PyTorch's"
        )
    m, n, k = products.sizes
    name = str(getattr(a, "dtype", None)).removeprefix("torch.")
    kernel = kernel_for(Gemm(m, n, k, name), target) if name in DTYPES else None
    if kernel is None:
        raise OperandTypeError(f"no kernel of target {target} multiplies elements of {name}")
    return kernel


@functools.cache
def _host() -> str:
    return home_of(np.empty(0))


def forget() -> None:
    """Drop what `matmul` and look-ups hold, so that they see what was tuned or edited since."""
    for clear in (_of_arrays.cache_clear, _of_one_library.cache_clear, kernel_for.cache_clear):
        clear()
    for clear in _CLEARING:
        clear()
    resident.forget()


_CLEARING: list[Callable[[], None]] = []


def on_forgetting(clear: Callable[[], None]) -> None:
    """Have something else that was decided from kernels dropped by `forget`, too.

    Args:
        clear: drops it.
    """
    _CLEARING.append(clear)
