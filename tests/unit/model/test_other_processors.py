"""Portfolios of a processor on others: with more threads or fewer, and with other vectors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from cpu_machines import AVX2, AVX512
from records import DEVICE, FINGERPRINT

from autotune.core.configuration import Candidate
from autotune.core.device import SETTINGS, Device
from autotune.core.limits import CpuLimits
from autotune.core.paths import data_dir
from autotune.model import Portfolio, PriceBook, on_all_threads, threads_of
from autotune.operations.problem import Gemm
from autotune.serving.predicting import Predictor
from autotune.store.sources import RecordFiles
from autotune.surveying.pool import worth_knowing
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

FAMILIES = load_families(target="cpu", operation="gemm")
SHAPES = ((2000, 2000, 2000), (300, 400, 500), (1, 3000, 4000), (4000, 3000, 2), (20, 20, 20))


def processor(limits: CpuLimits, **changes: object) -> Device:
    fingerprint = dataclasses.replace(FINGERPRINT, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(DEVICE, limits=limits, fingerprint=fingerprint)


def portfolio_of(device: Device) -> Portfolio:
    """Of every program that a survey would begin with, at prices that nobody measured."""
    problems = [Gemm(*sizes) for sizes in SHAPES]
    book = PriceBook(FAMILIES, "float32", device.limits)
    entries = []
    for each in worth_knowing(problems, make_target("cpu"), device, FAMILIES, seed=0):
        program = book.program(each, "nn")
        assert program is not None
        entries.append(program.entry(FAMILIES[each.family]))
    return Portfolio(
        operation="gemm",
        target="cpu",
        fingerprint=device.fingerprint,
        dtype="float32",
        out_dtype="float32",
        accuracy="ieee",
        threads=None,
        architecture="",
        toolchain={},
        entries=tuple(entries),
        families={},
        shapes=5,
        loss=0.0,
        created="2026-01-31T12:00:00.000000Z",
    )


@pytest.mark.parametrize("threads", [1, 2, 6, 8])
def test_programs_of_all_threads_have_all_that_are_there(threads: int) -> None:
    there = processor(AVX512, name="Other")
    here = processor(dataclasses.replace(AVX512, max_threads=threads))
    predictor = Predictor([portfolio_of(there)], FAMILIES, here)
    used = set()
    for shape in SHAPES:
        problem = Gemm(*shape)
        for each in predictor.favourites(problem):
            family = FAMILIES[each.candidate.family]
            space = family.space(problem, here.limits)
            assert space.rejection(each.candidate.configuration) is None
            used.add(threads_of(each.candidate.configuration))
    assert used == {1, threads}


@pytest.mark.parametrize("threads", [1, 2, 6])
def test_so_many_threads_are_as_many_as_there_are(threads: int) -> None:
    """A portfolio for all threads serves problems that say how many there may be."""
    there = processor(AVX512, name="Other")
    capped = processor(dataclasses.replace(AVX512, max_threads=threads))
    predictor = Predictor([portfolio_of(there)], FAMILIES, capped)
    for shape in SHAPES:
        said, unsaid = (predictor.choose(Gemm(*shape, threads=each)) for each in (threads, None))
        assert said is not None
        assert unsaid is not None
        assert said.candidate == unsaid.candidate


def test_what_was_measured_with_so_many_threads_comes_first() -> None:
    wide = portfolio_of(processor(AVX512, name="Other"))
    two = dataclasses.replace(wide, threads=2, shapes=2)
    here = processor(dataclasses.replace(AVX512, max_threads=2))
    predictor = Predictor([wide, two], FAMILIES, here)
    chosen = predictor.choose(Gemm(300, 400, 500, threads=2))
    assert chosen is not None
    assert chosen.portfolio.shapes == 2
    assert predictor.portfolio(Gemm(300, 400, 500)) is wide


def test_what_limits_say_does_not_depend_on_what_was_asked_before() -> None:
    """Nor on which family served by default then."""
    device = processor(AVX512)
    defaults = {(4000, 3000, 1): "skinny", (800, 700, 900): "goto"}
    after = Predictor([], FAMILIES, device)
    for shape, default in defaults.items():
        problem = Gemm(*shape)
        fresh = Predictor([], FAMILIES, device).by_limits(problem, default)
        assert fresh is not None
        assert after.by_limits(problem, default) == fresh
        assert fresh.family == default


def test_a_set_for_wider_vectors_is_none_for_narrower() -> None:
    wide, narrow = processor(AVX512, name="Other"), processor(AVX2)
    problem = Gemm(300, 400, 500)
    assert Predictor([portfolio_of(wide)], FAMILIES, narrow).choose(problem) is None
    own = Predictor([portfolio_of(wide), portfolio_of(narrow)], FAMILIES, narrow)
    assert own.choose(problem) is not None


def test_a_set_of_code_that_is_not_compiled_here_is_none() -> None:
    """A survey under a switch of Numba's must not choose for programs without it."""
    device = processor(AVX512)
    plain, problem = portfolio_of(device), Gemm(300, 400, 500)
    switched = dataclasses.replace(plain, toolchain={SETTINGS: "LOOP_VECTORIZE=0"})
    same = dataclasses.replace(device, toolchain=switched.toolchain)
    assert Predictor([switched], FAMILIES, device).choose(problem) is None
    assert Predictor([switched], FAMILIES, same).choose(problem) is not None
    assert Predictor([plain], FAMILIES, same).choose(problem) is not None


