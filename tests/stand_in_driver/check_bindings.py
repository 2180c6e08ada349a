"""Run by pytest with the stand-in loaded: the bindings' driver, and calls that are captured."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_arrays import InterfaceArray
from test_driver import STEP, DriverConformance

from autotune.core.configuration import Candidate
from autotune.core.errors import InputError, LaunchError
from autotune.distributed.machine import GpuMachine, LocalKernel, Products
from autotune.families.gpu.keeping import KeptPlan
from autotune.families.gpu.launch import (
    Binary,
    LaunchPlan,
    LaunchStep,
    MappedOperand,
    MappedRegion,
)
from autotune.families.gpu.planning import planner_of
from autotune.families.program_cache import ProgramCache
from autotune.gpu.arrays import kernel as arrays
from autotune.gpu.arrays.kernel import DeviceProduct
from autotune.gpu.driver import NVIDIA, Retained, activated, driver, find_vendor, wait
from autotune.gpu.interface import Boxes, Driver, DriverError
from autotune.gpu.launch.kernel import (
    GpuKernel,
    Launch,
    keeping_launch,
    recorded_launch,
    resident_launch,
)
from autotune.gpu.launch.program import GpuProgram
from autotune.gpu.launch.scratch import Allocate, SharedScratch
from autotune.gpu.measure.memory import GuardedMatrix
from autotune.gpu.nvidia import vendor as driver_module
from autotune.gpu.nvidia.bindings import BindingsDriver
from autotune.gpu.nvidia.calls import call
from autotune.gpu.nvidia.device import load_driver
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.formula import Formula
from autotune.operations.operation import Operation
from autotune.operations.parts import Operand
from autotune.operations.problem import Gemm
from autotune.serving.recorded import ATTRIBUTE_BYTES, WORKSPACE
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

# PyCUDA, where it is installed, knows the stand-in for what it is.
driver_module.has_pycuda = lambda: False


class TestStandIn(DriverConformance):
    """The bindings, without a GPU; and what a capture of another thread forbids."""

    @pytest.fixture(scope="class")
    @classmethod
    def here(cls) -> Driver:
        return driver()

    @pytest.fixture
    def cubin(self) -> bytes:
        return b"\x7fELF of add"

    @pytest.mark.parametrize(("workspace", "zeroed"), [(None, 0), (0, 0), (1024, 0), (1024, 64)])
    def test_a_first_call_is_captured(
        self, cubin: bytes, workspace: int | None, zeroed: int
    ) -> None:
        """The graph has the kernel alone: its workspace is there, and clear, before."""
        step = LaunchStep("add", (1, 1, 1), (1, 1, 1))
        plan = LaunchPlan((8, 8, 8), (step,), workspace, zeroed_bytes=zeroed)
        program = GpuProgram(cubin, plan, "float32")
        with captured() as stream:
            kernel = GpuKernel(program)
            assert driver().is_capturing(stream)
            kernel.launch(0, 8, 0, 8, 0, 8, stream=stream)
            kernel.launch(0, 8, 0, 8, 0, 8)  # meanwhile, on another one
        assert clearings() == 0
        kernel.launch(0, 8, 0, 8, 0, 8, stream=stream)
        kernel.close()

    def test_a_kernel_that_waits_itself_may_begin_earlier(
        self, here: Driver, cubin: bytes
    ) -> None:
        before = count_of("dependent_launches")
        for dependent in (False, True):
            step = LaunchStep("add", (1, 1, 1), (1, 1, 1), dependent=dependent)
            here.load(cubin).runner([step])(bytes(16), here.stream())
        assert count_of("dependent_launches") == before + 1

    def test_blocks_that_wait_for_each_other_are_there_at_once(self, cubin: bytes) -> None:
        before = count_of("cooperative_launches")
        for blocks, refused in ((4, False), (5, True)):
            step = LaunchStep("add", (blocks, 1, 1), (1, 1, 1), cooperative=True)
            kernel = GpuKernel(GpuProgram(cubin, LaunchPlan((8, 8, 8), (step,)), "float32"))
            told: Any = pytest.raises(LaunchError, match="LAUNCH_TOO_LARGE")
            with told if refused else contextlib.nullcontext():
                kernel.launch(0, 8, 0, 8, 0, 8)
            kernel.close()
        assert count_of("cooperative_launches") == before + 1

    def test_what_is_let_go_spoils_no_capture(self, here: Driver, cubin: bytes) -> None:
        module, memory = here.load(cubin), here.allocate(64)
        run = module.runner([STEP])
        with captured():
            del module, memory, run
            gc.collect()

    def test_another_thread_may_load_and_call(self, cubin: bytes) -> None:
        step = LaunchStep("add", (1, 1, 1), (1, 1, 1))
        program = GpuProgram(cubin, LaunchPlan((8, 8, 8), (step,), 1024), "float32")
        wrong: list[BaseException] = []

        def work() -> None:
            try:
                GpuKernel(program).launch(0, 8, 0, 8, 0, 8, stream=0)
            except BaseException as error:
                wrong.append(error)

        with captured():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert not wrong, wrong[0]

    def test_the_stand_in_forbids_what_the_driver_does(self, here: Driver) -> None:
        spoilt = pytest.raises(DriverError, match="STREAM_CAPTURE_INVALIDATED")
        refused = pytest.raises(DriverError, match="STREAM_CAPTURE_UNSUPPORTED")
        with spoilt, captured(), refused:
            here.allocate(64)

    def test_streams_of_a_capture_wait_for_none_outside(self) -> None:
        retained = Retained()
        with captured() as stream:
            wait(0, stream, 0)
            wait(0, 0, stream)
            retained.hold(0, stream, object())
            assert not retained._held
            retained.hold(0, 0, object())


class TestMachine:
    """What programs use of the GPUs, on the stand-in: matrices of all kinds travel."""

    @pytest.fixture
    def machine(self) -> Iterator[GpuMachine]:
        products = Products(kernels("float64"), ProgramCache(Path("nowhere")))
        with GpuMachine([0], "float64", products) as made, made.here(0):
            yield made

    @pytest.mark.parametrize("columns", [1, 5, 8])
    @pytest.mark.parametrize("rows", [1, 7])
    def test_matrices_travel(self, machine: GpuMachine, rows: int, columns: int) -> None:
        values = np.random.default_rng(0).random((rows, columns + 3))[:, :columns]
        stream = machine.stream(0)
        first, second = (machine.memory(0, rows + 2, 8 + pad) for pad in (0, 4))
        inner = first[1:-1, 2 : 2 + columns] if columns < 6 else first[1:-1, :columns]
        machine.copy(inner, values, stream)
        machine.copy(second[:rows, 1 : 1 + columns], inner, stream)
        back = np.zeros((rows, columns + 1))
        machine.copy(back[:, 1:], second[:rows, 1 : 1 + columns], stream)
        machine.finish(stream)
        assert (back[:, 1:] == values).all()
        assert (back[:, 0] == 0).all()
        machine.free(first)
        machine.free(second)

    def test_streams_and_events_are_used_again(self, machine: GpuMachine) -> None:
        stream, other = machine.stream(0), machine.stream(0)
        event = machine.record(stream)
        machine.wait(other, event)
        machine.finish(event)
        assert machine.is_past(event)
        assert machine.record(other) is not event
        machine.reuse_events()
        assert event in [machine.record(stream) for _ in range(2)]
        machine.free(stream)
        assert machine.stream(0) is stream

    def test_an_urgent_stream_is_used_again_as_one(self, machine: GpuMachine) -> None:
        urgent = machine.stream(0, urgent=True)
        machine.free(urgent)
        assert machine.stream(0) is not urgent
        assert machine.stream(0, urgent=True) is urgent

    def test_memory_of_the_host_is_page_locked(self, machine: GpuMachine) -> None:
        array = np.zeros((30, 40))[:, :20]
        locked = machine.lock(array)
        assert machine.is_locked(array)
        machine.unlock(locked)
        assert not machine.is_locked(array)
        bytes_ = machine.pinned(100, "uint8")
        assert (bytes_.dtype, bytes_.shape) == (np.uint8, (100,))
        assert machine.is_locked(bytes_)
        machine.free(bytes_)


def kernels(dtype: str) -> list[LocalKernel]:
    """One for large reductions alone, and one for any sizes, as ranks are sent them."""
    limits = find_gpu("h200").limits
    families, made = load_families(target="cuda"), []
    for name, sizes in (("pipelined", (64, 65536, 64)), ("naive", (64, 64, 64))):
        problem = Gemm(*sizes, dtype)
        chosen = families[name].default(problem, limits)
        if name == "pipelined":
            space = families[name].space(problem, limits)
            row = space.nearest({**chosen, "splits": 128}, ())
            assert row is not None
            chosen = space[row]
        binary = Binary(b"\x7fELF of gemm", limits.architecture, None)
        digest = families[name].digest
        made.append(LocalKernel(Candidate(name, chosen), digest, dtype, limits, binary))
    return made


def test_blocks_of_any_size_have_a_product() -> None:
    """Nothing is compiled: there is no folder for programs."""
    products = Products(kernels("float32"), ProgramCache(Path("nowhere")))
    for sizes in ((1, 1, 1), (7, 1000, 3), (64, 65536, 64), (1000, 63, 500)):
        launch = products.launch(0, *sizes)
        launch(0, sizes[1], 0, sizes[2], 0, sizes[2], 1.0, 0.0, None)
        assert products.launch(0, *sizes) is launch
    products.close()


def test_ranks_have_the_families_that_kernels_were_made_from() -> None:
    first, *_ = kernels("float32")
    other = replace(first, digest="0" * 16)
    with pytest.raises(InputError, match="'pipelined' of target cuda must be the same on all"):
        Products([other], ProgramCache(Path("nowhere")))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("padding", [0, 3])
def test_guards_tell_of_writes_around_a_matrix(padding: int, dtype: str) -> None:
    values = np.random.default_rng(0).random((5, 7)).astype(dtype)
    guarded = GuardedMatrix(0, values.shape, dtype, padding)
    guarded.write(values)
    back, intact = guarded.read()
    assert (back == values).all()
    assert intact
    size, matrix = values.itemsize, guarded.matrix
    last = 4 * matrix.stride + 6  # of the matrix
    places = [-1, last + 1 + padding] + ([7] if padding else [])
    for place in places:
        guarded.write(values)
        with activated(0):
            driver().upload(matrix.address + place * size, np.zeros(1, dtype))
        back, intact = guarded.read()
        assert (back == values).all()
        assert not intact, place
    guarded.write(values)
    with activated(0):
        driver().upload(matrix.address + last * size, np.zeros(1, dtype))
    back, intact = guarded.read()
    assert intact
    assert back[-1, -1] == 0
    guarded.free()


def loaded() -> int:
    """Binaries that are loaded."""
    return count_of("modules")


def test_code_outlives_who_loaded_it() -> None:
    """Graphs launch what was captured, whoever is still there; code goes when told to."""
    here, before = driver(), loaded()
    here.enter(0)
    here.load(b"\x7fELF of add").runner([STEP])
    gc.collect()
    assert loaded() == before + 1
    here.load(b"\x7fELF of add").unload()
    assert loaded() == before + 1
    here.leave()


def test_a_machine_leaves_no_code() -> None:
    before = loaded()
    products = Products(kernels("float32"), ProgramCache(Path("nowhere")))
    with GpuMachine([0], "float32", products):
        products.launch(0, 8, 8, 8)
        assert loaded() > before
    assert loaded() == before


def program(cubin: bytes, *sizes: int, shared_bytes: int = 0) -> GpuProgram:
    step = LaunchStep("gemm", (1, 1, 1), (32, 1, 1), shared_bytes)
    return GpuProgram(cubin, LaunchPlan(sizes, (step,)), "float32")


def test_a_binary_is_loaded_once_for_all_sizes() -> None:
    before = loaded()
    cubin = b"\x7fELF that stays"
    launches = [
        resident_launch(program(cubin, m, 8, 8, shared_bytes=m * 1024), 0) for m in (8, 64, 16)
    ]
    # An equal binary, read a second time, is the same.
    launches.append(resident_launch(program(bytes(bytearray(cubin)), 9, 9, 9), 0))
    assert loaded() == before + 1
    for launch in launches:
        launch(0, 8, 0, 8, 0, 8)
    resident_launch(program(cubin + b", too", 8, 8, 8), 0)
    assert loaded() == before + 2


def test_a_binary_that_is_refused_is_tried_again() -> None:
    for _ in range(2):
        with pytest.raises(LaunchError, match="INVALID_IMAGE"):
            resident_launch(program(b"no binary", 8, 8, 8), 0)
    with pytest.raises(LaunchError, match="INVALID_VALUE"):
        resident_launch(program(b"\x7fELF", 8, 8, 8, shared_bytes=2**20), 0)
    resident_launch(program(b"\x7fELF", 8, 8, 8), 0)


def test_arguments_are_packed_in_the_order_of_the_kernel() -> None:
    # What `add` takes: an address, what to add, to how many. Of rows that follow each other it is
    # told nothing.
    operands = (Operand("x", ("count", "by"), True),)
    takes = ("x", "by", "count")
    defined = Operation("add", ("count", "by"), operands, Formula("x + 1"), "count", takes=takes)
    step = LaunchStep("add", (1, 1, 1), (32, 1, 1))
    cubin = b"\x7fELF of add"
    launch = GpuKernel(
        GpuProgram(cubin, LaunchPlan((3, 7), (step,)), "float32", defined=defined)
    ).launch
    memory = np.arange(5, dtype=np.uint32)
    launch(memory.ctypes.data, 7)
    assert memory.tolist() == [7, 8, 9, 3, 4]


MAP = struct.Struct("QQQQIIII")
"""What the stand-in's maps tell: address, columns, rows, stride, box, type, swizzle."""


