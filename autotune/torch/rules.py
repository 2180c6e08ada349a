"""Registration of the operators with PyTorch: devices, gradients, stacks, autocast, scripts."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula

from autotune.arrays.watching import is_forward, keys_of_plain
from autotune.runtime.multiplying import matmul
from autotune.torch.calls import plain_linear, plain_mm
from autotune.torch.operator import (
    LINEAR,
    MM,
    NAMESPACE,
    LinearProduct,
    Mm,
    eager_linear,
    eager_mm,
    linear,
    many_linear,
    many_mm,
    mm,
    under_autocast,
)

_DEVICES = ("CPU", "CUDA")


def register() -> None:
    """Register all of it; once a process."""
    _register_on_devices()
    library = torch.library
    # Results without contents, for tracing: shapes, dtypes and errors are PyTorch's.
    library.register_fake("autotune::mm", torch.mm, lib=NAMESPACE)
    library.register_fake("autotune::linear", functional.linear, lib=NAMESPACE)
    register_flop_formula(torch.ops.autotune.mm)(_mm_flop)
    register_flop_formula(torch.ops.autotune.linear)(_linear_flop)
    for name, operator, rules, many in (
        ("mm", MM, Mm, many_mm),
        ("linear", LINEAR, LinearProduct, many_linear),
    ):
        library.register_autograd(
            f"autotune::{name}",
            rules.backward,
            setup_context=rules.setup_context,
            lib=NAMESPACE,
        )
        stacked = functools.partial(_stacked, many, operator)
        library.register_vmap(f"autotune::{name}", stacked, lib=NAMESPACE)
        for device in _DEVICES:
            cast = functools.partial(under_autocast, device.lower(), operator)
            NAMESPACE.impl(name, cast, f"Autocast{device}")
    if hasattr(library, "get_kernel"):  # PyTorch 2.9
        _register_short_ways()
    _register_scripts()


def _mm_flop(a: tuple[int, ...], b: tuple[int, ...], **options: Any) -> int:
    """Operations of a product by the shapes of its operands, as PyTorch counts them."""
    return 2 * math.prod(a) * b[1]


def _linear_flop(
    input: tuple[int, ...], weight: tuple[int, ...], bias: Any = None, **options: Any
) -> int:
    """The same of a layer, without its bias."""
    return 2 * math.prod(input) * weight[0]


def _stacked(many: Any, operator: Any, info: Any, dims: Any, *tensors: Tensor | None) -> Any:
    """A rule of `torch.func.vmap`: the result, and along which dimension it is stacked."""
    return many(operator, dims, *tensors), 0


def _register_short_ways() -> None:
    """Have plain tensors pass the dispatcher once; all others go by what gradients have."""
    for device in _DEVICES:
        key, plain = f"Autograd{device}", keys_of_plain(device)
        for name, eager, own in (
            ("mm", eager_mm, torch.mm),
            ("linear", eager_linear, functional.linear),
        ):
            usual = torch.library.get_kernel(f"autotune::{name}", key).call_boxed
            NAMESPACE.impl(name, _short(plain, eager, own, usual), key, with_keyset=True)


def _short(plain: Any, eager: Any, own: Any, usual: Any) -> Any:
    """A kernel above gradients: computes at once where nothing else of PyTorch's has a say.

    Args:
        plain: the dispatcher's keys in such calls, as a number.
        eager: what computes.
        own: PyTorch's product, which has forward-mode derivatives.
        usual: what `torch.library` does above gradients, and goes on below them.
    """

    def kernel(keys: Any, *tensors: Tensor | None) -> Any:
        if keys.raw_repr() != plain:
            return usual(keys, *tensors)
        if is_forward():
            return own(*tensors)
        return eager(*tensors)

    return kernel


def _register_scripts() -> None:
    """Have `torch.jit.script`, which reads source text, take PyTorch's products for ours."""
    register = getattr(torch.jit._builtins, "_register_builtin", None)
    if register is not None:
        for function, own in ((mm, "mm"), (linear, "linear"), (matmul, "matmul")):
            register(function, f"aten::{own}")


def _register_on_devices() -> None:
    for device in _DEVICES:
        NAMESPACE.impl("mm", plain_mm, device)
        NAMESPACE.impl("linear", plain_linear, device)
    # Sparse tensors and other devices are PyTorch's.
    NAMESPACE.impl("mm", torch.mm, "CompositeExplicitAutograd")
    NAMESPACE.impl("linear", functional.linear, "CompositeExplicitAutograd")
