"""Watchers of a call on PyTorch's tensors: all that sees, records or transforms it.

A kernel reads and writes memory, which nothing of PyTorch's sees. Everything that takes tensors
asks here before it calls one, and leaves the call to PyTorch's own function, or to an operator
that its dispatcher knows, where somebody would miss it. Importing this imports PyTorch.

What is asked is what PyTorch's own Python code asks; a version without it counts as having a say.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from autotune.core.errors import OperandError

_C: Any = torch._C
_STRIDED = torch.strided
PLAIN = (torch.Tensor, torch.nn.Parameter)
"""PyTorch's own classes of tensors."""

_STAND_INS = ("FakeTensor", "FunctionalTensor")
"""Classes that stand for plain tensors where programs are compiled or exported."""


def _function(module: Any, name: str, otherwise: Any) -> Callable[[], Any]:
    """A function of PyTorch's without arguments; a constant where it has none such."""
    function: Callable[[], Any] = getattr(module, name, lambda: otherwise)
    return function


casts = _function(_C, "_is_any_autocast_enabled", True)
"""True if autocast is on in this thread, on any kind of device."""

is_traced = _function(_C, "_is_tracing", True)
"""True if `torch.jit.trace` records what is called in this thread."""

is_profiled = _function(getattr(_C, "_autograd", None), "_profiler_enabled", True)
"""True if a profiler would show the operators that are called in this thread."""

_modes_of_dispatch = _function(_C, "_len_torch_dispatch_stack", 1)
_modes_of_functions = _function(_C, "_len_torch_function_stack", 1)
_transform = _function(getattr(_C, "_functorch", None), "peek_interpreter_stack", None)


def is_plain(tensor: Any) -> bool:
    """True if something is a tensor of PyTorch's own class, whose elements lie as they are."""
    return (
        type(tensor) in PLAIN
        and tensor.layout is _STRIDED
        and not tensor.is_nested
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
    )


def has_plain_class(tensor: Any) -> bool:
    """True if something is of PyTorch's own class, or is what its compiler has in place of it."""
    return type(tensor) in PLAIN or type(tensor).__name__ in _STAND_INS


def is_watched() -> bool:
    """True if anybody sees, records, casts or transforms what is called in this thread."""
    return bool(
        torch.compiler.is_compiling()  # first: PyTorch's compiler reads no further
        or _modes_of_dispatch()
        or (_modes_of_functions() and sees_functions())
        or _transform() is not None
        or is_traced()
        or casts()
        or is_forward()
    )


def is_forward() -> bool:
    """True if derivatives are computed in forward mode."""
    return bool(forward_ad._current_level >= 0)


def is_transformed() -> bool:
    """True if a function of `torch.func` is at work in this thread."""
    return _transform() is not None


def is_functionalized() -> bool:
    """True if that is `torch.func.functionalize`, which has no rule for functions of Python."""
    found = _transform()
    return found is not None and found.key() == _C._functorch.TransformType.Functionalize


def check_unrecorded() -> None:
    """Refuse a call of a kernel where PyTorch records what is called, and sees nothing of it.

    Raises:
        OperandError: `torch.jit.trace` or `make_fx` is at work.
    """
    if is_traced() or _is_proxied():
        raise OperandError(
            "a kernel's call must not be traced by PyTorch, which sees nothing of it: use "
            "autotune.torch, or wrap the call in torch.library.custom_op"
        )


def keys_of_plain(device: str) -> int:
    """The dispatcher's keys, as a number, where plain tensors are all that has a say in a call.

    Modes, transforms, tracing, and tensors that are negated or sparse add keys of their own.

    Args:
        device: a kind of device, as the dispatcher calls it.
    """
    keys, key = _C.DispatchKeySet, _C.DispatchKey
    both = keys(getattr(key, device)) | keys(getattr(key, f"Autograd{device}"))
    return int(both.raw_repr())


def sees_functions() -> bool:
    """True if a mode does more than saying where new tensors are made."""
    return any(type(mode) is not DeviceContext for mode in _get_current_function_mode_stack())


def _is_proxied() -> bool:
    """True if `make_fx` records what the dispatcher is given."""
    if not (_modes_of_dispatch() or _modes_of_functions()):
        return False
    tracing: Any = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return tracing is not None and tracing.get_proxy_mode() is not None
