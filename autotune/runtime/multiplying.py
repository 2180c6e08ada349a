"""Matrix products of whatever operands: `matmul` picks a kernel by what they are."""

from __future__ import annotations

import functools
import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.arrays.libraries import NUMPY, is_torchs, overrides_products, plain_library
from autotune.arrays.library import Descriptor, Library
from autotune.arrays.shapes import Products, Strided, products_of
from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError, OperandError, OperandTypeError
from autotune.core.forking import LOADING
from autotune.core.session import Remembered
from autotune.families.offers import refusal
from autotune.operations.problem import Gemm
from autotune.runtime.choosing import check_class, class_name, contest_of, new_contest, of_class
from autotune.runtime.loading import load
from autotune.runtime.product_log import log_product
from autotune.runtime.products import (
    ChosenProduct,
    PreparedProduct,
    Product,
    staged,
)
from autotune.serving.kernel import Kernel
from autotune.targets.families import catalog
from autotune.targets.registry import HOMES, home_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from autotune.runtime.contest import Contest

_NAME = "matmul"
"""Name in the log."""

_ONE, _ZERO, _USUAL = 1.0, 0.0, ""
"""Arguments that are left out: calls without any are told by these very objects."""

BY_NUMPY = NUMPY.multiply
"""NumPy's own product, of two matrices that it is known to multiply."""


def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    alpha: float = _ONE,
    beta: float = _ZERO,
    *,
    accuracy: str = _USUAL,
) -> Any:
    """``alpha a @ b + beta out``, by a kernel where one is faster than the operands' library.

    That is known from tuning, or found out in the first calls of a shape, in which the library
    and a few kernels take turns (`autotune.runtime.contest`); until then the library computes.

    It takes what `numpy.matmul` takes, and `torch.matmul` for tensors: vectors, stacks of matrices
    that are broadcast, any strides, no elements at all, and the element types that the library
    promotes to others. What no kernel has (integers, complex numbers, sparse tensors, products
    that gradients are wanted of, arrays of NumPy's subclasses, stacks on a GPU) the library
    multiplies itself.

    Args:
        a: A, ... x M x N or N, in the memory of the host or of a GPU: the product is computed
            there. NumPy's arrays, or what it makes arrays of; PyTorch's tensors; CuPy's arrays;
            matrices of any library that has DLPack or ``__cuda_array_interface__``.
        b: B, ... x N x K or N, of the same library.
        out: C, as the library takes it; it may overlap A and B. None allocates it.
        alpha: scales the product.
        beta: scales what `out` holds; needs `out`.
        accuracy: the loosest accuracy class that the product may have; empty is the usual one of
            its element type, which no class that may be asked for here is stricter than.

    Returns:
        C: `out`, or what the library's own product returns.

    Raises:
        InputError: there is no such class, or not for operands of the type.
        OperandError: the operands do not fit together; it is a ValueError.
        OperandTypeError: there is no product of such elements; it is a TypeError as well.
    """
    if type(a) is np.ndarray and type(b) is np.ndarray and accuracy is _USUAL:
        product = _OF_ARRAYS[a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype]
        if product is BY_NUMPY and out is None and alpha is _ONE and beta is _ZERO:
            return np.matmul(a, b)
        library: Library = NUMPY
    else:
        if type(accuracy) is not str:
            accuracy = class_name(accuracy)
        known = plain_library(type(a))
        if known is None or plain_library(type(b)) is not known or known.is_watched():
            return _of_others(a, b, out, alpha, beta, accuracy)
        if known.multiplies_stacks(a, b):
            return known.multiply(a, b, out, alpha, beta)
        library = known
        product = _OF_LIBRARIES[
            library, library.describe_fast(a), library.describe_fast(b), accuracy
        ]
    try:
        return product(a, b, out, alpha, beta)
    except OperandError:
        if out is None and library.aligned(a) is a and library.aligned(b) is b:
            raise
    return staged(library, product, (a, b), out, (alpha, beta))


def _product_of_arrays(
    shape_a: tuple[int, ...],
    strides_a: tuple[int, ...],
    dtype_a: np.dtype[Any],
    shape_b: tuple[int, ...],
    strides_b: tuple[int, ...],
    dtype_b: np.dtype[Any],
) -> Product:
    """The product of plain arrays of NumPy that lie like these."""
    key = (shape_a, strides_a, dtype_a, shape_b, strides_b, dtype_b)
    a, b = Descriptor(shape_a, strides_a, dtype_a), Descriptor(shape_b, strides_b, dtype_b)
    return _make(NUMPY, a, b, "", functools.partial(_OF_ARRAYS.__setitem__, key))


def _product_of_library(
    library: Library, a: tuple[Any, ...], b: tuple[Any, ...], accuracy: str
) -> Product:
    """The product of arrays of one library, by their looks, in an accuracy class."""
    settle = functools.partial(_OF_LIBRARIES.__setitem__, (library, a, b, accuracy))
    return _make(library, Descriptor(*a), Descriptor(*b), accuracy, settle)


_OF_ARRAYS = Remembered(_product_of_arrays)
_OF_LIBRARIES = Remembered(_product_of_library)


def _make(
    library: Library,
    a: Descriptor,
    b: Descriptor,
    accuracy: str,
    settle: Callable[[Product], None],
) -> Product:
    """The product of operands that look like these; `settle` takes what replaces it later."""
    with LOADING:
        return _chosen(library, a, b, accuracy, settle)


