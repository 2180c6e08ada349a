"""Gates before PyTorch's own kernels of products, which let some through to other ones."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from autotune.arrays.torch import lies_apart
from autotune.core.errors import MissingDependencyError
from autotune.torch.calls import TensorCalls, adds_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


Compute: TypeAlias = "Callable[..., Any]"
"""``compute(ours, theirs, like, added=False, twice=True)``, as `TensorProduct.compute` has it."""


class Keeper(Protocol):
    """Says what gates let through."""

    def product(self, a: Any, b: Any) -> Compute | None:
        """Function that computes a product now; None lets PyTorch."""
        ...


def install(keeper: Keeper, devices: Iterable[str]) -> None:
    """Set up the gates of some devices, unless they are.

    They stay as long as the process: taking a kernel away from PyTorch's dispatcher, which other
    threads may be calling, is not safe. With nothing to let through they cost about 3 us.

    Args:
        keeper: says what they let through.
        devices: kinds of devices.

    Raises:
        MissingDependencyError: PyTorch is older than 2.9 and does not give its kernels away.
    """
    if not hasattr(torch.library, "get_kernel"):
        raise MissingDependencyError(
            "the switch needs PyTorch 2.9 or newer, this is "
            f"{torch.__version__}: use autotune.torch.convert or linear instead"
        )
    for device in sorted(set(devices) - _INSTALLED.keys()):
        _INSTALLED[device] = _install_on(keeper, device.upper())


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
        compute = keeper.product(a, b)
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


def _sum(keeper: Keeper, original: Any) -> Any:
    """Gate of ``aten::addmm`` and ``aten::addmm.out``."""

    def gate(
        keys: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, **options: Any
    ) -> Any:
        out = options.get("out")

        def theirs() -> Any:
            return original(keys, c, a, b, beta=beta, alpha=alpha, **options)

        def ours(calls: TensorCalls) -> Any:
            made = calls.call(a, b, out, alpha)
            return made if beta == 0 else made.add_(c, alpha=beta)

        compute = keeper.product(a, b)
        if compute is None or not _adds(c, a, b, alpha, beta):
            return theirs()
        if out is not None and not _holds(out, a, b, c):
            return theirs()
        return compute(ours, theirs, a, added=True, twice=out is None)

    return gate


GATES = {"mm": _product, "mm.out": _product, "addmm": _sum, "addmm.out": _sum}


def _holds(out: Any, a: Any, b: Any, *others: Any) -> bool:
    """True if a kernel may write a product to an output as it is: alike, and apart."""
    return (
        out.shape == (a.shape[0], b.shape[1])
        and out.dtype is a.dtype
        and out.device == a.device
        and not out.requires_grad
        and lies_apart(out, a, b, *others)
    )


def _adds(c: Any, a: Any, b: Any, alpha: Any, beta: Any) -> bool:
    """True if something can be added to a product as it is, scaled by real numbers."""
    if beta != 0 and not adds_apart(a.dtype):
        return False
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
