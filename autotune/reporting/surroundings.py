"""The section about what the times depend on: device, software, state, how it was searched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.reporting.layout import Section, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.reporting.study import Study

_UNKNOWN = "–"


def environment(studies: Sequence[Study]) -> Section:
    """What the times depend on besides: device, software, state, how it was searched."""
    facts_of = {study.name: _surroundings(study) for study in studies}
    names = list(dict.fromkeys(name for each in facts_of.values() for name in each))
    rows = [[name, *(each.get(name, _UNKNOWN) for each in facts_of.values())] for name in names]
    table = Table(
        "environment-table",
        "What was recorded with each study",
        ("what", *(study.name for study in studies)),
        rows,
    )
    return Section("environment", "Environment", (), (), (), [table])


def _version(study: Study) -> str:
    """Which version measured last; that of the record where no run says."""
    noted = str(study.runs[-1].get("version", "")) if study.runs else ""
    return noted or ("" if study.record is None else study.record.version)


def _surroundings(study: Study) -> dict[str, str]:
    found: dict[str, Any] = {
        "source": study.source,
        "problem": study.problem.label if study.problem else "",
        "target": study.target,
        "device": study.device,
        "families": ", ".join(study.families),
        "sampler": study.samplers,
        "seed": ", ".join(dict.fromkeys(str(run["seed"]) for run in study.runs if "seed" in run)),
        "runs": len(study.runs) or "",
        "began": study.runs[0].get("started", "") if study.runs else "",
        "autotune": _version(study),
        "space": study.space,
    }
    if study.record is not None:
        found["record"] = study.record.id
    fingerprint = study.noted("fingerprint").get("fields")
    if fingerprint is None and study.record is not None:
        fingerprint = study.record.fingerprint.fields
    groups: Mapping[str, Any] = {
        "device": fingerprint,
        "limit": study.noted("limits"),
        "software": study.noted("toolchain"),
        "state": study.noted("state"),
    }
    for group, values in groups.items():
        if isinstance(values, dict):
            found |= {f"{group}: {name}": value for name, value in values.items()}
    return {name: str(value) for name, value in found.items() if value not in ("", None)}
