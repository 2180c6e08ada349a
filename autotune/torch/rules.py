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
    _register_layers()
    if hasattr(library, "get_kernel"):  # PyTorch 2.9
        _register_short_ways()
    _register_scripts()


def _mm_flop(a: tuple[int, ...], b: tuple[int, ...], **options: Any) -> int:
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

    def of_pytorch(input: Tensor, weight: Tensor, *following: Any) -> Tensor:
        return composed(functional.linear, input, weight, Following(*following))

    def plain(input: Tensor, weight: Tensor, *following: Any) -> Tensor:
        return plain_layer(input, weight, Following(*following))

    def differentiable(*given: Any) -> Tensor:
        tensors = [each for each in given if isinstance(each, Tensor)]
        if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
            return composed(LINEAR, given[0], given[1], Following(*given[2:]))
        with torch._C._AutoDispatchBelowAutograd():
            made: Tensor = LAYER(*given)
            return made

    def stacked(info: Any, dims: Any, input: Tensor, weight: Tensor, *rest: Any) -> Any:
        lead = input.dim() - 1 - (dims[0] is not None)
        following, along = Following(*rest), Following(*dims[2:])

        def product(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            dim, bias = (None, None) if bias is None else (along.bias, following.bias)
            return many_linear(LINEAR, (*dims[:2], dim), input, weight, bias)

        # What follows meets the product's last dimensions.
        first = [
            each if dim is None else each.movedim(dim, 0)
            for each, dim in zip(rest, along, strict=True)
        ]
        parts = Following(*first)
        for name in ("column_scale", "bias"):
            vectors = getattr(parts, name)
            if vectors is not None and vectors.dim() > 1:
                vectors = vectors.reshape(len(vectors), *[1] * lead, -1)
                parts = parts._replace(**{name: vectors})
        return composed(product, input, weight, parts), 0

    library.register_fake("autotune::layer", of_pytorch, lib=NAMESPACE)
    library.register_vmap("autotune::layer", stacked, lib=NAMESPACE)
    register_flop_formula(torch.ops.autotune.layer)(_linear_flop)
    NAMESPACE.impl("layer", of_pytorch, "CompositeExplicitAutograd")
    for device in _DEVICES:

        def cast(input: Tensor, weight: Tensor, *rest: Any, kind: str = device.lower()) -> Tensor:
            return layer_under_autocast(kind, input, weight, Following(*rest))

        NAMESPACE.impl("layer", plain, device)
        NAMESPACE.impl("layer", differentiable, f"Autograd{device}")
        NAMESPACE.impl("layer", cast, f"Autocast{device}")


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
