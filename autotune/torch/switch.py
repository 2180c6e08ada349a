"""The switch: PyTorch's own products are tuned kernels' while it is on.

It takes the place of PyTorch's kernels of ``aten::mm`` and ``aten::addmm``, where all of it comes
for a product of two matrices: `torch.mm`, ``@``, `torch.nn.functional.linear`, modules, gradients,
compiled graphs, C++. What lies above (autograd, autocast, `torch.func`) does as it does without,
no other operator costs more, and what is not served goes to the kernel that was there. The switch
is the process's, as PyTorch's dispatcher is: products of all threads go through it.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from autotune.arrays.torch import torch_is_exact
from autotune.core import session
from autotune.runtime.product_log import log_product
from autotune.torch.calls import product_of
from autotune.torch.gates import install
from autotune.torch.selection import DEVICES, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from autotune.operations.problem import Gemm
    from autotune.torch.gates import Compute

    Accepts: TypeAlias = Callable[[Gemm], bool]

_CALLER = "torch switch"


def enable(
    shapes: Iterable[tuple[int, int, int]] | Callable[[Gemm], bool] | None = None,
    dtypes: Iterable[Any] | None = None,
    *,
    rounded: bool = False,
    devices: Iterable[str] = ("cuda",),
) -> None:
    """Have PyTorch's products computed by tuned kernels, until `disable`.

    Args:
        shapes: rows, reduction and columns of the products that are meant, or a function that
            says it of a `Gemm`; None means all. Of those, kernels get what was measured.
        dtypes: element types that are meant, PyTorch's or their names; None means all.
        rounded: whether float32 goes to kernels, which never round it, where PyTorch is set to
            round it to TF32 or bfloat16. If not, it is PyTorch's there.
        devices: kinds of devices that are meant: "cuda", "cpu". The way through the switch takes
            some 3 us of the host, which a small product on the CPU notices: that is for you to
            choose.

    Raises:
        InputError: a shape or a dtype is none.
        MissingDependencyError: PyTorch is older than 2.9.
    """
    selection = Selection.of(shapes, dtypes, rounded=rounded, devices=devices)
    _SWITCH.add(selection)
    _ENABLED.append(selection)


def disable() -> None:
    """Take back every `enable`; what `use_tuned` has on meanwhile stays on."""
    while _ENABLED:
        with contextlib.suppress(IndexError):  # another thread was faster
            _SWITCH.remove(_ENABLED.pop())


@contextlib.contextmanager
def use_tuned(
    shapes: Iterable[tuple[int, int, int]] | Callable[[Gemm], bool] | None = None,
    dtypes: Iterable[Any] | None = None,
    *,
    rounded: bool = False,
    devices: Iterable[str] = ("cuda",),
) -> Iterator[None]:
    """A context in which products of PyTorch's are tuned kernels', in all threads.

    Arguments and errors are those of `enable`. Where several are on, in one thread or in many,
    what any of them selects is served.
    """
    selection = Selection.of(shapes, dtypes, rounded=rounded, devices=devices)
    _SWITCH.add(selection)
    try:
        yield
    finally:
        _SWITCH.remove(selection)


class _Switch:
    """Products that are selected now, in all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._selections: list[Selection] = []
        self._accepts: dict[str, Accepts | None] = {}
        self._accepts_rounded: dict[str, Accepts | None] = {}

    def add(self, selection: Selection) -> None:
        """Serve what is selected, too."""
        with self._lock:
            install(self, selection.devices)
            self._change([*self._selections, selection])

    def remove(self, selection: Selection) -> None:
        """Serve it no more, unless others select it."""
        with self._lock:
            rest = list(self._selections)
            rest.remove(selection)
            self._change(rest)

    def product(self, a: Any, b: Any) -> Compute | None:
        """Function that computes a product of plain tensors now; None lets PyTorch."""
        accepts = self._accepts.get(a.device.type)
        if accepts is None:
            return None
        found = product_of(a, b, _CALLER, accepts)
        if found is None:
            return None
        if a.dtype is not torch.float32 or torch_is_exact(torch, a.device.type):
            return found.compute
        log_product(
            _CALLER, None, "", "float32 is left to the library where it is set to round it"
        )
        accepts = self._accepts_rounded.get(a.device.type)
        found = None if accepts is None else product_of(a, b, _CALLER, accepts)
        return None if found is None else found.by_kernel

    def _change(self, selections: list[Selection]) -> None:
        self._selections = selections
        rounded = [selection for selection in selections if selection.rounded]
        self._accepts = {device: _any_of(selections, device) for device in DEVICES}
        self._accepts_rounded = {device: _any_of(rounded, device) for device in DEVICES}


def _any_of(selections: Iterable[Selection], device: str) -> Accepts | None:
    """Union of the selections of a device; None where there is none."""
    there = tuple(one for one in selections if device in one.devices)
    return _accepting(there) if there else None


@session.cached(most=64)
def _accepting(selections: tuple[Selection, ...]) -> Accepts:
    """The same function for equal selections.

    Products are remembered by it, also when the switch is turned on again and again.
    """
    return lambda problem: any(one.takes(problem) for one in selections)


_SWITCH = _Switch()
_ENABLED: list[Selection] = []