def _chosen(
    library: Library,
    a: Descriptor,
    b: Descriptor,
    accuracy: str,
    settle: Callable[[Product], None],
) -> Product:
    memory = library.memory(a, b)
    dtype = None if memory is None else library.dtype(a, b)
    if memory is None or dtype is None:
        kinds = f"of {a.dtype} and {b.dtype}, {a.shape} and {b.shape}"
        log_product(_NAME, None, "", f"{kinds}: the library, since no kernel has such operands")
        return library.multiply
    check_class(accuracy, dtype)
    products = products_of(library.strided(a, dtype), library.strided(b, dtype))
    direct, target = library.is_direct(a), HOMES[memory]
    if min(*products.sizes, *products.stack) < 1:
        single = direct and not products.stack
        return PreparedProduct(library, products, dtype, None, single)
    may_round = dtype == "float32" and library is not NUMPY
    batched = products.stack and library.batches(a, math.prod(products.sizes))
    if batched and not (may_round and memory == "host"):
        return library.multiply
    if batched:  # kernels compute where the library would round
        problem = _problem_of(products, dtype, accuracy, target)
        contest = new_contest(problem, target, library.name, timed=False)
    else:
        contest = _contest(library, products, dtype, accuracy, target)
    if contest is None:  # of what is stored transposed, perhaps
        products = products.row_major()
        contest = _contest(library, products, dtype, accuracy, target)
    if contest is None:
        return library.multiply

    def prepared(kernel: Kernel) -> Product:
        if direct and products.are_direct(a.shape, b.shape):
            return kernel.bound
        single = direct and not products.stack
        return PreparedProduct(library, products, dtype, kernel.bound, single)

    chosen = ChosenProduct(library, contest, prepared, may_round)

    def by_now() -> Product:
        if contest.winner is not None:
            return prepared(contest.winner)
        if not contest.is_librarys or may_round:
            return chosen
        return BY_NUMPY if library is NUMPY and not products.stack else library.multiply

    contest.on_change(lambda: settle(by_now()))
    return by_now()


def _contest(
    library: Library, products: Products, dtype: str, accuracy: str, target: str
) -> Contest | None:
    """The contest of some products; None leaves them to the library."""
    problem = _problem_of(products, dtype, accuracy, target)
    if products.stack:
        return new_contest(problem, target, library.name)
    return contest_of(problem, target, library.name, _NAME)


def _problem_of(products: Products, dtype: str, accuracy: str, target: str) -> Gemm:
    return of_class(Gemm(*products.sizes, dtype, layout=products.layout), accuracy, target)


def kernel_for(problem: Gemm, target: str) -> Kernel | None:
    """The best kernel there is for a problem; None where no family can serve it."""
    return _KERNELS[problem, target]


def _find_kernel(problem: Gemm, target: str) -> Kernel | None:
    try:
        return load(problem, target, match="nearest", fallback="library")
    except InputError:
        if refusal(catalog(target), problem) is None:
            raise
        return None


_KERNELS = Remembered(_find_kernel)


def _of_others(a: Any, b: Any, out: Any, alpha: Any, beta: Any, accuracy: str) -> Any:
    """The product of whatever is not two plain arrays of one library."""
    if is_torchs(a) and is_torchs(b):
        tensors = plain_library(sys.modules["torch"].Tensor)
        assert tensors is not None
        return tensors.multiply(a, b, out, alpha, beta)
    homes = {home_of(a), home_of(b)}
    if homes == {HOMES["host"]}:
        if is_torchs(a) or is_torchs(b):
            kinds = " and ".join(type(operand).__name__ for operand in (a, b))
            raise OperandTypeError(f"a and b must be of one library, got {kinds}")
        if overrides_products(a) or overrides_products(b):
            return NUMPY.multiply(a, b, out, alpha, beta)
        return matmul(_as_array("a", a), _as_array("b", b), out, alpha, beta, accuracy=accuracy)
    if len(homes) > 1:
        raise OperandError(
            "a and b must both be in the memory of the host or of a GPU, got "
            f"{type(a).__name__} and {type(b).__name__}: move one of them"
        )
    return _of_matrices(a, b, accuracy, homes.pop())(a, b, out, alpha, beta)


def _as_array(name: str, operand: Any) -> NDArray[Any]:
    """An operand as NumPy makes an array of it."""
    try:
        return np.asarray(operand)
    except (TypeError, ValueError) as error:
        if type(operand).__module__.partition(".")[0] in ("jax", "jaxlib"):
            raise OperandError(
                f"{name} must have contents, which JAX has not while it traces a program: use "
                "autotune.jax.matmul there"
            ) from error
        raise OperandError(
            f"{name} must be an array, or what NumPy makes one of: {error}"
        ) from error


def _of_matrices(a: Any, b: Any, accuracy: str, target: str) -> Product:
    """The product of matrices in the memory of a GPU, of any libraries.

    Raises:
        OperandError: they are no matrices, have no elements, or such as no kernel takes.
    """
    shapes = [tuple(getattr(operand, "shape", ())) for operand in (a, b)]
    products = products_of(*(Strided(shape, None) for shape in shapes))
    if [len(shape) for shape in shapes] != [2, 2] or min(products.sizes) < 1:
        raise OperandError(
            f"arrays of {type(a).__module__.partition('.')[0]} must be matrices that are not "
            f"empty, got shapes {shapes[0]} and {shapes[1]}: convert them to CuPy's or PyTorch's"
        )
    m, n, k = products.sizes
    name = str(getattr(a, "dtype", None)).removeprefix("torch.")
    kernel = None
    if name in DTYPES:
        check_class(accuracy, name)
        kernel = kernel_for(of_class(Gemm(m, n, k, name), accuracy, target), target)
    if kernel is None:
        raise OperandTypeError(f"no kernel of target {target} multiplies elements of {name}")
    return kernel
