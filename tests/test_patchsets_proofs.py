"""The patch sets of this project: they load, say why, prove what they say, and leave other servers alone."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from kdeploy.patching import patchset, series
from kdeploy.patching.anchors import State
from kdeploy.patching.patchset import PatchSet
from kdeploy.patching.trees import MemoryTree

PROJECT = Path(__file__).parent.parent
ROOT = PROJECT / "patchsets"
LOCK = PROJECT / "locks/cpu-py311.txt"
DDTREE = ROOT / "ddtree/0.1.0"

SETS = [patchset.find(ROOT, "cpu/1.0.0"), patchset.find(ROOT, "ddtree/0.1.0")]
EVERY = [patchset.find(ROOT, ref) for ref in patchset.all_refs(ROOT)]


def test_both_sets_fit_the_engine_in_the_order_of_the_local_profile() -> None:
    assert [one.ref for one in patchset.resolve(SETS, "0.5.11")] == ["cpu/1.0.0", "ddtree/0.1.0"]


def test_the_set_that_speculates_on_a_cpu_has_all_of_the_one_before() -> None:
    old, new = (ROOT / f"cpu/{version}/patches" for version in ("1.0.0", "1.1.0"))
    for path in old.iterdir():
        assert (new / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.ref)
def test_every_patch_says_why_and_whose_it_is(one: PatchSet) -> None:
    for patch in one.patches:
        assert len(patch.reason.split()) >= 20, f"{patch.name}: a reason, not a title"
        assert patch.origin == "kdeploy"


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.ref)
def test_every_program_beside_the_proofs_is_one_or_is_imported_by_one(one: PatchSet) -> None:
    files = {path.stem: path for path in (one.folder / "proofs").glob("*.py")}
    reached = {Path(proof.run).stem for proof in one.proofs}
    assert reached <= set(files)
    waiting = list(reached)
    while waiting:
        new = (_imports(files[waiting.pop()]) & set(files)) - reached
        reached |= new
        waiting += new
    assert reached == set(files)


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.ref)
def test_every_proof_can_say_red_and_names_the_modules_it_imports(one: PatchSet) -> None:
    for proof in one.proofs:
        path = one.folder / proof.run
        returns = {
            node.value.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Constant)
        }
        assert {0, 3} <= returns, f"{proof.name} must be able to say both"
        assert (_imports(path) & {"torch", "triton", "transformers", "xgrammar"}) <= set(proof.needs)


RETIRED = {
    "cpu/1.0.0 jpeg-decoder-on-use": ("srt/utils/common.py", "from torchvision.io import decode_jpeg  # lazy: 1 s"),
    "cpu/1.0.0 host-cache-without-sgl-kernel": ("srt/mem_cache/memory_pool_host.py", "if _is_cuda or _is_hip:"),
    "cpu/1.0.0 grammar-mask-on-cpu": ("srt/constrained/xgrammar_backend.py", 'elif logits.device.type == "cpu":'),
    "ddtree/0.1.0 target-num-draft-tokens": ("srt/none.py", ""),
    "ddtree/0.1.0 graph-mask-room": (
        "srt/layers/attention/triton_backend.py",
        "        self._verify_mask = maybe_create_verify_mask(",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RETIRED)
def test_a_patch_retires_on_the_lines_that_upstream_has_now_and_only_then(name: str) -> None:
    file, line = RETIRED[name]
    upstream = MemoryTree({f"sglang/{file}": line.encode() + b"\n"})
    assert _state(upstream, "0.5.23", name) is State.UPSTREAMED
    assert _state(MemoryTree({}), "0.5.11", name) is not State.UPSTREAMED


def test_the_override_retires_with_0_5_17_not_before() -> None:
    name = "ddtree/0.1.0 target-num-draft-tokens"
    assert _state(MemoryTree({}), "0.5.16", name) is not State.UPSTREAMED
    assert _state(MemoryTree({}), "0.5.17", name) is State.UPSTREAMED


@pytest.mark.parametrize("algorithm", [None, "DFLASH", "EAGLE", "EAGLE3", "STANDALONE", "NGRAM"])
@pytest.mark.parametrize("is_draft_worker", [False, True])
@pytest.mark.parametrize("tokens", [None, 1, 8])
def test_a_server_that_does_not_run_ddtree_keeps_its_number(
    algorithm: str | None, is_draft_worker: bool, tokens: int | None
) -> None:
    stock = SimpleNamespace(speculative_algorithm=algorithm, speculative_num_draft_tokens=tokens)
    assert _sizes().verify_tokens_per_req(stock, is_draft_worker) == tokens


@pytest.mark.parametrize("budget", [1, 4, 7, 12, 16, 32])
def test_ddtree_verifies_the_budget_and_the_root_on_the_target_alone(budget: int) -> None:
    arguments = SimpleNamespace(
        speculative_algorithm="DDTREE", speculative_num_draft_tokens=8, speculative_ddtree_budget=budget
    )
    assert _sizes().verify_tokens_per_req(arguments, False) == budget + 1
    assert _sizes().verify_tokens_per_req(arguments, True) == 8


def test_the_runtime_lock_pins_every_line_once_and_names_no_index() -> None:
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    names = [re.fullmatch(r"([A-Za-z0-9._-]+)==[A-Za-z0-9.+!]+", line) for line in lines]
    assert all(names), [line for line, match in zip(lines, names, strict=True) if match is None]
    normal = [re.sub(r"[-_.]+", "-", match[1]).lower() for match in names if match]
    assert len(set(normal)) == len(normal)
    assert {"torch", "triton", "sglang-router", "setuptools"} <= set(normal)
    assert "sglang" not in normal, "the patched tree is the engine; an installed one would be another"
    assert "://" not in LOCK.read_text()


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def _state(tree: MemoryTree, version: str, name: str) -> State:
    report = series.check(tree, SETS, version)
    return next(patch.state for patch in report.patches if f"{patch.ref} {patch.name}" == name)


def _sizes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ddtree_sizes", DDTREE / "files/ddtree_sizes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
