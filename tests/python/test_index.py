"""That the bindings of the scheduler's index pass on what they are given; what it decides is tested in C++."""
import numpy as np
import pytest

from inferscale import _core

SECRET = b"s" * 32
SCOPE = {"tenant": "acme", "user": "zoe"}
OTHER = {"tenant": "acme", "user": "max"}
HEADER = np.array([1, 2, 3], np.int32)
FACT = np.array([10, 11], np.int32)


def params(*keys):
    request = {"v": 1, "request": "r", "scope": SCOPE, "epoch": 0, "purpose": "inject", "inject": list(keys)}
    return _core.parse_params(_core.signed_params(request, SECRET), SECRET)


def key(number):
    return f"{number:032x}"


@pytest.fixture
def index():
    made = _core.SchedulerIndex(2)
    made.learn_scope(SCOPE)
    for rank in (0, 1):
        assert made.add(rank, key(1), _core.scope_hash("system"), "prefix", HEADER)
        assert made.add(rank, key(2), _core.scope_hash(SCOPE), "window", list(FACT))
    return made


def describe(match):
    return ([(s.key, s.begin, s.end) for s in match.segments], {f.reason: f.count for f in match.fallbacks})


@pytest.mark.parametrize("convert", [np.asarray, np.ndarray.tolist, lambda a: np.repeat(a, 2)[::2]])
def test_match(index, convert):
    prompt = convert(np.concatenate([HEADER, FACT, [99]]).astype(np.int32))
    match = index.match(prompt, params(key(1), key(2), key(3)))
    assert (match.begin, match.end) == (0, 5)
    assert describe(match) == ([(key(1), 0, 3), (key(2), 3, 5)], {"record_missing": 1})


def test_a_match_says_what_is_to_be_loaded():
    index = _core.SchedulerIndex(1)
    index.learn_scope(SCOPE)
    index.add(0, key(1), _core.scope_hash("system"), "prefix", HEADER)
    index.add(0, key(2), _core.scope_hash(SCOPE), "window", FACT, key(9))
    prompt = np.concatenate([HEADER, FACT, [99]]).astype(np.int32)
    asked = params(key(1), key(2))
    match = index.match(prompt, asked)
    assert match.n_segments == asked.n_inject == 2
    assert match.spans(4) == [{"key": key(1), "begin": 0, "end": 3}, {"key": key(2), "begin": 3, "end": 5}]
    assert match.spans(3) == match.spans(1) == [{"key": key(1), "begin": 0, "end": 3}]
    assert match.limit(0, 5) == (5, 0) and match.limit(0, 4) == (3, 1) and match.limit(3, 2) == (5, 0)
    plan, begin, end = match.plan(2, 4)
    assert (begin, end) == (0, 5)
    first, second = _core.load_items(plan, prompt[begin:end])
    assert first[:3] == (key(1), _core.scope_hash("system"), None) and first[4] == 0
    assert second[:3] == (key(2), _core.scope_hash(SCOPE), key(9)) and second[4] == 3
    assert first[3].tolist() == HEADER.tolist() and second[3].tolist() == FACT.tolist()
    plan, begin, end = match.plan(3, 4)
    assert (begin, end) == (3, 5) and len(_core.load_items(plan, FACT)) == 1
    with pytest.raises(ValueError):
        _core.load_items(plan, HEADER)
    same = _core.load_plan([(key(2), _core.scope_hash(SCOPE), key(9), 3, 5)])
    assert same == match.plan(3, 5)[0]
    for wrong in ([(key(2), _core.scope_hash(SCOPE), None, 5, 5)], [(key(2), 3, 5)], [("x", key(1), None, 3, 5)], 7):
        with pytest.raises((ValueError, TypeError)):
            _core.load_plan(wrong)


def test_token_arrays():
    made = _core.token_array([0, 5, 0x7FFFFFFF])
    assert made.dtype == np.int32 and made.tolist() == [0, 5, 0x7FFFFFFF]
    assert _core.token_array((np.int64(3), 4)).tolist() == [3, 4] and _core.token_array([]).tolist() == []
    for wrong in ([-1], [1 << 31], [1 << 80], [1.5], ["1"], [None], [True], None, "12"):
        with pytest.raises((ValueError, TypeError)):
            _core.token_array(wrong)


def test_states(index):
    assert len(index) == index.size == 2
    assert index.contains(key(2)) and not index.contains(key(3))
    index.drop(1, [key(2)])
    assert not index.contains(key(2))
    assert index.add(1, key(2), _core.scope_hash(SCOPE), "window", FACT)
    assert index.erase([key(2), key(9)]) == 1
    assert not index.add(0, key(2), _core.scope_hash(SCOPE), "window", FACT)
    index.expect(key(2), _core.scope_hash(SCOPE))
    assert index.add(0, key(2), _core.scope_hash(SCOPE), "window", FACT)
    assert index.erase_owner("acme", "zoe") == [key(2)]
    assert index.erase_owner("", "") == [key(1)]


def test_unknown_scopes_do_not_match(index):
    for rank in (0, 1):
        index.add(rank, key(4), _core.scope_hash(OTHER), "window", FACT)
    assert describe(index.match(FACT, params(key(4)))) == ([], {"wrong_scope": 1})


def test_refusals(index):
    with pytest.raises(ValueError):
        _core.SchedulerIndex(0)
    with pytest.raises(ValueError):
        index.add(2, key(1), _core.scope_hash("system"), "prefix", HEADER)
    with pytest.raises(ValueError):
        index.add(0, "short", _core.scope_hash("system"), "prefix", HEADER)
    with pytest.raises(ValueError):
        index.add(0, key(1), _core.scope_hash("system"), "prefix", [])
    with pytest.raises(TypeError):
        index.add(0, key(1), _core.scope_hash("system"), "prefix", np.zeros((1, 2), np.int32))
    with pytest.raises(TypeError):
        index.erase(key(1))
    with pytest.raises(TypeError):
        index.match(HEADER, {"inject": []})
