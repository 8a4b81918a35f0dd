"""Stands for the SGLang server: the endpoints the agent asks; STANDIN=... names a way in which servers misbehave."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import sglang
from sglang.srt.server_args import ServerArgs

how = os.environ.get("STANDIN", "")
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
port = parser.parse_args().port


class Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = {"version": sglang.__version__, "pid": os.getpid(), "data": [{"id": "standin"}]}
        self.answer(503 if how == "unhealthy" else 200, body)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if how == "hang":
            time.sleep(600)
        texts = asked.get("text", "")
        if isinstance(texts, str) and texts.startswith("wait "):  # a long answer: "wait 3"
            time.sleep(float(texts[5:]))
        rows = [self.row(text) for text in ([texts] if isinstance(texts, str) else texts)]
        self.answer(500 if texts == "fail" else 200, rows[0] if isinstance(texts, str) else rows)

    def row(self, text):
        meta = {"finish_reason": {"type": "length"}, "completion_tokens": 1, "prompt_tokens": 1}
        return {"text": f" {text} from {sglang.__version__}", "output_ids": [1], "meta_info": meta}

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


print(f"stand-in server {sglang.__version__} {how}", flush=True)
print(os.environ.get("STANDIN_SAYS", ""), flush=True)
if how == "die":
    sys.exit("RuntimeError: CUDA out of memory, says the stand-in")
if how == "ignore-term":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
server = Server(("127.0.0.1", port), Handler)
if how == "leave-child":  # a scheduler that outlives its leader, reparents and keeps the port
    os.set_inheritable(server.fileno(), True)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False, start_new_session=True)
if how == "die-later":
    signal.signal(signal.SIGALRM, lambda *_: os._exit(7))
    signal.setitimer(signal.ITIMER_REAL, float(os.environ["STANDIN_SECONDS"]))
server.serve_forever()
