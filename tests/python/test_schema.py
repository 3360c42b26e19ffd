"""The JSON schema and the parser accept and refuse the same requests, but for what the schema says it cannot."""
import json
from pathlib import Path

import jsonschema
import pytest

from inferscale import _core

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs/schema/inferscale-request-v1.json").read_text())
CASES = json.loads((ROOT / "tests/golden/request-v1-cases.json").read_text())
SECRET = b"s" * 32
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def merged(base, patch):
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(base) if isinstance(base, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def test_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["name"])
def test_case(case):
    request = merged(CASES["base"], case["patch"])
    if case["accepted"]:
        sent = json.loads(_core.signed_params(request, SECRET))
        VALIDATOR.validate(sent)
        VALIDATOR.validate(request | {"signature": sent["signature"]})
    else:
        with pytest.raises(ValueError):
            _core.signed_params(request, SECRET)
        assert VALIDATOR.is_valid(request | {"signature": "0" * 64}) == case.get("schema", False)


def test_a_signature_is_required():
    assert not VALIDATOR.is_valid(CASES["base"])
    for wrong in ("", "0" * 63, "0" * 65, "g" * 64, 5):
        assert not VALIDATOR.is_valid(CASES["base"] | {"signature": wrong})


@pytest.mark.parametrize("field, item", [("inject", "0" * 32), ("capture", CASES["base"]["capture"][0])])
def test_lists_are_bounded(field, item):
    for count in (4096, 4097):
        request = CASES["base"] | {field: [item] * count}
        assert VALIDATOR.is_valid(request | {"signature": "0" * 64}) == (count == 4096)
        if count == 4096:
            _core.signed_params(request, SECRET)
        else:
            with pytest.raises(ValueError, match=field):
                _core.signed_params(request, SECRET)
