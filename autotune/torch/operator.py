"""The operators ``autotune::mm``, ``linear`` and ``layer``, functions that call them, a module.

Operators are what `torch.compile`, autocast and `torch.func` know. A function of the same name
calls the kernel straight away where nothing of PyTorch's has a say, and so does the operator once
PyTorch's dispatcher has brought it there, which costs a microsecond.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn import functional

from autotune.arrays.watching import (
    casts,
    has_plain_class,
    is_forward,
    is_functionalized,
    is_plain,
    is_profiled,
    is_traced,
    is_transformed,
    is_watched,
)
from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError
from autotune.core.printable import shown
from autotune.runtime.choosing import check_class
from autotune.torch.calls import plain_mm
from autotune.torch.layers import Following, check_activation, composed, plain_layer, plain_linear
from autotune.torch.switch import by_gates

NAMESPACE = torch.library.Library("autotune", "DEF")
NAMESPACE.define(
    'mm(Tensor a, Tensor b, str accuracy="") -> Tensor', tags=(torch.Tag.pt2_compliant_tag,)
)
NAMESPACE.define(
    'linear(Tensor input, Tensor weight, Tensor? bias, str accuracy="") -> Tensor',
    tags=(torch.Tag.pt2_compliant_tag,),
)
NAMESPACE.define(
    "layer(Tensor input, Tensor weight, Tensor? row_scale, Tensor? column_scale, Tensor? bias, "
    'str? activation, Tensor? multiply, Tensor? residual, str accuracy="") -> Tensor',
    tags=(torch.Tag.pt2_compliant_tag,),
)
MM = torch.ops.autotune.mm.default
LINEAR = torch.ops.autotune.linear.default
LAYER = torch.ops.autotune.layer.default


def mm(a: Tensor, b: Tensor, *, accuracy: str = "") -> Tensor:
    """`torch.mm`, by a tuned kernel where one was measured for the matrices.

    Results have its shapes, dtypes and strides, and its errors are raised. It is differentiable
    any number of times, with `torch.func` as well; forward-mode derivatives are `torch.mm`'s.

    Args:
        a: A, M x N.
        b: B, N x K.
        accuracy: the loosest accuracy class that the product, and those of its gradients, may
            have; empty is the usual one of its elements, which a library's has in any case.

    Raises:
        InputError: there is no such class, it is not for such elements, or it is stricter than
            the usual one.
    """
    if accuracy:
        _check(accuracy, a)
    if not (is_dynamo_compiling() or is_profiled()):
        made = by_gates("torch mm", accuracy, torch.mm, a, b)
        if made is not None:
            return made
    if is_watched() or is_profiled():
        return _seen(MM, torch.mm, mm, Mm, a, b, accuracy=accuracy)
    if is_plain(a) and is_plain(b):
        return eager_mm(a, b, accuracy)
    return torch.mm(a, b)


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    multiply: Tensor | None = None,
    residual: Tensor | None = None,
    row_scale: Tensor | None = None,
    column_scale: Tensor | None = None,
    accuracy: str = "",
) -> Tensor:
    """`torch.nn.functional.linear`, by a tuned kernel where one was measured for the matrices.

    What follows it in a model, if given, is computed by the same kernel where that is faster:
    ``activation(row_scale * column_scale * (input @ weight.t()) + bias) * multiply + residual``.
    Results are those of PyTorch's operators, but rounded once. Where gradients are wanted, the
    product may be a kernel's, and PyTorch's operators compute what follows.

    Args:
        input: ... x N.
        weight: K x N.
        bias: K; None, here and below, leaves it out.
        activation: "relu", "gelu", "gelu_tanh", "silu" or "sigmoid"; "gelu" is exact, by the
            error function.
        multiply: ... x K, multiplies the activated result: the other half of a gated pair.
        residual: ... x K, is added last.
        row_scale: ... x 1, scales each row of the product.
        column_scale: K, scales each column of it.
        accuracy: as for `mm`.

    Raises:
        InputError: there is no such activation, or as for `mm`.
    """
    if accuracy:
        _check(accuracy, input)
    if not (activation is multiply is residual is row_scale is column_scale is None):
        check_activation(activation)
        following = Following(row_scale, column_scale, bias, activation, multiply, residual)
        return _layer(input, weight, following, accuracy)
    if not (is_dynamo_compiling() or is_profiled()):
        made = by_gates("torch linear", accuracy, functional.linear, input, weight, bias)
        if made is not None:
            return made
    if is_watched() or is_profiled():
        tensors = input, weight, bias
        return _seen(LINEAR, functional.linear, linear, LinearProduct, *tensors, accuracy=accuracy)
    if is_plain(input) and is_plain(weight) and (bias is None or is_plain(bias)):
        return eager_linear(input, weight, bias, accuracy)
    return functional.linear(input, weight, bias)


def gated(
    input: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor,
    *,
    activation: str = "silu",
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
) -> Tensor:
    """``activation(input @ gate_weight.t()) * (input @ up_weight.t())``, as in SwiGLU and GeGLU.

    Two products, the second of which applies activation and gate (`linear` with `multiply`).
    Shazeer, "GLU variants improve Transformer", arXiv 2002.05202.

    Args:
        input: ... x N.
        gate_weight: K x N.
        up_weight: K x N.
        activation: as for `linear`.
        gate_bias: K, is added before the activation.
        up_bias: K, is added to the other product.

    Raises:
        InputError: there is no such activation.
    """
    up = linear(input, up_weight, up_bias)
    return linear(input, gate_weight, gate_bias, activation=activation, multiply=up)


def _check(accuracy: str, operand: Tensor) -> None:
    """Refuse a class that is not for the elements of an operand, unless it is PyTorch's anyway."""
    name = str(operand.dtype).removeprefix("torch.")
    if name in DTYPES:
        check_class(accuracy, name)


