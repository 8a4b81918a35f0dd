"""Profiles read strictly: each fault names its place, what is wrong, and the nearest right thing."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kdeploy import profile
from kdeploy.api import stages
from kdeploy.errors import ProfileError, UsageError

GOOD = """\
service: test
engine: sglang==0.5.11
patchsets: []
hosts: [here]
runtime: {venv: /opt/venv}
serve:
  port: 1001
  private-port: 1002
  metrics-port: 1003
  args: {model-path: ./model, tp-size: 2, sleep-on-idle: true}
"""

# (what to replace, by what, line:column of the error, part of the message, part of the hint)
FAULTS = [
    ("service: test", "servise: test", "1:1", "unknown key 'servise'", "did you mean 'service'?"),
    ("service: test\n", "", "1:1", "'service' is required", None),
    ("service: test", "service: Has Blanks", "1:1", "'service': string should match pattern", None),
    ("sglang==0.5.11", "sglang>=0.5", "2:1", "'engine': string should match pattern", None),
    ("hosts: [here]", "hosts: []", "4:1", "at least 1 item", None),
    ("hosts: [here]", "hosts: [hear]", "4:9", "unknown host 'hear'", "did you mean 'here'?"),
    ("hosts: [here]", "hosts: [here, here]", "4:15", "named twice", None),
    ("port: 1001", "port: '1001'", "7:3", "'serve.port': input should be a valid integer, not '1001'", None),
    ("port: 1001", "port: 70000", "7:3", "less than or equal to 65535", None),
    ("port: 1001", "prot: 1001", "7:3", "unknown key 'serve.prot'", "did you mean 'port'?"),
    ("private-port: 1002", "private-port: 1001", "6:1", "must differ", None),
    ("  metrics-port: 1003\n", "", "6:1", "needs a 'metrics-port'", None),
    ("model-path: ./model, ", "", "6:1", "'args.model-path' is required", None),
    ("tp-size: 2", "tp_size: 2", "10:31", "write 'tp-size'", None),
    ("tp-size: 2", "--tp-size: 2", "10:31", "write 'tp-size'", None),
    ("tp-size: 2", "'host=::': true", "10:31", "cannot be the name of a flag", None),
    ("tp-size: 2", "'': true", "10:31", "cannot be the name of a flag", None),
    ("tp-size: 2", 'x: "a\\0b"', "10:31", "a NUL character cannot be passed", None),
    ("tp-size: 2", 'x: [a, "a\\0b"]', "10:31", "a NUL character cannot be passed", None),
    ("port: 1001", 'env: {A: "a\\0b"}\n  port: 1001', "7:9", "a NUL character cannot be passed", None),
    ("port: 1001", "env: {A=B: x}\n  port: 1001", "7:9", "name of an environment variable", None),
    ("port: 1001", "env: {'': x}\n  port: 1001", "7:9", "name of an environment variable", None),
    ("port: 1001", 'env: {"A\\0": x}\n  port: 1001', "7:9", "name of an environment variable", None),
    ("port: 1001", "host: not a host; rm\n  port: 1001", "7:3", "neither an IP address nor a host name", None),
    ("port: 1001", "host: ''\n  port: 1001", "7:3", "neither an IP address nor a host name", None),
    ("port: 1001", "host: 0.0.0.256\n  port: 1001", "7:3", "neither an IP address nor a host name", None),
    ("port: 1001", "host: -x.y\n  port: 1001", "7:3", "neither an IP address nor a host name", None),
    ("service: test", "service: agent", "1:1", "'agent' is a folder of kdeploy's own", None),
    ("service: test", "service: runtimes", "1:1", "'runtimes' is a folder of kdeploy's own", None),
    ("patchsets: []", "patchsets: [cpu]", "1:1", "needs its version: NAME/VERSION", None),
    ("tp-size: 2", "port: 2", "6:1", "'args.port' is set by kdeploy", None),
    ("service: test", "gate: {min-accept-length: .inf}\nservice: test", "1:8", "finite", None),
    ("service: test", "gate: {min-accept-length: .nan}\nservice: test", "1:8", "not nan", None),
    ("venv: /opt/venv", "venv: opt/venv", "5:1", "must be an absolute path", None),
    ("venv: /opt/venv", "venv: /opt/venv, lock: x", "5:1", "either 'venv'", None),
    ("service: test", "service: test\nservice: other", "2:1", "key 'service' is given twice", None),
    ("patchsets: []", "patchsets: [", "5:1", "not valid YAML", None),
    ("patchsets: []", "patchsets: no", "3:1", "'patchsets': input should be a valid list, not 'no'", None),
]


def write(folder: Path, text: str, name: str = "p.yaml", hosts: str = "hosts: {here: {local: true}}\n") -> Path:
    (folder / "patchsets").mkdir(exist_ok=True)
    (folder / "profiles").mkdir(exist_ok=True)
    (folder / "profiles/hosts.yaml").write_text(hosts)
    path = folder / "profiles" / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(("old", "new", "place", "message", "hint"), FAULTS)
def test_fault_is_named_with_its_place(
    tmp_path: Path, old: str, new: str, place: str, message: str, hint: str | None
) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ProfileError) as caught:
        profile.load(path)
    assert str(caught.value.where) == f"{path}:{place}", caught.value
    assert message in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")


def test_good_profile(tmp_path: Path) -> None:
    read = profile.load(write(tmp_path, GOOD))
    assert read.engine_version == "0.5.11"
    assert read.args["model-path"] == str(tmp_path / "profiles/model")
    assert read.args["sleep-on-idle"] is True
    assert read.prover is None


def test_proofs_on_the_hosts(tmp_path: Path) -> None:
    read = profile.load(write(tmp_path, GOOD + "prove: host\n"))
    assert read.proves_on_hosts and read.prover is None
    lock = GOOD.replace("venv: /opt/venv", "lock: r.txt")
    assert not profile.load(write(tmp_path, lock)).proves_on_hosts
    assert profile.load(write(tmp_path, lock + "prove: host\n")).prover is None


@pytest.mark.parametrize(
    ("given", "column", "message", "hint"),
    [
        ("hots", 1, "'prove': either 'host' or a runtime of this machine", None),
        ("5", 1, "'prove': either 'host' or a runtime of this machine", None),
        ("{lok: x}", 9, "unknown key 'prove.lok'", "'lock'"),
        ("{lock: x, pyton: '3.11'}", 18, "unknown key 'prove.pyton'", "'python'"),
        ("{lock: x, venv: /v}", 1, "give either 'venv'", None),
        ("{python: 3.11, lock: x}", 9, "input should be a valid string", "quotes"),
    ],
)
def test_a_wrong_place_for_proofs(tmp_path: Path, given: str, column: int, message: str, hint: str | None) -> None:
    path = write(tmp_path, f"prove: {given}\n{GOOD.lstrip()}")
    with pytest.raises(ProfileError) as caught:
        profile.load(path)
    assert str(caught.value.where) == f"{path}:1:{column}"
    assert message in caught.value.message and (hint or "") in (caught.value.hint or "")


def test_missing_profile_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "local.yaml")
    with pytest.raises(ProfileError, match=r"locla\.yaml does not exist") as caught:
        profile.load(tmp_path / "profiles/locla.yaml")
    assert "local.yaml" in (caught.value.hint or "")


def test_extends_merges_and_remembers_where(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "base.yaml")
    over = "extends: base.yaml\nserve:\n  args: {tp-size: 8, sleep-on-idle: null}\n  prot: 3\n"
    path = write(tmp_path, over, "over.yaml")
    with pytest.raises(ProfileError, match="unknown key") as caught:
        profile.load(path)
    assert str(caught.value.where) == f"{path}:4:3"
    path.write_text(over.replace("  prot: 3\n", ""))
    read = profile.load(path)
    assert read.args == {"model-path": str(tmp_path / "profiles/model"), "tp-size": 8}
    assert read.where("serve", "args", "tp-size").path == str(path)
    assert read.where("serve", "port").path == str(tmp_path / "profiles/base.yaml")


def test_relative_paths_are_beside_the_file_they_are_written_in(tmp_path: Path) -> None:
    (tmp_path / "profiles/base").mkdir(parents=True)
    (tmp_path / "profiles/base/b.yaml").write_text(GOOD)
    read = profile.load(write(tmp_path, "extends: base/b.yaml\n"))
    assert read.args["model-path"] == str(tmp_path / "profiles/base/model")


def test_below_an_alias_each_value_has_its_place(tmp_path: Path) -> None:
    base = tmp_path / "profiles/base/b.yaml"
    base.parent.mkdir(parents=True)
    base.write_text(GOOD.replace("{venv: /opt/venv}", "&rt {lock: r.txt, with-deps: [a]}\nprove: *rt"))
    read = profile.load(write(tmp_path, "extends: base/b.yaml\nprove: {python: '3.12'}\n"))
    assert read.prover is read.file.prove
    assert read.beside("r.txt", "prove", "lock") == base.parent / "r.txt"
    assert str(read.where("prove", "lock")) == f"{base}:5:15"
    assert str(read.where("prove", "with-deps", 0)) == f"{base}:5:40"
    assert str(read.where("prove", "python")) == f"{read.path}:2:9"


def test_extends_in_a_circle(tmp_path: Path) -> None:
    write(tmp_path, "extends: b.yaml\n", "a.yaml")
    write(tmp_path, "\nextends: a.yaml\n", "b.yaml")
    with pytest.raises(ProfileError, match=r"in a circle: a\.yaml -> b\.yaml -> a\.yaml") as caught:
        profile.load(tmp_path / "profiles/a.yaml")
    assert str(caught.value.where) == f"{tmp_path}/profiles/b.yaml:2:1"


def test_extends_without_end(tmp_path: Path) -> None:
    for number in range(1200):
        write(tmp_path, f"extends: p{number + 1}.yaml\n", f"p{number}.yaml")
    write(tmp_path, GOOD, "p1200.yaml")
    with pytest.raises(ProfileError, match="more than 20 profiles extend each other in a row") as caught:
        profile.load(tmp_path / "profiles/p0.yaml")
    assert (caught.value.where or pytest.fail()).path == f"{tmp_path}/profiles/p20.yaml"
    assert profile.load(tmp_path / "profiles/p1180.yaml").file.service == "test"


@pytest.mark.parametrize("base", ['"a\\0b"', '""', "[a]"])
def test_extends_no_path(tmp_path: Path, base: str) -> None:
    with pytest.raises(ProfileError, match="'extends' must be the path of another profile"):
        profile.load(write(tmp_path, f"extends: {base}\n"))


def test_a_pipe_is_no_profile(tmp_path: Path) -> None:
    path = write(tmp_path, "extends: pipe\n")
    os.mkfifo(path.with_name("pipe"))
    with pytest.raises(ProfileError, match="pipe is not a regular file"):
        profile.load(path)
    read = profile.load(write(tmp_path, GOOD.replace("venv: /opt/venv", "lock: pipe")))
    with pytest.raises(ProfileError, match="it is a pipe"):
        stages.lock_text(read, read.file.runtime)


def test_extends_what_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path, "extends: bsae.yaml\n")
    write(tmp_path, GOOD, "base.yaml")
    with pytest.raises(ProfileError, match=r"bsae\.yaml does not exist") as caught:
        profile.load(path)
    assert str(caught.value.where) == f"{path}:1:1"
    assert "base.yaml" in (caught.value.hint or "")


def test_a_path_on_this_machine_is_refused_for_another_host(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, hosts="hosts: {here: {ssh: {address: 192.0.2.1}}}\n")
    with pytest.raises(ProfileError, match="path on this machine, but here is another one") as caught:
        profile.load(path)
    assert str(caught.value.where) == f"{path}:10:10"


def test_host_is_either_local_or_reached_by_ssh(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, hosts="hosts: {here: {}}\n")
    with pytest.raises(ProfileError, match="either 'local: true' or 'ssh"):
        profile.load(path)


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("address", '""', "is empty"),
        ("address", '" "', "holds blanks"),
        ("address", '"gpu-1 "', "write 'gpu-1'"),
        ("address", '"gpu\\n-1"', "write 'gpu-1'"),
        ("address", '"gpu\\0"', "write 'gpu'"),
        ("address", '"-oProxyCommand=x"', "write 'oProxyCommand=x'"),
        ("address", '"[::1]:22"', "write 'address: ::1' and 'port: 22'"),
        ("address", '"[gpu"', "neither a name nor an address"),
        ("address", '"gpu:2222"', "write 'address: gpu' and 'port: 2222'"),
        ("address", '"me@gpu"', "write 'address: gpu' and 'user: me'"),
        ("user", '""', "is empty"),
        ("user", '"-lroot"', "write 'lroot'"),
        ("user", '"de ploy"', "write 'deploy'"),
        ("jump", '""', "is empty"),
        ("jump", '"a,-b"', "write 'b'"),
        ("jump", '"a\\tb"', "write 'ab'"),
    ],
)
def test_what_ssh_could_not_be_given(tmp_path: Path, key: str, given: str, message: str) -> None:
    lines = ["hosts:", "  here:", "    ssh:", f"      {key}: {given}", *(["      address: gpu"] * (key != "address"))]
    path = write(tmp_path, GOOD, hosts="\n".join(lines) + "\n")
    with pytest.raises(ProfileError, match=re.escape(message)) as caught:
        profile.load(path)
    assert str(caught.value.where) == f"{path.parent}/hosts.yaml:4:7"


@pytest.mark.parametrize("address", ["::1", "[::1]", "10.0.3.7", "gpu_1", "gpu+blue", "fe80::1%eth0", "größe"])
def test_addresses_that_are_fine(tmp_path: Path, address: str) -> None:
    hosts = f"hosts: {{here: {{ssh: {{address: '{address}', jump: 'ops@b:22, c'}}}}}}\n"
    entry = profile.load(write(tmp_path, GOOD.replace("./model", "/model"), hosts=hosts)).hosts["here"]
    assert entry.ssh is not None and entry.ssh.address == address.strip("[]")


def test_what_kdeploy_sets_or_what_loads_other_code_is_not_declared(tmp_path: Path) -> None:
    """Every variable that the agent sets over what is declared, as the agent's own source has it."""
    trees = Path(__file__).parents[1] / "remote/kdeploy_agent/trees"
    ours = (trees / "serving.py").read_text().partition("        **given,\n")[2].partition("    if unit ==")[0]
    caches = (trees / "caches.py").read_text().partition("_FOLDERS = {")[2].partition("}")[0]
    names = {*re.findall(r'^ +"([A-Z_]+)":', ours + caches, re.MULTILINE)}
    assert {"PYTHONPATH", "TMPDIR", "SPT_NOENV", "XDG_CACHE_HOME", "KDEPLOY_RELEASE"} <= names and len(names) > 15
    for name in {*names, "KDEPLOY_UNIT", "PYTHONHOME", "PYTHONSTARTUP", "LD_PRELOAD", "LD_AUDIT"}:
        path = write(tmp_path, GOOD.replace("  args:", f"  env:\n    {name}: x\n  args:", 1))
        with pytest.raises(ProfileError, match=f"'{name}' (is set by kdeploy|would load code)") as caught:
            profile.load(path)
        assert caught.value.where is not None and caught.value.where.path == str(path)


