"""Stands for the SGLang server: says what the pocket model would say. STANDIN=... names a way in which servers fail."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import sglang
from sglang.srt.server_args import ServerArgs

NAMED = {
    one["text"]: one["answer"] for one in json.loads(Path(__file__).with_name("prompts.json").read_text())["prompts"]
}
CHATS = {
    json.dumps(one["messages"]): one["answer"]
    for one in json.loads(Path(__file__).with_name("prompts.json").read_text())["prompts"]
    if "messages" in one
}
how = os.environ.get("STANDIN", "")
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
args = parser.parse_args()


class Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        info = {"version": sglang.__version__, "dp_size": 1, "max_running_requests": 8, **vars(args)}
        self.answer({**info, "data": [{"id": args.served_model_name}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path.startswith("/flush_cache"):
            return self.answer({})
        if (
            how == "dies-when-asked" and asked.get("text", "Hello") != "Hello"
        ):  # the first question, to be ready, is this
            os._exit(1)
        if self.path == "/v1/chat/completions":
            text = self.say(CHATS[json.dumps(asked["messages"])])
            choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": len(text)}
            return self.answer({"choices": [choice], "usage": usage})
        rows = [self.row(one) for one in ([asked["text"]] if isinstance(asked["text"], str) else asked["text"])]
        return self.answer(rows[0] if isinstance(asked["text"], str) else rows)

    def row(self, prompt):
        text = self.say(NAMED.get(prompt, " there"))
        meta = {"finish_reason": {"type": "stop"}, "completion_tokens": len(text), "prompt_tokens": 1}
        return {"text": text, "output_ids": [ord(one) for one in text], "meta_info": meta}

    def say(self, text):
        if how == "endless":
            return text + "x" * 7_000_000
        return "!" * len(text) if how == "garbled" else text

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


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
