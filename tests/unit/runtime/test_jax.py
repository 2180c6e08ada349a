"""`autotune.jax.matmul` beside JAX's own, in programs that JAX compiles."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from measured_shapes import SHAPES, measured_cache
from structured_kernels import made, operands

import autotune
from autotune.core.errors import AutotuneError, InputError, OperandError

jax: Any = pytest.importorskip("jax")

from jax import export  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from autotune.jax import foreign, matmul  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

M, N, K = SHAPES[0]


own_cache = measured_cache()


def whole(*shape: int, dtype: str = "float32") -> Any:
    """Small whole numbers: sums are exact in any order."""
    numbers = np.random.default_rng(sum(shape)).integers(-4, 5, shape)
    return jnp.asarray(numbers.astype(dtype))


def same(got: Any, wanted: Any) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(got, wanted)


def calls(function: Any, *inputs: Any) -> list[str]:
    """The foreign functions that a compiled program calls."""
    text = jax.jit(function).lower(*inputs).compile().as_text()
    return sorted(re.findall(r'custom_call_target="autotune_(\w+)"', text))


def test_products_that_go_to_kernels(own_cache: Path) -> None:
    a, b = whole(M, N), whole(N, K)
    assert calls(matmul, a, b) == ["mm_nn_cpu"]
    for multiply in (matmul, jax.jit(matmul)):
        same(multiply(a, b), a @ b)
    same(matmul(np.asarray(a).tolist(), b), a @ b)
    assert calls(matmul, a[0:1], b) == []
    same(matmul(a[0:1], b), a[0:1] @ b)
    told = own_cache.read_text()
    assert f"jax matmul {M}x{N}x{K}-float32 on cpu: textbook: step=1, EXACT" in told
    assert f"jax matmul 1x{N}x{K}-float32 on cpu: left to the library: " in told
    assert "load" not in told  # which nobody here can


def test_products_of_float64() -> None:
    with jax.enable_x64(True):
        a, b = whole(M, N, dtype="float64"), whole(N, K, dtype="float64")
        assert a.dtype == "float64"
        assert calls(matmul, a, b) == ["mm_nn_cpu"]
        same(matmul(a, b), a @ b)
        assert calls(matmul, a, b.astype("float32")) == []


OTHERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "vectors": lambda: (whole(N), whole(N)),
    "a row": lambda: (whole(N), whole(N, K)),
    "a column": lambda: (whole(M, N), whole(N)),
    "stacks": lambda: (whole(2, M, N), whole(2, N, K)),
    "a stack and a matrix": lambda: (whole(2, 3, M, N), whole(N, K)),
    "whole numbers": lambda: (whole(M, N, dtype="int32"), whole(N, K, dtype="int32")),
    "bfloat16": lambda: (whole(M, N).astype("bfloat16"), whole(N, K).astype("bfloat16")),
    "several dtypes": lambda: (whole(M, N), whole(N, K, dtype="int32")),
    "no rows": lambda: (whole(0, N), whole(N, K)),
    "no reduction": lambda: (whole(M, 0), whole(0, K)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_jax_multiplies(what: str) -> None:
    a, b = OTHERS[what]()
    same(matmul(a, b), jnp.matmul(a, b))
    same(jax.jit(matmul)(a, b), jnp.matmul(a, b))


def test_what_jax_refuses_it_refuses_itself() -> None:
    for a, b in ((whole(M, N), whole(K, N)), (whole(M, N), whole())):
        with pytest.raises((TypeError, ValueError)) as wanted:
            jnp.matmul(a, b)
        with pytest.raises((TypeError, ValueError)) as got:
            matmul(a, b)
        assert str(got.value) == str(wanted.value)


def test_transforms() -> None:
    a, b, stack = whole(M, N), whole(N, K), whole(3, M, N)

    def cost(multiply: Any) -> Any:
        return lambda x: (multiply(x, b) ** 2).sum()

    for transform in (
        lambda f: jax.grad(f)(a),
        lambda f: jax.jit(jax.grad(f))(a),
        lambda f: jax.jacrev(jax.grad(f))(a),
        lambda f: jax.vmap(f)(stack),
        lambda f: jax.vmap(jax.grad(f))(stack),
        lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum())(stack),
        lambda f: jax.jit(jax.checkpoint(jax.grad(f)))(a),
    ):
        same(transform(cost(matmul)), transform(cost(jnp.matmul)))
    for dims in ((0, None), (None, 0), (0, 0), (1, 2)):
        inputs = [
            each if along is None else jnp.stack([each] * 3, along)
            for each, along in zip((a, b), dims, strict=True)
        ]
        same(jax.vmap(matmul, dims)(*inputs), jax.vmap(jnp.matmul, dims)(*inputs))


def without_jit(f: Any, a: Any, b: Any) -> Any:
    with jax.disable_jit():
        return f(a, b)


def in_shards(f: Any, a: Any, b: Any) -> Any:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, all_ = jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()

    def cost(a: Any, b: Any) -> Any:
        return jax.lax.psum(f(a, b).sum(), "x")

    by_rows = jax.shard_map(f, mesh=mesh, in_specs=(rows, all_), out_specs=rows)
    total = jax.shard_map(cost, mesh=mesh, in_specs=(rows, all_), out_specs=all_)
    return by_rows(a, b), jax.jit(by_rows)(a, b), jax.grad(total, (0, 1))(a, b)


def exported(f: Any, a: Any, b: Any) -> Any:
    rows = export.symbolic_shape(f"rows, {N}")
    made = export.export(jax.jit(f))(jax.ShapeDtypeStruct(rows, a.dtype), b)
    return made.call(a, b), made.call(a[1:], b)


WATCHERS: dict[str, Callable[..., Any]] = {
    "without jit": without_jit,
    "shapes alone": lambda f, a, b: jax.eval_shape(f, a, b).shape,
    "devices": lambda f, a, b: jax.pmap(f)(a[None], b[None]),
    "shards": in_shards,
    "exported for all sizes": exported,
    "exported elsewhere": lambda f, a, b: (
        export.export(jax.jit(f), platforms=["tpu"])(a, b).platforms
    ),
    "donated": lambda f, a, b: jax.jit(f, donate_argnums=0)(a + 0, b),
    "loop": lambda f, a, b: jax.lax.fori_loop(0, 3, lambda _, x: x + f(a, b), jnp.zeros((M, K))),
    "condition": lambda f, a, b: jax.lax.cond(a[0, 0] < 9, f, jnp.matmul, a, b),
    "checkpoint": lambda f, a, b: jax.grad(jax.checkpoint(lambda x: f(x, b).sum()))(a),
    "defaults by keyword": lambda f, a, b: f(
        a, b, precision=jax.lax.Precision.DEFAULT, preferred_element_type="float32"
    ),
}


@pytest.mark.filterwarnings("ignore:Some donated buffers:UserWarning")
@pytest.mark.parametrize("watcher", WATCHERS)
def test_who_watches_sees_what_jax_does(watcher: str) -> None:
    a, b = whole(M, N), whole(N, K)
    got, wanted = (WATCHERS[watcher](each, a, b) for each in (matmul, jnp.matmul))
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


@pytest.mark.parametrize(
    "options",
    [{"precision": "highest"}, {"preferred_element_type": jnp.float16}],
)
def test_what_kernels_do_not_have_is_refused_in_a_line(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(OperandError, match=rf"^{name} must be .* jax.numpy.matmul has$"):
        matmul(whole(M, N), whole(N, K), **options)


@pytest.mark.parametrize(
    "transform",
    [
        jax.jit,
        jax.vmap,
        lambda f: lambda *x: jax.eval_shape(f, *x),
        lambda f: jax.grad(lambda *x: f(*x).sum()),
    ],
)
def test_arrays_without_contents_are_for_the_other_matmul(transform: Any) -> None:
    stack = whole(2, M, N), whole(2, N, K)
    with pytest.raises(OperandError, match=r"^a must have contents.*: use autotune.jax.matmul"):
        transform(autotune.matmul)(*stack)


def test_no_class_is_the_usual_one() -> None:
    a, b = whole(M, N), whole(N, K)
    same(matmul(a, b, accuracy=None), matmul(a, b))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="accuracy must be one of ieee"):
        matmul(a, b, accuracy=[])  # type: ignore[arg-type]


def test_what_completion_shows() -> None:
    assert dir(autotune.jax) == ["matmul"]


def test_gradients_are_kernels_products() -> None:
    a, b = whole(M, N), whole(N, K)
    gradients = jax.grad(lambda a, b: matmul(a, b).sum(), (0, 1))
    assert calls(gradients, a, b) == ["mm_nt_cpu", "mm_tn_cpu"]


def test_loops_and_threads() -> None:
    a, b = whole(M, N), whole(N, K)

    def step(carried: Any, _: Any) -> Any:
        return carried + matmul(a, b), None

    total, _ = jax.lax.scan(step, jnp.zeros((M, K)), None, length=10)
    same(total, 10 * (a @ b))
    multiply, wanted, wrong = jax.jit(matmul), np.asarray(a @ b), []

    def work() -> None:
        for _ in range(50):
            if not np.array_equal(multiply(a, b), wanted):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_a_foreign_function_raises_is_an_error_of_the_call() -> None:
    def fail(inputs: Any, outputs: Any, stream: int | None) -> None:
        raise AutotuneError(f"refused {inputs[0].shape} {inputs[0].dtype} {stream}")

    foreign.register("autotune_test_fail", "cpu", fail)
    call = jax.ffi.ffi_call("autotune_test_fail", jax.ShapeDtypeStruct((2,), "float32"))
    with pytest.raises(Exception, match=r"AutotuneError: refused \(3, 2\) float32 None"):
        jax.block_until_ready(call(whole(3, 2)))


def test_kernels_of_ones_own_take_arrays_as_they_are(tmp_path: Path) -> None:
    own = made("normalised", "cpu", tmp_path, dtypes=["float32"])
    (X,), _, wanted = operands("normalised", "float32")
    found = own(jnp.asarray(X))
    for got, want in zip(found, wanted, strict=True):
        assert isinstance(got, jax.Array)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
    with pytest.raises(OperandError, match="DynamicJaxprTracer is not"):
        jax.jit(own)(jnp.asarray(X))
    changed = made("decayed", "cpu", tmp_path, dtypes=["float32"])
    with pytest.raises(OperandError, match="state is read-only"):
        changed(jnp.ones(5), jnp.ones(5))
