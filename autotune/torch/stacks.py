"""Products of stacks of matrices and of groups of rows, by tuned kernels or by PyTorch.

Kernels take plain tensors of 16-bit types on a GPU; everything else is PyTorch's, and so is what
its compiler, autocast or `torch.func` see.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from autotune.arrays.libraries import plain_library
from autotune.arrays.watching import is_plain, is_profiled, is_watched
from autotune.core.session import Remembered
from autotune.operations.parts import strides_of
from autotune.runtime.choosing import Served, contest_of
from autotune.targets.families import find_operation
from autotune.targets.registry import HOMES
from autotune.torch.calls import contested_product, detached, launch_of, recorded_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.operations.problem import Problem
    from autotune.serving.kernel import BoundKernel
    from autotune.torch.calls import TensorProduct

    Call: TypeAlias = Callable[..., Any]
    Accepts: TypeAlias = Callable[[Problem], str | None]

_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
_ROW_LIMIT = 2**31
"""Elements between rows that kernels count no further than."""


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """`torch.bmm`, by a tuned kernel where one was measured to be faster.

    It is differentiable any number of times.

    Args:
        a: A, P x M x N, at any distance from matrix to matrix; stored transposed or not.
        b: B, P x N x K, likewise; `expand` makes one matrix all of them.
    """
    if is_watched() or is_profiled() or not (is_plain(a) and is_plain(b)):
        return torch.bmm(a, b)
    if (a.requires_grad or b.requires_grad) and torch.is_grad_enabled():
        made: Tensor = _Bmm.apply(a, b)
        return made
    return _plain_bmm(a, b)


def grouped_mm(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """Products of groups of rows, each with a matrix of its own, as experts of a model have them.

    `torch.nn.functional.grouped_mm`, by a tuned kernel where one was measured to be faster. The
    host does not look at the groups. It is differentiable.

    Args:
        a: A, M x N: the rows of all groups, one group after the other.
        b: B, E x N x K: the matrix of each group, stored transposed or not.
        ends: where the rows of each group end, int32: ascending, from 0 to M. Rows behind the
            last one are in no group: what becomes of them is undefined.

    Returns:
        C, M x K: of group e the rows from ``ends[e - 1]`` to ``ends[e]``, of A times b[e].
    """
    if is_watched() or is_profiled() or not (is_plain(a) and is_plain(b) and is_plain(ends)):
        return _torch_grouped(a, b, ends)
    if (a.requires_grad or b.requires_grad) and torch.is_grad_enabled():
        made: Tensor = _Grouped.apply(a, b, ends)
        return made
    return _plain_grouped(a, b, ends)


def _torch_grouped(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """PyTorch's own; of two matrices it is, for each group, a product along the rows of both."""
    own = getattr(functional, "grouped_mm", None) or torch._grouped_mm
    made: Tensor = own(a, b, offs=ends)
    return made


class _Bmm(torch.autograd.Function):  # type: ignore[misc]
    """`bmm` with gradients."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        of_a, of_b = ctx.needs_input_grad
        ctx.save_for_backward(a if of_b else None, b if of_a else None)
        return _plain_bmm(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        return None if b is None else bmm(grad, b.mT), None if a is None else bmm(a.mT, grad)


class _Grouped(torch.autograd.Function):  # type: ignore[misc]
    """`grouped_mm` with gradients; that of the matrices is PyTorch's product."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
        of_a, of_b, _ = ctx.needs_input_grad
        ctx.save_for_backward(a if of_b else None, b if of_a else None, ends)
        return _plain_grouped(a, b, ends)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        a, b, ends = ctx.saved_tensors
        of_a = None if b is None else grouped_mm(grad, b.mT, ends)
        of_b = None if a is None else _torch_grouped(a.mT, grad, ends)
        return of_a, of_b, None


def _plain_bmm(a: Tensor, b: Tensor) -> Tensor:
    product = product_of_stacks(a, b, "torch bmm")
    if product is None:
        return torch.bmm(a, b)
    made: Tensor = product.compute(lambda call: call((a, b), None), lambda: torch.bmm(a, b), a)
    return made


