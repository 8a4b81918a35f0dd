"""Questions as SGLang takes them, and its replies as the answers of a transcript.

Nothing here raises: what was wrong with a reply is the `error` of its answers.
"""

from __future__ import annotations

from typing import Any, Dict, List

from kdeploy_agent.asking.client import Json, Reply
from kdeploy_agent.ground import secrets

GENERATE, CHAT = "/generate", "/v1/chat/completions"

TOKEN = 200  # characters: no token is longer, so a text of more than this a token is not worth carrying
KEPT = 2000  # characters of such a text

_BOUNDS = ("stop", "ignore_eos")  # of an ask: both endpoints take them under these names


def generate(asks: List[Json]) -> Json:
    """The payload of /generate for one question, or for several different ones in one batch; greedy."""
    greedy = [
        {"temperature": 0, "max_new_tokens": ask["max_tokens"], "skip_special_tokens": False, **_bounds(ask)}
        for ask in asks
    ]
    if len(asks) == 1:
        return {"text": asks[0]["text"], "sampling_params": greedy[0]}
    return {"text": [ask["text"] for ask in asks], "sampling_params": greedy}


def chat(ask: Json, model: str, options: Json) -> Json:
    """The payload of /v1/chat/completions for one question, greedy; `options` are more keys of it."""
    payload = {
        "model": model, "messages": ask["messages"], "temperature": 0, "max_tokens": ask["max_tokens"],
        **_bounds(ask), **options,
    }  # fmt: skip
    if ask.get("schema") is not None:
        named = {"name": "answer", "schema": ask["schema"]}
        payload["response_format"] = {"type": "json_schema", "json_schema": named}
    return payload


def read_answers(asks: List[Json], reply: Reply, at: float) -> List[Json]:
    """One answer a question from a reply of /generate, which is an object for one and a list for several."""
    answers = [blank(ask, reply, at) for ask in asks]
    if reply.error is not None:
        return answers
    rows = [reply.body] if len(asks) == 1 else reply.body
    if not isinstance(rows, list) or len(rows) != len(asks):
        got = "%d answers" % len(rows) if isinstance(rows, list) else type(rows).__name__
        return [dict(answer, error="malformed: %s for %d questions" % (got, len(asks))) for answer in answers]
    for answer, row in zip(answers, rows):
        try:
            meta = row["meta_info"]
            answer.update(
                text=str(row["text"]), ids=[int(i) for i in row["output_ids"]],
                finish=str(meta["finish_reason"]["type"]), n=int(meta["completion_tokens"]), meta=_meta(meta),
            )  # fmt: skip
            _bound(answer)
        except (KeyError, TypeError, ValueError, IndexError) as fault:
            answer["error"] = malformed(fault)
    return answers


def read_chat(ask: Json, reply: Reply, at: float) -> Json:
    """The answer in a reply of /v1/chat/completions."""
    answer = blank(ask, reply, at)
    if reply.error is not None:
        return answer
    try:
        choice, usage = reply.body["choices"][0], reply.body["usage"]
        message = choice["message"]
        answer.update(
            text=str(message["content"] or ""), reasoning=str(message.get("reasoning_content") or ""),
            finish=str(choice["finish_reason"]), n=int(usage["completion_tokens"]), meta=_meta(usage),
        )  # fmt: skip
        _bound(answer)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as fault:
        answer["error"] = malformed(fault)
    return answer


def blank(ask: Json, reply: Reply, at: float) -> Json:
    """The answer that a reply without any text makes; `at` is seconds after the first probe."""
    return {
        "ask": ask, "name": ask.get("name"), "kind": ask.get("kind"), "at": at, "seconds": reply.seconds,
        "status": reply.status, "error": reply.error, "text": "", "reasoning": "", "ids": None, "finish": None,
        "n": 0, "meta": {},
    }  # fmt: skip


def malformed(fault: Exception) -> str:
    """What is said of a reply that has not the form it must have."""
    return "malformed: %s: %s" % (type(fault).__name__, fault)


def _bounds(ask: Json) -> Dict[str, Any]:
    return {key: ask[key] for key in _BOUNDS if ask.get(key)}


def _bound(answer: Json) -> None:
    """Cut an answer that is larger than what was asked for can be: the transcript carries dozens of them."""
    asked = int(answer["ask"].get("max_tokens", 1))
    size, ids = len(answer["text"]) + len(answer["reasoning"]), answer["ids"] or []
    if size <= asked * TOKEN and len(ids) <= asked * TOKEN:
        return
    answer.update(
        error="too large: %d characters and %d ids for at most %d tokens" % (size, len(ids), asked),
        text=secrets.cut(answer["text"], KEPT), reasoning=secrets.cut(answer["reasoning"], KEPT),
        ids=ids[:KEPT] or None,
    )  # fmt: skip


def _meta(meta: Json) -> Json:
    wanted = ("prompt_tokens", "cached_tokens", "total_retractions")
    chosen = {key: value for key, value in meta.items() if key in wanted or key.startswith("spec_")}
    return {key: value for key, value in chosen.items() if len(str(value)) <= KEPT}
