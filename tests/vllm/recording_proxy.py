"""A proxy before a server that writes down the prompts it passes on."""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class RecordingProxy:
    """Listens on 127.0.0.1; `prompts` are the token ids and parameters of completions, in the order of their arrival."""

    def __init__(self, url: str) -> None:
        self.prompts: list[tuple[list[int], dict]] = []
        target = urlsplit(url).netloc

        class Exchange(BaseHTTPRequestHandler):
            def log_message(self, *_) -> None:
                pass

            def do_GET(handler) -> None:
                handler.pass_on(None)

            def do_POST(handler) -> None:
                handler.pass_on(handler.rfile.read(int(handler.headers["Content-Length"])))

            def pass_on(handler, body: bytes | None) -> None:
                if handler.path == "/v1/completions":
                    wanted = json.loads(body)
                    params = json.loads((wanted.get("kv_transfer_params") or {}).get("inferscale", "{}"))
                    self.prompts.append((wanted["prompt"], params))
                upstream = http.client.HTTPConnection(target, timeout=300)
                headers = {"Content-Type": "application/json"} if body is not None else {}
                upstream.request(handler.command, handler.path, body, headers)
                answer = upstream.getresponse()
                handler.send_response(answer.status)
                handler.send_header("Content-Type", answer.getheader("Content-Type", "application/json"))
                handler.send_header("Connection", "close")
                handler.end_headers()
                while piece := answer.read1(65536):
                    handler.wfile.write(piece)
                upstream.close()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Exchange)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
