"""Calls of `matmul` that take more than one kernel on two matrices as they are."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.arrays.library import core_of, is_usual, only, out_is_missing
from autotune.core.errors import OperandError
from autotune.operations.calls import real

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.arrays.library import Library
    from autotune.arrays.shapes import Products
    from autotune.runtime.contest import Contest
    from autotune.serving.kernel import Kernel


Product: TypeAlias = "Callable[[Any, Any, Any, Any, Any], Any]"
"""``product(a, b, out, alpha, beta)``."""


@dataclass(frozen=True, slots=True)
class PreparedProduct:
    """``product(a, b, out, alpha, beta)``: operands made into matrices, which a kernel multiplies.

    Attributes:
        library: what the operands are of.
        products: what a call is made of.
        dtype: name of the element type of all operands.
        kernel: ``kernel(a, b, out, alpha, beta)`` of one product; None where one has no elements.
        direct: whether it is one product of arrays that the kernel takes themselves.
    """

    library: Library
    products: Products
    dtype: str
    kernel: Product | None
    direct: bool

    def __call__(self, a: Any, b: Any, out: Any, alpha: Any, beta: Any) -> Any:
        """The product; operands must be like those that this was made for.

        Raises:
            OperandError: `out` is missing, or does not lie as a result of a kernel's would, or a
                scalar is no real number.
        """
        products, library, kernel = self.products, self.library, self.kernel
        alpha, beta = real("alpha", alpha), real("beta", beta)
        if out is None and self.direct and kernel is not None:
            left = library.matrices(a, products.left, self.dtype)
            right = library.matrices(b, products.right, self.dtype)
            made = kernel(left, right, None, alpha, beta).reshape(products.shape)
            return made if products.shape else library.scalar(made)
        if beta != 0 and out is None:
            raise out_is_missing(beta)
        if out is not None and not library.takes(out, products.shape, self.dtype, (a, b)):
            raise OperandError(
                f"out must be a plain array of {self.dtype}, of shape {products.shape}, that lies "
                "apart from a and b"
            )
        made = library.empty(a, products.shape, self.dtype) if out is None else out
        m, _, k = products.sizes
        shape = (*products.stack, m, k)
        matrices = made if shape == products.shape else made.reshape(shape)
        if kernel is None:
            library.scale_in_place(matrices, beta)
        else:
            left = library.for_kernel(library.matrices(a, products.left, self.dtype))
            right = library.for_kernel(library.matrices(b, products.right, self.dtype))
            matrices = library.for_kernel(matrices)
            for place in itertools.product(*map(range, products.stack)):  # () where there is one
                kernel(left[place], right[place], matrices[place], alpha, beta)
        return library.scalar(made) if out is None and not products.shape else made


@dataclass(frozen=True, slots=True)
class ChosenProduct:
    """``product(a, b, out, alpha, beta)``: by the library or by kernels, as a `Contest` says.

    Where the library is set to round what it multiplies, kernels compute.

    Attributes:
        library: what the operands are of.
        contest: of the usual calls, which scale nothing.
        prepared: the product by a kernel.
        may_round: whether the library can be set so, for elements like these.
    """

    library: Library
    contest: Contest
    prepared: Callable[[Kernel], Product]
    may_round: bool

    def __call__(self, a: Any, b: Any, out: Any, alpha: Any, beta: Any) -> Any:
        """The product; errors are those of the library's and of kernels'."""
        library, contest = self.library, self.contest
        if self.may_round and not library.is_exact(a):
            return self.prepared(contest.best())(a, b, out, alpha, beta)
        if not contest.over and not is_usual(alpha, beta):
            return library.multiply(a, b, out, alpha, beta)
        return contest.call(
            lambda kernel: self.prepared(kernel)(a, b, out, alpha, beta),
            lambda: library.multiply(a, b, out, alpha, beta),
            a,
            twice=out is None,
        )


def staged(
    library: Library,
    product: Product,
    operands: tuple[Any, Any],
    out: Any,
    scalars: tuple[Any, Any],
) -> Any:
    """A product that was refused as it is, from aligned copies, stored in `out` afterwards.

    So `out` may have any strides, overlap the operands, and be of another element type or shape
    where the library's own product may store its results in such.

    Args:
        library: what the operands are of.
        product: ``product(a, b, out, alpha, beta)``, which was refused.
        operands: a and b.
        out: what it was to be stored in; None allocates it.
        scalars: alpha and beta.

    Raises:
        OperandError: it was refused for another reason.
    """
    a, b = map(library.aligned, operands)
    alpha, beta = scalars
    out = only(out)
    if out is None:
        return product(a, b, None, alpha, beta)
    return library.store(out, product(a, b, None, alpha, 0.0), beta, core_of(a, b))
