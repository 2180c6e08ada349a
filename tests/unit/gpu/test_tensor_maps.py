"""Tensor maps, clusters and features of one architecture: read, planned, emitted, recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core.errors import FamilyError, InputError, SpaceError
from autotune.families.family import KernelFamily
from autotune.families.gpu.launch import (
    Binary,
    LaunchPlan,
    LaunchStep,
    MappedOperand,
    architecture_of,
)
from autotune.families.gpu.planning import Planner
from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
from autotune.store.binary import BinaryRecord
from autotune.targets.families import read_family

TEXT = """\
family = "boxed"
operation = "gemm"
target = "cuda"
template = "boxed.cu.j2"
accuracy = "ieee"
summary = "Operands in boxes"
dtypes = ["float32", "float16"]
layouts = ["nt", "tt"]

[parameters]
sm = { values = [64, 128, 192], default = 64 }
along = { values = [1, 2, 16], default = 2 }

[derived]
threads = "128"
registers = "64"
shared_bytes = "0"
columns = "128 / itemsize"

[launch]
grid = ["ceildiv(M, sm * along) * along", "ceildiv(K, 64)", "1"]
block = ["128", "1", "1"]
shared_bytes = "0"
workspace_bytes = "16"
cluster = ["along", "1", "1"]
architecture_features = true

[[launch.tensor_maps]]
operand = "A"
box = ["sm", "columns"]
transposed_box = ["32", "columns"]
swizzle = 128

