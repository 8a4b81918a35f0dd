"""What the README shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import REPOSITORY, Run

README = (REPOSITORY / "README.md").read_text()


def test_the_patch_set_of_the_readme(kdeploy: Run, project: Path) -> None:
    blocks = dict(re.findall(r"```yaml\n# (patchsets/\S+)\n(.*?)```", README, re.DOTALL))
    assert len(blocks) == 2
    for path, text in blocks.items():
        target = project / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    done = kdeploy("verify-anchors", "greeting")
    assert done.returncode == 0, done.stderr
    (shown,) = re.findall(r"^    (sglang/launch_server\.py.*)$", README, re.MULTILINE)
    assert done.stdout.split() == shown.split()


def test_every_command_is_in_the_readme(kdeploy: Run) -> None:
    helped = kdeploy("--help").stdout.partition("Commands:")[2]
    commands = re.findall(r"^  ([a-z-]+) ", helped, re.MULTILINE)
    assert len(commands) > 8
    missing = [name for name in commands if f"`kdeploy {name}" not in README and f"`{name}`" not in README]
    assert not missing


def test_every_exit_code_is_in_the_readme() -> None:
    from kdeploy.errors import ExitCode

    table = set(re.findall(r"\| (\d+) \|", README))
    assert {str(int(code)) for code in ExitCode} == table