def _plain_grouped(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    product = _PRODUCTS["grouped", "torch grouped_mm", None, *_looks(a), *_looks(b), *_looks(ends)]
    if product is None:
        return _torch_grouped(a, b, ends)
    made: Tensor = product.compute(
        lambda call: call((a, b, ends), None), lambda: _torch_grouped(a, b, ends), a
    )
    return made


def product_of_stacks(
    a: Any, b: Any, caller: str, accepts: Accepts | None = None
) -> TensorProduct | None:
    """The products of two plain stacks; None leaves them to PyTorch for good.

    Args:
        a: A.
        b: B.
        caller: the function that was called, for the log.
        accepts: which problems may be served, as for `autotune.runtime.choosing.serve`.
    """
    return _PRODUCTS["bmm", caller, accepts, *_looks(a), *_looks(b)]


def _looks(tensor: Any) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _make_product(
    operation: str, caller: str, accepts: Accepts | None, *looks: Any
) -> TensorProduct | None:
    """The products of plain tensors that lie as `_looks` says.

    A kernel's call is ``call(inputs, out)``, of operands as they are multiplied and a contiguous
    result apart from them; None makes one.
    """
    found = _problem_of(operation, looks)
    if found is None:
        return None
    problem, strides = found
    tensors = plain_library(torch.Tensor)
    assert tensors is not None
    if accepts is not None and accepts(problem) is None:
        return None
    contest = contest_of(problem, HOMES["gpu"], tensors.name, caller)
    if contest is None:
        return None
    device, apart = looks[3], strides_of(problem.operands[-1].shape)[:-1]
    return contested_product(
        Served(problem, contest),
        lambda problem, kernel: _call_of(problem, kernel.bound, strides, device),
        lambda problem, kernel: recorded_of(kernel, device, [*strides, apart]),
        functools.partial(_PRODUCTS.__setitem__, (operation, caller, accepts, *looks)),
    )


def _call_of(
    problem: Problem, kernel: BoundKernel, strides: Sequence[tuple[int, ...]], device: torch.device
) -> Call:
    """A call of a kernel: where tensors lie alike, all that is new are their addresses.

    Args:
        problem: what it computes.
        kernel: the kernel.
        strides: of every input as stored, without the last.
        device: where.
    """
    found = launch_of(kernel, device)
    if found is None:  # it is being compiled
        turned = [each.name in problem.turned for each in problem.operands]

        def usual(inputs: tuple[Any, ...], out: Any) -> Any:
            given = zip(detached(*inputs), turned, strict=False)
            return kernel(*(each.mT if turn else each for each, turn in given), out=out)

        return usual
    (launch, stream), number = found, device.index
    shape, dtype = problem.operands[-1].shape, getattr(torch, problem.result_dtype)
    apart = strides_of(shape)[:-1]

    def call(inputs: tuple[Any, ...], out: Any) -> Any:
        made = torch.empty(shape, dtype=dtype, device=device) if out is None else out
        places: list[int] = []
        for each, steps in zip(inputs, strides, strict=True):
            places += (each.data_ptr(), *steps)
        launch(*places, made.data_ptr(), *apart, stream=stream(number))
        return made

    return call


def _problem_of(
    operation: str, looks: tuple[Any, ...]
) -> tuple[Problem, list[tuple[int, ...]]] | None:
    """The problem of tensors, and their strides as stored; None where no kernel takes them."""
    (a, a_steps, dtype, device), (b, b_steps, other, beside) = looks[:4], looks[4:8]
    stacked = len(a) - 2
    if (
        dtype not in _DTYPES or other is not dtype or device.type != "cuda" or beside != device
    ) or (stacked != (operation == "bmm") or len(b) != 3 or a[-1] != b[-2] or 0 in (*a, *b)):
        return None
    left, right = _stored(a, a_steps), _stored(b, b_steps)
    if left is None or right is None:
        return None
    strides = [left[1], right[1]]
    if operation == "bmm":
        if a[0] != b[0]:
            return None
        sizes = {"P": a[0], "M": a[1], "N": a[2], "K": b[2]}
    else:
        ends, steps, kind, where = looks[8:]
        if ends != b[:1] or kind is not torch.int32 or where != device or (*steps, 1)[0] != 1:
            return None
        sizes = {"E": b[0], "M": a[0], "N": a[1], "K": b[2]}
        strides.append(())
    layout = left[0] + right[0]
    defined = find_operation(operation)
    return defined.problem(**sizes, dtype=_DTYPES[dtype], layout=layout), strides


def _stored(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[str, tuple[int, ...]] | None:
    """Letter of the layout, and strides but the last, of matrices as they are stored.

    None where neither their rows nor their columns are contiguous, or too far apart.
    """
    (rows, columns), (row, column) = shape[-2:], strides[-2:]
    if (columns == 1 or column == 1) and (rows == 1 or row >= columns):
        letter, leading = "n", row if rows > 1 else columns
    elif row == 1 and column >= rows:
        letter, leading = "t", column
    else:
        return None
    if leading >= _ROW_LIMIT:
        return None
    return letter, (*strides[:-2], leading)


_PRODUCTS = Remembered(_make_product)
