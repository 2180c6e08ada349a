"""A CUDA kernel bound to a problem, called on arrays of any library on the caller's stream."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from autotune.arrays.device import check_place, overlap, stream_handle
from autotune.arrays.libraries import library_of
from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import OperandError
from autotune.gpu.driver import Retained, device_of, wait
from autotune.operations.calls import (
    check_call,
    check_unread,
    out_overlaps,
    outputs_of_call,
    real,
    typed,
)
from autotune.operations.problem import MatrixOperation
from autotune.serving.kernel import Kept

if TYPE_CHECKING:
    from autotune.arrays.device import DeviceArray
    from autotune.arrays.library import Place, Reader
    from autotune.operations.parts import Array
    from autotune.operations.problem import Problem
    from autotune.serving.recorded import RecordedLaunch

Launch: TypeAlias = Callable[..., None]
"""``launch(*operands, *scalars, stream=None)``: of every operand its address and its strides but
the last, in elements, and a stream's handle, all as integers. Of a product the arguments are a,
lda, b, ldb, c, ldc, alpha, beta, stream."""

RecordOn: TypeAlias = "Callable[[int, Sequence[tuple[int, ...]]], RecordedLaunch | None]"

KeepOn: TypeAlias = "Callable[[Place, int], tuple[Launch, int, Callable[[], None]] | None]"
"""``keep_on(b, stream)`` makes what a launch then finds made of B: that launch, how many bytes it
finds, and what frees them; None where there is no such launch."""


def describe(name: str, array: Any, stream: int) -> DeviceArray:
    """Describe an operand of a kernel, of any library, which is going to be used on a stream.

    Raises:
        OperandError: it is no array, or not in the memory of a GPU, or gradients would be lost.
    """
    library = library_of(array)
    library.check_detached(array)
    return library.describe(name, array, stream, device_of)


class DeviceKernel:
    """``kernel(*inputs, out=None, stream=None, **scalars)``: checks and enqueues; never waits.

    May be called from several threads, and with operands on any device like the one it is for.

    Args:
        problem: what it computes.
        load_on: loads the kernel on a device, by the driver's number, and gives its launch.
            Raises OperandError for a device that the kernel is not for.
        record_on: see `autotune.serving.kernel.Recordable`.
    """

    def __init__(
        self,
        problem: Problem,
        load_on: Callable[[int], Launch],
        record_on: RecordOn = lambda device, distances: None,
    ) -> None:
        self._defined = problem.defined
        self._operands = problem.operands
        self._scalar_type = ELEMENTS[problem.dtype].accumulation
        self._load_on, self._record_on = load_on, record_on
        self._launches: dict[int, Launch] = {}
        self._lock = threading.Lock()
        self._retained = Retained()

    def __call__(self, *inputs: Any, out: Any = None, stream: Any = None, **scalars: Any) -> Any:
        """See `autotune.targets.Kernel`."""
        return self._call_carefully(inputs, out, scalars, stream)

    def launch_on(self, device: int) -> Launch:
        """See `autotune.serving.kernel.Launching`."""
        return self._launches.get(device) or self._load(device)

    def recorded_on(
        self, device: int, distances: Sequence[tuple[int, ...]]
    ) -> RecordedLaunch | None:
        """See `autotune.serving.kernel.Recordable`."""
        self.launch_on(device)  # or it is refused
        return self._record_on(device, distances)

    def _call_carefully(
        self, inputs: Sequence[Any], out: Any, scalars: Mapping[str, Any], stream: Any
    ) -> Any:
        """Any operands there may be: of several libraries, with work on streams of their own."""
        check_call(self._defined, inputs, scalars)
        library, handle = library_of(inputs[0]), _stream_of(inputs[0], stream)
        described: list[tuple[Any, DeviceArray]] = []
        defined = self._defined
        outs = outputs_of_call(defined, out)
        given = {**dict(defined.scalars), **typed(defined, scalars)}
        places, results = [], []
        arrays, made = iter(inputs), iter(outs)
        for operand, stored in zip(defined.operands, self._operands, strict=True):
            name = operand.name.lower()
            if not operand.written or operand.read:
                array = next(arrays)
            else:
                name = "out" if len(outs) == 1 else name
                array = next(made)
                if array is None:
                    check_unread(defined, given)
                    own = None if stream is None else handle
                    array = library.empty(inputs[0], stored.shape, stored.dtype, own)
                    array = array if operand.shape else array.reshape(())
            wanted = stored if operand.shape else replace(stored, shape=())
            places.append(_look(name, array, wanted, handle, described))
            results += [array] * operand.written
        _check_places(places)
        device = places[0].device
        others = self._order(described, handle, device, explicit=stream is not None)
        self._launch(places, given, handle, device)
        self._follow(described, others, handle, device)
        return results[0] if len(results) == 1 else tuple(results)

    def _launch(
        self, places: Sequence[_Operand], scalars: Mapping[str, Any], stream: int, device: int
    ) -> None:
        arguments = [number for place in places for number in (place.address, *place.strides)]
        launch = self._launches.get(device) or self._load(device)
        try:
            launch(*arguments, *scalars.values(), stream=stream)
        except (struct.error, OverflowError) as error:
            self._refuse(scalars, error)

    def _refuse(self, scalars: Mapping[str, Any], error: Exception) -> NoReturn:
        """Say which numbers do not fit the arguments of the kernel."""
        names = " and ".join(scalars) or "sizes"
        given = " and ".join(f"{value!r:.40}" for value in scalars.values()) or "none"
        raise OperandError(
            f"{names} must be numbers that {self._scalar_type} holds, and rows less than "
            f"2^31 elements apart, got {given}: {error}"
        ) from error

    def _order(
        self,
        described: list[tuple[Any, DeviceArray]],
        handle: int,
        device: int,
        *,
        explicit: bool,
    ) -> list[int]:
        """Let the kernel wait for work on the operands' own streams.

        Where the caller gives the stream, the work of libraries with a current stream is the
        caller's to order, as everywhere; their memory is protected.

        Returns:
            The streams that the operands belong to, where those are not the kernel's.
        """
        others: list[int] = []
        for array, found in described:
            library = library_of(array)
            own = library.current_stream(array) if library.ordered else found.stream
            if own is None or own == handle:
                continue
            if explicit and library.ordered:
                library.lend(array, handle)
            elif own not in others:
                wait(device, handle, own)
                others.append(own)
        return others

    def _follow(
        self,
        described: list[tuple[Any, DeviceArray]],
        others: list[int],
        handle: int,
        device: int,
    ) -> None:
        """Let the operands' own streams wait for the kernel, and keep what must live till then."""
        if others:
            for other in others:
                wait(device, other, handle)
        kept = [pair for pair in described if not library_of(pair[0]).ordered]
        if kept:
            self._retained.hold(device, handle, kept)

    def _load(self, device: int) -> Launch:
        with self._lock:
            if device not in self._launches:
                self._launches[device] = self._load_on(device)
            return self._launches[device]


