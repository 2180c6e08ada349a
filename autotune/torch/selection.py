"""Selections of products that may be tuned kernels' at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError
from autotune.core.suggestions import must_be

if TYPE_CHECKING:
    from autotune.operations.problem import Gemm


DEVICES = ("cuda", "cpu")
"""Kinds of devices that kernels are for, as PyTorch calls them."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Products that the switch may give to kernels; of those, kernels get what was measured.

    Attributes:
        shapes: rows, reduction and columns of products; None takes all.
        predicate: says it of a problem as well; None takes all.
        dtypes: names of element types; None takes all.
        rounded: whether float32 goes to kernels, which do not round it, where PyTorch is set to.
        devices: kinds of devices.
    """

    shapes: frozenset[tuple[int, int, int]] | None = None
    predicate: Callable[[Gemm], bool] | None = None
    dtypes: frozenset[str] | None = None
    rounded: bool = False
    devices: frozenset[str] = frozenset(["cuda"])

    @classmethod
    def of(
        cls,
        shapes: Iterable[tuple[int, int, int]] | Callable[[Gemm], bool] | None,
        dtypes: Iterable[Any] | None,
        *,
        rounded: bool,
        devices: Iterable[str],
    ) -> Self:
        """A selection as users say it: shapes or a predicate, and dtypes by name or PyTorch's.

        Raises:
            InputError: a shape is not three sizes, or a dtype or a device none that kernels have.
        """
        predicate = shapes if callable(shapes) else None
        listed = None if shapes is None or callable(shapes) else frozenset(map(_sizes, shapes))
        names = None if dtypes is None else frozenset(map(_name, dtypes))
        kinds = (devices,) if isinstance(devices, str) else devices
        return cls(listed, predicate, names, rounded, frozenset(map(_device, kinds)))

    def takes(self, problem: Gemm) -> bool:
        """True if a problem is selected."""
        return (
            (self.shapes is None or problem.shape in self.shapes)
            and (self.dtypes is None or problem.dtype in self.dtypes)
            and (self.predicate is None or bool(self.predicate(problem)))
        )


def _sizes(shape: Any) -> tuple[int, int, int]:
    sizes = tuple(shape)
    if len(sizes) != 3 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise InputError(
            f"a shape must be three positive sizes (rows, reduction, columns), got {shape!r:.60}"
        )
    return sizes


def _device(kind: Any) -> str:
    if kind not in DEVICES:
        raise InputError(must_be("a kind of device", str(kind), list(DEVICES)))
    return str(kind)


def _name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(must_be("a dtype of kernels", name, list(DTYPES)))
    return name
