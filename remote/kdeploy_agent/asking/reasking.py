"""Losslessness, first half: what a plain prefill says at each position of an answer that was speculated.

The token after a prefix comes from a prefill when nothing but it is asked for: no draft has a part in it. Nothing is
judged here; kdeploy/verdict compares what was said with what is said again.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Optional, Tuple

from kdeploy_agent.asking.answers import GENERATE, malformed
from kdeploy_agent.asking.client import Json
from kdeploy_agent.asking.session import Session

Again = Tuple[List[int], List[Optional[float]]]  # what is said again, a token a position, and the margins in nats


class _Unknown(Exception):
    """An answer cannot be asked again; the text says why."""


def lossless(session: Session, wanted: Optional[Json], answers: List[Json]) -> Json:
    """Ask again as `wanted` says: `how` (logprobs, reask or none), `of` which `answers`, `each` positions, `batch`.

    With `logprobs` one prefill of prompt and answer gives every position, and how far apart it was. With `reask`, for
    engines that refuse logprobs, prefixes are asked for one token each, `batch` of them a request.
    """
    wanted = wanted or {"how": "none", "why": "not in the plan", "of": []}
    how, names = wanted["how"], wanted["of"] if wanted["how"] != "none" else []
    told: Json = {"how": how, "why": wanted["why"], "flushed": False, "answers": []}
    if not names:
        return told
    session.note("asking again what %d answers said: %s" % (len(names), how))
    told["flushed"] = session.flush()  # the cache has what speculation put there
    known = {answer["name"]: answer for answer in answers}
    again: Callable[[Session, Json, List[int], List[int], List[int]], Again]
    again = _by_logprobs if how == "logprobs" else _by_prefixes
    told["answers"] = [_one(session, wanted, name, known.get(name), again) for name in names]
    return told


def positions(n: int, at_most: int) -> List[int]:
    """All positions of an answer of `n` tokens, or `at_most` of them, evenly spread, with the first and the last."""
    if n <= at_most:
        return list(range(n))
    if at_most < 2:
        return [n - 1][:at_most]
    return [round(k * (n - 1) / (at_most - 1)) for k in range(at_most)]


def _one(session: Session, wanted: Json, name: str, answer: Optional[Json], again: Callable[..., Again]) -> Json:
    told: Json = {"name": name, "prompt": 0, "n": 0, "at": [], "said": [], "again": [], "margins": [], "error": None}
    try:
        if answer is None or answer["error"] is not None or not answer["ids"]:
            why = answer["error"] if answer else None
            raise _Unknown("there is no answer to ask about%s" % (": %s" % why if why else ""))
        prompt, ids = _prompt(session, answer), answer["ids"]
        told.update(prompt=len(prompt), n=len(ids))
        at = positions(len(ids), len(ids) if wanted["how"] == "logprobs" else int(wanted["each"]))
        said_again, margins = again(session, wanted, prompt, ids, at)
    except _Unknown as fault:
        return {**told, "error": str(fault)}
    return {**told, "at": at, "said": [ids[i] for i in at], "again": said_again, "margins": margins}


def _prompt(session: Session, answer: Json) -> List[int]:
    """The ids of the prompt, which must be as many as the answer was made from."""
    asked = {"model": session.probes["model"], "prompt": answer["ask"]["text"]}
    body = _ask(session, "/tokenize", asked)
    try:
        ids = [int(one) for one in body["tokens"]]
    except (KeyError, TypeError, ValueError) as fault:
        raise _Unknown("/tokenize: %s" % malformed(fault)) from fault
    counted = answer["meta"].get("prompt_tokens")
    if not ids or (counted is not None and counted != len(ids)):
        raise _Unknown("/tokenize gives %d tokens for a prompt of %s" % (len(ids), counted))
    return ids


def _by_logprobs(session: Session, wanted: Json, prompt: List[int], ids: List[int], at: List[int]) -> Again:
    body = _ask(session, GENERATE, {
        "input_ids": prompt + ids, "sampling_params": _ONE, "return_logprob": True,
        "logprob_start_len": len(prompt) - 1, "top_logprobs_num": 2,
    })  # fmt: skip
    try:
        meta = body["meta_info"]
        # The first entry is the prompt's last token, of which nobody asked how likely it was.
        mine, best = meta["input_token_logprobs"][1:], meta["input_top_logprobs"][1:]
        if [int(entry[1]) for entry in mine] != ids or len(best) != len(ids):
            raise ValueError("logprobs of other tokens than were sent")
        again = [int(best[i][0][1]) for i in at]
        margins: List[Optional[float]] = []
        for i, first in zip(at, again):
            margin = 0.0 if first == ids[i] else float(best[i][0][0]) - float(mine[i][0])
            if not math.isfinite(margin):
                raise ValueError("no number at position %d" % i)
            margins.append(margin)
    except (KeyError, TypeError, ValueError, IndexError) as fault:
        raise _Unknown(malformed(fault)) from fault
    return again, margins


def _by_prefixes(session: Session, wanted: Json, prompt: List[int], ids: List[int], at: List[int]) -> Again:
    again: List[int] = []
    size = max(1, int(wanted["batch"]))
    for start in range(0, len(at), size):
        prefixes = [prompt + ids[:i] for i in at[start : start + size]]
        body = _ask(session, GENERATE, {"input_ids": prefixes, "sampling_params": _ONE})
        try:
            if len(body) != len(prefixes):
                raise ValueError("%d answers for %d prefixes" % (len(body), len(prefixes)))
            again.extend(int(row["output_ids"][0]) for row in body)
        except (KeyError, TypeError, ValueError, IndexError) as fault:
            raise _Unknown(malformed(fault)) from fault
    return again, [None] * len(again)


_ONE: Dict[str, Any] = {"temperature": 0, "max_new_tokens": 1}


def _ask(session: Session, path: str, payload: Json) -> Any:
    reply = session.request(path, payload)
    if reply.error is not None:
        raise _Unknown("%s: %s" % (path, reply.error))
    return reply.body
