"""Operands and streams of kernels: arrays of the host, and those that say they lie on a GPU."""

from __future__ import annotations

import ctypes
import re
import struct
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from device_arrays import (
    DlpackArray,
    FakeCupyArray,
    FakeTensor,
    InterfaceArray,
    fake_cupy,
    fake_torch,
)
from hypothesis import given
from hypothesis import strategies as st

from autotune.arrays import libraries
from autotune.arrays.device import overlap, stream_handle
from autotune.arrays.host import check_operands
from autotune.arrays.libraries import library_of, memory_of
from autotune.core.dtypes import DTYPES
from autotune.core.errors import OperandError
from autotune.gpu.arrays import kernel as streams
from autotune.gpu.arrays.kernel import DeviceKernel, DeviceProduct
from autotune.operations.operation import Operation
from autotune.operations.parts import Operand
from autotune.operations.problem import Gemm
from autotune.operations.python_reference import PythonReference

PROBLEM = Gemm(4, 5, 6)
KINDS = ("torch", "cupy", "interface", "dlpack", "old dlpack")


class Calls:
    """Records what is launched, and what is made to wait for what."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.waits: list[tuple[int, int, int]] = []
        self.held: list[tuple[int, int, object]] = []
        self.loaded: list[int] = []

    def load_on(self, device: int) -> Any:
        if device > 1:
            raise OperandError(f"no kernel for device {device}")
        self.loaded.append(device)
        return lambda *arguments, **stream: self.launches.append(
            (device, *arguments, *stream.values())
        )

    def wait(self, device: int, stream: int, other: int) -> None:
        self.waits.append((device, stream, other))


@pytest.fixture
def current() -> dict[int, int]:
    """Current streams by device, of both libraries with current streams."""
    return {0: 700, 1: 701, -1: -1}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, current: dict[int, int]) -> Iterator[Calls]:
    calls = Calls()

    class Retained:
        def hold(self, device: int, stream: int, objects: object) -> None:
            calls.held.append((device, stream, objects))

    monkeypatch.setitem(sys.modules, "torch", fake_torch(current))
    watching = types.SimpleNamespace(check_unrecorded=lambda: None, is_plain=None, is_watched=None)
    monkeypatch.setitem(sys.modules, "autotune.arrays.watching", watching)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(current))
    for table in ("_BY_TYPE", "_PLAIN_BY_TYPE"):
        monkeypatch.setattr(libraries, table, {})
    monkeypatch.setattr(streams, "wait", calls.wait)
    monkeypatch.setattr(streams, "device_of", lambda address: 0)
    monkeypatch.setattr(streams, "Retained", Retained)
    return calls


def make(kind: str, array: Any, device: int = 0) -> Any:
    match kind:
        case "torch":
            return FakeTensor(array, device)
        case "cupy":
            return FakeCupyArray(array, device)
        case "interface":
            return InterfaceArray(array)
        case _:
            return DlpackArray(array, device, versioned=kind == "dlpack")


def hosts(problem: Gemm = PROBLEM) -> list[Any]:
    shapes = (problem.a_shape, problem.b_shape, problem.c_shape)
    return [np.ones(shape, problem.dtype) for shape in shapes]


def at(array: Any) -> int:
    return int(array.ctypes.data)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("stream", [None, 7])
def test_what_pytorch_records_is_not_called(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, given: bool, stream: int | None
) -> None:
    def check() -> None:
        raise OperandError("recorded")

    watching: Any = sys.modules["autotune.arrays.watching"]
    monkeypatch.setattr(watching, "check_unrecorded", check)
    a, b, c = (make("torch", each) for each in hosts())
    with pytest.raises(OperandError, match="recorded"):
        DeviceProduct(PROBLEM, calls.load_on)(a, b, c if given else None, stream=stream)
    assert calls.launches == []


@pytest.mark.parametrize("place", [0, 1, 2])
def test_gradients_are_not_dropped_without_a_word(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    operands = [make("torch", each) for each in hosts()]
    operands[place].requires_grad = True
    kernel = DeviceProduct(PROBLEM, calls.load_on)
    with pytest.raises(OperandError, match=r"require grad.* pass x.detach\(\), .*torch_operator"):
        kernel(*operands)
    assert calls.launches == []
    monkeypatch.setattr(sys.modules["torch"], "is_grad_enabled", lambda: False)
    assert DeviceProduct(PROBLEM, calls.load_on)(*operands) is operands[2]
    assert len(calls.launches) == 1


@pytest.mark.parametrize("place", [0, 1, 2])
def test_tensors_without_memory_are_refused(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    operands = [make("torch", each) for each in hosts()]
    monkeypatch.setattr(operands[place], "data_ptr", lambda: 0)
    with pytest.raises(OperandError, match="no memory of its own"):
        DeviceProduct(PROBLEM, calls.load_on)(*operands)
    assert calls.launches == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_plain_operands(calls: Calls, kind: str, dtype: str) -> None:
    problem = Gemm(4, 5, 6, dtype)
    a, b, c = hosts(problem)
    out = make(kind, c)
    kernel = DeviceProduct(problem, calls.load_on)
    assert kernel(make(kind, a), make(kind, b), out, 2.0, 3.0) is out
    stream = 700 if kind in ("torch", "cupy") else 0
    assert calls.launches == [(0, at(a), 5, at(b), 6, at(c), 6, 2.0, 3.0, stream)]
    assert calls.waits == []
    # What hands out memory in the order of its stream needs nothing kept.
    assert len(calls.held) == (0 if kind in ("torch", "cupy") else 1)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((kind, "float16") for kind in KINDS),
        *((kind, "bfloat16") for kind in ("torch", "cupy", "interface")),
    ],
)
@pytest.mark.parametrize("out_dtype", [None, "float32"])
def test_short_operands_and_results_of_either_type(
    calls: Calls, kind: str, dtype: str, out_dtype: str | None
) -> None:
    problem = Gemm(4, 5, 6, dtype, out_dtype)
    short, result = DTYPES[dtype].numpy, DTYPES[problem.result_dtype].numpy
    a, b = np.ones((4, 9), short)[:, 1:6], np.ones((5, 6), short)
    c = np.ones((4, 7), result)[:, :6]
    out = make(kind, c)
    kernel = DeviceProduct(problem, calls.load_on)
    assert kernel(make(kind, a), make(kind, b), out, 2.0, 3.0) is out
    stream = 700 if kind in ("torch", "cupy") else 0
    assert calls.launches == [(0, at(a), 9, at(b), 6, at(c), 7, 2.0, 3.0, stream)]
    wrong = make(kind, np.ones((4, 6), np.float64))
    with pytest.raises(OperandError, match=f"out must have dtype {problem.result_dtype}"):
        kernel(make(kind, a), make(kind, b), wrong)
    with pytest.raises(OperandError, match=f"b must have dtype {dtype}, got float32"):
        kernel(make(kind, a), make(kind, np.ones((5, 6), np.float32)), out)
    if kind in ("torch", "cupy"):
        made = kernel(make(kind, a), make(kind, b))
        assert str(made.dtype).removeprefix("torch.") == problem.result_dtype


def test_a_result_of_another_size_must_not_meet_an_operand(calls: Calls) -> None:
    memory = np.zeros(200, np.uint8)
    a = memory[:40].view(np.float16).reshape(4, 5)
    b = np.ones((5, 6), np.float16)
    kernel = DeviceProduct(Gemm(4, 5, 6, "float16", "float32"), calls.load_on)
    kernel(
        make("torch", a), make("torch", b), make("torch", memory[40:136].view("f4").reshape(4, 6))
    )
    met = memory[36:132].view(np.float32).reshape(4, 6)
    with pytest.raises(OperandError, match="out overlaps a in memory"):
        kernel(make("torch", a), make("torch", b), make("torch", met))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_may_be_apart(calls: Calls, kind: str) -> None:
    a, b, c = (
        np.ones((array.shape[0], 9), np.float32)[:, 1 : 1 + array.shape[1]] for array in hosts()
    )
    DeviceProduct(PROBLEM, calls.load_on)(*(make(kind, each) for each in (a, b, c)))
    assert [calls.launches[0][i] for i in (1, 2, 3, 4, 5, 6)] == [at(a), 9, at(b), 9, at(c), 9]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("problem", [Gemm(1, 5, 1), Gemm(4, 1, 1), Gemm(1, 1, 6)], ids=str)
def test_strides_of_single_rows_and_columns_do_not_matter(
    calls: Calls, kind: str, problem: Gemm
) -> None:
    a, b, c = (np.ones(each.shape[::-1], np.float32).T for each in hosts(problem))
    DeviceProduct(problem, calls.load_on)(*(make(kind, each) for each in (a, b, c)))
    leading = [calls.launches[0][i] for i in (2, 4, 6)]
    for got, each in zip(leading, (a, b, c), strict=True):
        assert got >= each.shape[1]
        assert each.shape[0] == 1 or got == each.strides[0] // 4


def test_transposed_layouts_take_operands_as_stored(calls: Calls) -> None:
    problem = Gemm(4, 5, 6, layout="tt")
    a, b, c = hosts(problem)
    assert a.shape == (5, 4)
    DeviceProduct(problem, calls.load_on)(*(make("torch", each) for each in (a, b, c)))
    assert [calls.launches[0][i] for i in (2, 4, 6)] == [4, 5, 6]


@pytest.mark.parametrize("kind", ["torch", "cupy"])
def test_out_is_allocated_by_the_library_of_a(calls: Calls, kind: str) -> None:
    a, b, _ = hosts()
    out = DeviceProduct(PROBLEM, calls.load_on)(make(kind, a), make(kind, b))
    assert type(out) is type(make(kind, a))
    assert out.shape == (4, 6)
    assert calls.launches[0][5] == at(out.array)


def test_out_is_not_allocated_for_libraries_that_are_not_known(calls: Calls) -> None:
    a, b, _ = hosts()
    with pytest.raises(OperandError, match="pass out="):
        DeviceProduct(PROBLEM, calls.load_on)(InterfaceArray(a), InterfaceArray(b))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: np.ones((7, 7), np.float32), "must have shape"),
        (lambda x: np.ones(20, np.float32), "must have shape"),
        (lambda x: x.astype(np.float64), "must have dtype float32, got float64"),
        (lambda x: x.astype(np.int32), "must have dtype float32, got"),
        (lambda x: np.ones(x.shape[::-1], np.float32).T, "must be row-major with contiguous rows"),
        (lambda x: np.ones((4, 12), np.float32)[: x.shape[0], ::2], "contiguous rows|shape"),
    ],
)
def test_operands_that_do_not_fit(
    calls: Calls, kind: str, position: int, change: Any, said: str
) -> None:
    arrays = hosts()
    arrays[position] = change(arrays[position])
    with pytest.raises(OperandError, match=f"^{('a', 'b', 'out')[position]} .*({said})") as caught:
        DeviceProduct(PROBLEM, calls.load_on)(*(make(kind, each) for each in arrays))
    assert "\n" not in str(caught.value)
    assert calls.launches == []


@pytest.mark.parametrize("kind", ["interface", "dlpack"])
def test_read_only_arrays_are_inputs_only(calls: Calls, kind: str) -> None:
    a, b, c = hosts()
    a.flags.writeable = b.flags.writeable = False
    kernel = DeviceProduct(PROBLEM, calls.load_on)
    kernel(*(make(kind, each) for each in (a, b, c)))
    c.flags.writeable = False
    with pytest.raises(OperandError, match="out is read-only"):
        kernel(*(make(kind, each) for each in (a, b, c)))


def test_arrays_of_jax_are_never_written(calls: Calls) -> None:
    class Array(DlpackArray):
        __module__ = "jaxlib._jax"

    a, b, c = (Array(each) for each in hosts())
    with pytest.raises(OperandError, match="out is read-only"):
        DeviceProduct(PROBLEM, calls.load_on)(a, b, c)
    DeviceProduct(PROBLEM, calls.load_on)(a, b, InterfaceArray(c.array))


@pytest.mark.parametrize("kind", KINDS)
def test_host_arrays_are_refused(calls: Calls, kind: str) -> None:
    a, b, c = hosts()
    kernel = DeviceProduct(PROBLEM, calls.load_on)
    for operands in ((a, make(kind, b), make(kind, c)), (make(kind, a), b, make(kind, c))):
        with pytest.raises(OperandError, match="must be in the memory of a GPU, got numpy"):
            kernel(*operands)
    with pytest.raises(OperandError, match="must be in the memory of a GPU"):
        kernel(FakeTensor(a, -1), FakeTensor(b, -1), None)
    with pytest.raises(OperandError, match="must be in the memory of a GPU, got builtins"):
        kernel([1.0], make(kind, b), make(kind, c))


@pytest.mark.parametrize("array", [FakeTensor, InterfaceArray])
def test_device_arrays_are_refused_by_cpu_kernels(array: Any) -> None:
    a, b, _ = hosts()
    with pytest.raises(
        OperandError, match='in the memory of a GPU: load the kernel with target="cuda"'
    ):
        check_operands(PROBLEM, (array(a), b), None, {})


@pytest.mark.parametrize("kind", KINDS)
def test_overlap(calls: Calls, kind: str) -> None:
    problem = Gemm(4, 4, 4)
    memory = np.ones((8, 8), np.float32)
    kernel = DeviceProduct(problem, calls.load_on)
    b = np.ones((4, 4), np.float32)
    for name, views in {
        "a": (memory[:4, :4], b, memory[:4, :4]),
        "b": (b, memory[:4, 2:6], memory[3:7, :4]),
    }.items():
        with pytest.raises(OperandError, match=f"out overlaps {name}"):
            kernel(*(make(kind, each) for each in views))
    kernel(*(make(kind, each) for each in (memory[:4, :4], memory[4:, :4], memory[:4, 4:])))
    assert len(calls.launches) == 1


CORNER = st.tuples(st.integers(0, 5), st.integers(0, 7), st.integers(1, 4), st.integers(1, 5))


@given(CORNER, CORNER, st.sampled_from([1, 2]))
def test_overlap_is_exact_within_one_array(
    one: tuple[int, ...], other: tuple[int, ...], step: int
) -> None:
    memory = np.zeros((12, 13), np.float32)
    views = [memory[r : r + step * h : step, c : c + w] for r, c, h, w in (one, other)]
    placed = [((at(view), 13 * step, 0), view.shape) for view in views]
    got = overlap(*placed[0], *placed[1], 4)
    if step == 1:
        assert got == np.shares_memory(*views)
    else:  # may be refused where rows alternate, and never the other way round
        assert got >= np.shares_memory(*views)


@pytest.mark.parametrize("kind", KINDS)
def test_beta_needs_out(calls: Calls, kind: str) -> None:
    a, b, _ = hosts()
    with pytest.raises(OperandError, match="pass out="):
        DeviceProduct(PROBLEM, calls.load_on)(make(kind, a), make(kind, b), beta=0.5)


@pytest.mark.parametrize(
    ("alpha", "told"),
    [
        ("1", "alpha must be a real number, got '1'"),
        (np.str_("1"), "alpha must be a real number, got np.str_('1')"),
        (np.complex128(1), "alpha must be a real number, got np.complex128"),
        (None, "alpha must be a real number, got None"),
        (10**400, "alpha must be a real number that fits"),
    ],
)
def test_alpha_must_be_a_number(calls: Calls, alpha: Any, told: str) -> None:
    kernel = DeviceProduct(
        PROBLEM, lambda device: lambda *each, stream=None: struct.pack("f", each[6])
    )
    with pytest.raises(OperandError, match=re.escape(told)):
        kernel(*(FakeTensor(each) for each in hosts()), alpha)


@pytest.mark.parametrize("kind", ["torch", "cupy"])
def test_devices(calls: Calls, kind: str) -> None:
    a, b, c = hosts()
    kernel = DeviceProduct(PROBLEM, calls.load_on)
    for device in (0, 1, 1, 0):
        kernel(*(make(kind, each, device) for each in (a, b, c)))
    assert calls.loaded == [0, 1]
    assert [launch[0] for launch in calls.launches] == [0, 1, 1, 0]
    with pytest.raises(OperandError, match="on devices 0, 1 and 0"):
        kernel(make(kind, a), make(kind, b, 1), make(kind, c))


def test_device_that_the_kernel_is_not_for(calls: Calls, current: dict[int, int]) -> None:
    current[2] = 702
    with pytest.raises(OperandError, match="no kernel for device 2"):
        DeviceProduct(PROBLEM, calls.load_on)(*(FakeTensor(each, 2) for each in hosts()))


def test_kernel_is_loaded_once_whatever_the_threads(calls: Calls) -> None:
    kernel = DeviceProduct(PROBLEM, calls.load_on)
    operands = [FakeTensor(each) for each in hosts()]
    threads = [threading.Thread(target=kernel, args=operands) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls.loaded == [0]
    assert len(calls.launches) == 16


class HasCudaStream:
    cuda_stream = 41


class HasPtr:
    ptr = 42


class HasProtocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 43


class HasProtocolAttribute:
    __cuda_stream__ = (0, 44)


class HasHandle:
    handle = 45


class HasCtypesHandle:
    handle = ctypes.c_void_p(46)


class HasNullHandle:
    handle = ctypes.c_void_p(None)


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0, 0),
        (2, 2),
        (1 << 47, 1 << 47),
        (HasCudaStream(), 41),
        (HasPtr(), 42),
        (HasProtocol(), 43),
        (HasProtocolAttribute(), 44),
        (HasHandle(), 45),
        (HasCtypesHandle(), 46),
        (HasNullHandle(), 0),
    ],
)
def test_stream_handles(stream: Any, handle: int) -> None:
    assert stream_handle(stream) == handle


@pytest.mark.parametrize("stream", ["0", 1.0, True, -1, object(), types.SimpleNamespace(ptr="x")])
def test_what_is_no_stream(stream: Any) -> None:
    with pytest.raises(OperandError, match="stream must be a handle"):
        stream_handle(stream)


def test_given_stream_is_used_and_memory_protected(calls: Calls, current: dict[int, int]) -> None:
    a, b, c = (FakeTensor(each) for each in hosts())
    kernel = DeviceProduct(PROBLEM, calls.load_on)
    kernel(a, b, c, stream=HasCudaStream())
    assert calls.launches[0][-1] == 41
    assert [each.lent for each in (a, b, c)] == [[41]] * 3
    assert calls.waits == []  # the caller orders the work
    out = kernel(a, b, stream=41)
    assert out.lent[0] == -41  # allocated as memory of that stream
    assert current[0] == 700
    kernel(a, b, c, stream=700)
    assert c.lent == [41]


def test_dlpack_is_told_the_stream(calls: Calls) -> None:
    a, b, c = (DlpackArray(each) for each in hosts())
    kernel = DeviceProduct(PROBLEM, calls.load_on)
    kernel(a, b, c)
    kernel(a, b, c, stream=5)
    # 1 is the default stream: 0 means nothing there.
    assert [each.streams for each in (a, b, c)] == [[1, 5]] * 3


def test_work_on_streams_of_the_operands_is_waited_for(calls: Calls) -> None:
    a, b, c = hosts()
    kernel = DeviceProduct(PROBLEM, calls.load_on)
    kernel(InterfaceArray(a, 11), InterfaceArray(b, 12), InterfaceArray(c, 11))
    assert calls.launches[0][-1] == 11
    assert calls.waits == [(0, 11, 12), (0, 12, 11)]


def test_two_libraries_wait_for_each_other(calls: Calls, current: dict[int, int]) -> None:
    a, b, c = hosts()
    DeviceProduct(PROBLEM, calls.load_on)(FakeTensor(a), InterfaceArray(b, 9), InterfaceArray(c))
    assert calls.launches[0][-1] == 700
    assert calls.waits == [(0, 700, 9), (0, 9, 700)]
    [(_, stream, kept)] = calls.held
    assert stream == 700
    assert len(kept) == 2  # type: ignore[arg-type]


def test_where_arrays_lie(calls: Calls) -> None:
    a = hosts()[0]
    assert all(memory_of(make(kind, a)) == "gpu" for kind in KINDS)
    assert memory_of(a) == "host"
    assert memory_of(FakeTensor(a, -1)) == "host"
    assert memory_of([1.0]) == "host"


def test_subclasses_are_of_their_library(calls: Calls) -> None:
    class Parameter(FakeTensor):
        pass

    a = hosts()[0]
    assert library_of(Parameter(a)) is library_of(FakeTensor(a))
    assert library_of(FakeCupyArray(a)) is not library_of(FakeTensor(a))


def test_a_library_is_one_object_however_many_types_there_are(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "_MOST_TYPES", 2)
    for number in range(4):
        library_of(type(f"Array{number}", (), {})())
    assert len(libraries._BY_TYPE) == 2
    a = FakeTensor(hosts()[0])
    assert libraries.plain_library(FakeTensor) is library_of(a) is libraries._BY_TYPE[FakeTensor]
    assert library_of(type("Parameter", (FakeTensor,), {})(a.array)) is library_of(a)


def operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(np.ones(shape, np.float32) for shape in [(4, 5), (5, 6), (4, 6)])


def test_out_is_allocated() -> None:
    a, b, _ = operands()
    *_, out = check_operands(PROBLEM, (a, b), None, {"beta": 0.0})
    assert (out.shape, out.dtype) == ((4, 6), np.float32)


def test_views_with_a_leading_dimension_are_taken() -> None:
    a, b, _ = operands()
    wide = np.zeros((4, 9), np.float32)
    *_, out = check_operands(PROBLEM, (a, b), wide[:, 2:8], {"beta": 0.0})
    assert out.base is wide


def test_read_only_inputs_are_taken() -> None:
    a, b, out = operands()
    a.flags.writeable = b.flags.writeable = False
    assert check_operands(PROBLEM, (a, b), out, {"beta": 1.0})[-1] is out


def test_disjoint_halves_of_one_array_do_not_overlap() -> None:
    buffer = np.zeros((4, 11), np.float32)
    _, b, _ = operands()
    check_operands(PROBLEM, (buffer[:, :5], b), buffer[:, 5:], {"beta": 0.0})


def bad_out(kind: str) -> np.ndarray:
    if kind == "read-only":
        out = np.zeros((4, 6), np.float32)
        out.flags.writeable = False
        return out
    if kind == "row-major":
        return np.zeros((6, 4), np.float32).T
    if kind == "shape":
        return np.zeros((6, 4), np.float32)
    if kind == "dtype":
        return np.zeros((4, 6))
    assert kind == "NumPy array"
    return [[0.0] * 6] * 4  # type: ignore[return-value]


@pytest.mark.parametrize("kind", ["read-only", "row-major", "shape", "dtype", "NumPy array"])
def test_bad_out_is_named(kind: str) -> None:
    a, b, _ = operands()
    with pytest.raises(OperandError, match=kind) as caught:
        check_operands(PROBLEM, (a, b), bad_out(kind), {"beta": 0.0})
    assert str(caught.value).startswith("out ")
    assert "\n" not in str(caught.value)


def test_overlap_is_named() -> None:
    square = Gemm(4, 4, 4)
    a, b = np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)
    with pytest.raises(OperandError, match="out overlaps a"):
        check_operands(square, (a, b), a, {"beta": 0.0})
    with pytest.raises(OperandError, match="out overlaps b"):
        check_operands(square, (a, b), b[::1], {"beta": 0.0})


def test_rows_that_overlap_each_other_are_refused() -> None:
    a, b, _ = operands()
    base = np.zeros(16, np.float32)
    out = np.lib.stride_tricks.as_strided(base, (4, 6), (8, 4))
    with pytest.raises(OperandError, match="row-major"):
        check_operands(PROBLEM, (a, b), out, {"beta": 0.0})


@pytest.mark.parametrize(
    ("position", "operand", "named"),
    [
        (0, np.ones((5, 4), np.float32), "a must have shape"),
        (1, np.ones((5, 6), np.float64), "b must have dtype"),
        (0, np.ones((4, 5), ">f4"), "a must have dtype float32 in native byte order"),
        (1, None, "b must be a NumPy array"),
        (0, np.ones(20, np.float32), "a must have shape"),
    ],
)
def test_bad_inputs_are_named(position: int, operand: object, named: str) -> None:
    inputs: list = list(operands()[:2])
    inputs[position] = operand
    with pytest.raises(OperandError, match=named):
        check_operands(PROBLEM, inputs, None, {"beta": 0.0})


def test_beta_needs_out_on_the_host() -> None:
    a, b, _ = operands()
    with pytest.raises(OperandError, match="pass out="):
        check_operands(PROBLEM, (a, b), None, {"beta": 0.5})


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_may_be_a_single_number(calls: Calls, kind: str) -> None:
    x, total = np.ones(5, np.float32), np.zeros((), np.float32)
    operands = (Operand("x", ("N",)), Operand("total", (), written=True))
    reference = PythonReference("summed", "def summed(x):\n    return x.sum()\n")
    operation = Operation("sum_of", ("N",), operands, reference, "N")
    kernel = DeviceKernel(operation.problem(N=5, dtype="float32"), calls.load_on)
    out = make(kind, total)
    assert kernel(make(kind, x), out=out) is out
    ((_, address, written, *_),) = calls.launches
    assert (address, written) == (x.ctypes.data, total.ctypes.data)
    with pytest.raises(OperandError, match=r"out must have shape \(\), got \(1,\)"):
        kernel(make(kind, x), out=make(kind, np.zeros(1, np.float32)))


class Keeps:
    """What a launch is given that finds all of B made; what is freed."""

    def __init__(self, calls: Calls) -> None:
        self.calls, self.made, self.freed = calls, [], 0

    def __call__(self, b: tuple[int, int, int], stream: int) -> Any:
        self.made.append((b, stream))

        def launch(*arguments: Any, **stream: Any) -> None:
            self.calls.launches.append(("kept", *arguments, *stream.values()))

        return launch, 64, self.free

    def free(self) -> None:
        self.freed += 1


@pytest.mark.parametrize("kind", KINDS)
def test_b_is_kept(calls: Calls, kind: str) -> None:
    keeps = Keeps(calls)
    kernel = DeviceProduct(PROBLEM, calls.load_on, keeps)
    a, b, c = hosts()
    b = np.ones((5, 9), np.float32)[:, :6]
    array, out = make(kind, b), make(kind, c)
    kept = kernel.keep(array, None)
    assert kept is not None
    stream = 700 if kind in ("torch", "cupy") else 0
    assert keeps.made == [((at(b), 9, 0), stream)]
    assert kept.bytes == 64
    assert kept.call(make(kind, a), array, out, 2.0, 3.0, None) is out
    kept.call(make(kind, a), array, out, 1.0, 0.0, 9)
    places = at(a), 5, at(b), 9, at(c), 6
    assert calls.launches == [("kept", *places, 2.0, 3.0, stream), ("kept", *places, 1.0, 0.0, 9)]
    assert calls.loaded == []
    kernel(make(kind, a), array, out)
    assert calls.launches[-1] == (0, *places, 1.0, 0.0, stream)
    kept.close()
    assert keeps.freed == 1


def test_b_is_kept_after_work_on_its_stream(calls: Calls) -> None:
    keeps = Keeps(calls)
    kernel = DeviceProduct(PROBLEM, calls.load_on, keeps)
    kernel.keep(InterfaceArray(hosts()[1], 12), 7)
    assert calls.waits == [(0, 7, 12)]
    assert keeps.made[0][1] == 7


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_must_fit(calls: Calls, kind: str) -> None:
    keeps = Keeps(calls)
    kernel = DeviceProduct(PROBLEM, calls.load_on, keeps)
    for wrong, said in (
        (make(kind, np.ones((6, 5), np.float32)), "b must have shape"),
        (make(kind, np.ones((5, 6))), "b must have dtype float32, got float64"),
        (make(kind, np.ones((6, 5), np.float32).T), "b must be row-major"),
        (np.ones((5, 6), np.float32), "must be in the memory of a GPU"),
    ):
        with pytest.raises(OperandError, match=said):
            kernel.keep(wrong, None)
    assert keeps.made == []
    a, b, c = hosts(Gemm(4, 4, 4))
    kept = DeviceProduct(Gemm(4, 4, 4), calls.load_on, keeps).keep(make(kind, b), None)
    assert kept is not None
    with pytest.raises(OperandError, match="out overlaps b"):
        kept.call(make(kind, a), make(kind, b), make(kind, b), 1.0, 0.0, None)
    with pytest.raises(OperandError, match="a must have shape"):
        kept.call(make(kind, c[:2]), make(kind, b), None, 1.0, 0.0, None)


def test_most_kernels_keep_nothing(calls: Calls) -> None:
    kernel = DeviceProduct(PROBLEM, calls.load_on)
    assert kernel.keep(make("torch", hosts()[1]), None) is None
