"""Makes patch sets, profiles and wheels for tests."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path
from typing import Any

import yaml

VERSION_FILE = b"""__version__ = version = '0.0.1'
__version_tuple__ = version_tuple = (0, 0, 1)
"""


def patch_set(
    project: Path, name: str, edits: list[dict[str, Any]], *, version: str = "1.0.0", engine: str = ">=0", **keys: Any
) -> str:
    """Write a patch set of one patch; gives its ref."""
    folder = project / "patchsets" / name / version
    (folder / "patches").mkdir(parents=True)
    head = {"name": name, "version": version, "summary": name, "engine": engine, "series": ["change"], **keys}
    (folder / "patchset.yaml").write_text(yaml.safe_dump(head, sort_keys=False))
    patch = {"reason": f"to test {name}", "origin": "tests", "edits": edits}
    (folder / "patches/change.yaml").write_text(yaml.safe_dump(patch, sort_keys=False))
    return f"{name}/{version}"


def profile(project: Path, name: str, base: str, patchsets: list[str], **keys: Any) -> Path:
    """Write a profile that extends `base`; gives its path."""
    path = project / "profiles" / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"extends": base, "patchsets": patchsets, **keys}, sort_keys=False))
    return path


def wheel(folder: Path, files: dict[str, bytes], *, record: dict[str, str] | None = None) -> Path:
    """Build the wheel of an engine `sglang==0.0.1`; `record` overrides digests to make it lie."""
    name = "sglang-0.0.1-py3-none-any.whl"
    files = {
        **files,
        "sglang-0.0.1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: sglang\nVersion: 0.0.1\n",
        "sglang-0.0.1.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={(record or {}).get(path, digest)},{len(content)}")
    files["sglang-0.0.1.dist-info/RECORD"] = "\n".join([*lines, "sglang-0.0.1.dist-info/RECORD,,"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as zipped:
        for path, content in files.items():
            zipped.writestr(path, content)
    return folder / name


def small_project(folder: Path, files: dict[str, bytes] | None = None, **options: Any) -> Path:
    """A project whose engine is a wheel of a few files, found in `folder`/wheels without any network."""
    project = folder / "small"
    needed = {"sglang/__init__.py": b"", "sglang/_version.py": VERSION_FILE}
    archive = wheel(folder / "wheels", {**needed, **(files or {"sglang/a.py": b"one = 1\ntwo = 2\n"})}, **options)
    (project / "profiles").mkdir(parents=True)
    (project / "patchsets").mkdir()
    (project / "profiles/hosts.yaml").write_text("hosts: {here: {local: true}}\n")
    lock = {
        "file": archive.name,
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "size": archive.stat().st_size,
        "platform": "any",
    }
    (project / "kdeploy.lock").write_text(yaml.safe_dump({"engines": {"sglang==0.0.1": {"3.11": lock}}}))
    base = {
        "service": "small",
        "engine": "sglang==0.0.1",
        "patchsets": [],
        "hosts": ["here"],
        "runtime": {"venv": "/nonexistent/venv"},
        "serve": {"port": 21301, "private-port": 21302, "front": "none", "args": {"model-path": "/nonexistent/model"}},
    }
    (project / "profiles/base.yaml").write_text(yaml.safe_dump(base, sort_keys=False))
    return project
