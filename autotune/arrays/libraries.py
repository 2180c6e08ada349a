"""The library that an array is of. None is imported: an array is only there if its library is."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.arrays.cupy import CupyArrays
from autotune.arrays.host import PLAIN
from autotune.arrays.numpy import NumpyArrays
from autotune.arrays.other import OtherArrays
from autotune.arrays.torch import TorchTensors

if TYPE_CHECKING:
    from autotune.arrays.library import Library

NUMPY = NumpyArrays()
_OTHER = OtherArrays()
_PACKAGES = (("torch", "Tensor", TorchTensors), ("cupy", "ndarray", CupyArrays))

_BY_MODULE: dict[ModuleType, Library] = {}
_BY_TYPE: dict[type, Library] = {np.ndarray: NUMPY}
_PLAIN_BY_TYPE: dict[type, Library | None] = {np.ndarray: NUMPY}
_MOST_TYPES = 256
"""Types that are remembered: classes that programs make as they go are not kept alive."""


def library_of(array: object) -> Library:
    """The library that an array, of a subclass too, belongs to."""
    kind = array.__class__
    library = _BY_TYPE.get(kind)
    return _recognise(kind) if library is None else library


def plain_library(kind: type) -> Library | None:
    """The library whose plain arrays are of a type; None for subclasses and all others."""
    try:
        return _PLAIN_BY_TYPE[kind]
    except KeyError:
        library = _BY_TYPE.get(kind) or _recognise(kind)
        found = library if kind in library.kinds else None
        if found is not None or len(_PLAIN_BY_TYPE) < _MOST_TYPES:
            _PLAIN_BY_TYPE[kind] = found
        return found


def _recognise(kind: type) -> Library:
    library: Library = _OTHER
    for package, name, make in _PACKAGES:
        module = sys.modules.get(package)
        if module is not None and issubclass(kind, getattr(module, name, ())):
            # One object: products are remembered by it.
            library = _BY_MODULE.get(module) or _BY_MODULE.setdefault(module, make(module))
    if kind in library.kinds or len(_BY_TYPE) < _MOST_TYPES:
        _BY_TYPE[kind] = library
    return library


def memory_of(array: object) -> str:
    """Memory that an operand lies in, "host" or "gpu"; whatever is no array counts as host's."""
    return library_of(array).memory_of(array)


def is_torchs(operand: object) -> bool:
    """True if something is a tensor of PyTorch, of whatever class, or stands for one."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    return isinstance(operand, torch.Tensor) or hasattr(type(operand), "__torch_function__")


def overrides_products(operand: object) -> bool:
    """True if NumPy would leave a product to the operand's own class.

    Arrays that mean more than their elements are among them, and those that say what `@` does.
    """
    if isinstance(operand, np.ndarray):
        own = type(operand).__array_ufunc__ is not np.ndarray.__array_ufunc__
        return own or type(operand) not in PLAIN
    return getattr(type(operand), "__array_ufunc__", None) is not None
