"""Try faults by hand, one server each: `python -m tests.faults NAME ...` (all of them without a name).

Prints what the gate says to each; a fault of your own is a file beside the others.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.faults.fault import all_faults, load
from tests.faults.rig import Rig, shown


def main(names: list[str]) -> None:
    """Run and print."""
    faults = [load(name) for name in names] or all_faults()
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(Path(folder))
        try:
            for profile in sorted({fault.profile for fault in faults}):
                rig.ask(profile, [])  # known-good, which they are compared with
            for fault in faults:
                (told,) = rig.ask(fault.profile, [rig.with_set(fault)])
                print(f"\n{fault.name}: {fault.does}\n{shown(told.verdict)}health is green: {told.healthy}\n")
        finally:
            rig.close()


if __name__ == "__main__":
    main(sys.argv[1:])