def test_where_no_call_is_valid_the_nearest_of_the_same_program_serves() -> None:
    device = processor(AVX512)
    whole = portfolio_of(device)
    deep = [e for e in whole.entries if e.family == "goto" and e.configuration["sn"] == 1024]
    alone = dataclasses.replace(whole, entries=tuple(deep))
    problem = Gemm(300, 467, 3600)  # panels of 1024 steps repeat those of 512
    chosen = Predictor([alone], FAMILIES, device).choose(problem)
    assert chosen is not None
    entry, found = chosen.entry.configuration, chosen.candidate.configuration
    assert FAMILIES["goto"].space(problem, device.limits).rejection(found) is None
    assert found["sn"] == 512
    runtime = FAMILIES["goto"].runtime_parameters
    assert [v for k, v in found.items() if k not in runtime] == [
        v for k, v in entry.items() if k not in runtime
    ]


@pytest.mark.parametrize(("most", "expected"), [(1, 1), (2, 2), (5, 4), (64, 64), (1000, 128)])
def test_all_threads_are_as_many_as_a_family_divides_work_among(most: int, expected: int) -> None:
    limits = dataclasses.replace(AVX512, max_threads=most)
    goto = FAMILIES["goto"]
    configuration = goto.default(Gemm(2000, 2000, 2000), AVX512)
    wider = on_all_threads(goto, configuration, limits)
    assert threads_of(wider) == expected
    assert {**wider, "threads": 0} == {**configuration, "threads": 0}


def test_what_has_no_threads_is_left_as_it_is() -> None:
    naive = load_families(target="cuda", operation="gemm")["naive"]
    limits = make_target("cuda").device(None, "h200").limits
    candidate = Candidate("naive", naive.default(Gemm(64, 64, 64), limits))
    assert on_all_threads(naive, candidate.configuration, limits) == candidate.configuration
    assert threads_of(candidate.configuration) == 1


def test_what_is_shipped_chooses_for_this_processor_or_leaves_it_alone() -> None:
    files = RecordFiles(data_dir("cache"), "cpu", trusted=True)
    portfolios = list(files.portfolios("gemm", "cpu"))
    assert {(each.dtype, each.threads) for each in portfolios} == {
        (dtype, threads) for dtype in ("float32", "float64") for threads in (1, None)
    }
    here = make_target("cpu").device(None)
    predictor = Predictor(portfolios, FAMILIES, here)
    for shape in SHAPES:
        problem = Gemm(*shape)
        chosen = predictor.choose(problem)
        if chosen is not None:
            space = FAMILIES[chosen.candidate.family].space(problem, here.limits)
            assert space.rejection(chosen.candidate.configuration) is None


def test_a_class_without_a_portfolio_is_served_by_the_usual_ones() -> None:
    device, problem = processor(AVX512), Gemm(300, 400, 500)
    loose = dataclasses.replace(problem, accuracy="fp32-normwise")
    usual = Predictor([portfolio_of(device)], FAMILIES, device)
    assert usual.choose(loose) == usual.choose(problem) is not None
    both = [portfolio_of(device), dataclasses.replace(portfolio_of(device), accuracy="tf32")]
    assert Predictor(both, FAMILIES, device).portfolio(loose).accuracy == "ieee"  # type: ignore[union-attr]
    assert Predictor(both[1:], FAMILIES, device).choose(problem) is None


