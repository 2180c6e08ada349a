"""Fields that problems of all operations have, and their values."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from autotune.core.dtypes import DTYPES, ELEMENTS, Dtype, dtype_name
from autotune.core.errors import ProblemError
from autotune.core.printable import shown
from autotune.core.suggestions import must_be
from autotune.operations.accuracy import ACCURACIES, unfit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

LAYOUTS = ("nn", "nt", "tn", "tt")
"""The layouts: A first, t where it is stored transposed; "nt" means B is stored K x N."""


def element_sizes(dtype: str) -> dict[str, int]:
    """Bytes of an operand's element, ``itemsize``, and of a sum of products, ``acc_itemsize``."""
    row = ELEMENTS[dtype]
    return {"itemsize": row.itemsize, "acc_itemsize": row.accumulated.itemsize}


def positive(name: str, value: Any) -> int:
    """A field that is a whole number >= 1, and less than 2^63.

    Raises:
        ProblemError: it is not; the message names it. So do the functions below.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise ProblemError(f"{name} must be a whole number >= 1, got {shown(value)}")
    if number >= 2**63:
        raise ProblemError(f"{name} must be a whole number < 2^63, got {shown(value)}")
    return number


def dtype_of(name: str, value: Any, types: Mapping[str, Dtype] = DTYPES) -> str:
    """A field that is a dtype: a name, or a dtype or a scalar type of NumPy's."""
    text = str(value if isinstance(value, str) else getattr(value, "__name__", str(value)))
    plain = dtype_name(text)
    if plain not in types:
        raise ProblemError(must_be(name, text, types))
    return plain


def one_of(name: str, value: Any, allowed: Collection[str]) -> None:
    """Refuse a field that is none of the values allowed."""
    if value not in [*allowed]:  # which may not be hashable
        raise ProblemError(must_be(name, str(value), allowed))


def check_common(problem: Any, types: Mapping[str, Dtype] = DTYPES) -> None:
    """Normalise dtype, out_dtype, accuracy and threads of a frozen problem.

    No accuracy class stands for the usual one of the dtype.

    Args:
        problem: the problem.
        types: that its operands may be of.
    """

    def put(name: str, value: object) -> None:
        object.__setattr__(problem, name, value)

    put("dtype", dtype_of("dtype", problem.dtype, types))
    if problem.out_dtype is not None:
        out_dtype = dtype_of("out_dtype", problem.out_dtype, types)
        put("out_dtype", None if out_dtype == ELEMENTS[problem.dtype].result else out_dtype)
    if problem.accuracy is None or problem.accuracy == "":
        put("accuracy", ELEMENTS[problem.dtype].accuracy)
    one_of("accuracy", problem.accuracy, ACCURACIES)
    if (reason := unfit(problem.accuracy, problem.dtype)) is not None:
        raise ProblemError(reason)
    if problem.threads is not None:
        put("threads", positive("threads", problem.threads))
