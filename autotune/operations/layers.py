"""Layers of models: products with what usually follows them, as operations that need no file.

    C = activation(row_scale * column_scale * (A @ B) + bias) * multiply + residual

of which any part but the product may be missing. The operation's name lists the parts that are
there, in this order: ``layer_bias_gelu``, ``layer_silu_multiply``, ``layer_residual``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.operations.formula import Formula
from autotune.operations.operation import Operation
from autotune.operations.parts import Operand
from autotune.operations.problem import FACTORS, GEMM

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "sigmoid")
"""Activations of layers; gelu is by the error function, gelu_tanh what approximates it."""

_PREFIX = "layer"
_FOLLOWING = (
    Operand("row_scale", ("M", "1")),
    Operand("column_scale", ("K",)),
    Operand("bias", ("K",)),
    Operand("multiply", ("M", "K")),
    Operand("residual", ("M", "K")),
)
"""The operands beside A and B, in the order in which they are applied."""

PARTS = tuple(operand.name for operand in _FOLLOWING)
"""Their names."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: what follows its product.

    Attributes:
        parts: names of the operands beside A and B, of `PARTS` and in that order.
        activation: one of `ACTIVATIONS`; empty for none.
    """

    parts: tuple[str, ...]
    activation: str = ""

    @property
    def name(self) -> str:
        """Name of the operation."""
        before = [part for part in self.parts if part not in _LAST]
        after = [part for part in self.parts if part in _LAST]
        return "_".join(filter(None, (_PREFIX, *before, self.activation, *after)))

    @property
    def operation(self) -> Operation:
        """The operation, made once."""
        return _operation(self)

    @property
    def result(self) -> str:
        """The formula of C."""
        text = "A @ B"
        scales = [part for part in PARTS[:2] if part in self.parts]
        if scales:
            text = " * ".join((*scales, f"({text})"))
        if "bias" in self.parts:
            text = f"{text} + bias"
        if self.activation:
            text = f"{self.activation}({text})"
        if "multiply" in self.parts:
            text = f"{text} * multiply" if self.activation else f"({text}) * multiply"
        return f"{text} + residual" if "residual" in self.parts else text


_LAST = PARTS[3:]


@functools.cache
def _operation(layer: Layer) -> Operation:
    steps = len(layer.parts) + bool(layer.activation)
    a, b, c = FACTORS
    return Operation(
        name=layer.name,
        sizes=GEMM.sizes,
        operands=(a, b, *(each for each in _FOLLOWING if each.name in layer.parts), c),
        result=Formula(layer.result),
        flops=f"2 * M * N * K + {steps} * M * K",
        summary="A layer: a matrix product and what follows it",
        product=GEMM.name,
    )


def _layers() -> Mapping[str, Layer]:
    kept = itertools.product((False, True), repeat=len(PARTS))
    parts = [tuple(itertools.compress(PARTS, chosen)) for chosen in kept]
    layers = (Layer(each, act) for each in parts for act in ("", *ACTIVATIONS))
    return {layer.name: layer for layer in layers if layer.parts or layer.activation}


LAYERS = _layers()
"""Every layer, by the name of its operation."""


def built_in(name: str) -> Operation | None:
    """The operation of a name that needs no file, gemm's or a layer's; None where it needs one."""
    if name == GEMM.name:
        return GEMM
    layer = LAYERS.get(name)
    return None if layer is None else layer.operation