def _layer(input: Tensor, weight: Tensor, following: Following, accuracy: str) -> Tensor:
    """A layer with more than a bias after its product."""
    given = [input, weight, *(each for each in following.tensors if each is not None)]
    known = all(has_plain_class(each) for each in given)
    wanted = torch.is_grad_enabled() and any(each.requires_grad for each in given)
    if is_compiling():
        if wanted or not known:
            return composed(_linear_of(accuracy), input, weight, following)
        return LAYER(input, weight, *following, accuracy)
    if wanted or not known or is_forward() or is_transformed() or is_traced():
        return composed(_linear_of(accuracy), input, weight, following)
    if casts() and torch.is_autocast_enabled(input.device.type):
        return layer_under_autocast(input.device.type, input, weight, following, accuracy)
    if is_watched() or is_profiled():
        return LAYER(input, weight, *following, accuracy)
    if all(is_plain(each) for each in given):
        return plain_layer(input, weight, following, accuracy)
    return composed(functional.linear, input, weight, following)


def _linear_of(accuracy: str) -> Any:
    return functools.partial(linear, accuracy=accuracy)


def layer_under_autocast(
    device: str, input: Tensor, weight: Tensor, following: Following, accuracy: str = ""
) -> Tensor:
    """A layer under autocast: operands of the product, and the bias, in the dtype that is set.

    What follows is as it was given, and PyTorch promotes, as it does without.
    """
    dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        given = following._replace(bias=_as(following.bias, dtype, device))
        return _layer(_as(input, dtype, device), _as(weight, dtype, device), given, accuracy)


