"""How the scheduler side reaches a rank's store while the engine is idle: a Unix socket per rank.

One JSON object a line, the first with the token; answers ``{"ok": ...}`` or ``{"error": text}``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

logger = logging.getLogger("vllm.inferscale")

MAX_LINE = 64 << 20  # bytes
MAX_CONNECTIONS = 8
IDLE_SECONDS = 3600.0


def socket_path(data_dir: Path, rank: int) -> Path:
    """Where the socket of a rank is: short, whatever the data directory is called."""
    digest = hashlib.sha256(str(data_dir).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"inferscale-{os.getuid()}-{digest}" / f"rank-{rank}.sock"


def _private_directory(path: Path) -> None:
    """Raises OSError unless the directory is ours alone."""
    path.mkdir(mode=0o700, exist_ok=True)
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise PermissionError(f"{path} belongs to somebody else or is open to others")


class RankServer:
    """Serves one rank's calls from threads of its own until ``close``. Handlers run one at a time
    per connection and must be thread-safe; what they raise becomes an error answer."""

    def __init__(
        self, path: Path, token: str, handlers: dict[str, Callable[[dict[str, Any]], Any]]
    ) -> None:
        """Raises OSError when the socket cannot be made."""
        self._token, self._handlers, self._path = token, handlers, path
        _private_directory(path.parent)
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen(MAX_CONNECTIONS)
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        threading.Thread(target=self._accept, name="inferscale-rank", daemon=True).start()

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()
        self._path.unlink(missing_ok=True)
        with suppress(OSError):  # other ranks have theirs there
            self._path.parent.rmdir()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._slots.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._serve, args=(connection,), name="inferscale-rank", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rwb") as stream:
                connection.settimeout(IDLE_SECONDS)
                if not self._greeted(stream.readline(4096)):
                    return
                while line := stream.readline(MAX_LINE):
                    stream.write(json.dumps(self._answer(line)).encode() + b"\n")
                    stream.flush()
        except (OSError, ValueError):
            pass  # the peer has gone
        finally:
            self._slots.release()

    def _greeted(self, line: bytes) -> bool:
        try:
            token = json.loads(line)["token"]
        except (ValueError, TypeError, KeyError):
            return False
        return isinstance(token, str) and hmac.compare_digest(token.encode(), self._token.encode())

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
            return {"ok": self._handlers[message["op"]](message)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}


class RankError(Exception):
    """A rank did not answer, or answered that it could not."""


class RankClient:
    """The scheduler's end of one rank's channel. Thread-safe: one call at a time."""

    def __init__(self, path: Path, token: str, timeout_s: float = 60.0) -> None:
        self._path, self._token, self._timeout_s = path, token, timeout_s
        self._lock = threading.Lock()
        self._stream: Any = None

    def call(self, op: str, **fields: Any) -> Any:
        """Raises RankError."""
        line = json.dumps({"op": op, **fields}).encode() + b"\n"
        with self._lock:
            fresh = self._stream is None
            try:
                return self._exchange(line)
            except (OSError, ValueError) as error:
                self._drop()
                if fresh:
                    raise RankError(f"{self._path}: {error}") from error
            try:  # an old connection may have been closed by the peer: every call can be repeated
                return self._exchange(line)
            except (OSError, ValueError) as error:
                self._drop()
                raise RankError(f"{self._path}: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._stream is not None:
            try:
                self._stream.close()
            except OSError:
                pass
            self._stream = None

    def _exchange(self, line: bytes) -> Any:
        if self._stream is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(self._timeout_s)
            try:
                connection.connect(str(self._path))
                self._stream = connection.makefile("rwb")
            finally:
                connection.close()  # the stream keeps it open
            self._stream.write(json.dumps({"token": self._token}).encode() + b"\n")
        self._stream.write(line)
        self._stream.flush()
        answer = json.loads(self._stream.readline(MAX_LINE) or b"null")
        if not isinstance(answer, dict):
            raise ValueError("the rank closed the connection")
        if "error" in answer:
            raise RankError(f"{self._path}: {answer['error']}")
        return answer["ok"]
