"""The control channel: HTTP/1.1 on this machine, for erasing, asking what is ready, and traces."""

from __future__ import annotations

import hmac
import json
import logging
import os
import re
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from inferscale.vllm.erasure import Conflict
from inferscale.vllm.rank_channel import RankError

logger = logging.getLogger("vllm.inferscale")

MAX_BODY = 8 << 20  # bytes
MAX_CONNECTIONS = 128  # most of which wait: each store of a client keeps one
MAX_KEYS = 200_000  # in one call
TIMEOUT_S = 60.0
HELLO_S = 2.0  # for who has not shown the token: there are few connections
STRANGER_END_S = 1.0  # until the thread of one that is ended is gone
LINGER_S = 2.0
LINGER_BYTES = 4 * MAX_BODY  # of a body that nobody reads
_KEY = re.compile(r"[0-9a-f]{32}")
_SCOPE_FIELDS = ("tenant", "user", "agent", "run")


class NotFound(Exception):
    """No such route or request."""


# (exception, HTTP status, code): the error table of docs/errors.md.
_ERRORS: tuple[tuple[type[Exception], int, str], ...] = (
    (NotFound, 404, "kNotFound"),
    (Conflict, 409, "kConflict"),
    (RankError, 503, "kUnavailable"),
    (sqlite3.Error, 503, "kUnavailable"),
    (ValueError, 400, "kInvalidArgument"),
)

Handler = Callable[[dict[str, Any]], dict[str, Any]]


class ControlServer:
    """Serves ``routes`` ("GET /v1/info", ...) until ``close``; handlers run on threads of its own.

    A GET handler gets the query's parameters, a POST handler the JSON object of the body.
    """

    def __init__(self, host: str, port: int, token: str, routes: dict[str, Handler]) -> None:
        """Raises OSError when it cannot listen there."""
        self._server = _Server((host, port), _Exchange)
        self._server.token = token
        self._server.routes = routes
        threading.Thread(
            target=self._server.serve_forever, name="inferscale-control", daemon=True
        ).start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://[{host}]:{port}" if ":" in str(host) else f"http://{host}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def announce(data_dir: Path, url: str, fingerprint: str) -> None:
    """Writes ``control.json`` (mode 0600), so that clients on this machine find the channel."""
    handle, temporary = tempfile.mkstemp(dir=data_dir, prefix="control.tmp-")  # mode 0600
    with os.fdopen(handle, "w") as file:
        json.dump({"url": url, "pid": os.getpid(), "fingerprint": fingerprint}, file)
    os.replace(temporary, data_dir / "control.json")


def read_keys(body: dict[str, Any]) -> list[str]:
    """Record keys of a request's body. Raises ValueError."""
    keys = body.get("keys", [])
    if not isinstance(keys, list) or len(keys) > MAX_KEYS:
        raise ValueError(f"keys: must be a list of at most {MAX_KEYS}")
    if not all(isinstance(key, str) and _KEY.fullmatch(key) for key in keys):
        raise ValueError("keys: each must be 32 hexadecimal digits")
    return keys


def read_text(body: dict[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str) or len(value.encode()) > 256:
        raise ValueError(f"{name}: must be text of at most 256 bytes")
    return value


def read_scope(body: Any) -> dict[str, str]:
    if not isinstance(body, dict) or set(body) - set(_SCOPE_FIELDS):
        raise ValueError(f"scope: must be an object of {', '.join(_SCOPE_FIELDS)}")
    return {name: read_text(body, name) for name in _SCOPE_FIELDS}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS  # of connections that come at once
    token: str
    routes: dict[str, Handler]

    def __init__(self, *args: Any) -> None:
        if ":" in args[0][0]:
            self.address_family = socket.AF_INET6
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._strangers: dict[Any, None] = {}  # connections that have not shown the token, oldest first
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False) and not (
            self._end_oldest_stranger() and self._slots.acquire(timeout=STRANGER_END_S)
        ):
            self.shutdown_request(request)
            return
        with self._lock:
            self._strangers[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.no_stranger(request)
            self._slots.release()

    def no_stranger(self, request: Any) -> None:
        with self._lock:
            self._strangers.pop(request, None)

    def _end_oldest_stranger(self) -> bool:
        """Who sends a byte now and then is never silent for long enough to be ended, but gives way to others."""
        with self._lock:
            oldest = next(iter(self._strangers), None)
            if oldest is None:
                return False
            del self._strangers[oldest]
            try:
                oldest.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it went by itself
            return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a peer that went away


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "inferscale"
    sys_version = ""
    server: _Server
    # An answer is one segment, sent at once: the second of two would wait for the peer's delayed acknowledgement, 40 ms.
    wbufsize = -1
    disable_nagle_algorithm = True

    def setup(self) -> None:
        self._unread = False
        self.timeout = HELLO_S
        super().setup()

    def finish(self) -> None:
        super().finish()
        if self._unread:
            self._linger()

    def _linger(self) -> None:
        """A socket closed with bytes unread resets the connection, and the answer is lost on the way."""
        left, deadline = LINGER_BYTES, time.monotonic() + LINGER_S
        try:
            self.connection.shutdown(socket.SHUT_WR)
            while left > 0 and (wait := deadline - time.monotonic()) > 0:
                self.connection.settimeout(wait)
                read = len(self.connection.recv(min(left, 1 << 16)))
                left = left - read if read else 0
        except OSError:
            pass  # the peer went away

    def handle_expect_100(self) -> bool:
        go_on = super().handle_expect_100()
        self.wfile.flush()  # the client waits for it
        return go_on

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self, method: str) -> None:
        try:
            if not self._authorised():
                self.close_connection = self._unread = True
                return self._error(401, "kUnauthenticated", "no token, or a wrong one")
            self.server.no_stranger(self.connection)
            self.connection.settimeout(TIMEOUT_S)
            parts = urlsplit(self.path)
            handler = self.server.routes.get(f"{method} {parts.path}")
            if handler is None:
                self.close_connection = self._unread = True
                raise NotFound(f"no {method} {parts.path}")
            if method == "GET":
                arguments = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            else:
                arguments = self._body()
            self._send(200, handler(arguments))
        except (OSError, TimeoutError):
            self.close_connection = True
        except Exception as error:
            self._refuse(error)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Of a request that is no HTTP, or has a method of which there is none here."""
        self.close_connection = self._unread = True
        self._error(400, "kInvalidArgument", message or "no HTTP request")

    def _authorised(self) -> bool:
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        return hmac.compare_digest(given, f"Bearer {self.server.token}".encode())

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            self.close_connection = self._unread = True
            raise ValueError(f"the body must have a Content-Length of at most {MAX_BODY} bytes")
        try:
            body = json.loads(self.rfile.read(int(length)) or b"{}")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the body is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise ValueError("the body must be a JSON object")
        return body

    def _refuse(self, error: Exception) -> None:
        for kind, status, code in _ERRORS:
            if isinstance(error, kind):
                return self._error(status, code, str(error))
        logger.error("InferScale: control channel: %s", error, exc_info=error)
        return self._error(500, "kInternal", f"{type(error).__name__}: {error}")

    def _error(self, status: int, code: str, message: str) -> None:
        self._send(status, {"error": {"code": code, "message": message}})

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
