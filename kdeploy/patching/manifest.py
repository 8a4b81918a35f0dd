"""The shape of `patchset.yaml` and `patches/*.yaml`: one source for reading, for errors and for the JSON Schemas."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from kdeploy.document import Model

NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"

ACTIONS = ("insert-after", "insert-before", "replace", "add-file", "delete-file", "diff")
ANCHORED = ACTIONS[:3]

Positive = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
Module = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Arch = Annotated[str, Field(pattern=r"^sm_[1-9][0-9]{1,2}$")]
Value = Annotated[str, Field(pattern=r"^[^\x00]*$")]


class ProofFile(Model):
    """A program that kdeploy runs on the pristine tree (it must exit 3) and on the patched tree (it must exit 0)."""

    name: Annotated[str, Field(pattern=NAME)] = Field(description="what the proof is called in reports")
    run: Text = Field(description="the program, a path inside the set: proofs/mask.py")
    needs: list[Module] = Field(default=[], description="modules that must be importable in the proof's Python")
    timeout_s: Annotated[int | float, Field(gt=0, le=86_400)] = Field(default=300, description="seconds it may take")
    env: dict[Variable, Value] = Field(default={}, description="environment variables for the proof")


class PatchSetFile(Model):
    """`patchset.yaml`: what a patch set is, and the order of its patches."""

    name: Annotated[str, Field(pattern=NAME)] = Field(description="the set's name, that of the folder above")
    version: Text = Field(description="the set's version (PEP 440), the name of its folder")
    summary: Text = Field(description="one line for lists")
    engine: Text = Field(description="the SGLang versions it is made for, as PEP 440 specifiers: >=0.5.11,<0.5.12")
    arch: Annotated[list[Arch], Field(min_length=1)] | None = Field(
        default=None, description="GPU architectures it is made for: [sm_100, sm_103]; left out, it fits all"
    )
    requires: list[Text] = Field(default=[], description="sets that must come earlier in the profile: cpu>=1.0.0")
    conflicts: list[Text] = Field(default=[], description="sets that must not be in the same profile: ddtree>=1.0.0")
    series: Annotated[list[Annotated[str, Field(pattern=NAME)]], Field(min_length=1)] = Field(
        description="the patches in the order of application; patches/<name>.yaml each"
    )
    proofs: list[ProofFile] = Field(default=[], description="what must fail before and pass after")


class RetireWhenFile(Model):
    """When the engine no longer needs the patch: all that is given must be true on the pristine base."""

    engine: Text | None = Field(default=None, description="SGLang versions that need it no longer: >=0.5.17")
    file: Text | None = Field(default=None, description="a file of the wheel that ...")
    contains: Text | None = Field(default=None, description="... contains this text")


class EditFile(Model):
    """One edit: exactly one action, and an anchor for those that act at a place."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [action]} for action in ACTIONS]})

    file: Text | None = Field(default=None, description="the file's path in the wheel (not for a diff)")
    within: Text | None = Field(default=None, description="qualified name of the class or function around it: A.b")
    line: Positive | None = Field(default=None, description="the line where it was seen: a hint, never the address")
    count: Positive = Field(default=1, description="how often the anchor must be found")
    anchor: Text | None = Field(
        default=None,
        description="exact text: a part of one line, or (with a newline) whole lines under any common indentation",
    )
    insert_after: Text | None = Field(default=None, description="lines to put after the anchor, at its indentation")
    insert_before: Text | None = Field(default=None, description="lines to put before the anchor, at its indentation")
    replace: str | None = Field(default=None, description="text to put in the place of the anchor")
    add_file: Text | None = Field(default=None, description="the new file's content, a path inside the set: files/x.py")
    delete_file: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None, description="delete the file; this is the sha256 of the content it must have"
    )
    diff: Text | None = Field(default=None, description="a unified diff, a path inside the set: files/x.diff")

    def given(self, key: str) -> Any:
        """The value of a key as it is written in the file (`insert-after`)."""
        return getattr(self, key.replace("-", "_"))


class PatchFile(Model):
    """`patches/<name>.yaml`: edits with one reason."""

    reason: Annotated[str, Field(pattern=r"\S")] = Field(description="why this change exists")
    origin: Annotated[str, Field(pattern=r"\S")] = Field(description="who wrote it: a name, a URL, a commit")
    retire_when: RetireWhenFile | None = Field(default=None, description="when the engine no longer needs it")
    edits: Annotated[list[EditFile], Field(min_length=1)] = Field(description="made in this order")


def schemas() -> dict[str, dict[str, Any]]:
    """JSON Schemas of `patchset.yaml` ("patchset") and of `patches/*.yaml` ("patch")."""
    return {
        "patchset": PatchSetFile.model_json_schema(by_alias=True),
        "patch": PatchFile.model_json_schema(by_alias=True),
    }
