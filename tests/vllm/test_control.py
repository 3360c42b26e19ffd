"""The control channel, over HTTP, without an engine."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest
from inferscale.vllm import control, erasure


@pytest.fixture
def served():
    def conflict(_):
        raise erasure.Conflict("older")

    server = control.ControlServer(
        "127.0.0.1", 0, "token", {"GET /v1/x": lambda a: a, "POST /v1/x": lambda a: a, "POST /v1/c": conflict}
    )
    yield server.url
    server.close()


def exchange(url, raw):
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(raw)
        data = b""
        while part := connection.recv(65536):
            data += part
    return data


def http(url, method, path, body=b"", token="token", length=None):
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n"
    size = len(body) if length is None else length
    answer = exchange(url, (head + f"Content-Length: {size}\r\n\r\n").encode() + body)
    return int(answer.split()[1]), answer.split(b"\r\n\r\n", 1)[1]


def test_control_channel_answers(served):
    assert http(served, "GET", "/v1/x?a=1") == (200, b'{"a": "1"}')
    assert http(served, "POST", "/v1/x", b'{"b": 2}') == (200, b'{"b": 2}')


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ({"path": "/v1/x", "token": "other"}, 401),
        ({"path": "/v1/nothing"}, 404),
        ({"path": "/v1/c", "body": b"{}"}, 409),
        ({"path": "/v1/x", "body": b"{"}, 400),
        ({"path": "/v1/x", "body": b"[1]"}, 400),
        ({"path": "/v1/x", "body": b"[" * 100000}, 400),
        ({"path": "/v1/x", "body": b"{}", "length": control.MAX_BODY + 1}, 400),
        ({"path": "/v1/x", "body": b"{}", "length": "x"}, 400),
    ],
)
def test_control_channel_refuses(served, arguments, status):
    assert http(served, "POST", **arguments)[0] == status


def test_who_sends_too_much_reads_why(served):
    body = b" " * (control.MAX_BODY + 1)
    status, answer = http(served, "POST", "/v1/x", body)
    assert status == 400 and str(control.MAX_BODY) in json.loads(answer)["error"]["message"]


def test_control_channel_answers_other_methods_in_json(served):
    status, body = http(served, "DELETE", "/v1/x")
    assert status == 400 and json.loads(body)["error"]["code"] == "kInvalidArgument"


def test_who_shows_no_token_does_not_hold_a_connection(served, monkeypatch):
    monkeypatch.setattr(control, "HELLO_S", 0.3)
    host, port = served.removeprefix("http://").split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(control.MAX_CONNECTIONS)]
    try:
        for one in silent:
            one.settimeout(20)
            assert one.recv(1) == b"", "the server has closed it"
        until = time.monotonic() + 20  # its thread may still have to end
        while not (answer := exchange(served, b"GET /v1/x HTTP/1.1\r\nAuthorization: Bearer token\r\nConnection: close\r\n\r\n")):
            assert time.monotonic() < until
        assert answer.split()[1] == b"200"
    finally:
        for one in silent:
            one.close()


def test_who_shows_no_token_gives_way(served):
    host, port = served.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(control.MAX_CONNECTIONS)]
    ended = threading.Event()

    def drip():
        while not ended.wait(0.2):
            for one in slow:
                try:
                    one.send(b"G")
                except OSError:
                    pass  # this one gave way

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        time.sleep(control.HELLO_S + 0.5)  # long enough for a silent one to be ended
        for _ in range(3):
            assert http(served, "GET", "/v1/x")[0] == 200
    finally:
        ended.set()
        dripping.join()
        for one in slow:
            one.close()


def test_who_asks_whether_to_go_on_is_told(served):
    host, port = served.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        head = b"POST /v1/x HTTP/1.1\r\nAuthorization: Bearer token\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        client.sendall(head)
        assert client.recv(4096).split()[1] == b"100"
        client.sendall(b"{}")
        assert client.recv(4096).split()[1] == b"200"


@pytest.mark.parametrize("raw", [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n"])
def test_control_channel_survives_nonsense(served, raw):
    exchange(served, raw)
    assert http(served, "GET", "/v1/x")[0] == 200


@pytest.mark.parametrize(
    "body",
    [{"keys": "x"}, {"keys": [1]}, {"keys": ["AB" * 16]}, {"keys": ["ab" * 15]},
     {"keys": ["ab" * 16] * (control.MAX_KEYS + 1)}],
)
def test_keys_are_checked(body):
    with pytest.raises(ValueError, match="keys"):
        control.read_keys(body)
