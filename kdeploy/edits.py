"""What one edit does to one file: where it would act, whether it may, and the text that results."""

from __future__ import annotations

from dataclasses import dataclass

from kdeploy.anchors import Anchor
from kdeploy.errors import Location


@dataclass(frozen=True)
class Edit:
    """What all edits have: its number in the patch (from 1), its place in the patch, and the file it is about."""

    number: int
    where: Location
    file: str
