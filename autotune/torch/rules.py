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
from autotune.torch.calls import plain_mm
from autotune.torch.layers import Following, composed, plain_layer, plain_linear
from autotune.torch.operator import (
    LAYER,
    LINEAR,
    MM,
    NAMESPACE,
    LinearProduct,
    Mm,
    eager_linear,
    eager_mm,
    layer_under_autocast,
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
    library.register_fake("autotune::mm", _own_mm, lib=NAMESPACE)
    library.register_fake("autotune::linear", _own_linear, lib=NAMESPACE)
    register_flop_formula(torch.ops.autotune.mm)(_mm_flop)
    register_flop_formula(torch.ops.autotune.linear)(_linear_flop)
    for name, operator, rules, many, operands in (
        ("mm", MM, Mm, many_mm, 2),
        ("linear", LINEAR, LinearProduct, many_linear, 3),
    ):
        library.register_autograd(
            f"autotune::{name}",
            rules.backward,
            setup_context=rules.setup_context,
            lib=NAMESPACE,
        )
        stacked = functools.partial(_stacked, many, operator, operands)
        library.register_vmap(f"autotune::{name}", stacked, lib=NAMESPACE)
        for device in _DEVICES:
            cast = functools.partial(under_autocast, device.lower(), operator)
            NAMESPACE.impl(name, cast, f"Autocast{device}")
    _register_layers()
    if hasattr(library, "get_kernel"):  # PyTorch 2.9
        _register_short_ways()
    _register_scripts()


def _own_mm(a: Tensor, b: Tensor, accuracy: str = "") -> Tensor:
    """The product by PyTorch, which is of every class."""
    return torch.mm(a, b)


def _own_linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, accuracy: str = ""
) -> Tensor:
    """The same of a linear layer."""
    return functional.linear(input, weight, bias)


def _mm_flop(a: tuple[int, ...], b: tuple[int, ...], *how: Any, **options: Any) -> int:
    """Operations of a product by the shapes of its operands, as PyTorch counts them."""
    return 2 * math.prod(a) * b[1]


def _linear_flop(
    input: tuple[int, ...], weight: tuple[int, ...], *following: Any, **options: Any
) -> int:
    """The same of a layer, without what follows its product."""
    return 2 * math.prod(input) * weight[0]


def _register_layers() -> None:
    """Rules of layers, which are compositions but for plain tensors without gradients."""
    library = torch.library

    parts = len(Following._fields)  # and then the accuracy class, where it is not the usual one

    def of_pytorch(input: Tensor, weight: Tensor, *given: Any) -> Tensor:
        return composed(functional.linear, input, weight, Following(*given[:parts]))

    def plain(input: Tensor, weight: Tensor, *given: Any) -> Tensor:
        return plain_layer(input, weight, Following(*given[:parts]), *given[parts:])

    def differentiable(*given: Any) -> Tensor:
        tensors = [each for each in given if isinstance(each, Tensor)]
        if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
            following, how = Following(*given[2 : parts + 2]), given[parts + 2 :]
            return composed(lambda *each: LINEAR(*each, *how), given[0], given[1], following)
        with torch._C._AutoDispatchBelowAutograd():
            made: Tensor = LAYER(*given)
            return made

    def stacked(info: Any, dims: Any, input: Tensor, weight: Tensor, *rest: Any) -> Any:
        lead = input.dim() - 1 - (dims[0] is not None)
        following, how = Following(*rest[:parts]), rest[parts:]
        along = Following(*dims[2 : parts + 2])

        def product(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            dim, bias = (None, None) if bias is None else (along.bias, following.bias)
            return many_linear(
                lambda *each: LINEAR(*each, *how), (*dims[:2], dim), input, weight, bias
            )

        # What follows meets the product's last dimensions.
        first = [
            each if dim is None else each.movedim(dim, 0)
            for each, dim in zip(rest[:parts], along, strict=True)
        ]
        moved = Following(*first)
        for name in ("column_scale", "bias"):
            vectors = getattr(moved, name)
            if vectors is not None and vectors.dim() > 1:
                vectors = vectors.reshape(len(vectors), *[1] * lead, -1)
                moved = moved._replace(**{name: vectors})
        return composed(product, input, weight, moved), 0

    library.register_fake("autotune::layer", of_pytorch, lib=NAMESPACE)
    library.register_vmap("autotune::layer", stacked, lib=NAMESPACE)
    register_flop_formula(torch.ops.autotune.layer)(_linear_flop)
    NAMESPACE.impl("layer", of_pytorch, "CompositeExplicitAutograd")
    for device in _DEVICES:

        def cast(input: Tensor, weight: Tensor, *rest: Any, kind: str = device.lower()) -> Tensor:
            following = Following(*rest[:parts])
            return layer_under_autocast(kind, input, weight, following, *rest[parts:])

        NAMESPACE.impl("layer", plain, device)
        NAMESPACE.impl("layer", differentiable, f"Autograd{device}")
        NAMESPACE.impl("layer", cast, f"Autocast{device}")


def _stacked(
    many: Any, operator: Any, operands: int, info: Any, dims: Any, *given: Any
) -> tuple[Tensor, int]:
    """A rule of `torch.func.vmap`: the result, and along which dimension it is stacked."""
    how = given[operands:]
    return many(lambda *each: operator(*each, *how), dims, *given[:operands]), 0


def _register_short_ways() -> None:
    """Have plain tensors pass the dispatcher once; all others go by what gradients have."""
    for device in _DEVICES:
        key, plain = f"Autograd{device}", keys_of_plain(device)
        for name, eager, own in (
            ("mm", eager_mm, _own_mm),
            ("linear", eager_linear, _own_linear),
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

    def kernel(keys: Any, *given: Any) -> Any:
        if keys.raw_repr() != plain:
            return usual(keys, *given)
        if is_forward():
            return own(*given)
        return eager(*given)

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
    NAMESPACE.impl("mm", _own_mm, "CompositeExplicitAutograd")
    NAMESPACE.impl("linear", _own_linear, "CompositeExplicitAutograd")
