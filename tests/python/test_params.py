"""Signatures, salts and keys against Python's own hmac and hashlib, by what docs/vllm.md says alone."""
import base64
import hashlib
import hmac
import json
import struct

import pytest

from inferscale import _core

SECRET = bytes(range(32))
FINGERPRINT = "5c" * 16
SCOPE = {"tenant": "acme", "user": "zoë", "agent": "tutor", "run": "r1"}
CAPTURE = {"key": "01" * 16, "begin": 10, "end": 14, "context_kind": "window", "context_id": "aa" * 16,
           "context_tokens": 10, "owner": "scope"}
REQUEST = {"v": 1, "request": "req-1", "scope": SCOPE, "epoch": 7, "purpose": "inject", "top_j": 4, "context": "",
           "client_salt": "mine", "inject": ["00" * 16, "ff" * 16], "capture": [CAPTURE]}


def part(value):
    if isinstance(value, int):
        value = struct.pack("<Q", value)
    elif isinstance(value, str):
        value = value.encode()
    return struct.pack("<Q", len(value)) + value


def digest(*parts):
    return hmac.new(SECRET, b"".join(part(p) for p in parts), hashlib.sha256).digest()


def signature(request):
    parts = ["inferscale-request-v1", request["v"], request["request"]]
    parts += [request["scope"][name] for name in ("tenant", "user", "agent", "run")]
    parts += [request[name] for name in ("epoch", "purpose", "top_j", "context", "client_salt")]
    parts += [len(request["inject"]), *map(bytes.fromhex, request["inject"]), len(request["capture"])]
    for capture in request["capture"]:
        parts += [bytes.fromhex(capture["key"]), capture["begin"], capture["end"], capture["context_kind"],
                  bytes.fromhex(capture["context_id"]), capture["context_tokens"], capture["owner"]]
    return digest(*parts).hex()


def salt(request, purpose):
    scope = request["scope"]
    made = digest("inferscale-salt-v1", scope["tenant"], scope["user"], request["client_salt"], bytes.fromhex(FINGERPRINT),
                  request["epoch"], purpose)
    return base64.urlsafe_b64encode(made).decode().rstrip("=")


@pytest.mark.parametrize("change, purpose", [
    ({}, "inject:4"),
    ({"top_j": 0, "inject": [], "capture": []}, "inject:0"),
    ({"purpose": "text", "inject": []}, "text"),
    ({"purpose": "encode", "context": "names:32"}, "encode:names:32"),
    ({"capture": [CAPTURE, CAPTURE | {"begin": 0, "context_kind": "prefix", "owner": "system"}]}, "inject:4"),
    ({"scope": {"tenant": "t", "user": "日本", "agent": "", "run": ""}, "epoch": 2**53 - 1}, "inject:4"),
])
def test_signature_and_salt(change, purpose):
    request = REQUEST | change
    sent = json.loads(_core.signed_params(request, SECRET))
    assert sent == request | {"signature": signature(request)}
    params = _core.parse_params(json.dumps(request | {"signature": signature(request)}), SECRET)
    assert _core.cache_salt(params, SECRET, FINGERPRINT) == salt(request, purpose)


def test_attributes_are_those_that_were_sent():
    params = _core.parse_params(_core.signed_params(REQUEST, SECRET), SECRET)
    for name in ("request", "scope", "epoch", "purpose", "top_j", "context", "client_salt", "inject"):
        assert getattr(params, name) == REQUEST[name]
    (capture,) = params.capture
    assert {name: getattr(capture, name) for name in CAPTURE} == CAPTURE
    with pytest.raises(AttributeError):
        params.epoch = 8


def test_refusals():
    sent = _core.signed_params(REQUEST, SECRET)
    with pytest.raises(PermissionError):
        _core.parse_params(sent, bytes(32))
    with pytest.raises(PermissionError):
        _core.parse_params(json.dumps(REQUEST), SECRET)
    with pytest.raises(PermissionError):
        _core.parse_params(sent.replace('"epoch":7', '"epoch":8'), SECRET)
    for text in ("", "[]", "{}", sent[:-1], '"\udc80"'):
        with pytest.raises(ValueError):
            _core.parse_params(text, SECRET)
    with pytest.raises(ValueError, match="secret"):
        _core.parse_params(sent, b"short")
    with pytest.raises(ValueError, match="secret"):
        _core.signed_params(REQUEST, b"short")
    with pytest.raises(ValueError, match="signature"):
        _core.signed_params(REQUEST | {"signature": "00" * 32}, SECRET)
    with pytest.raises(TypeError):
        _core.parse_params(sent.encode(), SECRET)


def test_control_token():
    assert _core.control_token(SECRET) == hmac.new(SECRET, b"inferscale-control-v1", hashlib.sha256).hexdigest()


def test_keys_and_hashes():
    """As docs/format.md has them: parts with their length before them, token ids as u32 with their count."""
    def tokens(ids):
        return struct.pack("<Q", len(ids)) + struct.pack(f"<{len(ids)}I", *ids)

    ids = [1, 300, 49151]
    scope = hashlib.sha256(b"".join(part(SCOPE[name]) for name in ("tenant", "user", "agent", "run"))).digest()[:16]
    assert _core.scope_hash(SCOPE) == scope.hex()
    context = hashlib.sha256(struct.pack("<I", 5) + tokens([7, 8]) + struct.pack("<Q", 1) + part(b"\x22" * 16)).digest()[:16]
    assert _core.context_id("window", [7, 8], ["22" * 16]) == context.hex()
    message = part(scope) + part(bytes.fromhex(FINGERPRINT)) + part(context) + tokens(ids)
    key = hmac.new(SECRET, message, hashlib.sha256).digest()[:16].hex()
    assert _core.record_key(SECRET, SCOPE, FINGERPRINT, context.hex(), "window", ids) == key
    assert _core.scope_hash("system") == hashlib.sha256(part("") * 4).hexdigest()[:32]


def test_what_is_no_scope_or_token_is_refused():
    for scope in ({"tenant": "a"}, {"tenant": "", "user": "b"}, {"tenant": "a", "user": "b", "x": ""},
                  {"tenant": "a\n", "user": "b"}):
        with pytest.raises(ValueError):
            _core.scope_hash(scope)
    for tokens in ([-1], [2**31]):
        with pytest.raises(ValueError):
            _core.context_id("window", tokens, [])
    for tokens in ([1.5], ["1"], [True], None, "12"):
        with pytest.raises(TypeError):
            _core.context_id("window", tokens, [])
    with pytest.raises(ValueError, match="window"):
        _core.context_id("dream", [], [])


def test_owner_scope():
    assert _core.owner_scope(SCOPE, "scope") == SCOPE
    assert _core.owner_scope(SCOPE, "tenant") == {"tenant": "acme", "user": "", "agent": "", "run": ""}
    assert _core.owner_scope(SCOPE, "system") == dict.fromkeys(SCOPE, "")
    with pytest.raises(ValueError):
        _core.owner_scope(SCOPE, "user")
