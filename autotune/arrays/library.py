"""A library of arrays: how its arrays lie, and how to view, copy, store and allocate them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, SupportsInt, TypeAlias

import numpy as np

from autotune.core.errors import OperandError, OperandTypeError
from autotune.core.printable import shown
from autotune.operations.calls import is_complex, number, real

if TYPE_CHECKING:
    from autotune.arrays.device import DeviceArray
    from autotune.arrays.shapes import Factor, Strided

Place: TypeAlias = tuple[int, int, int]
"""Address, leading dimension in elements, and the driver's number of the device."""

Reader: TypeAlias = Callable[[Any], Place | None]
"""Place of a plain operand in a GPU's memory, at once; None asks for `Library.describe`."""


class Descriptor(NamedTuple):
    """All of an operand that decides how it is multiplied; hashable.

    Attributes:
        shape: elements along every dimension.
        strides: from one to the next along every dimension, as the library counts them.
        dtype: of the elements, the library's object.
        place: what else decides; a library's own.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    place: Any = None


class Core(NamedTuple):
    """Result dimensions that come from A and from B; a vector contributes none."""

    rows: bool
    columns: bool


class Library:
    """A library of arrays; one object a process, by which products are remembered.

    A library that `matmul` serves has `kinds` and everything below; one whose arrays GPU kernels
    take has `reader`, `describe`, `current_stream` and `empty`. Defaults are those of arrays in
    the memory of the host.

    Attributes:
        name: with its version.
        module: the library's package.
        kinds: classes of its plain arrays.
        ordered: whether the library works on its current stream, and hands out memory in its
            order. If not, an array names its stream, and is kept until the kernel is done.
    """

    name: str
    module: Any
    kinds: tuple[type, ...] = ()
    ordered: ClassVar[bool] = True

    def memory_of(self, array: Any) -> str:
        """Memory that an array lies in, "host" or "gpu"; asks for no more than its device."""
        return "host"

    # Operands of GPU kernels.

    def reader(self, shape: tuple[int, int], dtype: str) -> Reader:
        """Reader of operands of one shape and dtype; every call of a kernel calls three."""
        return _read_nothing

    def describe(
        self, name: str, array: Any, stream: int, device_of: Callable[[int], int | None]
    ) -> DeviceArray:
        """Describe an operand in the memory of a GPU.

        Args:
            name: of the operand, for messages.
            array: what was passed.
            stream: handle of the stream that it is going to be used on.
            device_of: the device that an address belongs to.

        Raises:
            OperandError: it is no array, or not in the memory of a GPU.
        """
        refuse_host(name, array)

    def current_stream(self, array: Any) -> int:
        """Handle of the stream that work on an array goes to by default.

        Raises:
            OperandError: the library records its own work there, and would miss a kernel's.
        """
        return 0

    def check_detached(self, array: Any) -> None:
        """Refuse an operand of a kernel whose gradients the library would miss.

        Raises:
            OperandError: it is such an operand.
        """

    def lend(self, array: Any, stream: int) -> None:
        """Tell the library that its memory is used on a stream that is not its current one."""

    def empty(
        self, like: Any, shape: tuple[int, ...], dtype: str, stream: int | None = None
    ) -> Any:
        """Allocate beside another array, to be written on a stream; None is the current one."""
        raise NotImplementedError

    def multiply_plain(self, a: Any, b: Any, out: Any, alpha: float, beta: float) -> Any:
        """``alpha a @ b + beta out`` of plain matrices that fit, apart, and without gradients."""
        raise NotImplementedError

    def is_exact(self, array: Any) -> bool:
        """True if the library, as it is set now, multiplies float32 without rounding it."""
        return True

    # Operands of `matmul`.

    def is_watched(self) -> bool:
        """True if somebody would miss a product in this thread that is not the library's own."""
        return False

    def multiplies_stacks(self, a: Any, b: Any) -> bool:
        """True if a product is the library's at first sight; asked in every call."""
        return False

    def batches(self, a: Descriptor, work: int) -> bool:
        """True if stacks of products of so many multiplications each are better left to it."""
        return True

    def describe_fast(self, array: Any) -> tuple[Any, ...]:
        """Values of a `Descriptor`, in a plain tuple."""
        raise NotImplementedError

    def memory(self, a: Descriptor, b: Descriptor) -> str | None:
        """Memory that both operands lie in; None leaves their product to the library.

        Raises:
            OperandError: they are in different places.
        """
        raise NotImplementedError

    def dtype(self, a: Descriptor, b: Descriptor) -> str | None:
        """Element type that a product has; None where no kernel can have it.

        Raises:
            OperandTypeError: the library multiplies no such elements.
        """
        raise NotImplementedError

    def is_direct(self, a: Descriptor) -> bool:
        """True if kernels take such arrays themselves, and not what `for_kernel` makes of them."""
        return True

    def for_kernel(self, array: Any) -> Any:
        """View an array as kernels take it."""
        return array

    def from_kernel(self, array: Any, like: Any) -> Any:
        """View an array of NumPy's that a kernel has made as one of the library, like another."""
        return array

    def strided(self, operand: Descriptor, dtype: str) -> Strided:
        """Shape and strides of an operand once it has an element type."""
        raise NotImplementedError

    def matrices(self, array: Any, factor: Factor, dtype: str) -> Any:
        """View an operand as the matrices that kernels read; a copy where the factor says so."""
        if factor.first:
            array = array[(0,) * factor.first]
        if factor.copied:
            array = self.row_major(array, dtype)
        if array.shape != factor.shape:
            array = array.reshape(factor.shape)
        if factor.stack:
            array = self.module.broadcast_to(array, factor.stack + factor.shape[-2:])
        return array.swapaxes(-1, -2) if factor.turned else array

    def row_major(self, array: Any, dtype: str) -> Any:
        """Copy an operand row by row, as elements of a type."""
        raise NotImplementedError

    def aligned(self, array: Any) -> Any:
        """Operand whose elements lie at multiples of their size: a copy, or itself."""
        raise NotImplementedError

    def scale_in_place(self, array: Any, factor: float) -> None:
        """Multiply all elements; a factor of 0 clears whatever they hold."""
        array[...] = factor * array if factor != 0 else 0

    def scalar(self, result: Any) -> Any:
        """Result without dimensions, as the library returns those."""
        return result

    def takes(self, out: Any, shape: tuple[int, ...], dtype: str, inputs: tuple[Any, ...]) -> bool:
        """True if kernels can write to `out` as it is: it fits, and lies apart from the inputs."""
        raise NotImplementedError

    def store(self, out: Any, result: Any, beta: Any, core: Core) -> Any:
        """Set ``out = result + beta out`` by the library's rules; returns `out`.

        Raises:
            OperandError: it does not fit, or `beta` is no number for its elements.
        """
        raise NotImplementedError

    def multiply(self, a: Any, b: Any, out: Any, alpha: Any, beta: Any) -> Any:
        """``alpha a @ b + beta out`` by the library itself, which says what it refuses."""
        raise NotImplementedError


