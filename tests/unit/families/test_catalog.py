"""The catalog of families, and shipped programs that an edit of comments made stale."""

from __future__ import annotations

import json
import os
from pathlib import Path

import carry_over
import pytest

from autotune.core.errors import FamilyError, UnknownNameError
from autotune.core.paths import data_dir
from autotune.families.rendering import render
from autotune.targets.families import find_families, load_families, select_families

TOML = """\
family = "{name}"
operation = "gemm"
target = "cpu"
template = "{template}"
accuracy = "ieee"
summary = "Mine"

[parameters]
unroll = {{ values = [1, 2], default = 1 }}
"""

TEMPLATE = """\
\"\"\"{{ banner }}\"\"\"
{% include "_lib/mine.j2" %}
def gemm({{ arguments }}):
    return {{ unroll }}
"""


def side_by_side(folder: Path, name: str = "mine") -> Path:
    """A family as a user would first write one: two files and a partial in one folder."""
    folder.mkdir(exist_ok=True)
    (folder / "_lib").mkdir(exist_ok=True)
    (folder / "_lib" / "mine.j2").write_text("# a partial\n")
    (folder / f"{name}.toml").write_text(TOML.format(name=name, template=f"{name}.py.j2"))
    (folder / f"{name}.py.j2").write_text(TEMPLATE)
    return folder


def test_shipped_families_lie_where_they_say() -> None:
    families = find_families()
    assert families
    for family in families:
        place = Path(family.operation, family.target, family.name)
        assert family.path == data_dir("search_spaces") / place.with_suffix(".toml")
        language = "cu" if family.target == "cuda" else "py"
        assert family.template == f"{place.as_posix()}.{language}.j2"


def test_a_user_s_family_is_loaded_and_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = side_by_side(tmp_path / "families")
    shipped = load_families(target="cpu")
    monkeypatch.setenv("AUTOTUNE_FAMILIES", f"{os.pathsep}{folder}{os.pathsep}")
    families = load_families(target="cpu")
    assert families.keys() - shipped.keys() == {"mine"}
    source = render(families["mine"], {"unroll": 2})
    assert "# a partial\ndef gemm(m, n, k, alpha," in source.text
    assert source.text.endswith("    return 2\n")


def test_trees_and_several_folders(tmp_path: Path) -> None:
    tree = tmp_path / "project"
    (tree / "search_spaces" / "gemm").mkdir(parents=True)
    (tree / "templates" / "gemm").mkdir(parents=True)
    (tree / "pyproject.toml").write_text("[project]\n")  # not a family
    toml = TOML.format(name="tree", template="gemm/tree.py.j2")
    (tree / "search_spaces" / "gemm" / "tree.toml").write_text(toml)
    (tree / "templates" / "gemm" / "tree.py.j2").write_text("def gemm(): pass\n")
    flat = side_by_side(tmp_path / "flat")
    families = load_families(target="cpu", extra=[tree, flat, tmp_path / "flat" / ".." / "flat"])
    assert {"tree", "mine"} <= families.keys()


def test_a_user_s_template_may_include_shipped_partials(tmp_path: Path) -> None:
    partial = min(path.name for path in data_dir("templates").glob("_lib/*.j2"))
    folder = side_by_side(tmp_path / "families")
    before = load_families(target="cpu", extra=[folder])["mine"].digest
    (folder / "mine.py.j2").write_text(f'{TEMPLATE}{{% import "_lib/{partial}" as shipped %}}\n')
    assert load_families(target="cpu", extra=[folder])["mine"].digest != before


def test_one_name_twice_names_both_files(tmp_path: Path) -> None:
    first, second = (side_by_side(tmp_path / name) for name in "ab")
    with pytest.raises(FamilyError, match="'mine' for gemm on cpu already") as caught:
        find_families([first, second])
    assert str(first / "mine.toml") in str(caught.value)
    assert str(second / "mine.toml") in str(caught.value)


