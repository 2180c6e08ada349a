"""Products of plain tensors, by a kernel or by PyTorch: what is under all that PyTorch adds."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from autotune.arrays.torch import torch_is_exact
from autotune.torch.calls import TensorCalls, layer_of, product_of
from autotune.torch.gates import adds_apart


def plain_mm(a: Tensor, b: Tensor) -> Tensor:
    """The product of plain tensors, by a kernel or by PyTorch."""
    product = product_of(a, b, "torch mm")
    if product is None or not _is_exact(a):
        return torch.mm(a, b)
    made: Tensor = product.compute(lambda calls: calls.call(a, b), lambda: torch.mm(a, b), a)
    return made


def plain_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same of a linear layer, whose weights are stored transposed."""
    fits = input.dim() >= 2 and weight.dim() == 2 and input.shape[-1] == weight.shape[1]
    if not fits or (bias is not None and not _is_usual(bias, weight)) or not _is_exact(input):
        return functional.linear(input, weight, bias)
    rows = input if input.dim() == 2 else input.reshape(-1, weight.shape[1])
    product = layer_of(rows, weight, "torch linear")
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


def _is_exact(operand: Tensor) -> bool:
    """True if PyTorch's products are exact: it is left what it is set to round."""
    return operand.dtype is not torch.float32 or torch_is_exact(torch, operand.device.type)


def _is_usual(bias: Tensor, weight: Tensor) -> bool:
    """True if a bias is what adding it to a result of the weight's dtype needs."""
    return (
        adds_apart(bias.dtype)
        and bias.dtype is weight.dtype
        and bias.shape == weight.shape[:1]
        and bias.device == weight.device
    )
