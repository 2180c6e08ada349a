"""Gates before PyTorch's own kernels of products, which let some through to other ones."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import torch

from autotune.core.errors import MissingDependencyError
from autotune.torch.calls import TensorProduct

_DEVICES = ("CPU", "CUDA")


class Keeper(Protocol):
    """Says what gates let through."""

    def product(self, a: Any, b: Any) -> TensorProduct | None:
        """What computes a product now; None lets PyTorch."""
        ...

    def compute(self, product: TensorProduct, a: Any, b: Any, out: Any, alpha: float) -> Any:
        """``alpha a @ b``, in `out` or a new tensor; None where it cannot be, after all."""
        ...


def install(keeper: Keeper) -> None:
    """Set the gates up, unless they are.

    They stay as long as the process: taking a kernel away from PyTorch's dispatcher, which other
    threads may be calling, is not safe. With nothing to let through they cost about 3 us.

    Raises:
        MissingDependencyError: PyTorch is older than 2.9 and does not give its kernels away.
    """
    if _INSTALLED:
        return
    if not hasattr(torch.library, "get_kernel"):
        raise MissingDependencyError(
            "the switch needs PyTorch 2.9 or newer, this is "
            f"{torch.__version__}: use autotune.torch.convert or linear instead"
        )
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():  # PyTorch warns of kernels that are replaced
        warnings.simplefilter("ignore", UserWarning)
        for device in _DEVICES:
            for name, gate in GATES.items():
                try:
                    original = torch.library.get_kernel(f"aten::{name}", device)
                except RuntimeError:  # a build without such devices
                    continue
                made = gate(keeper, original.call_boxed)
                library.impl(name, made, device, with_keyset=True)
    _INSTALLED.append(library)


_INSTALLED: list[Any] = []


def _mm(keeper: Keeper, original: Any) -> Any:
    def mm(keys: Any, a: Any, b: Any) -> Any:
        product = keeper.product(a, b)
        made = None if product is None else keeper.compute(product, a, b, None, 1.0)
        return original(keys, a, b) if made is None else made

    return mm


def _mm_out(keeper: Keeper, original: Any) -> Any:
    def mm_out(keys: Any, a: Any, b: Any, *, out: Any) -> Any:
        product, made = keeper.product(a, b), None
        if product is not None and _holds(out, a, b):
            made = keeper.compute(product, a, b, out, 1.0)
        return original(keys, a, b, out=out) if made is None else made

    return mm_out


def _addmm(keeper: Keeper, original: Any) -> Any:
    def addmm(keys: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        product, made = keeper.product(a, b), None
        if product is not None and _adds(c, a, b, alpha, beta):
            made = keeper.compute(product, a, b, None, alpha)
        if made is None:
            return original(keys, c, a, b, beta=beta, alpha=alpha)
        return made if beta == 0 else made.add_(c, alpha=beta)

    return addmm


def _addmm_out(keeper: Keeper, original: Any) -> Any:
    def addmm_out(
        keys: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: Any
    ) -> Any:
        product, made = keeper.product(a, b), None
        if product is not None and _adds(c, a, b, alpha, beta) and _holds(out, a, b, c):
            made = keeper.compute(product, a, b, out, alpha)
        if made is None:
            return original(keys, c, a, b, beta=beta, alpha=alpha, out=out)
        return made if beta == 0 else made.add_(c, alpha=beta)

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
