"""Which library an array is of."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.runtime.arrays.strided import CupyArrays, NumpyArrays
from autotune.runtime.arrays.tensors import TorchTensors
from autotune.serving.host_operands import PLAIN

if TYPE_CHECKING:
    from autotune.runtime.arrays.base import Library

NUMPY = NumpyArrays()

_BY_TYPE: dict[type, Library | None] = {np.ndarray: NUMPY}
_MOST_TYPES = 256


def library_of(kind: type) -> Library | None:
    """The library whose plain arrays are of a type; None for subclasses and all others."""
    try:
        return _BY_TYPE[kind]
    except KeyError:
        found = _recognised(kind)
        if len(_BY_TYPE) < _MOST_TYPES:  # classes that programs make as they go are not kept alive
            _BY_TYPE[kind] = found
        return found


def _recognised(kind: type) -> Library | None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
        return _made(TorchTensors, torch)
    cupy: Any = sys.modules.get("cupy")
    if cupy is not None and kind is cupy.ndarray:
        return _made(CupyArrays, cupy)
    return None


def _made(library: type[TorchTensors] | type[CupyArrays], module: Any) -> Library:
    """The library's one object, since kernels are remembered by it."""
    for known in [*_BY_TYPE.values()]:
        if type(known) is library:
            return known
    return library(module)


def is_torchs(operand: object) -> bool:
    """Whether something is a tensor of PyTorch, of whatever class, or stands for one."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    return isinstance(operand, torch.Tensor) or hasattr(type(operand), "__torch_function__")


def overrides_products(operand: object) -> bool:
    """Whether NumPy would leave a product to the operand's own class.

    Arrays that mean more than their elements are among them, and those that say what `@` does.
    """
    if isinstance(operand, np.ndarray):
        own = type(operand).__array_ufunc__ is not np.ndarray.__array_ufunc__
        return own or type(operand) not in PLAIN
    return getattr(type(operand), "__array_ufunc__", None) is not None