def _read_nothing(array: Any) -> Place | None:
    return None


def refuse_host(name: str, array: object) -> NoReturn:
    """Raise OperandError: an operand is not in the memory of a GPU."""
    kind = f"{type(array).__module__.partition('.')[0]}.{type(array).__name__}"
    raise OperandError(
        f"{name} must be in the memory of a GPU, got {kind} in host memory: copy it there, or "
        'load the kernel with target="cpu"'
    )


def scale(name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    """Convert a scalar to a number that changes no element type and loses nothing of elements.

    Args:
        name: of the scalar.
        value: a number, of Python or NumPy.
        dtype: of the elements it scales; objects take whatever multiplies them.

    Raises:
        OperandTypeError: it is no number, or none that elements of that kind can be scaled by.
        OperandError: it is one that they cannot hold.
    """
    if dtype.kind == "b":
        return bool(real(name, value))
    if dtype.kind in "iu":
        return _whole(name, value, dtype)
    held = number(name, value)
    if dtype.kind not in "fc":
        return held
    if dtype.kind == "c" and is_complex(held):
        return held if dtype.char == "G" else complex(held)
    return real(name, held, np.longdouble if dtype.char in "gG" else float)


def _whole(name: str, value: Any, dtype: np.dtype[Any]) -> int:
    """Convert to a number for whole elements, which have more digits than a float."""
    whole = real(name, value, _int)
    if whole is None:
        raise OperandTypeError(
            f"{name} must be a whole number for elements that are, got {shown(value)}: convert a "
            "or b to a floating type"
        )
    limits = np.iinfo(dtype)
    if not limits.min <= whole <= limits.max:
        raise OperandError(
            f"{name} must be from {limits.min} to {limits.max} for elements of {dtype}, got "
            f"{shown(value)}: convert the operands to a type that holds it"
        )
    return int(whole)


def _int(value: Any) -> int | None:
    """The integer that a number is equal to; None where there is none."""
    if not isinstance(value, SupportsInt):
        value = float(value)
    if value != value or abs(value) == math.inf:
        return None
    whole = int(value)
    return whole if whole == value else None


def is_usual(alpha: Any, beta: Any) -> bool:
    """True if a product is neither scaled nor added to anything, by real numbers of Python."""
    of_python = isinstance(alpha, float | int) and isinstance(beta, float | int)
    return of_python and alpha == 1 and beta == 0


def core_of(a: Any, b: Any) -> Core:
    """Dimensions that products of two operands have."""
    return Core(np.ndim(a) > 1, np.ndim(b) > 1)


def only(out: Any) -> Any:
    """Output that may be in a tuple, as ufuncs take those that they have several of."""
    return out[0] if isinstance(out, tuple) and len(out) == 1 else out


def out_is_missing(beta: Any) -> OperandError:
    """Error for a `beta` that scales an output that is not there."""
    return OperandError(f"beta = {shown(beta)} scales what out holds: pass out=, or use beta = 0")
