"""Distribution of tests among processes: by module, those of GPUs one by one."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

_FOLDERS = ("tests/mpi/",)
"""Their tests start ranks on all cores, one at a time."""

_GPU = "tests/gpu/"

_TOGETHER = ("hybrid", "mpi", "cuda_faults", "torch_operator")
"""Modules of GPU tests that share what takes long to set up."""

ALONE = ("contest", "bench", "hung_kernels")
"""Modules of GPU tests that have the device to themselves: what they see depends on its clock."""


class ModuleScheduling(LoadFileScheduling):
    """Tests of a module stay in one process, where they share what was compiled.

    So do all tests of some folders. Tests of GPUs share compiled programs by a folder, so each of
    them, or each class, goes to whichever process is idle. Marks of `xdist_group` could say the
    same, but pytest-xdist 3.8 loses them under pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        for folder in _FOLDERS:
            if nodeid.startswith(folder):
                return folder
        if not nodeid.startswith(_GPU):
            return super()._split_scope(nodeid)
        path, *names = nodeid.split("::")
        module = path.removeprefix(f"{_GPU}test_").removesuffix("_gpu.py").removesuffix(".py")
        if module in ALONE:
            return f"{_GPU} alone"
        if module in _TOGETHER:
            return path
        return "::".join([path, names[0]]) if len(names) > 1 else nodeid
