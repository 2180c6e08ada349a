"""How tests are shared among processes: module by module."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

# Their tests have the GPU, or start ranks on all cores, one at a time.
ALONE = ("tests/gpu/", "tests/mpi/")


class ModuleScheduling(LoadFileScheduling):
    """Tests of a module stay in one process, where they share what was compiled.

    So do all tests of the folders above. Marks of `xdist_group` could say the same, but
    pytest-xdist 3.8 loses them under pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        for folder in ALONE:
            if nodeid.startswith(folder):
                return folder
        return super()._split_scope(nodeid)
