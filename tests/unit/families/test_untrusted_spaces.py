"""Spaces are data of strangers: what of them reaches emitted source is numbers and words."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from autotune.core.errors import AutotuneError, FamilyError, SpaceError
from autotune.core.paths import data_dir
from autotune.families.rendering import WORD, render
from autotune.space import Expression, TunableParameter
from autotune.targets.families import load_families, read_family

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.core.configuration import Value
    from autotune.families.family import KernelFamily

CPU = '''\
"""{{ banner }}
"""
SIGNATURE = "{{ signature }}"
VALUES = [{{ sm }}, {{ rows }}, {{ itemsize }}, "{{ dtype }}", "{{ layout }}", {{ program[:1] }}]
{{ order }} = 1


def gemm({{ arguments }}):
    return
'''
CUDA = """\
/*
{{ banner }}
*/
using T = {{ ctype }};
constexpr int SM = {{ sm }}, ROWS = {{ rows }}, {{ order }} = 1;
{% for condition, reason in static_asserts %}
static_assert({{ condition }}, "{{ reason }}");
{% endfor %}
extern "C" __global__ void gemm({{ arguments }}) {}
extern "C" __global__ void prepare({{ arguments }}) {}
"""
LAUNCH = """
[launch]
grid = ["1", "1", "1"]
block = ["1", "1", "1"]
shared_bytes = "0"
[[launch.before]]
kernel = {kernel}
when = "sm > 1"
grid = ["1", "1", "1"]
block = ["1", "1", "1"]
"""
FIELDS = {
    "family": "tiny",
    "operation": "gemm",
    "summary": "For tests",
    "name": "order",
    "value": "rows",
    "about": "a parameter",
    "literal": "sm == 16",
    "derived": "sm // 2",
    "reason": "sizes",
    "preset": "small",
    "preset_summary": "a preset",
    "kernel": "prepare",
    "dtype": "float32",
    "layout": "nn",
    "template": "tiny.j2",
}
"""Every place of a document in which a text may stand, with one that fits."""


def toml(target: str, texts: dict[str, str]) -> str:
    quoted = {place: json.dumps(text) for place, text in texts.items()}
    return f"""\
family = {quoted["family"]}
operation = {quoted["operation"]}
target = "{target}"
template = {quoted["template"]}
accuracy = "ieee"
summary = {quoted["summary"]}
dtypes = [{quoted["dtype"]}]
layouts = [{quoted["layout"]}]

[parameters]
sm = {{ values = [16, 32], default = 32 }}
[parameters.{quoted["name"]}]
values = [{quoted["value"]}]
default = {quoted["value"]}
summary = {quoted["about"]}

[derived]
rows = {quoted["derived"]}
threads = "sm"
registers = "32"
shared_bytes = "0"

[[restrictions]]
expr = {quoted["literal"]}
reason = {quoted["reason"]}
[[restrictions]]
expr = "rows * 2 == sm"
reason = {quoted["reason"]}