def _seen(
    operator: Any,
    own: Any,
    function: Any,
    differentiable: Any,
    *tensors: Tensor | None,
    accuracy: str,
) -> Any:
    """A product that somebody sees, records, casts or transforms.

    Args:
        operator: what is in the graphs of PyTorch's compiler, and its modes see.
        own: PyTorch's product. It is in the graphs of `torch.jit.trace`, which other programs run
            without this package; it has derivatives in forward mode; and classes that are derived
            from tensors know it.
        function: the function that was called.
        differentiable: the same for `torch.func`.
        tensors: its operands.
        accuracy: the class that is asked for.
    """
    known = all(tensor is None or has_plain_class(tensor) for tensor in tensors)
    if is_compiling():
        return operator(*tensors, accuracy) if known else own(*tensors)
    if not known or is_traced() or is_forward() or is_functionalized():
        return own(*tensors)
    assert tensors[0] is not None
    device = tensors[0].device.type
    if casts() and torch.is_autocast_enabled(device):
        return under_autocast(device, functools.partial(function, accuracy=accuracy), *tensors)
    if is_transformed():
        return differentiable.apply(*tensors, accuracy)
    return operator(*tensors, accuracy)


def eager_mm(a: Tensor, b: Tensor, accuracy: str = "") -> Tensor:
    """The product of plain tensors, with gradients where such are wanted."""
    if (a.requires_grad or b.requires_grad) and torch.is_grad_enabled():
        return _EagerMm.apply(a, b, accuracy)
    made = by_gates("torch mm", accuracy, torch.mm, a, b)
    return plain_mm(a, b, accuracy) if made is None else made


def eager_linear(input: Tensor, weight: Tensor, bias: Tensor | None, accuracy: str = "") -> Tensor:
    """The same of a linear layer."""
    wanted = input.requires_grad or weight.requires_grad
    if (wanted or (bias is not None and bias.requires_grad)) and torch.is_grad_enabled():
        return _EagerLinear.apply(input, weight, bias, accuracy)
    made = by_gates("torch linear", accuracy, functional.linear, input, weight, bias)
    return plain_linear(input, weight, bias, accuracy) if made is None else made


class Mm(torch.autograd.Function):  # type: ignore[misc]
    """`mm` for `torch.func`."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, accuracy: str) -> Tensor:
        """The product."""
        return mm(a, b, accuracy=accuracy)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what gradients need, and nothing that only an unwanted one would."""
        a, b, ctx.accuracy = inputs
        of_a, of_b = ctx.needs_input_grad[:2]
        ctx.save_for_backward(a if of_b else None, b if of_a else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of a and b, which are products of matrices as they are stored."""
        a, b = ctx.saved_tensors
        of_a = None if b is None else mm(grad, b.t(), accuracy=ctx.accuracy)
        of_b = None if a is None else mm(a.t(), grad, accuracy=ctx.accuracy)
        return of_a, of_b, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], a: Tensor, b: Tensor, accuracy: str) -> Any:
        """Stack products, as `many_mm` does."""
        return many_mm(functools.partial(mm, accuracy=accuracy), dims, a, b), 0


class LinearProduct(torch.autograd.Function):  # type: ignore[misc]
    """`linear` for `torch.func`."""

    @staticmethod
    def forward(input: Tensor, weight: Tensor, bias: Tensor | None, accuracy: str) -> Tensor:
        """The layer's output."""
        return linear(input, weight, bias, accuracy=accuracy)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what gradients need, and nothing that only an unwanted one would."""
        input, weight, _, ctx.accuracy = inputs
        of_input, of_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(input if of_weight else None, weight if of_input else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of input, weight and bias."""
        input, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        of_input = of_weight = None
        if weight is not None:
            of_input = mm(rows, weight, accuracy=ctx.accuracy)
            of_input = of_input.reshape(*grad.shape[:-1], weight.shape[1])
        if input is not None:
            of_weight = mm(rows.t(), input.reshape(-1, input.shape[-1]), accuracy=ctx.accuracy)
        return of_input, of_weight, rows.sum(0) if ctx.needs_input_grad[2] else None, None

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[int | None, ...],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        accuracy: str,
    ) -> Any:
        """Stack layers, as `many_linear` does."""
        return many_linear(_linear_of(accuracy), dims, input, weight, bias), 0


