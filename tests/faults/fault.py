"""A seeded fault: one YAML file here, which says what is changed, why that is bad, and which checks must say no."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Fault:
    """A patch set that breaks the engine, or one that looks like it and does not."""

    name: str
    does: str
    """What is wrong with it, in words."""
    profile: str
    """The profile whose server it is tried on."""
    says_no: frozenset[str]
    """Checks that must say no, each for its own reason; none for a benign change."""
    says: str
    """A regular expression for what one of them must say: the right reason."""
    only: bool
    """Whether all other checks must say yes: the fault shows nowhere else."""
    health: bool
    """Whether /health is good to the end."""
    edits: tuple[dict[str, Any], ...]

    @property
    def benign(self) -> bool:
        """Whether the gate must let it through."""
        return not self.says_no


def load(name: str) -> Fault:
    """The fault of that name."""
    values = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    fault = Fault(
        name=name,
        does=values.pop("does"),
        profile=values.pop("profile", "local"),
        says_no=frozenset(values.pop("says-no")),
        says=values.pop("says", ""),
        only=values.pop("only", False),
        health=values.pop("health", True),
        edits=tuple(values.pop("edits")),
    )
    assert not values, f"{name}.yaml: nothing reads {', '.join(values)}"
    return fault


def all_faults() -> list[Fault]:
    """Every one that is here, by name."""
    return [load(path.stem) for path in sorted(FOLDER.glob("*.yaml"))]
