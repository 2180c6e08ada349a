"""Lookups: how little they read, and what the kernels that they give are as objects."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tuned_suspect import PROBLEM, store, tuned

from autotune.core.errors import InputError, NotTunedError, OperandError, UnknownNameError
from autotune.core.paths import CacheLocations, data_dir
from autotune.core.session import forget
from autotune.core.toml_table import Table
from autotune.cpu.target import CpuTarget
from autotune.families import modules, templating
from autotune.operations.layers import LAYERS
from autotune.operations.problem import Gemm, product_of
from autotune.runtime.loading import Kernel, load
from autotune.runtime.multiplying import kernel_for, matmul
from autotune.serving.lookup import binary_of, contenders, look_up
from autotune.store import (
    BaselineRecord,
    MatchQuality,
    TuningCache,
    TuningRecord,
    export_records,
)
from autotune.store.files import read_portfolios, read_records, shipped_binary
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often templates are digested, TOML files read, records parsed and modules imported."""
    counted: dict[str, int] = {}

    def count(owner: Any, name: str) -> None:
        real = getattr(owner, name)
        counted[name] = 0

        def counting(*arguments: Any) -> Any:
            counted[name] += 1
            return real(*arguments)

        monkeypatch.setattr(owner, name, counting)

    count(templating, "_digest")
    count(Table, "read")
    count(TuningRecord, "from_json")
    count(modules, "_import")
    return counted


def test_a_new_shape_reads_nothing_again(tmp_path: Path, counts: dict[str, int]) -> None:
    elsewhere = replace(tuned(tmp_path).fingerprint, name="Another CPU")
    other = [replace(tuned(tmp_path, Gemm(64 * n, 8, 4)), fingerprint=elsewhere) for n in (1, 2)]
    far = [tuned(tmp_path, Gemm(2**n, 2**n, 2**n)) for n in (8, 9, 10)]
    store(tmp_path, tuned(tmp_path), *far, *other)
    load(PROBLEM, "cpu", extra_families=[tmp_path])
    counts.update(dict.fromkeys(counts, 0))
    kernels = [
        load(Gemm(m, 8, 4), "cpu", match="nearest", extra_families=[tmp_path])
        for m in range(10, 15)
    ]
    assert {kernel.match for kernel in kernels} == {MatchQuality.NEAREST}
    # Of the records the nearest alone was parsed, and that before; one compiled kernel for all.
    assert counts == {"_digest": 0, "read": 0, "from_json": 0, "_import": 0}


def test_an_edited_family_is_seen(tmp_path: Path) -> None:
    store(tmp_path)
    assert look_up(PROBLEM, CpuTarget(), match="exact", extra_families=[tmp_path]).match.record
    template = tmp_path / "suspect.py.j2"
    template.write_text(template.read_text() + "# edited\n")
    with pytest.raises(NotTunedError, match=r'family suspect .* or load with match="stale"$'):
        look_up(PROBLEM, CpuTarget(), match="exact", extra_families=[tmp_path])


