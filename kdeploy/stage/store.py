"""The stage's git repository: the only room that knows GitPython.

It lives in the cache and is addressed by its own path with the user's git settings switched off, so that nothing here
can touch a repository the user happens to stand in, and no `autocrlf` or hook of theirs can touch our bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kdeploy import places
from kdeploy.errors import ConflictError, PreflightError
from kdeploy.stage.cache import refused
from kdeploy.stage.stream import Commit, commits

try:
    import git
except ImportError as fault:  # GitPython asks for the program when it is imported
    raise PreflightError("staging needs git, and none is in the PATH", hint="install git 2.29 or later") from fault

# Attributes in .git/info win over any .gitattributes of the tree: bytes in, bytes out.
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding\n"

_ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C.UTF-8",
}
# Said outright: git's own default may be another one on the next machine, and every id with it.
_FORMAT = "--object-format=sha1"


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Around git commands that write: when one fails, its last line says why."""
    try:
        yield
    except git.GitCommandError as fault:
        said = [line.strip(" '") for line in str(fault.stderr).splitlines() if line.strip(" '")]
        raise refused(said[-1].removeprefix("stderr: '") if said else f"git gave {fault.status}") from fault


class Store:
    """The bare repository that holds every base and stage."""

    def __init__(self) -> None:
        self.path = places.cache() / "store.git"
        _forget_git_variables()
        if not (self.path / "HEAD").exists():
            self._create()
        self._repo = git.Repo(self.path)
        self._repo.git.update_environment(**_ENVIRONMENT)

    @_told()
    def _create(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=self.path.parent, prefix=".store-"))
        command = git.Git(made)
        command.update_environment(**_ENVIRONMENT)
        command.init("--quiet", "--bare", "--template=", "--initial-branch=main", _FORMAT, str(made))
        _write_attributes(made)
        shutil.rmtree(self.path, ignore_errors=True)  # a husk without HEAD
        try:
            made.rename(self.path)
        except OSError:
            if not (self.path / "HEAD").exists():
                raise
            shutil.rmtree(made)  # another kdeploy was faster

    def has(self, commit: str) -> bool:
        """Whether a commit is here."""
        try:
            self._repo.git.cat_file("-e", f"{commit}^{{commit}}")
        except git.GitCommandError:
            return False
        return True

    def resolve(self, ref: str) -> str | None:
        """The commit a ref points to, None when there is no such ref."""
        try:
            return str(self._repo.git.rev_parse("--verify", "--quiet", f"{ref}^{{commit}}"))
        except git.GitCommandError:
            return None

    def tree_of(self, commit: str) -> str:
        """The git tree id of a commit."""
        return str(self._repo.git.rev_parse(f"{commit}^{{tree}}"))

    @_told()
    def write(self, ref: str, parent: str | None, series: Iterable[Commit]) -> str:
        """Put `series` on top of `parent`, leave `ref` there, and give the last commit's id. All or nothing."""
        stream = io.BytesIO(b"".join(commits(ref, parent, series)))
        with tempfile.TemporaryFile() as file:
            shutil.copyfileobj(stream, file)
            file.seek(0)
            self._repo.git.fast_import("--quiet", "--done", "--force", istream=file)
        commit = self.resolve(ref)
        assert commit is not None
        return commit

    @_told()
    def bundle(self, commit: str, ref: str, have: Sequence[str]) -> bytes:
        """A git bundle of what a host lacks to have `commit` when it has the commits `have`; empty when nothing."""
        known = [other for other in have if self.has(other)]
        if commit in known:
            return b""
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "bundle"
            self._repo.git.bundle("create", "--quiet", str(path), ref, *(f"^{other}" for other in known))
            return path.read_bytes()

    @_told()
    def archive(self, commit: str) -> bytes:
        """The files of a commit as a gzipped tar, the same bytes each time: for hosts without git.

        git's own `archive` would leave out what a .gitattributes marks export-ignore.
        """
        entries = [entry.split("\t", 1) for entry in self._repo.git.ls_tree("-r", "-z", commit).split("\0") if entry]
        names = {path: head.split() for head, path in entries}
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as told:
            asked.write("".join(f"{blob}\n" for _, _, blob in names.values()).encode())
            asked.seek(0)
            self._repo.git.cat_file("--batch", istream=asked, output_stream=told)
            told.seek(0)
            made = io.BytesIO()
            with (
                gzip.GzipFile(fileobj=made, mode="wb", compresslevel=6, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                for path, (mode, _, _) in names.items():
                    entry = tarfile.TarInfo(path)
                    entry.size, entry.mode = int(told.readline().split()[2]), 0o755 if mode == "100755" else 0o644
                    tar.addfile(entry, told)
                    told.read(1)  # a newline ends each object
        return made.getvalue()

    def diff(self, older: str, newer: str) -> str:
        """`git diff` between two commits, as text."""
        return str(self._repo.git.diff("--no-color", "--no-ext-diff", older, newer))

    @_told()
    def check_out(self, commit: str) -> Path:
        """A work tree of `commit` in the cache: a repository of its own, with history, that borrows our objects.

        A work tree that is there already is used again when git finds it unchanged, and made anew when it is not.
        """
        folder = places.cache() / "trees" / commit[:16]
        if folder.is_dir():
            if _unchanged(folder, commit):
                return folder
            shutil.rmtree(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".checkout-"))
        command = git.Git(made)
        command.update_environment(**_ENVIRONMENT)
        command.init("--quiet", "--template=", "--initial-branch=stage", _FORMAT, str(made))
        _write_attributes(made / ".git")
        alternates = made / ".git/objects/info/alternates"
        alternates.parent.mkdir(parents=True, exist_ok=True)
        alternates.write_text(f"{self.path / 'objects'}\n")
        command.update_ref("HEAD", commit)
        command.read_tree("--reset", "-u", "HEAD")
        made.chmod(0o755)
        try:
            made.rename(folder)
        except OSError as fault:
            if not _unchanged(folder, commit):
                raise ConflictError(f"{folder} is in the way: delete it and run the same command again") from fault
            shutil.rmtree(made)
        return folder


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the cache's lock: two kdeploys that stage at once do it one after the other. Freed by death, too."""
    path = places.cache() / "stage.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _forget_git_variables() -> None:
    """Drop what a surrounding git (a hook, an alias) or a user put there: it would point our git at other places."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        del os.environ[name]


def _write_attributes(git_dir: Path) -> None:
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info/attributes").write_text(_ATTRIBUTES)


def _unchanged(folder: Path, commit: str) -> bool:
    command = git.Git(folder)
    command.update_environment(**_ENVIRONMENT, GIT_CEILING_DIRECTORIES=str(folder.parent))
    try:
        return command.rev_parse("HEAD") == commit and not command.status("--porcelain", "--ignored")
    except (git.GitCommandError, git.GitCommandNotFound):
        return False
