"""A linear layer whose product is a tuned kernel's, in place of PyTorch's."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from autotune.torch.operator import linear

_Module = TypeVar("_Module", bound=torch.nn.Module)


class Linear(torch.nn.Linear):  # type: ignore[misc]
    """`torch.nn.Linear`, with the same arguments, parameters and state.

    Its product, and those of its gradients, are by tuned kernels where such were measured.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The layer's output: ... x out_features."""
        return linear(input, self.weight, self.bias)


def convert(model: _Module) -> _Module:
    """Make every `torch.nn.Linear` of a model, itself included, a `Linear`; in place.

    Parameters, hooks, state and names stay what they are, and so do layers of classes derived
    from `torch.nn.Linear`, which may compute otherwise.

    Returns:
        The model.
    """
    for layer in model.modules():
        if type(layer) is torch.nn.Linear:
            layer.__class__ = Linear
    return model
