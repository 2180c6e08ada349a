"""Run by pytest where gates are compiled: launches by them, on a driver that multiplies here."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.serving.recorded import (
    ATTRIBUTE_BYTES,
    WORKSPACE,
    DriverFunctions,
    RecordedAddress,
    RecordedLaunch,
    RecordedStep,
)
from autotune.torch import compiled, switch, use_tuned
from autotune.torch.compiled import Call, CompiledGates

M, N, K = 6, 5, 7
NUMBER = 1 << 30
"""Of a selection that no other test makes."""

ATTRIBUTE = struct.pack("3i", 6, 0, 1).ljust(ATTRIBUTE_BYTES, b"\0")

MAP_AT = 64
MAP_BYTES = 128


class Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("extents", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(ctypes.c_int)),
        ("count", ctypes.c_uint),
    )


def floats(address: int, *shape: int) -> Any:
    """An array where memory is."""
    size = int(np.prod(shape))
    return np.ctypeslib.as_array((ctypes.c_float * size).from_address(address)).reshape(shape)


@dataclass
class StandIn:
    """A driver whose one kernel multiplies, and adds a row; it notes what it is told."""

    launched: list[Any] = field(default_factory=list)
    cleared: list[tuple[int, int]] = field(default_factory=list)
    replaced: list[int] = field(default_factory=list)
    capturing: int = 0
    status: int = 0

    def __post_init__(self) -> None:
        number, pointer, unsigned = ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64
        pointers, numbers = ctypes.POINTER(pointer), ctypes.POINTER(number)
        self._kept = [
            ctypes.CFUNCTYPE(*each[:-1])(each[-1])
            for each in (
                (number, ctypes.POINTER(Config), pointer, pointers, pointers, self.launch),
                (number, pointer, pointer, self.replace),
                (number, pointer, numbers, self.is_capturing),
                (number, unsigned, ctypes.c_uint, ctypes.c_size_t, pointer, self.clear),
                (number, number, pointers, self.stream),
            )
        ]
        self.addresses = [ctypes.cast(each, pointer).value or 0 for each in self._kept]

    def launch(self, config: Any, function: int, apart: Any, together: Any) -> int:
        if apart:
            a, b, c, out, workspace = (
                ctypes.c_uint64.from_address(apart[place]).value for place in range(5)
            )
            size = 0
        else:
            size = ctypes.c_size_t.from_address(together[3]).value
            packed = ctypes.string_at(together[1], size)
            a, b, c, out, workspace = struct.unpack_from("5Q", packed)
        told = config.contents
        attributes = ctypes.string_at(told.attributes, told.count * ATTRIBUTE_BYTES)
        self.launched.append((function, tuple(told.extents), attributes, size, workspace))
        if self.status:
            return self.status
        made = floats(out, M, K)
        made[:] = floats(a, M, N) @ floats(b, N, K)
        if c:
            made += floats(c, K)
        return 0

    def replace(self, at: int, address: int) -> int:
        self.replaced.append(address)
        return 0

    def is_capturing(self, stream: int, status: Any) -> int:
        status[0] = self.capturing
        return 0

    def clear(self, address: int, value: int, words: int, stream: int) -> int:
        self.cleared.append((address, 4 * words))
        ctypes.memset(address, value, 4 * words)
        return 0

    def stream(self, device: int, stream: Any) -> int:
        stream[0] = 77
        return 0


@pytest.fixture(scope="module")
def gates() -> CompiledGates:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_BACKGROUND", "0")
        with use_tuned(devices=["cpu"]):
            torch.mm(torch.ones(1, 1), torch.ones(1, 1))
    found = compiled.gates_of("cpu")
    assert found is not None
    return found


@pytest.fixture
def driver(gates: CompiledGates, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn()
    monkeypatch.setattr(compiled, "_current_stream", lambda: made.addresses[-1])
    monkeypatch.setattr(gates, "_driven", False)
    gates.select(NUMBER)
    yield made
    gates.clear()
    gates.select(0)


A, B, ROW = torch.rand(M, N) + 1, torch.rand(N, K) + 1, torch.rand(K) + 1


def launch(driver: StandIn, operands: int = 3) -> RecordedLaunch:
    """A launch on A, B and the result, or a row as well."""
    places = [0, 8, 24] if operands == 3 else [0, 8, 16, 24]
    return RecordedLaunch(
        functions=DriverFunctions(*driver.addresses[:-1]),
        steps=(RecordedStep(5, (1, 2, 3, 4, 5, 6, 7), (ATTRIBUTE,)),),
        arguments=struct.pack("5Q", 1, 1, 0, 1, 0),
        places=(),
        addresses=tuple(RecordedAddress(at, of, 0) for of, at in enumerate(places)),
        maps=(),
        workspace_bytes=0,
        zeroed_bytes=0,
    )


def call(gates: CompiledGates, *tensors: torch.Tensor) -> Call:
    return Call(gates.state, NUMBER, "addmm" if len(tensors) == 3 else "mm", tensors)


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_product_is_launched(gates: CompiledGates, driver: StandIn) -> None:
    gates.take(call(gates, A, B), launch(driver))
    first, second = torch.mm(A, B), A @ B
    assert first.data_ptr() != second.data_ptr()
    for made in (first, second):
        close(made, (A.double() @ B.double()).float())
    assert driver.launched == [(5, (1, 2, 3, 4, 5, 6, 7), ATTRIBUTE, 40, 0)] * 2
    out = torch.empty(M, K)
    assert torch.mm(A, B, out=out) is out
    close(out, first)
    assert len(driver.launched) == 3


def test_arguments_may_lie_apart(gates: CompiledGates, driver: StandIn) -> None:
    recorded = replace(launch(driver), places=(0, 8, 16, 24, 32))
    gates.take(call(gates, A, B), recorded)
    close(torch.mm(A, B), (A.double() @ B.double()).float())
    assert [each[3] for each in driver.launched] == [0]


def test_what_lies_otherwise_is_not_launched(gates: CompiledGates, driver: StandIn) -> None:
    gates.take(call(gates, A, B), launch(driver))
    wide = torch.rand(M, 2 * N)
    wanted = (A.double() @ B.double()).float()
    close(torch.mm(A.t().contiguous().t(), B), wanted)
    close(torch.mm(wide[:, :N], B), (wide[:, :N].double() @ B.double()).float())
    close(torch.mm(A.double(), B.double()), A.double() @ B.double())
    close(torch.mm(A, B, out=torch.empty(K, M).t()), wanted)
    square = torch.rand(M, K)
    with pytest.raises(RuntimeError):
        torch.mm(A, B, out=square.double())
    with pytest.raises(RuntimeError):
        torch.mm(A[None], B)
    with pytest.raises(RuntimeError):
        torch.mm(B, B)
    assert driver.launched == []


def test_results_do_not_overwrite_operands(gates: CompiledGates, driver: StandIn) -> None:
    both = torch.rand(M * N + M * K)
    a, out = both[: M * N].view(M, N), both[M * N - 3 : M * N - 3 + M * K].view(M, K)
    gates.take(call(gates, a, B), launch(driver))
    torch.mm(a, B, out=out)  # by PyTorch, whatever its library makes of that
    assert driver.launched == []


def test_sums(gates: CompiledGates, driver: StandIn) -> None:
    wanted = (A.double() @ B.double() + ROW).float()
    gates.take(call(gates, A, B, ROW), launch(driver, 4))
    close(torch.addmm(ROW, A, B), wanted)
    close(torch.nn.functional.linear(A, B.t(), ROW), wanted)
    assert len(driver.launched) == 2
    close(torch.addmm(ROW, A, B, beta=2), wanted + ROW)
    close(torch.addmm(ROW, A, B, alpha=0.5), (wanted + ROW) / 2)
    close(torch.addmm(ROW, A, B, out=torch.empty(M, K)), wanted)
    close(torch.addmm(torch.ones(M, K), A, B), wanted - ROW + 1)
    assert len(driver.launched) == 2
    gates.clear()
    gates.take(call(gates, A, B, ROW), launch(driver), afterwards=True)
    close(torch.addmm(ROW, A, B), wanted)
    assert len(driver.launched) == 3


def test_stacks(gates: CompiledGates, driver: StandIn) -> None:
    a, b = A.expand(1, M, N), B.expand(1, N, K)
    gates.take(Call(gates.state, NUMBER, "bmm", (a, b)), launch(driver))
    close(torch.bmm(a, b)[0], (A.double() @ B.double()).float())
    assert len(driver.launched) == 1


def test_a_workspace_is_clear_once(gates: CompiledGates, driver: StandIn) -> None:
    at = RecordedAddress(32, WORKSPACE, 0)
    small, large = (
        replace(
            launch(driver),
            addresses=(*launch(driver).addresses, at),
            workspace_bytes=size,
            zeroed_bytes=zeroed,
        )
        for size, zeroed in ((256, 64), (1024, 128))
    )
    gates.take(call(gates, A, B), small)
    other = B + 1
    for _ in range(2):
        torch.mm(A, B)
    (workspace,) = {each[4] for each in driver.launched}
    assert driver.cleared == [(workspace, 64)]
    gates.take(call(gates, A, other[:, :]), large)  # lies alike: takes its place
    torch.mm(A, B)
    moved = driver.launched[-1][4]
    assert driver.cleared[1:] == [(moved, 128)]
    gates.take(call(gates, A, B), small)  # which leaves no more than that of it clear
    torch.mm(A, B)
    gates.take(call(gates, A, B), large)
    torch.mm(A, B)
    assert driver.launched[-1][4] == moved
    assert driver.cleared[2:] == [(moved + 64, 64)]
    driver.capturing = 1  # whose memory is the graph's
    close(torch.mm(A, B), (A.double() @ B.double()).float())
    assert len(driver.launched) == 5


def test_tensor_maps_get_addresses(gates: CompiledGates, driver: StandIn) -> None:
    recorded = replace(
        launch(driver),
        arguments=struct.pack("5Q", 1, 1, 0, 1, 0).ljust(MAP_AT + 2 * MAP_BYTES, b"\0"),
        maps=(RecordedAddress(MAP_AT, 0, 0), RecordedAddress(MAP_AT + MAP_BYTES, 2, 32)),
    )
    gates.take(call(gates, A, B), recorded)
    made = torch.mm(A, B)
    assert driver.replaced == [A.data_ptr(), made.data_ptr() + 32]
    odd = torch.rand(M * N + 1)[1:].view(M, N)
    close(torch.mm(odd, B), (odd.double() @ B.double()).float())
    assert len(driver.launched) == 1


def test_pytorch_computes_what_the_driver_refuses(gates: CompiledGates, driver: StandIn) -> None:
    gates.take(call(gates, A, B), launch(driver))
    driver.status = 719
    close(torch.mm(A, B), (A.double() @ B.double()).float())
    assert len(driver.launched) == 1


@pytest.mark.parametrize("place", [torch.backends, torch.backends.cuda.matmul])
def test_strict_kernels_leave_what_may_be_rounded(
    gates: CompiledGates, driver: StandIn, place: Any
) -> None:
    gates.take(call(gates, A, B), launch(driver), strict=True)
    torch.mm(A, B)
    before = place.fp32_precision
    place.fp32_precision = "tf32"
    try:
        torch.mm(A, B)
    finally:
        place.fp32_precision = before
    assert len(driver.launched) == 1
    torch.mm(A, B)
    assert len(driver.launched) == 2


def test_what_was_decided_is_forgotten(gates: CompiledGates, driver: StandIn) -> None:
    old = call(gates, A, B)
    gates.take(old, launch(driver))
    gates.clear()
    torch.mm(A, B)
    gates.take(old, launch(driver))  # of a state that is gone
    torch.mm(A, B)
    gates.take(call(gates, A, B), launch(driver))
    gates.select(NUMBER + 1)
    torch.mm(A, B)
    gates.select(0)
    torch.mm(A, B)
    assert driver.launched == []
    gates.select(NUMBER)
    torch.mm(A, B)
    gates.pass_on(call(gates, A, B))
    torch.mm(A, B)
    assert len(driver.launched) == 1


def test_an_operators_calls_are_its_threads(
    gates: CompiledGates, driver: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = switch._Selected(lambda problem: None, None, NUMBER)
    monkeypatch.setitem(switch._OWN_BY_NUMBER, NUMBER, nothing)
    gates.take(call(gates, A, B), launch(driver))
    gates.select(0)
    counts: list[int] = []

    def work() -> None:
        torch.mm(A, B)
        counts.append(len(driver.launched))

    def multiply(*operands: Any) -> Any:
        other = threading.Thread(target=work)
        other.start()
        other.join()
        return torch.mm(*operands)

    own = gates.enter, gates.leave, NUMBER
    monkeypatch.setattr(switch, "_is_on_gpu", lambda tensor: True)
    monkeypatch.setitem(switch._OWN, ("torch mm", ""), own)
    close(switch.by_gates("torch mm", "", multiply, A, B), (A.double() @ B.double()).float())
    assert counts == [0]
    assert len(driver.launched) == 1
    with pytest.raises(RuntimeError):
        switch.by_gates("torch mm", "", torch.mm, B, B)
    torch.mm(A, B)
    assert len(driver.launched) == 1


class Seeing(TorchDispatchMode):
    """Sees what the dispatcher is given."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_no_operator_enters_where_its_call_is_seen(gates: CompiledGates) -> None:
    def entered(*_: Any) -> int:
        number = int(gates.enter(NUMBER))
        assert gates.owner() == (NUMBER if number else 0)
        gates.leave()
        assert gates.owner() == 0
        return number

    seen: list[int] = []

    def note(x: torch.Tensor) -> torch.Tensor:
        seen.append(entered())
        return x

    assert entered() == 1
    with Seeing():
        assert entered() == 0
    torch.vmap(note)(A)
    torch.func.grad(lambda x: note(x).sum())(A)
    assert seen == [0, 0]
    with torch.device("cpu"):  # a mode, but one that sees no products
        assert entered() == 2
    with torch.autocast("cpu"):
        assert entered() == 1
    assert entered() == 1