[presets.{quoted["preset"]}]
summary = {quoted["preset_summary"]}
sm = 16
""" + (LAUNCH.format(kernel=quoted["kernel"]) if target == "cuda" else "")


def written(folder: Path, target: str, texts: dict[str, str]) -> KernelFamily:
    (folder / "tiny.j2").write_text(CUDA if target == "cuda" else CPU)
    path = folder / "tiny.toml"
    path.write_text(toml(target, texts), encoding="utf-8")
    return read_family(path, (folder,))


HOSTILE = [
    "1\nimport os\n",
    "__import__('os').system('true')",
    "'__import__(1)'",
    '"""\nimport os\n"""',
    "*/ int x; /*",
    '");\n#include "/etc/passwd"\n//',
    "a\u2028b",
    "{{ 7 * 7 }}",
    "a b",
    "rows\\",
    "x; y",
    "\x1b[2J",
    "e\u0301",
    "-",
    "a--b",
    "\uff41",
    "??/",
    "../../etc/passwd",
]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    target=st.sampled_from(["cpu", "cuda"]),
    place=st.sampled_from(list(FIELDS)),
    text=st.one_of(
        st.sampled_from(HOSTILE),
        st.sampled_from(HOSTILE).map(repr),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
    ),
)
@example(target="cpu", place="derived", text="'1; import os'")
@example(target="cuda", place="derived", text="order")
@example(target="cuda", place="reason", text='x"); #error')
@example(target="cuda", place="value", text="a*/b")
def test_no_text_of_a_space_is_source(target: str, place: str, text: str, tmp_path: Path) -> None:
    """A text is refused, or is not in the source, or is there as a word or as a quoted reason."""
    usual = render(
        written(tmp_path, target, FIELDS), {"sm": 16, "order": "rows"}, dtype="float32"
    ).text
    try:
        family = written(tmp_path, target, {**FIELDS, place: text})
        values: dict[str, Value] = {p.name: p.values[0] for p in family.parameters}
        source = render(family, values).text
    except AutotuneError as error:
        refusal: AutotuneError | None = error
    else:
        refusal = None
    if refusal is not None:
        assert "\n" not in str(refusal)
        assert len(str(refusal)) < 1000
        return
    if place == "reason":
        source = re.sub(r', "[^"\\?\n]*"\);', ', "sizes");', source)
    for line in source.splitlines():
        # Digests cover the whole file, and so differ.
        if line not in usual.splitlines() and text in line and "digest" not in line:
            assert WORD.fullmatch(text) or text.isdigit() or place == "literal", line
    if place in ("summary", "about", "preset", "preset_summary", "kernel", "reason"):
        assert re.sub(r"[0-9a-f]{16}", "", source) == re.sub(r"[0-9a-f]{16}", "", usual)


def test_code_in_a_derived_name_is_refused(tmp_path: Path) -> None:
    """With a shipped template, which inserts `tx`, this ran while it was tuned."""
    path = tmp_path / "evil.toml"
    shipped = (data_dir("search_spaces") / "gemm" / "cpu" / "unrolled.toml").read_text()
    lines = [line for line in shipped.splitlines() if not line.startswith("tx =")]
    at = lines.index("[[restrictions]]")
    lines[at:at] = ["[derived]", "tx = \"'''4\\nopen(0).read()'''\""]
    path.write_text("\n".join(lines))
    with pytest.raises(FamilyError, match=r"derived\.tx must be a number, and .* is a text"):
        read_family(path, (data_dir("templates"),))


@pytest.mark.parametrize(
    "derived", ["'text'", "order", "alias", "'a' 'b'"], ids=["literal", "name", "alias", "joined"]
)
def test_a_derived_name_is_a_number(derived: str, tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match=r"derived\.\w+ must be a number|uses 'alias'"):
        written(tmp_path, "cpu", {**FIELDS, "derived": derived})


@pytest.mark.parametrize(
    "value", ["1; import os", "a\nb", 'a"b', float("inf"), float("nan"), 2**70]
)
def test_what_is_made_without_a_file_is_checked_where_it_is_rendered(value: Value) -> None:
    """Families can be built in Python, too: nothing but numbers and words gets into a source."""
    family = load_families(target="cpu")["unrolled"]
    if value == value:
        parameter = TunableParameter("tx", (value,))
        others = [each for each in family.parameters if each.name != "tx"]
        made = dataclasses.replace(family, parameters=(parameter, *others))
        values = {p.name: p.values[0] for p in made.parameters}
        with pytest.raises(FamilyError, match="tx must be a finite number, or a word that a"):
            render(made, values)
    derived = {"strange": Expression.parse(repr(value).replace("\\n", " "))}
    if isinstance(value, str | int):
        with pytest.raises(FamilyError, match="strange must be a finite number, or a word"):
            render(
                dataclasses.replace(family, derived=derived), {"unroll": 1, "tx": 1, "threads": 1}
            )


def test_a_value_from_elsewhere_is_one_of_the_familys_or_refused() -> None:
    """Records, interchange files and the command line name values; they bring none along."""
    family = load_families(target="cpu")["loops"]
    default = {p.name: p.default for p in family.parameters}
    for name in default:
        for value in ("x; import os", 10**30, 1.5, "ijk\n", b"ijk", None, ["ijk"]):
            with pytest.raises(SpaceError) as caught:
                render(family, {**default, name: value})  # type: ignore[dict-item]
            assert "\n" not in str(caught.value)
