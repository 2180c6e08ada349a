"""Whether PyTorch has a say in a call beside the kernel: all that its dispatcher looks at.

What is asked is what PyTorch's own Python code asks; a version without it counts as having a say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_C: Any = torch._C
_STRIDED = torch.strided
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_plain(tensor: Any) -> bool:
    """Whether something is a tensor of PyTorch's own class, whose elements lie as they are."""
    return type(tensor) in _PLAIN and tensor.layout is _STRIDED and not tensor.is_neg()


def _asked(module: Any, name: str, otherwise: Any) -> Callable[[], Any]:
    """A function of PyTorch's without arguments; a constant where it has none such."""
    function: Callable[[], Any] = getattr(module, name, lambda: otherwise)
    return function


casts = _asked(_C, "_is_any_autocast_enabled", True)
"""Whether autocast is on in this thread, on any kind of device."""

_modes_of_dispatch = _asked(_C, "_len_torch_dispatch_stack", 1)
_modes_of_functions = _asked(_C, "_len_torch_function_stack", 1)
_transform = _asked(getattr(_C, "_functorch", None), "peek_interpreter_stack", None)


def keys_of_plain(device: str) -> int:
    """The dispatcher's keys, as a number, where plain tensors are all that has a say in a call.

    Modes, transforms, tracing, and tensors that are negated or sparse add keys of their own.

    Args:
        device: a kind of device, as the dispatcher calls it.
    """
    keys, key = _C.DispatchKeySet, _C.DispatchKey
    both = keys(getattr(key, device)) | keys(getattr(key, f"Autograd{device}"))
    return int(both.raw_repr())


def is_watched() -> bool:
    """Whether a mode of PyTorch's sees what is called in this thread."""
    return bool(_modes_of_dispatch() or _modes_of_functions())


def is_transformed() -> bool:
    """Whether a function of `torch.func` is at work in this thread."""
    return _transform() is not None
