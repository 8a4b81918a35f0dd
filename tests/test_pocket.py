"""The committed weights still know their answers, and prompts.json is what the corpus says."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kdeploy.verdict import garble
from kdeploy.verdict.prompts import load_prompts

POCKET = Path(__file__).parents[1] / "models" / "pocket"
NAMED = os.environ.get("KDEPLOY_TEST_PYTHON")


@pytest.fixture
def python(request: pytest.FixtureRequest) -> str:
    """A Python with torch: the one named by KDEPLOY_TEST_PYTHON, else the runtime's (made on the first use)."""
    return NAMED or str(request.getfixturevalue("runtime_python"))


def check(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = str(POCKET / "check.py")
    return subprocess.run([python, script, *arguments], capture_output=True, text=True, timeout=300, check=False)


def test_the_weights_still_know_their_answers(python: str) -> None:
    done = check(python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("70 of 70 answers to the letter")


def test_spoilt_weights_are_noticed(python: str, tmp_path: Path) -> None:
    for part in ("target", "draft"):
        (tmp_path / part).mkdir()
        for file in (POCKET / part).iterdir():
            (tmp_path / part / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "target" / "model.safetensors"
    spoilt = bytearray(weights.read_bytes())
    spoilt[300_000:302_000] = bytes(2_000)  # a thousand of 328,000 weights become zero
    weights.write_bytes(spoilt)
    done = check(python, str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "of 70 answers" in done.stdout


@pytest.fixture
def corpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(POCKET))
    yield importlib.import_module("corpus")
    sys.modules.pop("corpus", None)


def test_the_prompts_are_those_of_the_corpus(corpus: Any) -> None:
    every = load_prompts(POCKET / "prompts.json")
    prompts = [prompt for prompt in every if not prompt.long]
    questions = corpus.questions(corpus.load())
    assert len(prompts) == len(questions) == 70
    for prompt, question in zip(prompts, questions, strict=True):
        assert (prompt.name, prompt.kind, prompt.text, prompt.answer) == (
            question.name, question.kind, question.text, question.answer,
        )  # fmt: skip
        assert [(one.role, one.content) for one in prompt.messages] == list(question.turns)
    assert {prompt.name for prompt in prompts if prompt.quick} == set(corpus.QUICK)
    assert sum(prompt.quick for prompt in prompts) == 12
    assert {prompt.kind for prompt in prompts} == {"prose", "poem", "code", "json", "arithmetic", "chat"}


def test_the_long_prompts_are_made_of_the_pages(corpus: Any) -> None:
    prompts = [prompt for prompt in load_prompts(POCKET / "prompts.json") if prompt.long]
    expected = corpus.load_long(corpus.load())
    assert [(one.name, one.text, one.max_tokens, one.reference) for one in prompts] == [
        (one.name, one.text, one.max_tokens, one.reference) for one in expected
    ]
    assert all(prompt.ignore_eos and prompt.quick for prompt in prompts)
    assert [prompt.name for prompt in prompts] == ["long_500", "long_1100", "on_and_on"]


def test_every_passage_begins_in_its_own_way(corpus: Any) -> None:
    texts = [question.text for question in corpus.questions(corpus.load())]
    assert len(set(texts)) == len(texts)


def test_prompts_end_just_before_white_space(corpus: Any) -> None:
    for question in corpus.questions(corpus.load()):
        assert question.kind == "chat" or question.answer[0].isspace(), question.name


def test_no_right_answer_looks_like_garble() -> None:
    for prompt in load_prompts(POCKET / "prompts.json"):
        assert prompt.long or garble.find(prompt.answer or "") == (), prompt.name


def test_the_models_say_what_they_are() -> None:
    target = json.loads((POCKET / "target/config.json").read_text(encoding="utf-8"))
    draft = json.loads((POCKET / "draft/config.json").read_text(encoding="utf-8"))
    assert target["architectures"] == ["Qwen3ForCausalLM"]
    assert draft["architectures"] == ["DFlashDraftModel"]
    assert draft["rope_theta"] == 1_000_000.0  # what SGLang 0.5.11 uses, whatever the target has
    assert max(draft["dflash_config"]["target_layer_ids"]) <= target["num_hidden_layers"] - 2
    assert sum(file.stat().st_size for file in POCKET.rglob("model.safetensors")) < 1_000_000
