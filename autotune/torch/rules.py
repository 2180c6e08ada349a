"""What PyTorch is told of the operators: on which devices they are, and what all of it adds."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from autotune.torch.operator import (
    LINEAR,
    MM,
    NAMESPACE,
    Linear,
    Mm,
    many_linear,
    many_mm,
    under_autocast,
)
from autotune.torch.products import plain_linear, plain_mm


def register() -> None:
    """Register all of it; once a process."""
    _register_on_devices()
    library = torch.library
    # Results without contents, for tracing: shapes, dtypes and errors are PyTorch's.
    library.register_fake("autotune::mm", torch.mm, lib=NAMESPACE)
    library.register_fake("autotune::linear", functional.linear, lib=NAMESPACE)
    for name, operator, rules, many in (
        ("mm", MM, Mm, many_mm),
        ("linear", LINEAR, Linear, many_linear),
    ):
        library.register_autograd(
            f"autotune::{name}",
            rules.backward,
            setup_context=rules.setup_context,
            lib=NAMESPACE,
        )
        stacked = functools.partial(_stacked, many, operator)
        library.register_vmap(f"autotune::{name}", stacked, lib=NAMESPACE)
        for device in ("cpu", "cuda"):
            cast = functools.partial(under_autocast, device, operator)
            NAMESPACE.impl(name, cast, f"Autocast{device.upper()}")


def _stacked(many: Any, operator: Any, info: Any, dims: Any, *tensors: Tensor | None) -> Any:
    """A rule of `torch.func.vmap`: the result, and along which dimension it is stacked."""
    return many(operator, dims, *tensors), 0


def _register_on_devices() -> None:
    for device in ("CPU", "CUDA"):
        NAMESPACE.impl("mm", plain_mm, device)
        NAMESPACE.impl("linear", plain_linear, device)
    # Sparse tensors and other devices are PyTorch's.
    NAMESPACE.impl("mm", torch.mm, "CompositeExplicitAutograd")
    NAMESPACE.impl("linear", functional.linear, "CompositeExplicitAutograd")
