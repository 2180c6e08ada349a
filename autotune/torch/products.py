"""Products of plain tensors, by a kernel or by PyTorch: what is under all that PyTorch adds."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from autotune.core.errors import OperandError
from autotune.torch.calls import layer_of, product_of
from autotune.torch.gates import adds_apart


def plain_mm(a: Tensor, b: Tensor) -> Tensor:
    """The product of plain tensors, by a kernel or by PyTorch."""
    product = product_of(a, b, "torch mm")
    if product is not None:
        try:
            return product.call(a, b)
        except OperandError:  # of an odd address, say, which PyTorch minds less
            pass
    return torch.mm(a, b)


def plain_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same of a linear layer, whose weights are stored transposed."""
    if input.dim() >= 2 and weight.dim() == 2 and input.shape[-1] == weight.shape[1]:
        rows = input if input.dim() == 2 else input.reshape(-1, weight.shape[1])
        product = layer_of(rows, weight, "torch linear")
        if product is not None and (bias is None or _is_usual(bias, weight)):
            try:
                if product.layout == "nt":
                    made = product.of_stored(rows, weight)
                else:
                    made = product.call(rows, weight.t())
            except OperandError:
                pass
            else:
                if bias is not None:
                    made.add_(bias)
                return made if rows is input else made.view(*input.shape[:-1], -1)
    return functional.linear(input, weight, bias)


def _is_usual(bias: Tensor, weight: Tensor) -> bool:
    """Whether a bias is what adding it to a result of the weight's dtype needs."""
    return (
        adds_apart(bias.dtype)
        and bias.dtype is weight.dtype
        and bias.shape == weight.shape[:1]
        and bias.device == weight.device
    )
