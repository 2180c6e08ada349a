from __future__ import annotations

from pathlib import Path

import pytest

from autotune.core.configuration import Configuration
from autotune.core.errors import FamilyError, SpaceError
from autotune.families.family import KernelFamily
from autotune.families.gpu.occupancy import blocks_per_multiprocessor
from autotune.families.gpu.planning import Planner
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
from autotune.targets.families import read_family

TEXT = """\
family = "tiled"
operation = "gemm"
target = "cuda"
template = "tiled.cu.j2"
accuracy = "ieee"
summary = "Tiles in shared memory"

[parameters]
sm = { values = [32, 64, 128, 256], default = 64 }
sk = { values = [32, 64, 96, 128], default = 64 }
sn = { values = [8, 16, 64], default = 16 }
tx = { values = [2, 4, 8] , default = 4 }
min_blocks = { values = [1, 2] }

[derived]
threads = "(sm / 4) * (sk / tx)"
registers = "4 * tx * itemsize // 4 + 32"
shared_bytes = "sn * (sm + sk) * itemsize"

[[restrictions]]
expr = "threads >= 32"
reason = "at least a warp"

[launch]
grid = ["ceildiv(K, sk)", "ceildiv(M, sm)", "1"]
block = ["sk / tx", "sm / 4", "1"]
shared_bytes = "shared_bytes"
resident_blocks = "min_blocks"
workspace_bytes = "M * K * itemsize"

[[launch.before]]
kernel = "pad"
when = "M % sm != 0"
grid = ["ceildiv(M, 32)", "1", "1"]
block = ["32", "8", "1"]

[[launch.after]]
kernel = "add"
when = "min_blocks > 1"
grid = ["1", "1", "1"]
block = ["sm * sn / 4", "1", "1"]

[presets.small]
summary = "One block fits twice"
sm = 32
min_blocks = 2

[presets.wide]
summary = "Wide tiles"
sk = 128
min_blocks = 1
"""

H200 = find_gpu("h200").limits
PROBLEM = Gemm(m=512, n=512, k=512)


def read(folder: Path, text: str = TEXT) -> KernelFamily:
    path = folder / "tiled.toml"
    path.write_text(text)
    (folder / "tiled.cu.j2").write_text("\n")
    return read_family(path, (folder,))


def test_the_launch_is_read(tmp_path: Path) -> None:
    launch = read(tmp_path).launch
    assert launch is not None
    assert [each.text for each in launch.grid] == ["ceildiv(K, sk)", "ceildiv(M, sm)", "1"]
    assert launch.block[0].evaluate({"sk": 32, "tx": 4}) == 8
    assert launch.shared_bytes.text == "shared_bytes"
    assert launch.resident_blocks.text == "min_blocks"
    assert launch.workspace_bytes is not None
    assert launch.workspace_bytes.text == "M * K * itemsize"
    (before,), (after,) = launch.before, launch.after
    assert (before.kernel, before.when.text, after.kernel) == ("pad", "M % sm != 0", "add")
    assert [each.text for each in before.block] == ["32", "8", "1"]
    assert after.block[0].evaluate({"sm": 32, "sn": 8}) == 64


def test_most_of_a_launch_is_optional(tmp_path: Path) -> None:
    start, end = TEXT.index("resident_blocks"), TEXT.index("[presets.small]")
    launch = read(tmp_path, TEXT[:start] + TEXT[end:]).launch
    assert launch is not None
    assert (launch.workspace_bytes, launch.before, launch.after) == (None, (), ())
    assert launch.resident_blocks.evaluate({}) == 1


@pytest.mark.parametrize("zeroed", ["6", "M * K * itemsize + 4"])
def test_zeros_are_words_of_the_workspace(tmp_path: Path, zeroed: str) -> None:
    after = 'workspace_bytes = "M * K * itemsize"\n'
    family = read(tmp_path, TEXT.replace(after, f'{after}zeroed_bytes = "{zeroed}"\n'))
    configuration = family.default(PROBLEM, H200)
    planner = Planner(family, configuration, PROBLEM.dtype, H200)
    with pytest.raises(SpaceError, match="zeroed_bytes must be whole words of 4 bytes within"):
        planner.plan(PROBLEM)


def test_device_limits_are_added(tmp_path: Path) -> None:
    family = read(tmp_path)
    texts = [restriction.text for restriction in family.restrictions]
    assert texts[0] == "threads <= max_threads_per_block"
    assert texts[-1] == "threads >= 32"
    assert all(restriction.reason for restriction in family.restrictions)


