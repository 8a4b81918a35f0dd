"""Stands for the SGLang server: says what the pocket model would say. STANDIN=... names a way in which servers fail."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import sglang
from sglang import words
from sglang.srt.server_args import ServerArgs

PAUSE_S = 0.001  # between two pieces of a stream: a client can leave in the middle

how = os.environ.get("STANDIN", "")
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
args = parser.parse_args()


class Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 32

    def handle_error(self, *_):
        """A client that leaves in the middle is no trouble."""


class Handler(BaseHTTPRequestHandler):
    wbufsize = 1 << 16  # an answer is one packet

    def do_GET(self):
        if self.path == "/get_load":
            return self.answer([{"num_reqs": 0, "num_waiting_reqs": 0}])
        info = {"version": sglang.__version__, "dp_size": 1, "max_running_requests": 8, **vars(args)}
        return self.answer({**info, "data": [{"id": args.served_model_name}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path.startswith("/flush_cache"):
            return self.answer({})
        if self.path == "/tokenize":
            ids = words.tokens(asked["prompt"])
            return self.answer({"tokens": ids, "count": len(ids), "max_model_len": 2048})
        if how == "dies-when-asked" and asked.get("text", "Hello") != "Hello":  # the first question, to be ready, is it
            os._exit(1)
        if self.path == "/v1/chat/completions":
            return self.chat(asked)
        if asked.get("stream"):
            return self.stream(self.pieces(row(words.tokens(asked["text"]), asked, asked["sampling_params"])))
        given = asked.get("text") or asked["input_ids"]
        if isinstance(given, str) or isinstance(given[0], int):
            return self.answer(row(ids_of(given), asked, asked["sampling_params"]))
        params = asked["sampling_params"]
        params = params if isinstance(params, list) else [params] * len(given)
        return self.answer([row(ids_of(one), asked, each) for one, each in zip(given, params, strict=True)])

    def chat(self, asked):
        ids = words.cut(words.CHATS[json.dumps(asked["messages"])], 0, asked["max_tokens"])
        text, finish = say(words.text_of(ids)), "stop" if ids[-1] == words.END else "length"
        usage = {"prompt_tokens": 1, "completion_tokens": len(ids)}
        if not asked.get("stream"):
            message = {"role": "assistant", "content": text}
            return self.answer({"choices": [{"message": message, "finish_reason": finish}], "usage": usage})
        parts = [{"content": text[: len(text) // 2]}, {"content": text[len(text) // 2 :]}]
        events = [{"choices": [{"delta": part, "finish_reason": None}]} for part in parts]
        events += [{"choices": [{"delta": {}, "finish_reason": finish}]}, {"choices": [], "usage": usage}]
        return self.stream(events)

    def pieces(self, whole):
        ids = whole["output_ids"]
        for n in range(1, len(ids) + 1):
            time.sleep(PAUSE_S)
            finish = whole["meta_info"]["finish_reason"] if n == len(ids) else None
            meta = {**whole["meta_info"], "finish_reason": finish, "completion_tokens": n}
            yield {"text": say(words.text_of(ids[:n])), "output_ids": ids[:n], "meta_info": meta}

    def stream(self, events):
        self.send_response(200)
        self.end_headers()
        for event in events:
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def ids_of(given):
    return words.tokens(given) if isinstance(given, str) else given


def row(prompt, asked, params):
    ids = words.goes_on(prompt, params["max_new_tokens"], params.get("ignore_eos"))
    text = say(words.text_of(ids))
    ended = ids[-1] == words.END and not params.get("ignore_eos")
    finish = {"type": "stop", "matched": words.END} if ended else {"type": "length", "length": len(ids)}
    for stop in params.get("stop") or ():
        if stop in text:
            text, finish = text[: text.index(stop)], {"type": "stop", "matched": stop}
    meta = {"finish_reason": finish, "completion_tokens": len(ids), "prompt_tokens": len(prompt)}
    if asked.get("return_logprob"):
        meta.update(logprobs(prompt, asked["logprob_start_len"]))
    return {"text": text, "output_ids": ids, "meta_info": meta}


def logprobs(ids, start):
    """Of each input token its own logprob and the two best in its place; nothing of the first."""
    known, whole = words.begun(ids, True)
    mine, best = [[None, ids[start], None]], [None]
    for at in range(start + 1, len(ids)):
        (wanted,) = words.cut(whole, at - known, 1, True)
        mine.append([-0.25 if ids[at] == wanted else -2.25, ids[at], None])
        best.append([[-0.25, wanted, None], [-2.25, 1 if ids[at] == wanted else ids[at], None]])
    return {"input_token_logprobs": mine, "input_top_logprobs": best}


def say(text):
    if how == "endless":
        return text + "x" * 7_000_000
    return "!" * len(text) if how == "garbled" else text


print(f"stand-in server {sglang.__version__} {how}", flush=True)
if how == "hangs":
    time.sleep(600)
if how == "dies-at-start":
    sys.exit("RuntimeError: CUDA out of memory, says the stand-in")
if how == "ignores-sigterm":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
server = Server(("127.0.0.1", args.port), Handler)
if how == "leaves-a-child":  # a scheduler that outlives its leader, reparents and keeps the port
    os.set_inheritable(server.fileno(), True)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False, start_new_session=True)
server.serve_forever()
