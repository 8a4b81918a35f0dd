"""Whether a model's folder is whole: its config, its tokenizer, every shard its index names, every shard to its end.

A server with a missing shard boots and babbles; one with a shard cut short dies after minutes of loading.
"""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from kdeploy_agent.ground import files
from kdeploy_agent.looking.finding import Finding, doubt, judged, well, wrong
from kdeploy_agent.trees import serving

_FLAGS = {
    "model": ("--model-path", "--model"),
    "draft model": ("--speculative-draft-model-path", "--speculative-draft-model"),
}
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json", "vocab.txt", "tekken.json")
_HEADER_BYTES = 100 << 20  # safetensors' own limit for a header (safetensors 0.4, `MAX_HEADER_SIZE`)
_READS_WITHIN_S = 60.0
_DFLASH = ("DFLASH", "DDTREE")


def look(release: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about every model that the release's command line names."""
    args = release["launch"]["args"]
    offline = "1" in (release["launch"].get("env", {}).get(name) for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    folders: Dict[str, Path] = {}
    for what, flags in _FLAGS.items():
        path = serving.argument(args, *flags)
        if path is None:
            continue
        finding = check(what, path, offline)
        yield finding
        if finding["ok"] and Path(path).expanduser().is_dir():
            folders[what] = Path(path).expanduser()
    if "model" in folders and "--skip-tokenizer-init" not in args:
        yield from _tokenizer(folders["model"], serving.argument(args, "--tokenizer-path"))
    if "draft model" in folders and serving.argument(args, "--speculative-algorithm") in _DFLASH:
        yield from _dflash(folders["draft model"], folders.get("model"))


def check(what: str, path: str, offline: bool = False) -> Finding:
    """Whether the model at `path` is whole; a name of the hub cannot be judged from here."""
    folder = Path(path).expanduser()
    if not folder.is_absolute():
        known = "and it is told not to ask the hub" if offline else "the server will look for it on the hub itself"
        return doubt(what, f"{path} is a name, not a path: {known}", "give the absolute path the model has here")
    if folder.suffix == ".gguf" and _filled(folder):
        return well(what, f"{folder}: {folder.stat().st_size / 1e9:.1f} GB")
    if not folder.is_dir():
        return wrong(what, f"{folder} does not exist", "put the model there, or correct the profile")
    if not os.access(str(folder), os.R_OK | os.X_OK):
        return wrong(what, f"{folder} may not be read", "give the user that runs kdeploy here the right to read it")
    if files.read_json(folder / "config.json") is None:
        return wrong(what, f"{folder} has no readable config.json", "copy the model again")
    shards, fault = _shards(folder)
    if fault is not None:
        return wrong(what, *fault)
    cut, unread = _cut_short(folder, shards)
    if cut:
        more = f" and {len(cut) - 3} more" if len(cut) > 3 else ""
        return wrong(what, f"{', '.join(cut[:3])}{more}", "copy those files again, and compare their sha256")
    detail = f"{folder}: all {len(shards)} shards" if len(shards) > 1 else f"{folder}: 1 file of weights"
    if unread:
        return doubt(
            what, f"{detail}, {unread} of them unread after {_READS_WITHIN_S:.0f} s", "is the disk or network slow?"
        )
    return well(what, detail)


def _shards(folder: Path) -> "Tuple[List[str], Optional[Tuple[str, str]]]":
    """The names of the files of weights, or what is wrong with them and its fix."""
    listing = folder / "model.safetensors.index.json"
    if listing.exists():
        index = files.read_json(listing)
        try:
            named = sorted(set(index["weight_map"].values()))
        except (KeyError, TypeError, AttributeError):
            return [], (f"{listing.name} is damaged", "copy it again")
        missing = [name for name in named if not _filled(folder / name)]
        if missing:
            detail = f"{len(missing)} of {len(named)} shards are missing: {', '.join(missing[:3])}"
            return [], (detail, "a server with a missing shard boots and babbles: copy them")
        return named, None
    found = [one for kind in ("safetensors", "bin", "gguf", "pt") for one in folder.glob(f"*.{kind}") if _filled(one)]
    return sorted(one.name for one in found), None if found else (f"{folder} has no weights", "copy the model again")


def _cut_short(folder: Path, names: List[str]) -> Tuple[List[str], int]:
    """Every safetensors file that is not as long as its header says, in words; and how many there was no time for."""
    end = time.monotonic() + _READS_WITHIN_S
    bad: List[str] = []
    mine = [name for name in names if name.endswith(".safetensors")]
    for number, name in enumerate(mine):
        if time.monotonic() > end:
            return bad, len(mine) - number
        size = (folder / name).stat().st_size
        wanted = length(folder / name)
        if wanted is None:
            bad.append(f"{name} has no readable header")
        elif wanted != size:
            bad.append(f"{name} has {size:,} bytes, its header says {wanted:,}")
    return bad, 0


def length(path: Path) -> Optional[int]:
    """How long a safetensors file must be by its own header; None when there is no header that can be read.

    Eight bytes (little-endian) give the header's length, the header the offsets behind it.
    """
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > _HEADER_BYTES:
                return None
            header = json.loads(file.read(size).decode("utf-8"))
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error):
        return None
    return 8 + int(size) + max(ends, default=0)


def _tokenizer(folder: Path, elsewhere: Optional[str]) -> Iterator[Finding]:
    place = Path(elsewhere).expanduser() if elsewhere else folder
    if not place.is_absolute():
        return
    found = [name for name in _TOKENIZERS if _filled(place / name)]
    detail = f"{place}: {', '.join(found)}" if found else f"{place} has no tokenizer"
    yield judged("tokenizer", bool(found), detail, f"copy {_TOKENIZERS[0]} (or what the model has) there")


def _dflash(draft: Path, target: Optional[Path]) -> Iterator[Finding]:
    """A DFlash draft's own config, by the rules of SGLang 0.5.11 (srt/speculative/dflash_utils.py)."""
    config = files.read_json(draft / "config.json") or {}
    own = config.get("dflash_config")
    if not isinstance(own, dict):
        yield wrong("draft config", "its config.json has no dflash_config", "is this a DFlash draft of this target?")
        return
    layers = own.get("target_layer_ids", config.get("target_layer_ids"))
    if layers is not None and not (layers and isinstance(layers, list) and all(type(one) is int for one in layers)):
        yield wrong("draft config", f"target_layer_ids is {layers!r}, not a list of layers", "copy the draft again")
        return
    depth = _depth(files.read_json(target / "config.json") or {}) if target is not None else None
    beyond = [one for one in layers or () if depth is not None and not 0 <= one < depth]
    detail = f"reads layers {', '.join(map(str, layers))}" if layers else "reads layers of SGLang's choice"
    if beyond:
        yield wrong(
            "draft config", f"{detail}, the target has {depth}", "this draft was trained for another target model"
        )
    else:
        yield well("draft config", detail + (f" of {depth}" if depth else ""))


def _depth(config: Mapping[str, Any]) -> Optional[int]:
    inner = config.get("text_config")
    found = (inner if isinstance(inner, dict) else config).get("num_hidden_layers")
    return found if type(found) is int else None


def _filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0