@pytest.mark.parametrize("device", ["t4", "h200", "rtx5090"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exactly_what_fits_the_device_is_valid(tmp_path: Path, device: str, dtype: str) -> None:
    family = read(tmp_path)
    limits = find_gpu(device).limits
    problem = Gemm(m=512, n=512, k=512, dtype=dtype)
    space = family.space(problem, limits)
    expected = 0
    values = {parameter.name: parameter.values for parameter in family.parameters}
    for sm in values["sm"]:
        for sk in values["sk"]:
            for sn in values["sn"]:
                for tx in values["tx"]:
                    threads = int(sm) // 4 * int(sk) // int(tx)
                    blocks = blocks_per_multiprocessor(
                        limits,
                        threads=threads,
                        registers=4 * int(tx) * problem.itemsize // 4 + 32,
                        shared_bytes=int(sn) * (int(sm) + int(sk)) * problem.itemsize,
                    )
                    expected += min(blocks, 2)  # min_blocks may be 1, or 1 and 2
    assert 0 < space.size == expected < space.cartesian


def test_divisions_of_the_launch_are_whole(tmp_path: Path) -> None:
    family = read(tmp_path, TEXT.replace('"sm / 4", "1"]', '"sm / 4", "sk / 64"]'))
    space = family.space(PROBLEM, H200)
    assert {configuration["sk"] for configuration in space} == {64, 128}
    reasons = [step.reason for step in space.funnel()]
    assert "sk / 64 must be a whole number (launch.block[2])" in reasons
    # Those that the derived names have too are counted once.
    assert len({step.expr for step in space.funnel()}) == len(space.funnel())


def test_all_names_of_a_configuration(tmp_path: Path) -> None:
    family = read(tmp_path)
    configuration = {"sm": 64, "sk": 32, "sn": 8, "tx": 4, "min_blocks": 1}
    names = family.values(configuration, PROBLEM, H200)
    assert (names["threads"], names["registers"], names["shared_bytes"]) == (128, 48, 3072)
    assert (names["M"], names["itemsize"], names["compute_capability"]) == (512, 4, 90)
    with pytest.raises(SpaceError, match=r"tiled\.sm must be one of"):
        family.values({**configuration, "sm": 1}, PROBLEM, H200)


def test_values_need_whole_divisions(tmp_path: Path) -> None:
    family = read(tmp_path, TEXT.replace("(sk / tx)", "(sk / 64)"))
    configuration = {"sm": 64, "sk": 32, "sn": 8, "tx": 4, "min_blocks": 1}
    with pytest.raises(SpaceError, match=r"'tiled' has no threads for .*sk=32.* not whole"):
        family.values(configuration, PROBLEM, H200)


def test_presets_are_whole_configurations(tmp_path: Path) -> None:
    presets = read(tmp_path).presets
    assert list(presets) == ["small", "wide"]
    small = {"sm": 32, "sk": 64, "sn": 16, "tx": 4, "min_blocks": 2}
    assert presets["small"].configuration == Configuration(small)
    assert presets["wide"].configuration["sk"] == 128
    assert presets["wide"].summary == "Wide tiles"


# What is replaced in TEXT, by what, and what the message must say.
FAULTS = {
    "no launch": ("[launch]", "[lunch]", "launch.grid is missing"),
    "no block": ('block = ["sk', 'bock = ["sk', "launch.block is missing"),
    "two extents": (', "sm / 4", "1"]', ', "sm / 4"]', "launch.block must be three expressions"),
    "grid": ('"ceildiv(K, sk)"', '"ceildiv(K, sx)"', r"launch\.grid = .* uses 'sx'"),
    "key": ("workspace_bytes", "workspace_size", r"launch\.workspace_size is not a key"),
    "zeroed": ("workspace_bytes", "zeroed_bytes", r"launch\.workspace_bytes is missing: zeroed_b"),
    "resident": ('"min_blocks"', '"min_block"', r"launch\.resident_blocks = 'min_block' uses"),
    "size": ('"shared_bytes"\nres', "0\nres", r"launch\.shared_bytes must be one line of text"),
    "before": ('kernel = "pad"', "", r"launch\.before\[1\]\.kernel is missing"),
    "kernel": ('"pad"', '"pad me"', r"launch\.before\[1\]\.kernel must be letters"),
    "when": ('"M % sm != 0"', '"M % sm !="', r"before\[1\]\.when is not an expression"),
    "no registers": ("registers = ", "register_count = ", r"derived\.registers is missing"),
    "cpu limit": ("threads >= 32", "threads <= max_threads", r"uses 'max_threads'"),
    "argument": ("tx = {", "lda = {", r"parameters\.lda is the name of"),
    "type": ("tx = {", "T = {", r"parameters\.T is the name of"),
    "summary": ("tx = {", "summary = {", r"parameters\.summary is the name of"),
    "preset value": ("sm = 32\n", "sm = 48\n", r"presets\.small\.sm must be one of its values 32"),
    "preset type": ("sm = 32\n", "sm = 32.0\n", r"presets\.small\.sm must be one of its values"),
    "preset key": ("sm = 32\n", "sx = 32\n", r"presets\.small\.sx is not a key"),
    "preset gap": ("min_blocks = 2\n", "", r"presets\.small\.min_blocks is missing, and the par"),
    "preset summary": ('summary = "Wide tiles"\n', "", r"presets\.wide\.summary is missing"),
}


@pytest.mark.parametrize(("old", "new", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_faults_name_file_key_and_expectation(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in TEXT
    with pytest.raises(FamilyError, match=message) as caught:
        read(tmp_path, TEXT.replace(old, new))
    assert str(caught.value).startswith(f"{tmp_path / 'tiled.toml'}: ")
    assert "\n" not in str(caught.value)


def test_other_targets_have_no_launch(tmp_path: Path) -> None:
    text = TEXT.replace('"cuda"', '"cpu"')
    with pytest.raises(FamilyError, match="launch is not a key"):
        read(tmp_path, text)


def test_numba_cuda_families_have_the_same_names(tmp_path: Path) -> None:
    family = read(tmp_path, TEXT.replace('"cuda"', '"numba-cuda"'))
    assert family.space(PROBLEM, H200).size == read(tmp_path).space(PROBLEM, H200).size


def test_parameters_at_the_call_are_for_cuda_alone(tmp_path: Path) -> None:
    text = TEXT.replace("[8, 16, 64]", "[8, 16, 64], runtime = true")
    assert read(tmp_path, text).runtime_parameters == ("sn",)
    other = text.replace('target = "cuda"', 'target = "numba-cuda"')
    with pytest.raises(
        FamilyError, match=r"sn\.runtime must be false: numba-cuda kernels take no"
    ):
        read(tmp_path, other)