FIRST = """
import sys
from autotune import Gemm, load
print(load(Gemm(16, 8, 4), "cpu", extra_families=[sys.argv[1]]).match, "jinja2" in sys.modules)
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_the_first_load_of_a_process_renders_nothing_that_was(
    tmp_path: Path, own_cache: Path
) -> None:
    store(tmp_path)
    command = [sys.executable, "-c", FIRST, str(tmp_path)]
    subprocess.run(command, capture_output=True, check=True)
    facts = own_cache / "programs" / "cpu" / "facts.sqlite"
    for damage, jinja in ((None, "False"), (b"no database", "True"), (None, "False")):
        if damage:
            facts.write_bytes(damage)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == f"EXACT {jinja}\n", done.stderr


def test_the_message_names_all_it_takes_to_tune(tmp_path: Path) -> None:
    store(tmp_path)
    with pytest.raises(NotTunedError) as caught:
        load(Gemm(9, 9, 9), "cpu", cache=tmp_path / "my cache", extra_families=[tmp_path])
    assert f"--cache '{tmp_path}/my cache' --families {tmp_path}" in str(caught.value)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    store(tmp_path)
    return load(PROBLEM, "cpu", extra_families=[tmp_path])


def test_a_kernel_is_one_line(kernel: Kernel) -> None:
    assert kernel.record is not None
    expected = (
        "<Kernel suspect: fault=none step=1 threads=1; 16x8x4-float32 on cpu, EXACT, "
        f"record {kernel.record.id}>"
    )
    assert repr(kernel) == str(kernel) == expected


def test_a_kernel_is_loaded_again_where_it_is_unpickled(kernel: Kernel) -> None:
    again = pickle.loads(pickle.dumps(kernel))
    assert repr(again) == repr(kernel)
    a, b = np.ones((16, 8), "f4"), np.ones((8, 4), "f4")
    assert (again(a, b) == 8).all()
    assert copy.copy(kernel) is copy.deepcopy(kernel) is kernel
    script = (
        "import pickle, sys; import numpy as np; kernel = pickle.load(sys.stdin.buffer);"
        "print((kernel(np.ones((16, 8), 'f4'), np.ones((8, 4), 'f4')) == 8).all())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(kernel), stdout=-1, check=True
    )
    assert done.stdout == b"True\n"


def test_a_kernel_of_a_communicator_is_not_pickled(kernel: Kernel) -> None:
    bound = replace(kernel, target="mpi", _request=None)
    with pytest.raises(InputError, match="bound to its communicator and cannot be pickled"):
        pickle.dumps(bound)


# --- the library instead ---


def slower(folder: Path, problem: Gemm = PROBLEM) -> TuningRecord:
    return tuned(folder, problem, baseline=BaselineRecord("NumPy 2.4 (OpenBLAS)", 1e-6, 0.5))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_a_faster_library_computes_where_that_is_asked_for(tmp_path: Path, layout: str) -> None:
    problem = replace(PROBLEM, layout=layout)
    store(tmp_path, slower(tmp_path, problem))
    options: Any = {"extra_families": [tmp_path]}
    assert load(problem, "cpu", **options).library == ""
    kernel = load(problem, "cpu", fallback="library", **options)
    assert kernel.library == "NumPy"
    assert kernel.reason == "suspect is at 0.50x NumPy here: NumPy computes"
    assert repr(kernel).startswith("<Kernel NumPy instead of suspect: ")
    random = np.random.default_rng(0)
    a, b = (random.random(shape, np.float32) for shape in (problem.a_shape, problem.b_shape))
    expected = (a.T if layout[0] == "t" else a) @ (b.T if layout[1] == "t" else b)
    out = np.full(problem.c_shape, np.nan, np.float32)
    assert kernel(a, b, out) is out
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    kernel(a, b, out, alpha=2.0, beta=-1.0)
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    with pytest.raises(OperandError, match="a must have shape"):
        kernel(a[1:], b)
    with pytest.raises(OperandError, match="out overlaps"):
        load(Gemm(4, 4, 4), "cpu", match="nearest", **options)(*[np.ones((4, 4), "f4")] * 3)
    with pytest.raises(UnknownNameError, match="fallback must be None or 'library'"):
        load(problem, "cpu", fallback="numpy")
    with pytest.raises(InputError, match="background must be True, False or None, got 2"):
        load(problem, "cpu", background=2)  # type: ignore[arg-type]


def test_what_was_tuned_for_other_sizes_says_nothing_of_the_library(tmp_path: Path) -> None:
    store(tmp_path, slower(tmp_path))
    options: Any = {"match": "nearest", "extra_families": [tmp_path]}
    kernel = load(Gemm(32, 8, 4), "cpu", fallback="library", **options)
    assert (kernel.match, kernel.library) == (MatchQuality.NEAREST, "")


def test_matmul_takes_the_faster_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path, slower(tmp_path))
    monkeypatch.setenv("AUTOTUNE_FAMILIES", str(tmp_path))
    forget()
    kernel = kernel_for(Gemm(16, 8, 4), "cpu")
    assert kernel.library == "NumPy"
    forget()


def test_matmul_does_without_a_cache_that_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tuning.sqlite").write_bytes(b"no database" * 1000)
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path))
    forget()
    for rows in (7, 8):
        assert (matmul(np.ones((rows, 5)), np.ones((5, 6))) == 5).all()
    (told,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert told.startswith("products on target cpu are left to their libraries: ")
    assert "damaged" in told


@pytest.mark.parametrize("layout", ["nt", "tn", "tt"])
def test_a_layout_without_programs_of_its_own_takes_the_plain_ones(
    layout: str, tmp_path: Path
) -> None:
    # Of the H200's shipped portfolio of float64 the programs of the plain layout alone.
    (file,) = data_dir("cache").glob("cuda-nvidia-h200-*/gemm.portfolio.jsonl")
    usual = ("float64", "ieee")
    (shipped,) = (p for p in read_portfolios(file) if (p.dtype, p.accuracy) == usual)
    entries = tuple(each for each in shipped.entries if each.layout == "nn")
    assert all(each.binary for each in entries)
    binaries = [shipped_binary(each.binary, file.parent) or b"" for each in entries if each.binary]
    own = TuningCache(CacheLocations.at(tmp_path).create().database)
    own.put_portfolio(replace(shipped, entries=entries), binaries)
    for shape in ((4000, 4000, 4000), (304, 2000, 512)):
        plain, turned = (
            look_up(
                Gemm(*shape, dtype="float64", layout=each),
                make_target("cuda"),
                match="nearest",
                device="h200",
                cache=tmp_path,
            )
            for each in ("nn", layout)
        )
        assert turned.match.quality is MatchQuality.PREDICTED
        assert turned.candidate == plain.candidate
        assert layout in turned.family.layouts
        # Its binary is of the plain layout.
        assert binary_of(Gemm(*shape, dtype="float64"), plain) is not None
        assert binary_of(Gemm(*shape, dtype="float64", layout=layout), turned) is None


@pytest.mark.usefixtures("nothing_shipped")
@pytest.mark.parametrize("mode", [0o755, 0o777])
@pytest.mark.parametrize("form", ["folder", "cache"])
@pytest.mark.parametrize("stale", [True, False])
def test_a_plan_of_a_layer_that_others_may_write_is_never_used(
    stale: bool, form: str, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shipped,) = data_dir("cache").glob("cuda-nvidia-h100-*/gemm.jsonl")
    families = load_families(target="cuda")
    known = next(
        each
        for each in read_records(shipped)
        if each.binary is not None
        and each.binary.support is None
        and families[each.candidate.family].digest == each.family_digest
    )
    assert known.binary is not None
    content = shipped_binary(known.binary.digest, shipped.parent)
    assert content is not None
    plan = replace(known.binary.launch, workspace_bytes=0)
    changes: dict[str, Any] = {"family_digest": "0" * 16} if stale else {}
    theirs = replace(known, binary=replace(known.binary, launch=plan), **changes)
    layer = tmp_path / "layer"
    device = layer / shipped.parent.name
    device.mkdir(parents=True)
    if form == "folder":
        export_records([theirs], device / "gemm.jsonl")
        (device / f"{known.binary.digest}.cubin").write_bytes(content)
    else:
        TuningCache(layer / "tuning.sqlite").add(theirs, binaries=[content])
    for place in (*layer.rglob("*"), layer):
        place.chmod(mode if place.is_dir() else 0o644)
    monkeypatch.setenv("AUTOTUNE_RECORDS", str(layer))
    problem = families[theirs.candidate.family].defined.problem_from_key(theirs.problem)
    found = look_up(
        problem,
        make_target("cuda"),
        match="nearest",
        device="h100",
        cache=tmp_path / "none",
    )
    binary, record = binary_of(problem, found), found.match.record
    assert record is not None
    if mode == 0o777:
        assert (record.binary, binary) == (None, None)
    else:
        assert record.binary == theirs.binary
        assert binary is not None
        assert (binary.content, binary.launch) == (content, plan if stale else None)


@pytest.mark.parametrize("shape", [(1, 4096, 14336), (64, 14336, 4096), (2048, 4096, 16384)])
def test_a_layer_is_served_by_the_programs_of_its_product(
    shape: tuple[int, int, int], tmp_path: Path
) -> None:
    """Compiled with what follows: binaries of products are no use."""
    problem = LAYERS["layer_bias_gelu"].operation.at(shape, dtype="bfloat16", layout="nt")
    product = product_of(problem)
    assert product is not None
    where: dict[str, Any] = {"match": "nearest", "device": "h100", "cache": tmp_path}
    plain = look_up(product, make_target("cuda"), **where)
    found = look_up(problem, make_target("cuda"), **where)
    assert plain.match.quality is found.match.quality is MatchQuality.PREDICTED
    assert plain.candidate == found.candidate
    assert found.family.operation == "layer_bias_gelu"
    assert binary_of(product, plain) is not None
    assert binary_of(problem, found) is None
    several = [*contenders(problem, found, 3)]
    assert len({each.candidate for each in several}) == 3
    assert all(each.family.operation == "layer_bias_gelu" for each in several)
