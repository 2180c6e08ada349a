"""Emitted programs for host threads and GPUs, on a machine of NumPy that delays what it may."""

from __future__ import annotations

import contextlib
import re
import types
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from numpy_machine import Matrix, NumpyMachine

from autotune.core.configuration import Configuration
from autotune.core.limits import HybridLimits
from autotune.families.rendering import render
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

FAMILIES = load_families(target="hybrid")
PLACES = ("host", "device", "blocks")
GPUS = 4


def limits(place: str, gpus: int = GPUS) -> HybridLimits:
    return HybridLimits(gpus, 1, int(place == "host"), int(place == "blocks"))


def load(text: str) -> Any:
    module = types.ModuleType("emitted")
    exec(compile(text, "emitted", "exec"), module.__dict__)
    # Stages that small operands fill too.
    if hasattr(module, "STAGE_BYTES"):
        module.STAGE_BYTES = 256
    return module


def emitted(family: str, configuration: dict[str, Any], dtype: str = "float64") -> str:
    return render(FAMILIES[family], Configuration(configuration), dtype=dtype).text


def draw(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    """Whole numbers: sums of their products are exact in any order. Rows lie apart."""
    return rng.integers(-4, 5, (shape[0], shape[1] + 3)).astype("float64")[:, : shape[1]]


def multiply(
    plan: Any,
    place: str,
    operands: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    alpha: float,
    beta: float,
) -> NDArray[Any]:
    a, b, c = operands
    if place == "host":
        c = c.copy()
        plan.from_host(a, b, c, alpha, beta)
        return c
    if place == "device":
        out = Matrix(c.copy(), 0)
        plan.from_device(Matrix(a.copy(), 0), Matrix(b.copy(), 0), out, alpha, beta)
        return out.array
    spans = plan.blocks()
    of_a, of_b, of_c = (
        [Matrix(whole[slice(*span[which])].copy(), device) for device, span in enumerate(spans)]
        for whole, which in ((a, 0), (b, 1), (c, 0))
    )
    plan.on_blocks(of_a, of_b, of_c, alpha, beta)
    return np.concatenate([block.array for block in of_c])


def check(module: Any, place: str, sizes: tuple[int, int, int], seed: int, calls: int = 2) -> bool:
    """Whether calls with operands of their own are all right."""
    m, n, k = sizes
    machine = NumpyMachine(GPUS, seed=seed)
    plan = module.gemm(machine, m, n, k)
    rng = np.random.default_rng(seed)
    right = True
    for call in range(calls):
        operands = draw(rng, m, n), draw(rng, n, k), draw(rng, m, k)
        beta = (0.0, -0.5)[(seed + call) % 2]
        a, b, c = operands
        want = 2.0 * (a @ b) + beta * c
        # Where beta is zero C must not be read.
        before = c if beta else np.full_like(c, np.nan)
        right &= np.array_equal(multiply(plan, place, (a, b, before), 2.0, beta), want)
    plan.free()
    assert machine.live == []
    return right


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, str, Configuration]:
    place = draw(st.sampled_from(PLACES))
    name = draw(
        st.sampled_from([name for name in FAMILIES if place != "blocks" or name == "rows"])
    )
    gpus = draw(st.sampled_from([1, 2, 3, GPUS]))
    space = FAMILIES[name].space(Gemm(640, 1024, 64), limits(place, gpus))
    return place, name, space[draw(st.integers(0, space.size - 1))]


@settings(max_examples=150, deadline=None)
@given(
    program=programs(),
    m=st.integers(1, 70),
    n=st.integers(1, 300),
    k=st.integers(1, 5),
    seed=st.integers(0, 2**16),
)
def test_every_program_multiplies_in_any_order(
    program: tuple[str, str, Configuration], m: int, n: int, k: int, seed: int
) -> None:
    place, name, configuration = program
    assert check(load(emitted(name, configuration)), place, (m, n, k), seed)


ALL_OF_IT = [
    (
        "rows",
        {
            "devices": 2,
            "threads": 4,
            "pieces": 4,
            "panels": 2,
            "exchange": "peer",
            "staging": staging,
        },
    )
    for staging in ("pinned", "direct")
] + [
    (
        "reduction",
        {"devices": 3, "threads": 4, "pieces": 4, "sum": how, "staging": "direct"},
    )
    for how in ("copy", "read")
]


def waits(text: str) -> list[int]:
    """Lines that let a stream wait for an event; the definition of what does it is none."""
    return [
        number
        for number, line in enumerate(text.splitlines())
        if re.match(r"\s+self\.wait\(", line)
    ]


@pytest.mark.parametrize(
    ("name", "configuration", "line"),
    [
        (name, configuration, line)
        for name, configuration in ALL_OF_IT
        for line in waits(emitted(name, configuration))
    ],
    ids=lambda value: (
        value if isinstance(value, str) else None if isinstance(value, dict) else value
    ),
)
def test_every_event_is_needed(name: str, configuration: dict[str, Any], line: int) -> None:
    lines = emitted(name, configuration).splitlines()
    indentation = lines[line][: -len(lines[line].lstrip())]
    lines[line] = indentation + "pass"
    module = load("\n".join(lines))
    # Rows enough for every piece to have some, and for rooms to be used again.
    assert not all(
        check(module, place, (67, 16 * 37, 3), seed)
        for seed in range(40)
        for place in ("host", "device")
    ), "nothing shows that the event is waited for"


