"""Gates of PyTorch's products: kernels of its dispatcher that ask who computes.

They take the place of PyTorch's kernels of ``aten::mm``, ``aten::addmm`` and ``aten::bmm``; what
is not served goes to the kernel that was there. `autotune.torch.compiled` has the same without
Python, for what is known of a shape.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Set
from typing import Any, Protocol, TypeAlias

import torch

from autotune.arrays.torch import lies_apart
from autotune.core.errors import MissingDependencyError
from autotune.torch.calls import TensorCalls, adds_apart

Compute: TypeAlias = "Callable[..., Any]"
"""``compute(ours, theirs, like, added=False, twice=True)``, as `TensorProduct.compute` has it."""


class Keeper(Protocol):
    """Says what the gates of a device let through.

    Attributes:
        serves: False lets all be PyTorch's, which costs less than to ask for each product.
    """

    serves: bool

    def product(self, a: Any, b: Any, added: Any = None) -> Compute | None:
        """Function that computes a product now, to which that is added; None lets PyTorch."""
        ...

    def sum(self, a: Any, b: Any, c: Any) -> Compute | None:
        """Function that computes ``a @ b + c`` now by one kernel; None lets PyTorch."""
        ...

    def stack(self, a: Any, b: Any) -> Compute | None:
        """Function that computes the products of two stacks now; None lets PyTorch."""
        ...


def are_installed(devices: Set[str]) -> bool:
    """True if some devices have gates."""
    return devices <= _INSTALLED.keys()


def install(keepers: Mapping[str, Keeper]) -> None:
    """Set up the gates of some devices, unless they are.

    They stay as long as the process: taking a kernel away from PyTorch's dispatcher, which other
    threads may be calling, is not safe. With nothing to let through they cost about 2 us, unless
    compiled ones lie above.

    Args:
        keepers: what they let through, by the kind of device.

    Raises:
        MissingDependencyError: PyTorch is older than 2.9 and does not give its kernels away.
    """
    if not hasattr(torch.library, "get_kernel"):
        raise MissingDependencyError(
            "the switch needs PyTorch 2.9 or newer, this is "
            f"{torch.__version__}: use autotune.torch.convert or linear instead"
        )
    for device in sorted(keepers.keys() - _INSTALLED.keys()):
        _INSTALLED[device] = _install_on(keepers[device], device.upper())


def _install_on(keeper: Keeper, device: str) -> Any:
    """The library of the gates of a device, as the dispatcher calls it."""
    library = torch.library.Library("aten", "IMPL")
    # PyTorch warns of that once. The filter stays: other threads may be changing theirs meanwhile.
    warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered", UserWarning)
    for name, gate in GATES.items():
        try:
            original = torch.library.get_kernel(f"aten::{name}", device)
        except RuntimeError:  # a build without such devices
            break
        made = gate(keeper, original.call_boxed)
        library.impl(name, made, device, with_keyset=True)
    return library


_INSTALLED: dict[str, Any] = {}


def _product(keeper: Keeper, original: Any) -> Any:
    """Gate of ``aten::mm`` and ``aten::mm.out``."""

    def gate(keys: Any, a: Any, b: Any, **options: Any) -> Any:
        compute = keeper.product(a, b) if keeper.serves else None
        if compute is None:
            return original(keys, a, b, **options)

        def theirs() -> Any:
            return original(keys, a, b, **options)

        if not options:
            return compute(lambda calls: calls.call(a, b), theirs, a)
        out = options["out"]
        if not _holds(out, a, b):
            return theirs()
        return compute(lambda calls: calls.call(a, b, out), theirs, a, twice=False)

    return gate


def _stack(keeper: Keeper, original: Any) -> Any:
    """Gate of ``aten::bmm`` and ``aten::bmm.out``."""

    def gate(keys: Any, a: Any, b: Any, **options: Any) -> Any:
        out = options.get("out")
        compute = keeper.stack(a, b) if keeper.serves else None
        if compute is None or (out is not None and not _holds_stack(out, a, b)):
            return original(keys, a, b, **options)

        def theirs() -> Any:
            return original(keys, a, b, **options)

        return compute(lambda call: call((a, b), out), theirs, a, twice=out is None)

    return gate


def _sum(keeper: Keeper, original: Any) -> Any:
    """Gate of ``aten::addmm`` and ``aten::addmm.out``."""

    def gate(keys: Any, c: Any, a: Any, b: Any, **options: Any) -> Any:
        if not keeper.serves:
            return original(keys, c, a, b, **options)
        beta, alpha, out = options.get("beta", 1), options.get("alpha", 1), options.get("out")
        within = beta != 0 and not adds_apart(a.dtype)
        if within:
            plain = out is None and _is_one(alpha) and _is_one(beta)
            compute = keeper.sum(a, b, c) if plain else None
        else:
            compute = keeper.product(a, b, None if beta == 0 else c)
            if compute is not None and not _adds(c, a, b, alpha, beta):
                compute = None
        if compute is None or (out is not None and not _holds(out, a, b, c)):
            return original(keys, c, a, b, **options)

        def theirs() -> Any:
            return original(keys, c, a, b, **options)

        def ours(calls: TensorCalls) -> Any:
            made = calls.call(a, b, out, alpha)
            return made if beta == 0 else made.add_(c, alpha=beta)

        if within:
            added = (None, None, c, None, None) if c.dim() == 1 else (None, None, None, None, c)
            return compute(lambda call: call(a, b.t(), added), theirs, a)
        return compute(ours, theirs, a, added=True, twice=out is None)

    return gate


GATES = {
    "mm": _product,
    "mm.out": _product,
    "addmm": _sum,
    "addmm.out": _sum,
    "bmm": _stack,
    "bmm.out": _stack,
}


def _is_one(scalar: Any) -> bool:
    return isinstance(scalar, int | float) and scalar == 1


def _holds(out: Any, a: Any, b: Any, *others: Any) -> bool:
    """True if a kernel may write a product to an output as it is: alike, and apart."""
    return (
        out.shape == (a.shape[0], b.shape[1])
        and out.dtype is a.dtype
        and out.device == a.device
        and not out.requires_grad
        and lies_apart(out, a, b, *others)
    )


def _holds_stack(out: Any, a: Any, b: Any) -> bool:
    """The same of a stack, which is written without gaps."""
    return (
        out.shape == (*a.shape[:2], b.shape[2])
        and out.is_contiguous()
        and out.dtype is a.dtype
        and out.device == a.device
        and not out.requires_grad
        and lies_apart(out, a, b)
    )


def _adds(c: Any, a: Any, b: Any, alpha: Any, beta: Any) -> bool:
    """True if something can be added to a product as it is, scaled by real numbers."""
    shape = (a.shape[0], b.shape[1])
    sizes = zip(reversed(c.shape), reversed(shape), strict=False)
    return (
        c.dtype is a.dtype
        and c.device == a.device
        and c.dim() <= 2
        and all(size in (1, wanted) for size, wanted in sizes)
        and isinstance(alpha, int | float)
        and isinstance(beta, int | float)
    )