[[launch.tensor_maps]]
operand = "B"
box = ["64", "16"]
rounded = "tf32"
"""

OUTGOING = """
[[launch.tensor_maps]]
operand = "C"
when = "along > 1"
box = ["sm", "128"]
swizzle = 128
"""

TEMPLATE = """\
/*
{{ banner }}
*/
struct alignas(64) TensorMap { unsigned long long words[16]; };
extern "C" __global__ void gemm({{ arguments }}) {}
"""

H200 = find_gpu("h200").limits


def boxed(folder: Path, text: str = TEXT) -> KernelFamily:
    path = folder / "boxed.toml"
    path.write_text(text)
    (folder / "boxed.cu.j2").write_text(TEMPLATE)
    return read_family(path, (folder,))


@pytest.mark.parametrize(
    ("layout", "a_box", "a_transposed"),
    [("nt", (64, 32), False), ("nn", (64, 32), False), ("tt", (32, 32), True)],
)
def test_a_plan_has_clusters_and_maps_of_what_kernels_read(
    tmp_path: Path, layout: str, a_box: tuple[int, int], a_transposed: bool
) -> None:
    family = boxed(tmp_path)
    problem = Gemm(1000, 500, 300, layout=layout)
    plan = Planner(family, {"sm": 64, "along": 2}, "float32", H200).plan(problem)
    (step,) = plan.steps
    assert (step.grid, step.cluster) == ((16, 5, 1), (2, 1, 1))
    # B is copied, transposed, where it is stored plainly: the kernel reads it as stored so.
    assert plan.maps == (
        MappedOperand("A", a_transposed, a_box, 128),
        MappedOperand("B", True, (64, 16), rounded="tf32"),
    )


@pytest.mark.parametrize(("out_dtype", "columns"), [(None, 64), ("float16", 64), ("float32", 32)])
def test_results_have_boxes_by_their_bytes(
    tmp_path: Path, out_dtype: str | None, columns: int
) -> None:
    text = TEXT.replace("layouts", 'out_dtypes = ["float32"]\nlayouts')
    family = boxed(tmp_path, text + OUTGOING)
    problem = Gemm(1000, 500, 300, "float16", layout="tt", out_dtype=out_dtype)
    plans = []
    for along in (1, 2):
        planner = Planner(family, {"sm": 64, "along": along}, "float16", H200)
        plans.append(planner.plan(problem))
    alone, outgoing = (plan.maps for plan in plans)
    assert [each.operand for each in alone] == ["A", "B"]
    assert outgoing == (*alone, MappedOperand("C", False, (64, columns), 128))


def test_a_map_is_an_argument_where_there_is_one(tmp_path: Path) -> None:
    family = boxed(tmp_path, TEXT + OUTGOING)
    for along, given in ((1, False), (2, True)):
        text = render(family, {"sm": 64, "along": along}, layout="tt").text
        assert ("c_map) {}" in " ".join(text.split())) == given
        assert ("c_map: boxes of 64 rows of 128 bytes of C as stored" in text) == given
    wide = boxed(tmp_path, TEXT + OUTGOING.replace('"128"', '"144"'))
    planner = Planner(wide, {"sm": 192, "along": 2}, "float32", H200)
    with pytest.raises(SpaceError, match=r"C must have .* it has 192 rows of 144 bytes"):
        planner.plan(Gemm(9, 9, 9, layout="tt"))


def test_boxes_that_hardware_cannot_copy_are_no_launch(tmp_path: Path) -> None:
    family = boxed(tmp_path, TEXT.replace('["64", "16"]', '["64", "sm // 10"]'))
    problem = Gemm(100, 100, 100, layout="nt")
    with pytest.raises(SpaceError, match="whole 16 bytes; it has 64 rows of 24 bytes"):
        Planner(family, {"sm": 64, "along": 1}, "float32", H200).plan(problem)
    family = boxed(tmp_path, TEXT.replace("swizzle = 128", "swizzle = 64"))
    with pytest.raises(SpaceError, match="within swizzled ones of 64; it has 64 rows of 128"):
        Planner(family, {"sm": 64, "along": 1}, "float32", H200).plan(problem)
    family = boxed(tmp_path, TEXT.replace('["sm", "columns"]', '["2 * sm", "columns"]'))
    with pytest.raises(SpaceError, match="A must have 256 rows and columns at most"):
        Planner(family, {"sm": 192, "along": 1}, "float32", H200).plan(problem)


def test_a_swizzle_may_follow_from_what_is_compiled_in(tmp_path: Path) -> None:
    family = boxed(tmp_path, TEXT.replace("swizzle = 128", 'swizzle = "sm"'))
    problem = Gemm(100, 100, 100, layout="nt")
    plan = Planner(family, {"sm": 128, "along": 1}, "float32", H200).plan(problem)
    assert plan.maps[0].swizzle == 128
    told = render(family, {"sm": 64, "along": 1}, dtype="float32", layout="nt").text
    assert "swizzled in 64 bytes" in " ".join(told.split())
    with pytest.raises(SpaceError, match="swizzle of A must be one of 0, 32, 64, 128, is 192"):
        Planner(family, {"sm": 192, "along": 1}, "float32", H200).plan(problem)


def test_clusters_are_restricted(tmp_path: Path) -> None:
    space = boxed(tmp_path).space(Gemm(100, 100, 100, layout="nt"), H200)
    assert {row["along"] for row in space} == {1, 2}
    odd = boxed(tmp_path, TEXT.replace("ceildiv(M, sm * along) * along", "ceildiv(M, sm)"))
    reasons = {each.text: each.reason for each in odd.restrictions}
    assert reasons["(ceildiv(M, sm)) % along == 0"] == "whole clusters of thread blocks"
    assert reasons["along <= 8"] == "hardware limit on the thread blocks of a cluster"
    assert {row["along"] for row in odd.space(Gemm(64, 64, 64, layout="nt"), H200)} == {1}


def test_the_source_says_what_it_takes(tmp_path: Path) -> None:
    text = render(boxed(tmp_path), {"sm": 128, "along": 2}, dtype="float16", layout="tt").text
    told = " ".join(text.split())
    assert "clusters of (2, 1, 1)" in told
    assert "a_map: boxes of 32 rows and 64 columns of A as stored, swizzled in 128 bytes" in told
    assert "b_map: boxes of 64 rows and 16 columns of B as stored, rounded to tf32" in told
    arguments = told.partition("gemm(")[2]
    assert arguments.endswith(
        "workspace, const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap "
        "b_map) {}"
    )


def test_features_of_one_architecture(tmp_path: Path) -> None:
    assert architecture_of(boxed(tmp_path), "sm_90") == "sm_90a"
    plain = boxed(tmp_path, TEXT.replace("architecture_features = true\n", ""))
    assert architecture_of(plain, "sm_90") == "sm_90"
    assert [name for name in ("sm_90", "sm_90a", "sm_80", "sm_100a") if H200.runs(name)] == [
        "sm_90",
        "sm_90a",
    ]


FAULTS = {
    "operand": (
        'operand = "A"',
        'operand = "D"',
        r"tensor_maps\[1\]\.operand must be one of A, B, C",
    ),
    "twice": ('operand = "B"', 'operand = "A"', r"tensor_maps\[2\]\.operand must not be A twice"),
    "box": ('["64", "16"]', '["64"]', r"tensor_maps\[2\]\.box must be two expressions"),
    "swizzle": (
        "swizzle = 128",
        "swizzle = 16",
        r"\.swizzle must be one of 0, 32, 64, 128, got 16",
    ),
    "swizzle of sizes": ("swizzle = 128", 'swizzle = "M"', r"\.swizzle = 'M' uses 'M'; the names"),
    "rounded": ('"tf32"', '"fp8"', r"tensor_maps\[2\]\.rounded must be one of tf32"),
    "key": ("swizzle", "swizle", r"tensor_maps\[1\]\.swizle is not a key"),
    "written": (
        'operand = "B"',
        'operand = "C"',
        r"tensor_maps\[2\]\.rounded must be left out: C is written, as it is stored",
    ),
    "when": (
        'rounded = "tf32"',
        'when = "M > 64"',
        r"tensor_maps\[2\]\.when = 'M > 64' uses 'M'; the names there are: ",
    ),
    "cluster": (
        'cluster = ["along", ',
        "cluster = [",
        r"launch\.cluster must be three expressions",
    ),
    "target": ('"cuda"', '"numba-cuda"', r"launch\.cluster must be left out: kernels of this"),
}


@pytest.mark.parametrize(("old", "new", "message"), FAULTS.values(), ids=FAULTS)
def test_faults_name_file_key_and_expectation(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in TEXT
    with pytest.raises(FamilyError, match=message):
        boxed(tmp_path, TEXT.replace(old, new))


PLAN = LaunchPlan(
    (64, 64, 64),
    (LaunchStep("gemm", (4, 1, 1), (128, 1, 1), 1024, (2, 1, 1)),),
    maps=(MappedOperand("A", True, (64, 32), 128), MappedOperand("B", False, (8, 8), 0, "tf32")),
)


def test_records_keep_clusters_and_maps() -> None:
    kept = BinaryRecord.of(Binary(b"\x7fELF", "sm_90a", PLAN, b"\x7fELF", "nt"))
    assert kept.layout == "nt"
    assert BinaryRecord.from_json(kept.to_json()) == kept


def test_records_without_them_are_what_they_were() -> None:
    plain = replace(PLAN, maps=(), steps=(replace(PLAN.steps[0], cluster=(1, 1, 1)),))
    document = BinaryRecord.of(Binary(b"\x7fELF", "sm_90", plain)).to_json()
    assert not {"maps", "layout"} & set(document)
    assert "cluster" not in document["steps"][0]
    assert BinaryRecord.from_json(document).launch == plain


@pytest.mark.parametrize(
    "maps",
    [
        {},
        [{}] * 9,
        [{"operand": "A", "transposed": 1, "box": [8, 8], "swizzle": 0, "rounded": ""}],
        [{"operand": "A", "transposed": True, "box": [8], "swizzle": 0, "rounded": ""}],
        [{"operand": "A", "transposed": True, "box": [8, 0], "swizzle": 0, "rounded": ""}],
        [{"operand": "A", "transposed": True, "box": [8, 8], "swizzle": -1, "rounded": ""}],
    ],
)
def test_records_of_strangers_have_whole_maps(maps: object) -> None:
    document = BinaryRecord.of(Binary(b"\x7fELF", "sm_90a", PLAN, b"\x7fELF")).to_json()
    with pytest.raises(InputError, match=r"binary\.maps"):
        BinaryRecord.from_json({**document, "maps": maps})