def test_two_programs_that_differ_in_order_only_agree_to_the_bit() -> None:
    configuration = {"devices": 2, "threads": 4, "pieces": 2, "sum": "copy", "staging": "direct"}
    module = load(emitted("reduction", configuration))
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(40, 512)), rng.normal(size=(512, 6))
    results = []
    for seed in range(8):
        plan = module.gemm(NumpyMachine(2, seed=seed), 40, 512, 6)
        c = np.empty((40, 6))
        plan.from_host(a, b, c)
        plan.free()
        results.append(c)
    assert all(np.array_equal(results[0], each) for each in results)
    np.testing.assert_allclose(results[0], a @ b, rtol=1e-12, atol=1e-12)


class Failing(NumpyMachine):
    """Refuses one product, once."""

    def __init__(self, refused: int, seed: int) -> None:
        super().__init__(2, seed=seed)
        self._refused = refused

    def multiply(
        self, a: Matrix, b: Matrix, c: Matrix, alpha: float, beta: float, stream: Any
    ) -> None:
        self._refused -= 1
        if self._refused == 0:
            raise RuntimeError("no product")
        super().multiply(a, b, c, alpha, beta, stream)


@pytest.mark.parametrize(("name", "configuration"), ALL_OF_IT[:3])
@pytest.mark.parametrize("refused", [1, 5])
def test_what_fails_in_a_thread_is_raised_and_ends_the_others(
    name: str, configuration: dict[str, Any], refused: int
) -> None:
    module = load(emitted(name, {**configuration, "devices": 2}))
    machine = Failing(refused, seed=refused)
    plan = module.gemm(machine, 67, 16 * 37, 3)
    rng = np.random.default_rng(0)
    a, b, c = draw(rng, 67, 16 * 37), draw(rng, 16 * 37, 3), draw(rng, 67, 3)
    with pytest.raises(RuntimeError, match="no product"):
        plan.from_host(a, b, c)
    plan.from_host(a, b, c)  # the next call is as good as new
    assert np.array_equal(c, a @ b)
    plan.free()
    assert machine.live == []


class Elsewhere(NumpyMachine):
    """Whose second GPU cannot be made current, once."""

    refuses = True

    def here(self, device: int) -> contextlib.AbstractContextManager[None]:
        if device == 1 and self.refuses:
            self.refuses = False
            raise RuntimeError("no context")
        return super().here(device)


@pytest.mark.parametrize(("name", "configuration"), ALL_OF_IT[:3])
@pytest.mark.parametrize("lost", ["GPU", "thread"])
def test_a_thread_that_does_not_get_to_work_is_waited_for_by_none(
    name: str, configuration: dict[str, Any], lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(emitted(name, {**configuration, "devices": 2}))
    machine = Elsewhere(2)
    machine.refuses = lost == "GPU"
    plan = module.gemm(machine, 67, 16 * 37, 3)
    rng = np.random.default_rng(0)
    a, b, c = draw(rng, 67, 16 * 37), draw(rng, 16 * 37, 3), draw(rng, 67, 3)
    submit, submitted = plan.pool.submit, []

    def refuse(*work: Any) -> Any:
        if work[0] == plan.attempt:  # pages are locked by the pool, too
            submitted.append(work)
            if len(submitted) == 2:
                raise RuntimeError("no thread")
        return submit(*work)

    with monkeypatch.context() as patched:
        if lost == "thread":
            patched.setattr(plan.pool, "submit", refuse)
        with pytest.raises(RuntimeError, match="no context" if lost == "GPU" else "no thread"):
            plan.from_host(a, b, c)
    plan.from_host(a, b, c)
    assert np.array_equal(c, a @ b)
    plan.free()
    assert machine.live == []


def test_work_is_shared_by_rows_or_by_steps() -> None:
    shared = {"devices": 2, "threads": 4, "pieces": 1, "staging": "direct"}
    operands = np.zeros((64, 512)), np.zeros((512, 8)), np.zeros((64, 8))
    for name, rest, shape in (
        ("rows", {"panels": 1, "exchange": "host"}, (16, 256, 8)),
        ("reduction", {"sum": "copy"}, (64, 128, 8)),
    ):
        machine = NumpyMachine(2)
        plan = load(emitted(name, shared | rest)).gemm(machine, 64, 512, 8)
        plan.from_host(*operands)
        plan.free()
        assert {each[1:] for each in machine.products} == {shape}
        assert sorted({each[0] for each in machine.products}) == [0, 1]


def test_a_machine_with_too_few_gpus_is_refused() -> None:
    module = load(emitted(*ALL_OF_IT[0]))
    with pytest.raises(ValueError, match="drives 2 GPUs, the machine has 1"):
        module.gemm(NumpyMachine(1), 8, 8, 8)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_program_tries_itself(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def open_machine(
        m: int, n: int, k: int, dtype: str, devices: int
    ) -> contextlib.AbstractContextManager[NumpyMachine]:
        return contextlib.nullcontext(NumpyMachine(devices, dtype))

    monkeypatch.setattr("autotune.runtime.emitted.open_machine", open_machine)
    configuration = FAMILIES[name].default(Gemm(1024, 1024, 1024), limits("host"))
    text = emitted(name, dict(configuration), "float32")
    load(text).main(["70", "90", "50"])
    printed = capsys.readouterr().out
    assert float(printed.split()[4]) < 16
    assert text.startswith(f'"""gemm for hybrid: family {name}, float32, layout nn.')
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("arguments", ["64 x 64", "64 64", "64 -3 64", "64 0 64"])
def test_sizes_that_are_none_are_one_line(arguments: str) -> None:
    family = FAMILIES["rows"]
    program = load(render(family, family.default(Gemm(64, 64, 64), limits("host"))).text)
    with pytest.raises(SystemExit, match=f"three sizes M N K are needed.*got: {arguments}$"):
        program.main(arguments.split())