class TestTensorMaps:
    """A 40 x 72 by 72 x 24 product of float16, its operands in boxes."""

    SIZES = 40, 72, 24
    MAPS = (
        MappedOperand("A", False, (64, 64), 128),
        MappedOperand("B", False, (64, 64), 128),
    )
    ARGUMENTS = struct.calcsize("iiifPiPifPi")

    @pytest.fixture
    def launch(self) -> Launch:
        return GpuKernel(self.program()).launch

    def program(self, **changes: Any) -> GpuProgram:
        step = LaunchStep("gemm", (1, 1, 1), (32, 1, 1))
        plan = LaunchPlan(self.SIZES, (step,), maps=self.MAPS)
        made = GpuProgram(b"\x7fELF maps", plan, "float16", support=b"\x7fELF that copies")
        return replace(made, **changes)

    def maps(self, count: int = 2) -> list[tuple[int, ...]]:
        """Of the last launch, whose maps begin at multiples of 64 bytes."""
        first = -(-self.ARGUMENTS // 64) * 64
        packed = arguments_of_launch(-1)
        return [MAP.unpack_from(packed, first + 128 * place) for place in range(count)]

    def test_operands_are_described_as_they_lie(self, launch: Launch) -> None:
        launch(1 << 20, 80, 1 << 21, 32, 1 << 22, 24)
        assert self.maps() == [
            (1 << 20, 72, 40, 160, 64, 64, 6, 3),
            (1 << 21, 24, 72, 64, 64, 64, 6, 3),
        ]

    def test_maps_are_made_once_for_an_address(self, launch: Launch) -> None:
        for _ in range(3):
            launch(1 << 20, 80, 1 << 21, 32, 1 << 22, 24)
        before = count_of("encoded")
        launch(1 << 20, 80, 1 << 21, 32, 1 << 22, 24)
        launch(1 << 20, 80, 1 << 21, 32, 1 << 23, 24)
        assert count_of("encoded") == before
        launch(1 << 20, 88, 1 << 21, 32, 1 << 22, 24)
        assert count_of("encoded") == before + 1

    @pytest.mark.parametrize(
        ("at_a", "lda", "at_b", "ldb", "copied"),
        [
            (1 << 20, 80, 1 << 21, 32, ""),
            ((1 << 20) + 2, 80, 1 << 21, 32, "a"),
            (1 << 20, 73, 1 << 21, 32, "a"),
            (1 << 20, 80, (1 << 21) + 8, 32, "b"),
            ((1 << 20) + 4, 80, 1 << 21, 25, "ab"),
        ],
    )
    def test_what_lies_badly_is_copied(
        self, launch: Launch, at_a: int, lda: int, at_b: int, ldb: int, copied: str
    ) -> None:
        launch(1 << 20, 80, 1 << 21, 32, 1 << 22, 24)
        before = count_of("launches")
        launch(at_a, lda, at_b, ldb, 1 << 22, 24)
        assert count_of("launches") == before + bool(copied) + 1  # one launch copies both
        wanted = [(at_a, 72, 40, 2 * lda), (at_b, 24, 72, 2 * ldb)]
        for place, name in enumerate(copied):
            number = "ab".index(name)
            address, columns, rows, stride = wanted[number]
            copy = struct.Struct("PqqqPq")
            *source, to, apart = copy.unpack_from(arguments_of_launch(-2), place * copy.size)
            assert source == [address, stride // 2, rows, columns]
            assert apart == columns  # whole 16 bytes
            wanted[number] = to, columns, rows, 2 * apart
        assert [each[:4] for each in self.maps()] == wanted
        assert all(each[0] % 16 == 0 for each in self.maps())

    def test_regions_are_described_where_the_workspace_is(self) -> None:
        """No operand is copied for them, so no kernels that copy are needed."""
        region = MappedRegion("bfloat16", 256, 40, 72, 80)
        plan = LaunchPlan(
            self.SIZES,
            (LaunchStep("gemm", (1, 1, 1), (32, 1, 1)),),
            workspace_bytes=8192,
            maps=(MappedOperand("high", False, (64, 64), 128, region=region),),
        )
        program = self.program(plan=plan, support=b"")
        assert not program.copies
        GpuKernel(program).launch((1 << 20) + 4, 73, 1 << 21, 25, 1 << 22, 24)
        packed = arguments_of_launch(-1)
        size = struct.calcsize(f"{'iiifPiPifPi'}P")
        (workspace,) = struct.unpack_from("P", packed, size - struct.calcsize("P"))
        (address, *rest) = MAP.unpack_from(packed, -(-size // 64) * 64)
        assert workspace
        assert address == workspace + 256
        assert rest[:5] == [72, 40, 160, 64, 64]

    def test_results_have_a_map_where_they_can(self) -> None:
        """Of their own element type; nothing is copied where they lie badly."""
        maps = (*self.MAPS, MappedOperand("C", False, (64, 32), 128))
        plan = LaunchPlan(self.SIZES, (LaunchStep("gemm", (1, 1, 1), (32, 1, 1)),), maps=maps)
        launch = GpuKernel(self.program(plan=plan, out_dtype="float32")).launch
        for _ in range(2):
            launch(1 << 20, 80, 1 << 21, 32, 1 << 22, 28)
        mapped = self.maps(3)
        assert mapped[2] == (1 << 22, 24, 40, 112, 32, 64, 7, 3)
        before = count_of("encoded"), count_of("launches")
        for at_c, ldc in ((1 << 22, 28), ((1 << 22) + 4, 28), (1 << 22, 25)):
            launch(1 << 20, 80, 1 << 21, 32, at_c, ldc)
            nothing = (0,) * len(mapped[2])
            assert self.maps(3)[:2] == mapped[:2]
            assert self.maps(3)[2] == (mapped[2] if (at_c, ldc) == (1 << 22, 28) else nothing)
        assert (count_of("encoded"), count_of("launches")) == (before[0], before[1] + 3)
        launch(1 << 20, 80, 1 << 21, 32, 1 << 23, 28)
        assert self.maps(3)[2][0] == 1 << 23

    def test_a_launch_can_be_recorded(self) -> None:
        """With addresses in their places it is what the launch passes to the driver."""
        region = MappedRegion("float16", 256, 40, 72, 80)
        plan = LaunchPlan(
            self.SIZES,
            (LaunchStep("gemm", (1, 2, 3), (32, 1, 1), dependent=True),),
            workspace_bytes=8192,
            zeroed_bytes=64,
            maps=(
                *self.MAPS,
                MappedOperand("C", False, (64, 32), 128),
                MappedOperand("high", False, (64, 64), 128, region=region),
            ),
        )
        program = self.program(plan=plan)
        at, steps = (1 << 20, 1 << 21, 1 << 22), (80, 32, 24)
        launch = resident_launch(program, 0)
        launch(*itertools.chain(*zip(at, steps, strict=True)))
        wanted = arguments_of_launch(-1)
        recorded = recorded_launch(program, 0, [(step,) for step in steps])
        assert recorded is not None
        assert (recorded.workspace_bytes, recorded.zeroed_bytes) == (8192, 64)
        assert [step.extents for step in recorded.steps] == [(1, 2, 3, 32, 1, 1, 0)]
        ((attribute,),) = (step.attributes for step in recorded.steps)
        assert len(attribute) == ATTRIBUTE_BYTES
        assert struct.unpack("3i", attribute[:12]) == (6, 0, 1)
        assert not any(attribute[12:])
        size = struct.calcsize("iiifPiPifPiP")
        (workspace,) = struct.unpack_from("P", wanted, size - struct.calcsize("P"))
        places = dict(enumerate(at)) | {WORKSPACE: workspace}
        made = bytearray(recorded.arguments)
        for offset, operand, apart in (*recorded.addresses, *recorded.maps):
            struct.pack_into("P", made, offset, places[operand] + apart)
        assert made == wanted[: len(made)]
        assert len(recorded.addresses) == 4
        # A and B that are copied are no others' to launch on; a result without a map is.
        assert recorded_launch(program, 0, [(81,), (32,), (24,)]) is None
        apart = recorded_launch(program, 0, [(80,), (32,), (25,)])
        assert apart is not None
        assert [each.operand for each in apart.maps] == [0, 1, WORKSPACE]

    def test_recorded_launches_have_the_plan_that_was_asked_for(self) -> None:
        """A module is loaded once for all sizes."""
        for rows in (40, 64):
            plan = replace(self.program().plan, sizes=(rows, 72, 24))
            program = self.program(plan=plan, cubin=b"\x7fELF of many sizes")
            resident_launch(program, 0)
            recorded = recorded_launch(program, 0, [(80,), (32,), (24,)])
            assert recorded is not None
            assert struct.unpack_from("i", recorded.arguments) == (rows,)

    def test_a_copy_belongs_to_the_graph(self) -> None:
        with activated(0), captured() as stream:
            kernel = GpuKernel(self.program())
            kernel.launch(1 << 20, 80, 1 << 21, 32, 1 << 22, 24, stream=stream)
            kernel.launch((1 << 20) + 2, 80, 1 << 21, 32, 1 << 22, 24, stream=stream)
        assert clearings() == 0

    def test_transposed_copies_have_rows_for_maps(self) -> None:
        """A kernel that reads B as stored transposed, of which rows of N elements are apart."""
        maps = (self.MAPS[0], replace(self.MAPS[1], transposed=True))
        step = LaunchStep("gemm", (1, 1, 1), (32, 1, 1))
        plan = LaunchPlan((40, 70, 24), (step,), maps=maps)
        launch = GpuKernel(self.program(plan=plan, kernel_layout="nt")).launch
        launch(1 << 20, 80, 1 << 21, 25, 1 << 22, 24)
        *source, to, apart = struct.unpack_from("PqqqPq", arguments_of_launch(-2))
        assert source == [1 << 21, 25, 70, 24]
        assert apart == 72
        assert self.maps()[1][:4] == (to, 70, 24, 144)

    def test_operations_of_ones_own_have_them(self) -> None:
        operands = (
            Operand("C", ("M", "K"), True),
            Operand("A", ("M", "N")),
            Operand("B", ("N", "K")),
        )
        maps = (*self.MAPS, MappedOperand("C", False, (64, 64), 128))
        takes = ("c", "ldc", "b", "ldb", "a", "lda")
        defined = Operation("gemm", ("M", "N", "K"), operands, Formula("A @ B"), "M", takes=takes)
        plan = LaunchPlan(self.SIZES, (LaunchStep("gemm", (1, 1, 1), (32, 1, 1)),), maps=maps)
        launch = GpuKernel(self.program(defined=defined, plan=plan)).launch
        launch(1 << 22, 24, 1 << 20, 80, (1 << 21) + 2, 32)
        copied = struct.unpack_from("PqqqPq", arguments_of_launch(-2))
        assert copied[:4] == ((1 << 21) + 2, 32, 72, 24)
        packed = arguments_of_launch(-1)
        first, second, third = (MAP.unpack_from(packed, 64 + 128 * place) for place in range(3))
        assert first[:4] == (1 << 20, 72, 40, 160)
        assert second[:4] == (copied[4], 24, 72, 48)
        assert third[:4] == (1 << 22, 24, 40, 48)
        assert struct.unpack_from("PiPiPi", packed)[2:5:2] == (copied[4], 1 << 20)

    def test_without_what_copies_nothing_is_loaded(self) -> None:
        with pytest.raises(LaunchError, match="kernels that copy A"):
            GpuKernel(self.program(support=b""))

    @pytest.mark.parametrize(
        ("changes", "address", "leading"),
        [
            ({}, 8, 80),
            ({}, 16, 9),
            ({"box": (257, 64)}, 16, 80),
            ({"box": (64, 65)}, 16, 80),
            ({"box": (64, 128)}, 16, 80),
            ({"box": (64, 64), "swizzle": 64}, 16, 80),
        ],
    )
    def test_the_driver_refuses_what_hardware_cannot(
        self, changes: dict[str, Any], address: int, leading: int
    ) -> None:
        boxes = replace(Boxes("float16", 40, 72, (64, 64), 128), **changes)
        with pytest.raises(DriverError, match=r"INVALID_VALUE: cuTensorMapEncodeTiled"):
            driver().tensor_map(boxes, address, leading)

    @pytest.mark.parametrize(
        ("dtype", "rounded", "number"),
        [("float16", "", 6), ("bfloat16", "", 9), ("float32", "", 7), ("float32", "tf32", 11)],
    )
    def test_element_types(self, dtype: str, rounded: str, number: int) -> None:
        boxes = Boxes(dtype, 5, 6, (8, 16), 0, rounded)
        assert MAP.unpack_from(driver().tensor_map(boxes, 32, 16))[6:] == (number, 0)


def test_launchers_go_with_those_who_hold_them() -> None:
    kernel = GpuKernel(program(b"\x7fELF", 8, 8, 8))
    launches = [kernel.launcher(program(b"", m, 8, 8).plan) for m in range(1, 9)]
    held = len(kernel._launchers)
    del launches[1:]
    gc.collect()
    assert len(kernel._launchers) == held - 7
    kernel.close()
    with pytest.raises(LaunchError, match="was closed"):
        launches[0](0, 8, 0, 8, 0, 8)


@pytest.mark.parametrize("handle", [0, 7, 2])
def test_kernels_share_memory_that_is_zero_where_it_must_be(handle: int) -> None:
    scratch = SharedScratch(0)
    rng = np.random.default_rng(handle)
    places: dict[int, int] = {}

    def work(size: int, zeroed: int) -> None:
        def enqueue(allocate: Allocate) -> None:
            address = allocate(handle, "workspace", size, zeroed)
            places[size] = address
            memory = (ctypes.c_char * size).from_address(address)
            assert not any(memory.raw[:zeroed])
            memory[zeroed:] = b"x" * (size - zeroed)  # what must be zero is left so

        scratch.lend(handle, enqueue)

    for size in (100, 50, 100, 20):
        work(size, 0)
    assert len(set(places.values())) == 1
    for _ in range(200):
        size = 4 * int(rng.integers(1, 3000))
        work(size, 4 * int(rng.integers(0, size // 4 + 1)))
    scratch.free()


def test_shared_memory_belongs_to_streams() -> None:
    scratch, places = SharedScratch(0), set()
    for stream, name in itertools.product((0, 7), ("workspace", "a")):
        scratch.lend(stream, lambda get, on=(stream, name): places.add(get(*on, 64, 0)))
    assert len(places) == 4
    scratch.free()


def test_memory_of_captured_calls_belongs_to_their_graph() -> None:
    scratch = SharedScratch(0)

    def capture(*wanted: tuple[int, int]) -> list[int]:
        found: list[int] = []
        with activated(0), captured() as stream:
            for size, zeroed in wanted:
                scratch.lend(
                    stream, lambda get, of=(size, zeroed): found.append(get(stream, "w", *of))
                )
        assert clearings() == 0
        return found

    # Calls of a graph share it, but for what others of them leave zero.
    first = capture((64, 0), (64, 0), (64, 16), (32, 16), (64, 32))
    assert first[0] == first[1] != first[2] == first[3] != first[4]
    assert ctypes.string_at(first[2], 16) == bytes(16)
    (other,) = capture((64, 0))
    assert other not in first  # two graphs may be replayed at the same time
    ctypes.CDLL("libcuda.so.1").destroy_graph()
    assert capture((48, 0)) == [other]
    scratch.free()


class TestKept:
    """An operand that stays as it is: what is made of it is in memory of its own."""

    STEP = LaunchStep("gemm", (1, 1, 1), (32, 1, 1))
    PLANS = KeptPlan(
        LaunchPlan((0, 72, 24), (STEP,), 4096), LaunchPlan((40, 72, 24), (STEP,), 4096), 256
    )
    B = (0, 0, 1 << 21, 32, 0, 0)
    CALL = (1 << 20, 80, 1 << 21, 32, 1 << 22, 24)

    @pytest.fixture(autouse=True)
    def entered(self) -> Iterator[None]:
        driver().enter(0)
        yield
        driver().leave()

    def kept(self, stream: int = 7) -> tuple[Launch, Any]:
        program = GpuProgram(b"\x7fELF that splits", self.PLANS.call, "float32")
        return keeping_launch(program, self.PLANS, 0, self.B, stream)

    def arguments(self) -> tuple[Any, ...]:
        """Sizes, addresses of A, B and C, and the workspace, of the last launch."""
        m, n, k, _, a, _, b, _, _, c, _, workspace = struct.unpack_from(
            "iiifPiPifPiP", arguments_of_launch(-1)
        )
        return m, n, k, a, b, c, workspace

    def test_it_is_made_once_and_found_by_calls(self) -> None:
        before, finished = count_of("launches"), count_of("finished")
        launch, close = self.kept()
        assert count_of("finished") == finished + 1
        *first, workspace = self.arguments()
        assert first == [0, 72, 24, 0, 1 << 21, 0]
        for _ in range(2):
            launch(*self.CALL, stream=7)
            assert self.arguments() == (40, 72, 24, 1 << 20, 1 << 21, 1 << 22, workspace)
        assert count_of("launches") == before + 3
        assert count_of("finished") == finished + 1
        other, close_other = self.kept()
        assert self.arguments()[-1] not in (0, workspace)
        other(*self.CALL, stream=7)
        assert self.arguments()[-1] != workspace
        close()
        close_other()

    def test_memory_is_freed_once_and_calls_are_refused_then(self) -> None:
        self.kept()[1]()  # the module stays
        before = driver().free_bytes()
        launch, close = self.kept()
        assert driver().free_bytes() == before - 4096
        for _ in range(2):
            close()
            assert driver().free_bytes() == before
        with pytest.raises(LaunchError, match="was freed: keep it again"):
            launch(*self.CALL, stream=7)
        launch, close = self.kept()
        del launch, close
        gc.collect()
        assert driver().free_bytes() == before

    def test_streams_wait_for_the_last_call(self) -> None:
        launch, close = self.kept(stream=7)
        before, recorded = count_of("waits"), count_of("records")

        def waits(*on: int) -> int:
            """How often streams have waited, after calls on these."""
            for stream in on:
                launch(*self.CALL, stream=stream)
            return count_of("waits") - before

        assert waits(7, 7) == 0
        assert waits(9, 9) == 1
        assert waits(0, 9) == 3
        assert count_of("records") - recorded == 3  # none where streams stay
        assert waits(2) == 4
        # Of the call on a thread's own stream there is one already, which another thread finds.
        assert count_of("records") - recorded == 5

        def work() -> None:
            driver().enter(0)
            waits(2)  # another default stream

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert waits() == 5
        assert count_of("records") - recorded == 6
        with captured() as stream:
            assert waits(stream, stream) == 5
        assert waits(9) == 6  # after that of the thread, not of the graph
        close()

    def test_it_is_made_outside_of_captures(self) -> None:
        launch, close = self.kept()
        with captured() as stream:
            with pytest.raises(LaunchError, match="before the capture"):
                self.kept(stream)
            self.kept(stream=9)[1]()  # on another one, meanwhile
            launch(*self.CALL, stream=stream)
        assert clearings() == 0
        close()

    @pytest.mark.parametrize("name", ["split_fp16", "split_mma_fp64"])
    def test_kernels_of_families_that_split(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(arrays, "device_of", lambda address: 0)
        family = load_families(target="cuda")[name]
        problem = Gemm(100, 70, 60, family.dtypes[0], accuracy=family.accuracy)
        described = find_vendor(NVIDIA).described("h200")
        device = replace(described, state={"ordinal": "0"}, described=False)
        candidate = Candidate(name, family.default(problem, device.limits))
        plan = planner_of(family, candidate.configuration, problem.dtype, device.limits).plan(
            problem
        )

        def kernel(launch: LaunchPlan | None) -> DeviceProduct:
            binary = Binary(b"\x7fELF of this family", "sm_90", launch)
            programs = ProgramCache(Path("nowhere"))
            made = make_target("cuda").kernel(family, candidate, problem, device, programs, binary)
            assert isinstance(made, DeviceProduct)
            return made

        a, b, c = (
            InterfaceArray(np.zeros(shape, problem.dtype))
            for shape in (problem.a_shape, problem.b_shape, problem.c_shape)
        )
        before = count_of("launches")
        kept = kernel(None).keep(b, 7)
        assert kept is not None
        assert 0 < kept.bytes < (plan.workspace_bytes or 0)
        assert count_of("launches") == before + 1
        kept.call(a, b, c)
        assert count_of("launches") == before + 1 + len(plan.steps)
        kept.close()
        # A binary of another template may have it elsewhere.
        assert kernel(plan).keep(b, 7) is None


@contextlib.contextmanager
def captured() -> Iterator[int]:
    """A stream that is being captured, in the mode that forbids the most; fails where spoilt."""
    stream = BindingsDriver().stream()
    mode = load_driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    call("cuStreamBeginCapture", stream.handle, mode)
    try:
        yield stream.handle
    finally:
        call("cuStreamEndCapture", stream.handle)


def clearings() -> int:
    """Nodes of the last graph that clear memory."""
    return count_of("graph_nodes")


def arguments_of_launch(place: int) -> bytes:
    """What a kernel was launched with: -1 is the last one."""
    last = ((ctypes.c_char * 4096) * 8).in_dll(ctypes.CDLL("libcuda.so.1"), "launched")
    return last[(count_of("launches") + place) % 8].raw


def count_of(name: str) -> int:
    """What the stand-in has counted."""
    return ctypes.c_int.in_dll(ctypes.CDLL("libcuda.so.1"), name).value