def test_folders_that_are_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FamilyError, match=r"kernel families \(\*\.toml\), has none"):
        find_families([tmp_path])
    with pytest.raises(FamilyError, match=r"nowhere must be a folder with kernel families"):
        find_families([tmp_path / "nowhere"])
    monkeypatch.setenv("AUTOTUNE_FAMILIES", str(tmp_path / "nowhere"))
    with pytest.raises(FamilyError, match=r"nowhere \(from \$AUTOTUNE_FAMILIES\) must be"):
        find_families()


def test_other_targets_and_operations_are_left_out() -> None:
    assert load_families(target="cuda", operation="no-such-operation") == {}


def test_selecting_by_name(tmp_path: Path) -> None:
    folder = side_by_side(tmp_path / "families")
    side_by_side(folder, "other")
    families = load_families(target="cpu", extra=[folder])
    assert list(select_families(families, ["other", "mine"])) == ["other", "mine"]
    assert select_families(families, []) == families
    with pytest.raises(UnknownNameError, match=r"got 'mien'; did you mean 'mine'\?"):
        select_families(families, ["mien"])
    with pytest.raises(UnknownNameError, match=r"\(none found\), got 'mine'"):
        select_families({}, ["mine"])


def test_fragments_are_no_families_and_a_user_s_files_may_include_them(tmp_path: Path) -> None:
    family = TOML.format(name="sharing", template="gemm/sharing.py.j2")
    family = 'include = ["schedule/threads.toml", "schedule/mine.toml"]\n' + family
    family += '[derived]\ntiles = "M"\n'
    for path, text in (
        ("search_spaces/gemm/sharing.toml", family),
        ("search_spaces/schedule/mine.toml", "[parameters]\nmine = { values = [1] }\n"),
        ("templates/gemm/sharing.py.j2", TEMPLATE.replace("mine.j2", "numba_scale.py.j2")),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    sharing = load_families(target="cpu", extra=[tmp_path])["sharing"]
    names = [parameter.name for parameter in sharing.parameters]
    assert names == ["unroll", "threads", "schedule", "chunk", "mine"]


SHIPPED = Path(__file__).parents[3] / "cache"


def test_comments_are_no_statements() -> None:
    before = '"""One."""\ndef f(x):\n    """Two."""\n    return x + 1  # three\n'
    assert carry_over.statements(before) == carry_over.statements("def f(x):\n    return x + 1\n")
    assert carry_over.statements(before) != carry_over.statements("def f(x):\n    return x + 2\n")


@pytest.mark.parametrize("same", [True, False])
def test_programs_hold_for_the_files_of_today(same: bool, tmp_path: Path) -> None:
    """Of both kinds of files: a portfolio's entries, and a record."""
    (folder,) = SHIPPED.glob("cuda-nvidia-h100*")
    for name in ("gemm.jsonl", "gemm.portfolio.jsonl"):
        head, line = (folder / name).read_text().splitlines()[:2]
        ((part, key), *_) = carry_over.programs(json.loads(line))
        before, now = (
            {key: carry_over.Program(digest, part["configuration"], "")}
            for digest in (part["family_digest"], "0123456789abcdef")
        )
        file = tmp_path / name
        file.write_text(f"{head}\n{line}\n")
        carry_over.rewrite(file, before, now, {key: carry_over.Compared(same, b"today's")})
        ((again, again_key), *_) = carry_over.programs(
            json.loads(file.read_text().splitlines()[1])
        )
        assert (again_key, again["family_digest"]) == (key, "0123456789abcdef")
        assert (again["binary"] == part["binary"]) == same
        assert bool(list(tmp_path.glob("*.xz"))) != same


def test_a_carried_program_has_the_parameters_of_today() -> None:
    family = load_families(target="cuda")["dmma"]
    declared = {each.name: each.default for each in family.parameters}
    then = {name: value for name, value in declared.items() if name != "persistent"}
    key = json.dumps(["cuda", "dmma", "float64", "float64", "nn", {**then, "of_old": 1}])
    now = carry_over.describe([key])[key]
    assert (now.digest, now.configuration) == (family.digest, declared)