@pytest.mark.parametrize("root", ["kd", "~/kd", "/opt/../etc", ""])
def test_the_root_on_a_host_is_absolute(tmp_path: Path, root: str) -> None:
    path = write(tmp_path, GOOD, hosts=f"hosts:\n  here:\n    local: true\n    root: '{root}'\n")
    with pytest.raises(ProfileError, match="must be an absolute path without") as caught:
        profile.load(path)
    assert str(caught.value.where) == f"{path.parent}/hosts.yaml:4:5"


@pytest.mark.parametrize("root", [r"/opt/k\\d", r"/opt/k\nd", r"/opt/k\td", r"/opt/k\x7fd", r"/opt/k\u2028d"])
def test_a_root_that_systemd_could_not_be_told_is_refused(tmp_path: Path, root: str) -> None:
    path = write(tmp_path, GOOD, hosts=f'hosts:\n  here:\n    local: true\n    root: "{root}"\n')
    with pytest.raises(ProfileError, match="no backslash and no control character") as caught:
        profile.load(path)
    assert str(caught.value.where) == f"{path.parent}/hosts.yaml:4:5"


@pytest.mark.parametrize("host", ["0.0.0.0", "'::'", "fe80::1", "localhost", "gpu-1.example.com", "10x", "1.2.x"])
def test_hosts_that_are_fine(tmp_path: Path, host: str) -> None:
    text = GOOD.replace("port: 1001", f"host: {host}\n  port: 1001", 1)
    assert profile.load(write(tmp_path, text)).file.serve.host == host.strip("'")