class DeviceProduct(DeviceKernel):
    """``kernel(a, b, out, alpha, beta, stream)``: a matrix product; usual calls cost little.

    Args:
        problem: as of `DeviceKernel`.
        load_on: the same.
        keep_on: see `KeepOn`; errors are those of `load_on`, and LaunchError.
        record_on: as of `DeviceKernel`.
    """

    def __init__(
        self,
        problem: Problem,
        load_on: Callable[[int], Launch],
        keep_on: KeepOn = lambda b, stream: None,
        record_on: RecordOn = lambda device, distances: None,
    ) -> None:
        super().__init__(problem, load_on, record_on)
        self._problem, self._keep_on = problem, keep_on
        a, b, c = (operand.shape for operand in problem.operands)
        self._a_shape, self._b_shape, self._c_shape = pair(a), pair(b), pair(c)
        self._dtype = problem.dtype
        self._itemsize = problem.itemsize
        self._out_dtype = problem.result_dtype
        self._out_itemsize = ELEMENTS[problem.result_dtype].itemsize
        # For the end of an operand: the last row begins so many rows after the first.
        self._a_before_last, self._a_columns = self._a_shape[0] - 1, self._a_shape[1]
        self._b_before_last, self._b_columns = self._b_shape[0] - 1, self._b_shape[1]
        self._c_before_last, self._c_columns = self._c_shape[0] - 1, self._c_shape[1]
        self._readers: dict[type, tuple[Reader, Reader, Reader]] = {}

    def __call__(  # type: ignore[override]
        self,
        a: Any,
        b: Any,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> Any:
        """See `autotune.targets.Kernel`.

        The usual call has plain operands of one library, on its current stream; it costs little.
        """
        kind = a.__class__
        if stream is None and b.__class__ is kind and (out is not None or beta == 0):
            read_a, read_b, read_c = self._readers.get(kind) or self._read(kind, a)
            at_a = read_a(a)
            at_b = read_b(b)
            if at_a is not None and at_b is not None:
                library = library_of(a)
                given = out is not None
                if not given:
                    out = library.empty(a, self._c_shape, self._out_dtype, None)
                at_c = read_c(out) if out.__class__ is kind else None
                if at_c is not None and at_a[2] == at_b[2] == at_c[2]:
                    if given:
                        self._check_apart(at_a, at_b, at_c)
                    self._enqueue(at_a, at_b, at_c, alpha, beta, library.current_stream(a))
                    return out
        return self._call_carefully((a, b), out, {"alpha": alpha, "beta": beta}, stream)

    def keep(self, b: Any, stream: Any) -> Kept | None:
        """See `autotune.serving.kernel.ProductKernel`; None where nothing is kept."""
        described: list[tuple[Any, DeviceArray]] = []
        handle = _stream_of(b, stream)
        found = _look("b", b, self._operands[1], handle, described)
        self._order(described, handle, found.device, explicit=stream is not None)
        kept = self._keep_on((found.address, found.strides[0], found.device), handle)
        if kept is None:
            return None
        launch, count, free = kept
        return Kept(DeviceProduct(self._problem, lambda device: launch), count, free)

    def _read(self, kind: type, array: Any) -> tuple[Reader, Reader, Reader]:
        """Readers of plain operands of one type."""
        library = library_of(array)
        a, b = (library.reader(shape, self._dtype) for shape in (self._a_shape, self._b_shape))
        c = library.reader(self._c_shape, self._out_dtype)
        self._readers[kind] = a, b, c
        return a, b, c

    def _check_apart(self, at_a: Place, at_b: Place, at_c: Place) -> None:
        """Raise OperandError if the output shares an element with an input."""
        a, lda, _ = at_a
        b, ldb, _ = at_b
        c, ldc, _ = at_c
        # Where the address ranges meet, a closer look tells whether the elements do.
        itemsize = self._itemsize
        end = c + (self._c_before_last * ldc + self._c_columns) * self._out_itemsize
        if end > a and a + (self._a_before_last * lda + self._a_columns) * itemsize > c:
            self._refuse_overlap("a", at_c, at_a, self._a_shape)
        if end > b and b + (self._b_before_last * ldb + self._b_columns) * itemsize > c:
            self._refuse_overlap("b", at_c, at_b, self._b_shape)

    def _enqueue(
        self, at_a: Place, at_b: Place, at_c: Place, alpha: float, beta: float, stream: int
    ) -> None:
        a, lda, device = at_a
        b, ldb, _ = at_b
        c, ldc, _ = at_c
        launch = self._launches.get(device) or self._load(device)
        if not type(alpha) is type(beta) is float:  # texts, too, could be packed
            alpha, beta = real("alpha", alpha), real("beta", beta)
        try:
            launch(a, lda, b, ldb, c, ldc, alpha, beta, stream)
        except (struct.error, OverflowError) as error:
            self._refuse({"alpha": alpha, "beta": beta}, error)

    def _refuse_overlap(self, name: str, at_c: Place, at_x: Place, shape: tuple[int, int]) -> None:
        if self._out_itemsize != self._itemsize or overlap(
            at_c, self._c_shape, at_x, shape, self._itemsize
        ):
            raise out_overlaps(name)


@dataclass(frozen=True, slots=True)
class _Operand:
    """The place of an operand.

    Attributes:
        name: of the operand, for messages.
        address: of the first element.
        strides: elements from one to the next along every dimension but the last.
        device: the driver's number of the device.
        array: shape and dtype.
    """

    name: str
    address: int
    strides: tuple[int, ...]
    device: int
    array: Array

    def meets(self, other: _Operand) -> bool:
        """Do two operands share an element? Of batches: do their ranges meet?"""
        if self.device != other.device:
            return False
        alike = ELEMENTS[self.array.dtype].itemsize == ELEMENTS[other.array.dtype].itemsize
        if alike and max(len(self.array.shape), len(other.array.shape)) <= 2:
            (at_x, x_shape), (at_y, y_shape) = self._rows, other._rows
            return overlap(at_x, x_shape, at_y, y_shape, ELEMENTS[self.array.dtype].itemsize)
        return self.address < other._end and other.address < self._end

    @property
    def _rows(self) -> tuple[Place, tuple[int, int]]:
        """As a matrix, which a vector is one row of."""
        shape = self.array.shape
        columns = shape[-1] if shape else 1
        leading = self.strides[0] if self.strides else columns
        rows = shape[0] if self.strides else 1
        return (self.address, leading, self.device), (rows, columns)

    @property
    def _end(self) -> int:
        """The address after the last element."""
        last = sum(
            (size - 1) * stride
            for size, stride in zip(self.array.shape, (*self.strides, 1), strict=False)
        )
        return self.address + (last + 1) * ELEMENTS[self.array.dtype].itemsize


def _stream_of(array: Any, stream: Any) -> int:
    """The handle of a stream; where that is None, of the current one of an array's library."""
    return library_of(array).current_stream(array) if stream is None else stream_handle(stream)


def _look(
    name: str,
    array: Any,
    wanted: Array,
    stream: int,
    described: list[tuple[Any, DeviceArray]],
) -> _Operand:
    """Where an operand lies that fits; what it was described as is added to a list.

    Raises:
        OperandError: it does not fit.
    """
    found = describe(name, array, stream)
    described.append((array, found))
    address, strides = check_place(
        name, found, wanted.shape, wanted.dtype, written=wanted.written, packed=wanted.packed
    )
    return _Operand(name, address, strides, found.device, wanted)


def _check_places(places: Sequence[_Operand]) -> None:
    """Refuse operands on several devices, and an output that shares an element with another.

    Raises:
        OperandError: the message names them.
    """
    if len({place.device for place in places}) > 1:
        names = " and ".join([", ".join(p.name for p in places[:-1]), places[-1].name])
        *found, last = (str(place.device) for place in places)
        raise OperandError(
            f"operands must be on one device, got {names} on devices {', '.join(found)} and "
            f"{last}: move them together"
        )
    for number, output in enumerate(places):
        for other, place in enumerate(places if output.array.written else ()):
            if other != number and place.meets(output):
                raise out_overlaps(place.name, output.name)


def pair(shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape of a matrix."""
    rows, columns = shape
    return rows, columns


def device_kernel(
    problem: Problem,
    load_on: Callable[[int], Launch],
    keep_on: KeepOn = lambda b, stream: None,
    record_on: RecordOn = lambda device, distances: None,
) -> DeviceKernel:
    """A kernel of a problem, called as its operation is; see `DeviceProduct` for arguments."""
    if isinstance(problem.defined, MatrixOperation):
        return DeviceProduct(problem, load_on, keep_on, record_on)
    return DeviceKernel(problem, load_on, record_on)
