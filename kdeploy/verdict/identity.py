"""Is it the server that was declared? Its version, the arguments in effect, its processes, the owner of its port."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from kdeploy.verdict.expectation import Check, Expectation, failed, passed, settle, unseen
from kdeploy.verdict.seen import Transcript

# Second names of flags (SGLang 0.5.11, srt/server_args.py, add_argument with several names or a `dest`).
ALIASES: Mapping[str, str] = {
    "model": "model_path",
    "tp": "tp_size", "tensor_parallel_size": "tp_size",
    "pp": "pp_size", "pipeline_parallel_size": "pp_size",
    "dp": "dp_size", "data_parallel_size": "dp_size",
    "ep": "ep_size", "expert_parallel_size": "ep_size",
    "attention_context_parallel_size": "attn_cp_size",
    "moe_data_parallel_size": "moe_dp_size",
    "nccl_init_addr": "dist_init_addr",
    "speculative_draft_model": "speculative_draft_model_path",
    "fp8_gemm_backend": "fp8_gemm_runner_backend",
    "fp4_gemm_backend": "fp4_gemm_runner_backend",
}  # fmt: skip

WITHHELD = "(withheld)"  # the agent takes values out that look secret
_NOTHING = object()


def version(transcript: Transcript, expectation: Expectation) -> Check:
    """The running server says it is the tree that was declared."""
    name = "identity.version"
    info = _info(transcript)
    if info is None:
        return failed(name, f"/server_info: {transcript.server_info.error or 'not a mapping'}")
    if "version" not in info:
        return failed(name, "/server_info has no field 'version'")
    if info["version"] != expectation.version:
        return failed(name, f"the server says {info['version']!r}, declared is {expectation.version!r}")
    return passed(name, expectation.version)


def arguments(transcript: Transcript, expectation: Expectation) -> Check:
    """Every declared argument is in effect, in the HTTP server and in each scheduler that reports its own."""
    name = "identity.args"
    info = _info(transcript)
    if info is None:
        return failed(name, f"/server_info: {transcript.server_info.error or 'not a mapping'}")
    declared = {normal(flag): value for flag, value in expectation.args.items() if value not in (None, False)}
    if not declared:
        return failed(name, "no argument was declared, so nothing can be compared")
    states = info.get("internal_states")
    schedulers = [state for state in states if isinstance(state, Mapping)] if isinstance(states, list) else []
    bad = []
    for flag, value in sorted(declared.items()):
        if flag not in info:
            bad.append(f"{flag}: declared {_show(value)}, /server_info does not have it")
        elif not _same(value, info[flag]):
            bad.append(f"{flag}: declared {_show(value)}, in effect is {_show(info[flag])}")
        for number, state in enumerate(schedulers):
            inside = state.get(flag, _NOTHING)
            if inside is not _NOTHING and not _same(value, inside):
                bad.append(f"{flag}: declared {_show(value)}, scheduler {number} has {_show(inside)}")
    return settle(name, f"{len(declared)} arguments in effect, {len(schedulers)} scheduler(s) agree", bad)


def model(transcript: Transcript, expectation: Expectation) -> Check:
    """Clients find the model under the name that was declared."""
    name, reply = "identity.model", transcript.models
    declared = {normal(flag): value for flag, value in expectation.args.items()}
    wanted = declared.get("served_model_name") or declared.get("model_path")
    data = reply.body.get("data") if isinstance(reply.body, Mapping) else None
    if reply.error is not None or not isinstance(data, list):
        return failed(name, f"/v1/models: {reply.error or 'it lists none'}")
    listed = [one.get("id") for one in data if isinstance(one, Mapping)]
    if wanted not in listed:
        return failed(name, f"clients find {', '.join(map(_show, listed)) or 'none'}, declared is {_show(wanted)}")
    return passed(name, str(wanted))


def processes(transcript: Transcript, expectation: Expectation) -> Check:
    """Every process of the server imports from the declared tree first."""
    name = "identity.processes"
    if transcript.processes is None:
        return unseen(name, expectation)
    if not transcript.processes:
        return failed(name, "no process of the server was found")
    bad = [
        f"process {process.pid} ({process.name}) has {process.tree or 'an unknown folder'} first on its path"
        for process in transcript.processes
        if process.tree is None or PurePosixPath(process.tree).name != expectation.tree
    ]
    return settle(name, f"{len(transcript.processes)} processes, all on tree {expectation.tree[:12]}", bad)


def port(transcript: Transcript, expectation: Expectation) -> Check:
    """Who answered the probes is the candidate and not, say, a server that would not stop."""
    name, seen = "identity.port", transcript.port
    if seen is None or transcript.processes is None:
        return unseen(name, expectation)
    pids = {process.pid for process in transcript.processes}
    if seen.owner is None:
        return failed(name, f"nobody was seen to own port {seen.number}")
    if not seen.ours or seen.owner not in pids:
        return failed(name, f"port {seen.number} belongs to process {seen.owner}, which is not one of the candidate's")
    return passed(name, f"port {seen.number} belongs to process {seen.owner}")


def normal(flag: str) -> str:
    """The name a flag has in /server_info: `--attention-backend` is `attention_backend`, `--tp` is `tp_size`."""
    plain = flag.lstrip("-").replace("-", "_")
    return ALIASES.get(plain, plain)


def _info(transcript: Transcript) -> Mapping[str, Any] | None:
    reply = transcript.server_info
    return reply.body if reply.error is None and isinstance(reply.body, Mapping) else None


def _same(declared: Any, effective: Any) -> bool:
    if effective == WITHHELD:
        return True
    if declared == "auto":  # the server chooses; it must have chosen something
        return effective is not None
    if isinstance(declared, bool) or isinstance(effective, bool):
        return isinstance(declared, bool) and isinstance(effective, bool) and declared == effective
    if isinstance(declared, list) or isinstance(effective, list):
        left = declared if isinstance(declared, list) else [declared]
        right = effective if isinstance(effective, list) else [effective]
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(declared, str) and declared.startswith("{"):
        return bool(_parsed(declared) == _parsed(effective))
    try:
        return float(declared) == float(effective)
    except (TypeError, ValueError, OverflowError):
        return str(declared) == str(effective)


def _parsed(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _show(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
