"""Gates before PyTorch's own kernels of products, which let some through to other ones."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from autotune.core.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from autotune.torch.calls import TensorCalls


Compute: TypeAlias = "Callable[..., Any]"
"""``compute(ours, theirs, like, added=False, twice=True)``, as `TensorProduct.compute` has it."""


class Keeper(Protocol):
    """Says what gates let through."""

    def product(self, a: Any, b: Any) -> Compute | None:
        """Who computes a product now; None lets PyTorch."""
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
        _INSTALLED[device] = _installed(keeper, device.upper())


def _installed(keeper: Keeper, device: str) -> Any:
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


def _mm(keeper: Keeper, original: Any) -> Any:
    def mm(keys: Any, a: Any, b: Any) -> Any:
        compute = keeper.product(a, b)
        if compute is None:
            return original(keys, a, b)
        return compute(lambda calls: calls.call(a, b), lambda: original(keys, a, b), a)

    return mm


def _mm_out(keeper: Keeper, original: Any) -> Any:
    def mm_out(keys: Any, a: Any, b: Any, *, out: Any) -> Any:
        compute = keeper.product(a, b)
        if compute is None or not _holds(out, a, b):
            return original(keys, a, b, out=out)
        return compute(
            lambda calls: calls.call(a, b, out),
            lambda: original(keys, a, b, out=out),
            a,
            twice=False,
        )

    return mm_out


def _addmm(keeper: Keeper, original: Any) -> Any:
    def addmm(keys: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        def theirs() -> Any:
            return original(keys, c, a, b, beta=beta, alpha=alpha)

        def ours(calls: TensorCalls) -> Any:
            made = calls.call(a, b, None, alpha)
            return made if beta == 0 else made.add_(c, alpha=beta)

        compute = keeper.product(a, b)
        if compute is None or not _adds(c, a, b, alpha, beta):
            return theirs()
        return compute(ours, theirs, a, added=True)

    return addmm


def _addmm_out(keeper: Keeper, original: Any) -> Any:
    def addmm_out(
        keys: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: Any
    ) -> Any:
        def theirs() -> Any:
            return original(keys, c, a, b, beta=beta, alpha=alpha, out=out)

        def ours(calls: TensorCalls) -> Any:
            made = calls.call(a, b, out, alpha)
            return made if beta == 0 else made.add_(c, alpha=beta)

        compute = keeper.product(a, b)
        if compute is None or not _adds(c, a, b, alpha, beta) or not _holds(out, a, b, c):
            return theirs()
        return compute(ours, theirs, a, added=True, twice=False)

    return addmm_out


GATES = {"mm": _mm, "mm.out": _mm_out, "addmm": _addmm, "addmm.out": _addmm_out}


def _holds(out: Any, a: Any, b: Any, *others: Any) -> bool:
    """Whether a kernel may write a product to an output as it is: alike, and apart."""
    storage = out.untyped_storage().data_ptr()
    return (
        out.shape == (a.shape[0], b.shape[1])
        and out.dtype is a.dtype
        and out.device == a.device
        and not out.requires_grad
        and all(each.untyped_storage().data_ptr() != storage for each in (a, b, *others))
    )


def adds_apart(dtype: torch.dtype) -> bool:
    """Whether adding something to a product afterwards is worth the product by a kernel.

    PyTorch adds within its own. In 16 bits a product may be over before its result could be read
    and written once more.
    """
    return bool(dtype.itemsize > 2)


def _adds(c: Any, a: Any, b: Any, alpha: Any, beta: Any) -> bool:
    """Whether something can be added to a product as it is, scaled by real numbers."""
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
