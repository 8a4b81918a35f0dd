"""Models on disk: whole, a shard missing, a shard cut short, a draft of another target."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from kdeploy_agent.looking import models

POCKET = Path(__file__).resolve().parents[2] / "models" / "pocket"


def tensor_file(path: Path, size: int = 16) -> None:
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))


def model(folder: Path, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    tensor_file(folder / "a.safetensors")
    tensor_file(folder / "b.safetensors")
    index = {"weight_map": {"w1": "a.safetensors", "w2": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def found(*args: object, **env: str) -> dict[str, dict[str, Any]]:
    release = {"launch": {"args": [str(arg) for arg in args], "env": env}}
    return {one["check"]: one for one in models.look(release)}


def test_a_whole_model(tmp_path: Path) -> None:
    told = found("--model-path", model(tmp_path / "m"))
    assert set(told) == {"model", "tokenizer"} and all(one["ok"] and not one["warn"] for one in told.values())
    assert told["model"]["detail"].endswith("all 2 shards")


def test_the_pocket_model_and_its_draft_are_whole() -> None:
    told = found(
        *("--model-path", POCKET / "target", "--speculative-draft-model-path", POCKET / "draft"),
        *("--speculative-algorithm", "DFLASH"),
    )
    assert {check: one["ok"] for check, one in told.items()} == {
        "model": True, "draft model": True, "tokenizer": True, "draft config": True,
    }  # fmt: skip
    assert told["draft config"]["detail"] == "reads layers 0, 1 of 3"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert "does not exist" in models.check("model", str(tmp_path / "no"))["detail"]
    assert "config.json" in models.check("model", str(tmp_path))["detail"]
    (tmp_path / "config.json").write_text("{}")
    assert "no weights" in models.check("model", str(tmp_path))["detail"]
    folder = model(tmp_path)
    (folder / "b.safetensors").unlink()
    told = models.check("model", str(folder))
    assert not told["ok"] and told["detail"] == "1 of 2 shards are missing: b.safetensors"
    (folder / "b.safetensors").write_bytes(b"")
    assert not models.check("model", str(folder))["ok"]
    (folder / "model.safetensors.index.json").write_text("{")
    assert models.check("model", str(folder))["detail"] == "model.safetensors.index.json is damaged"


def test_a_shard_cut_short_or_too_long(tmp_path: Path) -> None:
    folder = model(tmp_path)
    whole = (folder / "b.safetensors").read_bytes()
    for content in (whole[:-1], whole + b"x"):
        (folder / "b.safetensors").write_bytes(content)
        told = models.check("model", str(folder))
        assert not told["ok"]
        assert told["detail"] == f"b.safetensors has {len(content)} bytes, its header says {len(whole)}"
    for content in (b"short", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 2) + b"[]"):
        (folder / "b.safetensors").write_bytes(content)
        assert "b.safetensors has no readable header" in models.check("model", str(folder))["detail"]


def test_a_model_without_an_index_is_read_to_its_end_too(tmp_path: Path) -> None:
    folder = model(tmp_path)
    (folder / "model.safetensors.index.json").unlink()
    assert models.check("model", str(folder))["ok"]
    with (folder / "a.safetensors").open("ab") as file:
        file.truncate(file.tell() - 1)
    assert "its header says" in models.check("model", str(folder))["detail"]


def test_a_name_of_the_hub_is_a_doubt() -> None:
    told = found("--model-path", "org/name", HF_HUB_OFFLINE="1")["model"]
    assert told["ok"] and told["warn"] and "not to ask the hub" in told["detail"]


def test_no_tokenizer(tmp_path: Path) -> None:
    folder = model(tmp_path)
    (folder / "tokenizer.json").unlink()
    assert not found("--model-path", folder)["tokenizer"]["ok"]
    assert "tokenizer" not in found("--model-path", folder, "--skip-tokenizer-init")
    elsewhere = model(tmp_path / "t")
    assert found("--model-path", folder, "--tokenizer-path", elsewhere)["tokenizer"]["ok"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "no dflash_config"),
        ({"dflash_config": {"target_layer_ids": []}}, "not a list of layers"),
        ({"dflash_config": {"target_layer_ids": ["1"]}}, "not a list of layers"),
        ({"dflash_config": {"target_layer_ids": [1, 61]}}, "the target has 61"),
    ],
)
def test_a_draft_that_cannot_be_read(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    target = model(tmp_path / "target", text_config={"num_hidden_layers": 61})
    draft = model(tmp_path / "draft", **config)
    args = ("--model-path", target, "--speculative-draft-model-path", draft)
    told = found(*args, "--speculative-algorithm", "DDTREE")["draft config"]
    assert not told["ok"] and says in told["detail"] and told["hint"]
    assert "draft config" not in found(*args, "--speculative-algorithm", "EAGLE")