def test_what_an_operator_is_told_is_its_own(
    gates: CompiledGates, driver: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switch._SWITCH, "gates", lambda device: gates)
    monkeypatch.setattr(switch, "_is_on_gpu", lambda tensor: True)
    found = switch._find_own("torch mm", "")
    assert found is not None
    assert switch._find_own("torch mm", "") == found
    told: list[Any] = []
    monkeypatch.setattr(gates, "pass_on", lambda call: told.append(call[:3]))
    gates.select(0)
    a, b = A.bfloat16(), B.bfloat16()  # which no kernel here takes
    switch.by_gates("torch mm", "", torch.mm, a, b)
    torch.mm(a, b)
    assert told == [(gates.state, found[2], "mm")]


def test_tables_are_bounded(
    gates: CompiledGates, driver: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_MOST", 3)
    gates.take(call(gates, A, B), launch(driver))
    torch.mm(A, B)
    for rows in range(1, 4):
        gates.pass_on(call(gates, torch.ones(rows, N), B))
    torch.mm(A, B)
    assert len(driver.launched) == 1


def test_gradients(gates: CompiledGates, driver: StandIn) -> None:
    gates.take(call(gates, A, B), launch(driver))
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    torch.mm(a, b).sum().backward()
    close(a.grad, torch.ones(M, K) @ B.t())
    close(b.grad, A.t() @ torch.ones(M, K))
    assert len(driver.launched) == 1


def test_threads_and_forks(gates: CompiledGates, driver: StandIn) -> None:
    gates.take(call(gates, A, B), launch(driver))
    wanted = (A.double() @ B.double()).float()
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(200):
                close(torch.mm(A, B), wanted)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for _ in range(50):
        gates.clear()
        gates.take(call(gates, A, B), launch(driver))
    for each in threads:
        each.join()
    assert not wrong, wrong[0]
    child = os.fork()
    if not child:
        os._exit(not torch.mm(A, B).allclose(wanted))
    assert os.waitpid(child, 0)[1] == 0
