"""Layers of plain tensors: a product and what follows it by one kernel, or PyTorch's operators."""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from autotune.core.errors import InputError
from autotune.core.session import Remembered
from autotune.core.suggestions import must_be
from autotune.operations.layers import ACTIVATIONS, PARTS, Layer
from autotune.torch.calls import (
    TensorCalls,
    adds_apart,
    descriptor,
    in_class,
    is_exact,
    launch_of,
    layer_of,
    leading_of,
    recorded_of,
    served_product,
    steps_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.arrays.library import Descriptor
    from autotune.operations.operation import Problem
    from autotune.operations.problem import Gemm
    from autotune.serving.kernel import BoundKernel, Kernel
    from autotune.serving.recorded import RecordedLaunch
    from autotune.torch.calls import TensorProduct


class Following(NamedTuple):
    """Parts of a layer after its product, in the order in which they are applied.

    Attributes:
        row_scale: ... x 1, scales rows; None, here and below, where there is none.
        column_scale: K, scales columns.
        bias: K.
        activation: one of `ACTIVATIONS`.
        multiply: ... x K, multiplies the result of the activation.
        residual: ... x K, is added to that.
    """

    row_scale: Tensor | None = None
    column_scale: Tensor | None = None
    bias: Tensor | None = None
    activation: str | None = None
    multiply: Tensor | None = None
    residual: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors, in the order of `PARTS`."""
        return self.row_scale, self.column_scale, self.bias, self.multiply, self.residual


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
}


def check_activation(name: str | None) -> None:
    """Refuse what is no activation of layers.

    Raises:
        InputError: it is none.
    """
    if name is not None and name not in ACTIVATIONS:
        raise InputError(must_be("activation", str(name), list(ACTIVATIONS)))


def composed(
    product: Callable[..., Tensor], input: Tensor, weight: Tensor, following: Following
) -> Tensor:
    """A layer by its product and PyTorch's operators, one after the other.

    Args:
        product: as `torch.nn.functional.linear`.
        input: ... x N.
        weight: K x N.
        following: what follows the product.
    """
    row_scale, column_scale, bias, activation, multiply, residual = following
    if row_scale is None and column_scale is None:
        made = product(input, weight, bias)
    else:
        made = product(input, weight, None)
        for scale in (row_scale, column_scale):
            made = made if scale is None else made * scale
        made = made if bias is None else made + bias
    made = made if activation is None else _FUNCTIONS[activation](made)
    made = made if multiply is None else made * multiply
    return made if residual is None else made + residual


def plain_linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, accuracy: str = ""
) -> Tensor:
    """A linear layer of plain tensors, by a kernel of a class or by PyTorch."""
    if bias is not None and not adds_apart(bias.dtype):
        return plain_layer(input, weight, Following(bias=bias), accuracy)
    fits = input.dim() >= 2 and weight.dim() == 2 and input.shape[-1] == weight.shape[1]
    added = bias is None or _is_usual(bias, weight)
    if not fits or not added or not is_exact(input, accuracy):
        return functional.linear(input, weight, bias)
    rows = input if input.dim() == 2 else input.reshape(-1, weight.shape[1])
    product = layer_of(rows, weight, "torch linear", accuracy)
    if product is None:
        return functional.linear(input, weight, bias)

    def ours(calls: TensorCalls) -> Tensor:
        if calls.layout == "nt":
            made = calls.of_stored(rows, weight)
        else:
            made = calls.call(rows, weight.t())
        if bias is not None:
            made.add_(bias)
        result: Tensor = made if rows is input else made.view(*input.shape[:-1], -1)
        return result

    def theirs() -> Tensor:
        result: Tensor = functional.linear(input, weight, bias)
        return result

    made: Tensor = product.compute(ours, theirs, rows, added=bias is not None)
    return made


def _is_usual(bias: Tensor, weight: Tensor) -> bool:
    """True if a bias is what adding it to a result of the weight's dtype needs."""
    return (
        bias.dtype is weight.dtype
        and bias.shape == weight.shape[:1]
        and bias.device == weight.device
    )


def plain_layer(input: Tensor, weight: Tensor, following: Following, accuracy: str = "") -> Tensor:
    """A layer of plain tensors, by one kernel or by PyTorch, whichever is faster."""

    def theirs() -> Tensor:
        return _by_pytorch(input, weight, following)

    tensors = following.tensors
    layer = None
    if is_exact(input, accuracy):
        # One flat key, but for what may be missing.
        # fmt: off
        layer = _LAYERS[
            input.shape, input.stride(), input.dtype, input.device,
            weight.shape, weight.stride(), weight.dtype, weight.device,
            *[None if each is None else (each.shape, each.stride(), each.dtype, each.device)
              for each in tensors],
            following.activation, "torch linear", in_class(accuracy) if accuracy else None,
        ]
        # fmt: on
    if layer is None:
        return theirs()
    made: Tensor = layer.compute(lambda call: call(input, weight, tensors), theirs, input)
    return made


def _by_pytorch(input: Tensor, weight: Tensor, following: Following) -> Tensor:
    residual = following.residual
    if residual is not None and input.dim() == residual.dim() == 2:
        others = following._replace(residual=None)
        if all(part is None for part in others) and residual.dtype is input.dtype:
            return torch.addmm(residual, input, weight.t())
    return composed(functional.linear, input, weight, following)


def sum_of(
    a: Tensor, b: Tensor, c: Tensor, caller: str, accepts: Callable[[Gemm], str | None] | None
) -> TensorProduct | None:
    """The sum ``a @ b + c`` of plain matrices, c a row or a matrix; None leaves it to PyTorch.

    Its kernels are ``call(a, b.t(), tensors)``, with `tensors` as `Following.tensors` has them.
    """
    part = (c.shape, c.stride(), c.dtype, c.device)
    places = (None, None, part, None, None) if c.dim() == 1 else (None, None, None, None, part)
    # fmt: off
    return _LAYERS[
        a.shape, a.stride(), a.dtype, a.device,
        b.shape[::-1], b.stride()[::-1], b.dtype, b.device, *places, None, caller, accepts,
    ]
    # fmt: on


def _make_layer(*key: Any) -> TensorProduct | None:
    """The layer of plain tensors that lie as `plain_layer` says."""
    *described, activation, caller, accepts = key
    (shape, *_), parts = described[:4], described[8:]
    rows, weight = _flat(*described[:4]), descriptor(*described[4:8])
    if rows is None or len(weight.shape) != 2 or rows.shape[1] != weight.shape[1]:
        return None
    k = weight.shape[0]
    wanted = dict.fromkeys(PARTS, (*shape[:-1], k))
    wanted |= {"row_scale": (*shape[:-1], 1), "column_scale": (k,), "bias": (k,)}
    looks = []
    for name, part in zip(PARTS, parts, strict=True):
        if part is None:
            continue
        look = descriptor(*part) if len(part[0]) == 1 else _flat(*part)
        alike = part[2] is weight.dtype and part[3] == weight.place[0]
        if look is None or part[0] != wanted[name] or not alike or not _has_rows(look):
            return None
        looks.append(look)
    names = tuple(name for name, part in zip(PARTS, parts, strict=True) if part is not None)
    b = weight._replace(shape=weight.shape[::-1], strides=weight.strides[::-1])
    size = (*shape[:-1], k)

    def calls_of(problem: Problem, kernel: Kernel) -> Callable[..., Tensor]:
        usual = _usual(problem, kernel.bound, size)
        return _launched(problem, kernel.bound, (rows, b, *looks), size) or usual

    def record_of(problem: Problem, kernel: Kernel) -> RecordedLaunch | None:
        steps = _steps(problem, (rows, b, *looks))
        return recorded_of(kernel, weight.place[0], [*steps, (k,)])

    settle = functools.partial(_LAYERS.__setitem__, key)
    operation = Layer(names, activation or "").operation
    return served_product(rows, b, caller, accepts, calls_of, record_of, settle, operation)


_LAYERS = Remembered(_make_layer)


def _flat(shape: Any, strides: Any, dtype: Any, device: Any) -> Descriptor | None:
    """A tensor as the matrix of its rows; None where those are not equally far apart."""
    if len(shape) < 2 or math.prod(shape) == 0:
        return None
    many = [(size, step) for size, step in zip(shape[:-1], strides[:-1], strict=True) if size > 1]
    for (_, outer), (size, step) in itertools.pairwise(many):
        if outer != size * step:
            return None
    step = many[-1][1] if many else shape[-1]
    matrix = (math.prod(shape[:-1]), shape[-1]), (step, strides[-1])
    return descriptor(*matrix, dtype, device)


def _has_rows(look: Descriptor) -> bool:
    """True if kernels can read a vector, or rows of a matrix, where they lie."""
    if len(look.shape) == 1:
        return look.strides == (1,) or look.shape == (1,)
    return leading_of(look, "n") is not None


def _usual(problem: Problem, kernel: BoundKernel, size: tuple[int, ...]) -> Callable[..., Tensor]:
    """Calls of a kernel that looks at its operands, in the memory of the host or of a GPU."""
    turn_a, keep_b = problem.layout[0] == "t", problem.layout[1] == "t"
    shapes = [each.shape for each in problem.operands if not each.written][2:]
    output = problem.operands[-1].shape
    dtype = getattr(torch, problem.dtype)

    def call(input: Tensor, weight: Tensor, tensors: tuple[Tensor | None, ...]) -> Tensor:
        rows = input.detach().reshape(-1, input.shape[-1])
        plain = weight.detach()
        operands = [rows.t() if turn_a else rows, plain if keep_b else plain.t()]
        given = (each.detach() for each in tensors if each is not None)
        operands += [each.reshape(shape) for each, shape in zip(given, shapes, strict=True)]
        made = torch.empty(output, dtype=dtype, device=input.device)
        if made.is_cuda:
            kernel(*operands, out=made)
        else:
            kernel(*(each.numpy() for each in operands), out=made.numpy())
        return made.view(size)

    return call


def _launched(
    problem: Problem, kernel: BoundKernel, looks: tuple[Descriptor, ...], size: tuple[int, ...]
) -> Callable[..., Tensor] | None:
    """Calls of a kernel of a GPU on tensors that lie alike: all that is new are addresses."""
    device = looks[0].place[0]
    steps = [step for step in _steps(problem, looks) if step is not None]
    unchecked = launch_of(kernel, device) if len(steps) == len(looks) else None
    if unchecked is None:
        return None
    (launch, stream), number, empty = unchecked, device.index, torch.empty
    dtype, width = looks[0].dtype, size[-1]

    def call(input: Tensor, weight: Tensor, tensors: tuple[Tensor | None, ...]) -> Tensor:
        given = (input, weight, *(each for each in tensors if each is not None))
        made = empty(size, dtype=dtype, device=device)
        places: list[Any] = []
        for each, step in zip(given, steps, strict=True):
            places += (each.data_ptr(), *step)
        launch(*places, made.data_ptr(), width, stream=stream(number))
        return made

    return call


def _steps(problem: Problem, looks: tuple[Descriptor, ...]) -> list[tuple[int, ...] | None]:
    return steps_of(looks, problem.layout + "n" * (len(looks) - 2))