class _EagerMm(torch.autograd.Function):  # type: ignore[misc]
    """`Mm` of plain tensors: a context set up apart costs three times as much."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, accuracy: str) -> Tensor:
        made = eager_mm(a, b, accuracy)
        Mm.setup_context(ctx, (a, b, accuracy), made)
        return made

    backward = Mm.backward


class _EagerLinear(torch.autograd.Function):  # type: ignore[misc]
    """`LinearProduct` of plain tensors."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, accuracy: str
    ) -> Tensor:
        made = eager_linear(input, weight, bias, accuracy)
        LinearProduct.setup_context(ctx, (input, weight, bias, accuracy), made)
        return made

    backward = LinearProduct.backward


def many_mm(one: Any, dims: tuple[int | None, ...], a: Tensor, b: Tensor) -> Tensor:
    """A stack of products along dimensions of a and b, None for those that are repeated.

    Many A and one B are one product of all rows, which `one` computes; what else there is, is
    PyTorch's batched product. The stack's dimension comes first.
    """
    if dims[1] is not None:
        return torch.matmul(_first(a, dims[0]), _first(b, dims[1]))
    stack = _first(a, dims[0])
    made: Tensor = one(stack.reshape(-1, stack.shape[-1]), b)
    return made.reshape(*stack.shape[:-1], b.shape[-1])


def many_linear(
    one: Any,
    dims: tuple[int | None, ...],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """The same of layers: many inputs of one layer are one of more rows."""
    along_input, along_weight, along_bias = dims[:3]
    if along_weight is None and along_bias is None:
        made: Tensor = one(_first(input, along_input), weight, bias)
        return made
    stack, weights = _first(input, along_input), _first(weight, along_weight)
    lead = stack.shape[:-1] if along_input is None else stack.shape[1:-1]
    if along_weight is None:
        made = one(stack, weight, None)
    else:
        rows = stack.reshape(*stack.shape[: along_input is not None], -1, stack.shape[-1])
        made = torch.matmul(rows, weights.mT).reshape(len(weights), *lead, weights.shape[1])
    if bias is None or along_bias is None:
        return made if bias is None else made + bias
    biases = bias.movedim(along_bias, 0)
    return made + biases.reshape(len(biases), *[1] * len(lead), -1)


def _first(tensor: Tensor, dimension: int | None) -> Tensor:
    """A tensor with the dimension that is vectorised along first, if it has that one."""
    return tensor if dimension is None else tensor.movedim(dimension, 0)


def under_autocast(device: str, operation: Any, *given: Tensor | str | None) -> Tensor:
    """An operation under autocast: in the dtype that is set there, as PyTorch's own products.

    `torch.library.register_autocast` would have to know that dtype once for all.

    Args:
        device: the kind of device that autocast is on for.
        operation: what is computed.
        given: its operands, and what else it is told.
    """
    dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        made: Tensor = operation(*(_as(each, dtype, device) for each in given))
        return made


def _as(given: Any, dtype: torch.dtype, device: str) -> Any:
    if not isinstance(given, Tensor) or given.dtype is torch.float64:
        return given
    cast = given.device.type == device and given.is_floating_point()
    return given.to(dtype) if cast else given


_Module = TypeVar("_Module", bound=torch.nn.Module)


class Linear(torch.nn.Linear):  # type: ignore[misc]
    """`torch.nn.Linear`, with the same arguments, parameters and state.

    Its product, and those of its gradients, are by tuned kernels where such were measured.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The layer's output: ... x out_features."""
        return linear(input, self.weight, self.bias)


def convert(model: _Module) -> _Module:
    """Make every `torch.nn.Linear` of a model, itself included, a `Linear`; gives the model.

    Parameters, hooks, state and names stay what they are, and so do layers of classes derived
    from `torch.nn.Linear`, which may compute otherwise.

    Raises:
        InputError: it is no model.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"a model must be a torch.nn.Module, got {shown(model)}")
    for layer in model.modules():
        if type(layer) is torch.nn.Linear:
            layer.__class__ = Linear
    return model