def test_outside_a_project(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no kdeploy project"):
        profile.find_project(tmp_path)


@pytest.mark.parametrize("name", ["local", "b300-budget16", "rtx6000-budget7"])
def test_our_own_profiles_are_valid(project: Path, name: str) -> None:
    read = profile.load(project / f"profiles/{name}.yaml")
    assert read.file.patchsets
    assert read.prover is not None


@pytest.mark.parametrize(
    ("lock", "place", "message"),
    [
        ("torch==2.0\nnumpy>=1\n", "r.txt:2:1", "'numpy>=1' pins nothing"),
        ("numpy==1.0\n", "p.yaml:5:1", "'with-deps' names torch, which r.txt does not pin"),
        ("torch==2.0 # \udcff\n", "p.yaml:5:11", "it is not UTF-8 text"),
        (None, "p.yaml:5:11", "No such file"),
    ],
)
def test_a_runtimes_lock_pins_every_line(tmp_path: Path, lock: str | None, place: str, message: str) -> None:
    read = profile.load(write(tmp_path, GOOD.replace("venv: /opt/venv", "lock: r.txt")))
    if lock is not None:
        (tmp_path / "profiles/r.txt").write_text(lock, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ProfileError) as caught:
        stages.lock_text(read, read.file.runtime)
    assert str(caught.value.where) == f"{tmp_path}/profiles/{place}"
    assert message in caught.value.message


def test_the_gate_section_says_what_is_judged_by(tmp_path: Path) -> None:
    section = """
gate:
  thresholds: quiet.yaml
  lossless: 0.01
  margin: 0.2
  speed: 0.6
  acceptance: 0.9
  first-answer-s: 30
  soak-every-s: 2
"""
    gate = profile.load(write(tmp_path, GOOD + section)).file.gate
    assert (gate.thresholds, gate.lossless, gate.margin, gate.speed) == ("quiet.yaml", 0.01, 0.2, 0.6)
    assert (gate.acceptance, gate.first_answer_s, gate.soak_every_s) == (0.9, 30, 2)
    assert "min_accept_length" not in gate.model_fields_set  # a calibration file may say it


@pytest.mark.parametrize("line", ["speed: 1.5", "lossless: -0.1", "margin: .inf", "soak-every-s: 0", "sped: 1"])
def test_a_gate_that_means_nothing_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(ProfileError) as caught:
        profile.load(write(tmp_path, GOOD + f"gate:\n  {line}\n"))
    assert caught.value.where is not None and line.partition(":")[0] in caught.value.message
