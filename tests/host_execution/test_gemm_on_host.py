"""The harness that runs emitted CUDA C++ on the host: what it must notice, it notices."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from host_execution import NEEDS_COMPILER, HostProgram

pytestmark = NEEDS_COMPILER


def test_a_partial_barrier_ends_the_process_with_its_place(tmp_path: Path) -> None:
    source = """
extern "C" __global__ void __launch_bounds__(32) half(int* out) {
  if (threadIdx.x < 16) __syncthreads();
  out[threadIdx.x] = 1;
}
"""
    HostProgram(source, tmp_path)  # compiled here, where the header is compiled for others too
    script = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from host_execution import HostProgram\n"
        f"program = HostProgram({source!r}, Path({str(tmp_path)!r}))\n"
        "program.launch('half', (1, 1, 1), (32, 1, 1), [np.zeros(32, np.int32)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    assert done.returncode == 70
    assert "a barrier that not all threads reach in block (0, 0, 0), thread" in done.stderr


def test_copies_arrive_when_they_are_waited_for(tmp_path: Path) -> None:
    source = """
extern "C" __global__ void __launch_bounds__(1) late(const float* from, float* out) {
  __shared__ float tile[2];
  tile[0] = tile[1] = -1.0f;
  for (int i = 0; i < 2; ++i) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(&tile[i]));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(to), "l"(from + i), "n"(4), "r"(4)
                 : "memory");
    asm volatile("cp.async.commit_group;" : : : "memory");
  }
  out[0] = tile[0];
  asm volatile("cp.async.wait_group %0;" : : "n"(1) : "memory");
  out[1] = tile[0];
  out[2] = tile[1];
  asm volatile("cp.async.wait_group %0;" : : "n"(0) : "memory");
  out[3] = tile[1];
}
"""
    out = np.zeros(4, np.float32)
    given = np.array([5.0, 6.0], np.float32)
    HostProgram(source, tmp_path).launch("late", (1, 1, 1), (1, 1, 1), [given, out])
    assert out.tolist() == [-1.0, 5.0, -1.0, 6.0]
