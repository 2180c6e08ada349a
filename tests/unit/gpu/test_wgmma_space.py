"""Configurations of `wgmma` that store C by tensor maps: what they need, and what they take."""

from __future__ import annotations

import pytest

from autotune.core.configuration import Configuration
from autotune.families.gpu.launch import MappedOperand
from autotune.families.gpu.planning import Planner
from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

FAMILIES = load_families(target="cuda", operation="gemm")
WGMMA, TF32 = FAMILIES["wgmma"], FAMILIES["wgmma_tf32"]
H200 = find_gpu("h200").limits
LARGE = Gemm(4096, 4096, 4096, "float16", accuracy="native")


def test_every_warp_group_has_two_boxes_of_its_own() -> None:
    space = WGMMA.space(LARGE, H200)
    seen = set()
    for number in range(0, space.size, 41):
        chosen = space[number]
        stored = {
            store: WGMMA.values({**chosen, "store": store}, LARGE, H200)
            for store in ("direct", "tma")
        }
        direct, boxes = (int(stored[store]["tiles_bytes"]) for store in ("direct", "tma"))
        assert boxes - direct == chosen["consumers"] * 2 * 64 * 128
        needed = int(stored[str(chosen["store"])]["shared_bytes"])
        assert needed <= H200.shared_bytes_per_block // int(chosen["min_blocks"])
        seen.add(chosen["store"])
    assert seen == {"direct", "tma"}


def test_rows_have_lines_where_tiles_leave_room_for_all_of_them() -> None:
    seen = set()
    for preset in WGMMA.presets.values():
        chosen = preset.configuration
        values = WGMMA.values(chosen, LARGE, H200)
        lines = int(chosen["consumers"]) * 4 * 8 * (256 + 16)
        extra = int(values["shared_bytes"]) - int(values["tiles_bytes"])
        room = H200.shared_bytes_per_block // int(chosen["min_blocks"])
        if chosen["cluster_n"] == 1 and int(values["tiles_bytes"]) + lines <= room:
            assert extra == lines
        else:
            assert extra == 0
        seen.add((int(chosen["cluster_n"]) > 1, extra > 0))
    assert seen == {(True, False), (False, True), (False, False)}


def test_what_has_no_room_for_boxes_is_rejected() -> None:
    space = WGMMA.space(LARGE, H200)
    fits = Configuration({**WGMMA.presets["three"].configuration, "store": "direct"})
    assert space.rejection(fits) is None
    rejected = space.rejection(Configuration({**fits, "store": "tma"}))
    assert rejected is not None
    assert "shared memory that one block can opt in to" in str(rejected)


@pytest.mark.parametrize("preset", ["large-tma", "turns-tma"])
@pytest.mark.parametrize(("out_dtype", "columns"), [(None, 64), ("float32", 32)])
def test_the_map_of_results_has_their_type(
    preset: str, out_dtype: str | None, columns: int
) -> None:
    problem = Gemm(1000, 500, 300, "bfloat16", out_dtype=out_dtype, accuracy="native")
    planner = Planner(WGMMA, WGMMA.presets[preset].configuration, "bfloat16", H200)
    assert planner.plan(problem).maps[2:] == (MappedOperand("C", False, (64, columns), 128),)
    for splits in (1, 2):
        assert len(planner.plan(problem, (8, splits)).maps) == 3  # the kernel is the same


def test_tf32_has_it_too() -> None:
    planner = Planner(TF32, TF32.presets["large-tma"].configuration, "float32", H200)
    problem = Gemm(1000, 500, 300, layout="nt", accuracy="tf32")
    assert planner.plan(problem).maps[2] == MappedOperand("C", False, (64, 32), 128)


@pytest.mark.parametrize("store", ["direct", "tma"])
def test_sources_have_what_they_use(store: str) -> None:
    configuration = {**WGMMA.presets["large"].configuration, "store": store}
    text = render(WGMMA, configuration, dtype="float16", out_dtype="float32").text
    for word in ("c_map", "fence.proxy.async", "bulk_group", "BOX_COLUMNS", "mapped"):
        assert (word in text) == (store == "tma"), word
    half = render(WGMMA, configuration, dtype="float16").text
    assert ("stmatrix" in half) == (store == "tma")
    assert "stmatrix" not in text
