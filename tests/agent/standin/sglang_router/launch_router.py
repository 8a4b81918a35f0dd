"""Stands for SGLang's router: passes every GET and POST on to its one worker, answers 503 when that is not there."""

import argparse
import os
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
for flag in ("--host", "--worker-urls"):
    parser.add_argument(flag)
parser.add_argument("--port", type=int)
known, _ = parser.parse_known_args()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
if os.environ.get("STANDIN") == "front-dies":
    raise SystemExit("RuntimeError: the router has no worker, says the stand-in")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        length = int(self.headers.get("Content-Length") or 0)
        request = urllib.request.Request(known.worker_urls + self.path, self.rfile.read(length) if length else None)
        try:
            with opener.open(request, timeout=10) as reply:
                status, data = reply.status, reply.read()
        except urllib.error.HTTPError as fault:
            status, data = fault.code, fault.read()
        except OSError as fault:
            status, data = 503, str(fault).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, *_):
        pass


ThreadingHTTPServer.allow_reuse_address = True
ThreadingHTTPServer((known.host, known.port), Handler).serve_forever()