def test_a_portfolio_of_a_class_has_the_programs_of_stricter_ones_too() -> None:
    device, problem = processor(AVX512), Gemm(300, 400, 500)
    whole = portfolio_of(device)
    best = Predictor([whole], FAMILIES, device).choose(problem)
    assert best is not None
    loose = dataclasses.replace(problem, accuracy="strassen")
    slow = tuple(
        dataclasses.replace(each, prices=(1.0,) * len(each.prices)) for each in whole.entries[:3]
    )
    own = dataclasses.replace(whole, accuracy="strassen", entries=slow, families={"goto": (2.0,)})
    predictor = Predictor([whole, own], FAMILIES, device)
    chosen = predictor.choose(loose)
    assert chosen is not None
    assert chosen.candidate == best.candidate
    # Of a program that both have, the class's own prices count.
    joined = {each.entry.key: each.entry for each in predictor.favourites(loose)}
    assert joined.keys() == {each.entry.key for each in predictor.favourites(problem)}
    assert all(joined[each.key] == each for each in slow if each.key in joined)
    assert predictor.choose(problem) == best
    assert chosen.portfolio is predictor.portfolio(loose) is own
    # Nothing is known of another layout in the one, and something in the other.
    turned = tuple(dataclasses.replace(each, layout="tt") for each in slow)
    mixed = Predictor([whole, dataclasses.replace(own, entries=turned)], FAMILIES, device)
    there = mixed.choose(dataclasses.replace(loose, layout="tt"))
    assert there is not None
    assert there.candidate == best.candidate
    for other in (
        dataclasses.replace(own, fingerprint=dataclasses.replace(own.fingerprint, name="Other")),
        dataclasses.replace(own, architecture="sm_90"),
        dataclasses.replace(own, toolchain={SETTINGS: "LOOP_VECTORIZE=0"}),
    ):
        alone = Predictor([whole, other], FAMILIES, device).favourites(loose)
        assert {each.entry.key for each in alone} <= {each.key for each in slow}


def test_a_family_of_the_class_goes_before_portfolios_of_the_usual_one() -> None:
    device, problem = processor(AVX512), Gemm(300, 400, 500, accuracy="fp32-normwise")
    (default, *_) = (one for one in FAMILIES.values() if one.default_for is not None)
    own = dataclasses.replace(default, accuracy="fp32-normwise")
    families = {"own": own, **{name: one for name, one in FAMILIES.items() if one is not default}}
    predictor = Predictor([portfolio_of(device)], families, device)
    assert predictor.choose(problem) is None
    assert predictor.choose(Gemm(300, 400, 500)) is not None


@pytest.mark.parametrize(
    ("accuracy", "dtype"), [("fp32-normwise", "float32"), ("fp32", "float32"), ("fp64", "float64")]
)
def test_classes_on_a_gpu_have_kernels_of_their_own_where_those_are_faster(
    accuracy: str, dtype: str
) -> None:
    """By what is shipped, which is one model with the strict kernels' one."""
    families = load_families(target="cuda", operation="gemm")
    heads = list(
        RecordFiles(data_dir("cache"), "cuda", trusted=True).portfolio_heads("gemm", "cuda")
    )
    predictor = Predictor(heads, families, make_target("cuda").device(None, "h100"))
    rng = np.random.default_rng(5)
    shapes = [tuple(np.exp2(rng.uniform(9, 13, 3)).astype(int).tolist()) for _ in range(60)]
    gains = []
    for shape in shapes:
        problem = Gemm(*shape, dtype, layout=rng.choice(["nn", "nt", "tn", "tt"]))
        strict = predictor.choose(problem)
        chosen = predictor.choose(dataclasses.replace(problem, accuracy=accuracy))
        assert strict is not None
        assert chosen is not None
        if families[chosen.candidate.family].accuracy == accuracy:
            assert chosen.entry.binary is not None
        assert chosen.seconds <= strict.seconds
        gains.append(strict.seconds / chosen.seconds)
    assert np.exp(np.mean(np.log(gains))) > {"fp32-normwise": 2.2, "fp32": 1.5}.get(accuracy, 1.0)
    for shape in ((64, 64, 64), (256, 256, 256), (8, 4096, 4096), (4096, 4096, 1)):
        chosen = predictor.choose(Gemm(*shape, dtype, accuracy=accuracy))
        assert chosen is not None
        assert families[chosen.candidate.family].accuracy == "ieee"
