"""Run by pytest with the stand-in loaded: the bindings' driver, and calls that are captured."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Iterator

import pytest
from test_driver import STEP, DriverConformance

from autotune.families.launch import LaunchPlan, LaunchStep
from autotune.targets.cuda.device.identity import load_driver
from autotune.targets.cuda.driver import interface as driver_module
from autotune.targets.cuda.driver.bindings import BindingsDriver
from autotune.targets.cuda.driver.capture import is_capturing
from autotune.targets.cuda.driver.interface import Driver, DriverError, driver
from autotune.targets.cuda.driver.modules import call
from autotune.targets.cuda.driver.streams import Retained, wait
from autotune.targets.cuda.launch.launch import CudaKernel
from autotune.targets.cuda.launch.program import CudaProgram

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

    @pytest.mark.parametrize(("workspace", "nodes"), [(None, 0), (0, 0), (1024, 2)])
    def test_a_first_call_is_captured(
        self, cubin: bytes, workspace: int | None, nodes: int
    ) -> None:
        """The graph allocates a workspace, and frees it; nothing else is in it."""
        step = LaunchStep("add", (1, 1, 1), (1, 1, 1))
        program = CudaProgram(cubin, LaunchPlan((8, 8, 8), (step,), workspace), "float32")
        with captured() as stream:
            kernel = CudaKernel(program)
            assert is_capturing(stream)
            kernel.launch(0, 8, 0, 8, 0, 8, stream=stream)
            kernel.launch(0, 8, 0, 8, 0, 8)  # meanwhile, on another one
        assert allocations() == nodes
        kernel.launch(0, 8, 0, 8, 0, 8, stream=stream)
        assert allocations() == nodes
        kernel.close()

    def test_what_is_let_go_spoils_no_capture(self, here: Driver, cubin: bytes) -> None:
        module, memory = here.load(cubin), here.allocate(64)
        run = module.runner([STEP])
        with captured():
            del module, memory, run
            gc.collect()

    def test_another_thread_may_load_and_call(self, cubin: bytes) -> None:
        step = LaunchStep("add", (1, 1, 1), (1, 1, 1))
        program = CudaProgram(cubin, LaunchPlan((8, 8, 8), (step,), 1024), "float32")
        wrong: list[BaseException] = []

        def work() -> None:
            try:
                CudaKernel(program).launch(0, 8, 0, 8, 0, 8, stream=0)
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


def allocations() -> int:
    """Nodes of the last graph that allocate or free."""
    return ctypes.c_int.in_dll(ctypes.CDLL("libcuda.so.1"), "graph_nodes").value
