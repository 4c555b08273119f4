"""Stop strings: cut off exactly, never shown in part, found wherever tokens happen to end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.models.detokenizer import ByteDetokenizer, KnownTexts
from specdec_hal.output.parsers import TOOLS, ContentFinder, make_parser
from specdec_hal.output.stop_strings import TextStream
from specdec_hal.runner import Request, SamplingParams, StreamDelta, build_runner
from tests.support.history_model import DeviceHistoryModel, LetterTokenizer


@given(
    pieces=st.lists(st.text("ab", max_size=3), min_size=1, max_size=10),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    held_for=st.integers(0, 10),
    include=st.booleans(),
)
@example(pieces=["aba", "ba"], stop=["aba"], held_for=2, include=False)
def test_stop_strings_that_may_not_stop_yet(pieces: list[str], stop: list[str], held_for: int, include: bool) -> None:
    stream, shown = TextStream(Pieces(pieces), stop, include), ""
    for token in range(len(pieces)):
        if stream.push(token, False, may_stop=token + 1 >= held_for):
            break
        shown += "".join(text for text, _ in stream.release(False))
    else:
        token = len(pieces)
    stream.finish()
    shown += "".join(text for text, _ in stream.release(True))

    expected, stopped_at, text = "".join(pieces), len(pieces), ""
    for at, piece in enumerate(pieces):
        before, text = len(text), text + piece
        ends = [(n - len(s), n) for s in stop for n in range(before + 1, len(text) + 1) if text[:n].endswith(s)]
        # Of each stop string, the first end in the piece counts.
        first = {text[start:end]: (start, end) for start, end in reversed(ends)}.values()
        if ends and at + 1 >= held_for:
            start, end = min(first)
            expected, stopped_at = text[: end if include else start], at
            break
    assert (stream.text, shown, token) == (expected, expected, stopped_at)


class Pieces:
    """A detokenizer whose token i is the i-th piece."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    def push(self, token_id: int) -> str:
        return self.pieces[token_id]

    def finish(self) -> str:
        return ""


def begun(text: str, stop: list[str]) -> int:
    """How many characters the text ends with that may be the beginning of a stop string."""
    return max((n for s in stop for n in range(len(s)) if text.endswith(s[:n])), default=0)


@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    release_every=st.integers(1, 3),
)
@example(pieces=["ab", "ab", "ac"], stop=["ababac", "abac"], release_every=1)
@example(pieces=["aa", "ab"], stop=["aab"], release_every=1)
@example(pieces=["aabaaa", "baaac"], stop=["aabaaac"], release_every=1)
@example(pieces=["ab", "aba", "bac"], stop=["ababac"], release_every=1)
def test_against_the_whole_text(pieces: list[str], stop: list[str], release_every: int) -> None:
    stream = TextStream(Pieces(pieces), stop)
    shown = ""
    consumed = 0
    for token in range(len(pieces)):
        consumed += 1
        stopped = stream.push(token, token % 2 == 0)
        if stopped:
            break
        if token % release_every == 0:
            shown += "".join(text for text, _ in stream.release(False))
            text = "".join(pieces[: token + 1])
            assert shown == text[: len(text) - begun(text, stop)]
    stream.finish()
    shown += "".join(text for text, _ in stream.release(True))

    whole = "".join(pieces[:consumed])
    first = min((whole.find(s) for s in stop if s in whole), default=len(whole))
    assert stream.text == shown == whole[:first]
    if consumed < len(pieces):
        assert any(s in whole for s in stop)
        assert not any(s in "".join(pieces[: consumed - 1]) for s in stop)


BESIDE = [
    ("", ""),
    ("<think>b\nb</think>", ""),
    ("", '<tool_call>{"name": "f", "arguments": {"a": "a\na"}}</tool_call>'),
]


@given(
    before=st.sampled_from(BESIDE),
    content=st.text("ab \n<{", max_size=12),
    stop=st.lists(st.sampled_from(["\n", "a", "b b", "ba", "<", "{a", "a<b"]), min_size=1, max_size=3, unique=True),
    cuts=st.sets(st.integers(1, 99), max_size=20),
    include=st.booleans(),
)
def test_only_content_is_searched(
    before: tuple[str, str], content: str, stop: list[str], cuts: set[int], include: bool
) -> None:
    """A stop string in a thought ended the answer, and one in the arguments of a call cut their JSON."""
    thought, call = before
    content = content if thought or call else "a" + content.strip()  # or it might begin a thought
    content = content.rstrip() if call else content
    whole = thought + content + call + "."
    bounds = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(bounds)]
    finder = ContentFinder(make_parser("qwen3", "hermes", "", functions=["f"]))
    stream, shown = TextStream(Pieces(pieces), stop, include, finder), ""
    for token in range(len(pieces)):
        if stream.push(token, False):
            break
        shown += "".join(text for text, _ in stream.release(False))
    stream.finish()
    shown += "".join(text for text, _ in stream.release(True))
    assert shown == stream.text
    searched = content if call else content + "."
    ends = [(at, at + len(one)) for one in stop if (at := searched.find(one)) >= 0]
    if not ends:
        assert shown == whole
    else:
        possible = {thought + searched[: end if include else start] for start, end in ends}
        assert shown in possible and len(shown) <= len(thought) + max(end for _, end in ends)


@given(
    text=st.text('{}":, \na|tg', max_size=30),
    tools=st.sampled_from(["hermes", "llama3_json", "mistral"]),
    marked=st.booleans(),
    stop=st.lists(st.sampled_from(["\n", "a", "}", '"a', ":", "{"]), min_size=1, max_size=2, unique=True),
)
@example(text='{"a":\n1}', tools="llama3_json", marked=False, stop=["\n"])
@example(text='{"a":\n1}', tools="hermes", marked=True, stop=["\n"])
@example(text=' \n{"a":\n1}', tools="llama3_json", marked=True, stop=["\n"])
@example(text='[{"a":\n1}', tools="mistral", marked=True, stop=["\n"])
def test_a_stop_string_in_what_is_no_call(text: str, tools: str, marked: bool, stop: list[str]) -> None:
    """Such text is content once that is certain, and ends where the stop string begins; nothing else may be lost."""
    whole = (TOOLS[tools].begin if marked else "") + text + "\n.."
    stream, shown = TextStream(Pieces(list(whole)), stop, False, ContentFinder(make_parser(None, tools, ""))), ""
    for token in range(len(whole)):
        if stream.push(token, False):
            break
        shown += "".join(text for text, _ in stream.release(False))
    else:
        token = len(whole) - 1
    stream.finish()
    shown += "".join(text for text, _ in stream.release(True))
    assert shown == stream.text and whole.startswith(shown)
    if shown != whole:
        assert any(whole[len(shown) :].startswith(one) for one in stop)


def test_flags_stay_with_their_characters() -> None:
    stream = TextStream(Pieces(["ab", "cd", "ef"]), ["defg"])
    for token in range(3):
        stream.push(token, token == 1)
    assert stream.release(False) == (("ab", False), ("c", True))
    stream.finish()
    assert stream.release(True) == (("d", True), ("ef", False))


def test_a_long_stop_string_holds_back_only_its_beginning() -> None:
    """Of 200 characters, 199 were held back."""
    words = [f"word {n} " for n in range(100)]
    stream = TextStream(Pieces([*words, "wor", "se"]), ["w" + "x" * 199])
    for token in range(100):
        assert not stream.push(token, False)
        assert stream.release(False) == ((words[token], False),)
    stream.push(100, False)
    assert stream.release(False) == (("wor", False),)


class Bytes:
    """A detokenizer with an incomplete character at its end."""

    def push(self, token_id: int) -> str:
        return "a\nb"

    def finish(self) -> str:
        return "\N{REPLACEMENT CHARACTER}"


def test_nothing_comes_after_a_stop_string() -> None:
    stream = TextStream(Bytes(), ["\n"])
    assert stream.push(0, False)
    stream.finish()
    assert stream.release(True) == (("a", False),) and stream.text == "a"


@pytest.mark.parametrize("letter", ["a", "b"])
def test_a_long_stop_string_that_nearly_comes(letter: str) -> None:
    """Quadratic time would be minutes."""
    stream = TextStream(Pieces(["a", letter]), ["a" * 20_000 + "c"])
    for token in range(40_000):
        assert not stream.push(token % 2, False)
        stream.release(False)
    stream.finish()
    assert len(stream.text) == 40_000


PIECES = [
    *(letter.encode() for letter in "abcdefgh\n"), b"\xc3", b"\xa9", b"x\xe2", b"\x82", b"\xac", b"\xf0\x9f",
    b"\x98\x80y", b"\xff", "\u00e9".encode(), b"ab", b"\na", b"bc", b"<end>", b"ca", b"a\n",
]  # fmt: skip
"""Bytes of the tokens of HistoryModel, some of them parts of characters; the one of "<end>" is special."""


class PiecesTokenizer(LetterTokenizer):
    """`together`: texts of many requests are made at once."""

    special_ids = frozenset({PIECES.index(b"<end>")})

    def __init__(self, together: bool) -> None:
        self._known = KnownTexts(len(PIECES), self.special_ids, PIECES.__getitem__)
        self.known_texts = self._known if together else None

    def detokenizer(self, prompt: Any = (), skip_special_tokens: bool = True, **options: bool) -> Any:
        silent = self.special_ids if skip_special_tokens else frozenset[int]()
        made = ByteDetokenizer(len(PIECES), silent, PIECES.__getitem__, self._known if skip_special_tokens else None)
        made.prime(prompt)
        return made


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("overlap", [False, True])
def test_texts_made_together_are_those_of_each_alone(drafts: int, overlap: bool) -> None:
    """With stop strings, special tokens, and a pool so small that requests leave their slots and resume."""
    stops = [[], ["\na"], ["\u00e9b"], ["cab", "\n\n\n"], ["bcbcbc"], ["y"], ["\ufffd\ufffd"], ["hg\n"]]
    outputs = list[dict[str, Any]]()
    for together in (False, True):
        speculative = (
            {"method": "ngram", "num_speculative_tokens": drafts, "adaptive": False} if drafts else {"method": "naive"}
        )
        sizes = {"max_num_seqs": 5, "block_size": 4, "num_kv_blocks": 60, "overlap": overlap}
        config = parse({"runner": sizes, "speculative": speculative})
        tokenizer: Any = PiecesTokenizer(together)
        runner = build_runner(config, ReferenceBackend(), DeviceHistoryModel(), tokenizer)
        deltas, texts = dict[str, list[StreamDelta]](), dict[str, str]()

        def hear(delta: StreamDelta, texts: dict[str, str] = texts) -> None:
            texts[delta.request_id] = texts.get(delta.request_id, "") + delta.text

        for i in range(40):
            wanted = {"stop": stops[i % 8], "temperature": 1.0, "seed": i, "skip_special_tokens": i % 5 != 4}
            params = SamplingParams(max_new_tokens=70, min_new_tokens=i % 3 * 10, **wanted)
            callback = hear if i % 2 else None
            runner.add_request(Request(str(i), [3, 4, 9, 5][: 1 + i % 4], params, callback))
        while runner.has_requests:
            for delta in runner.step():
                deltas.setdefault(delta.request_id, []).append(delta)
        found = runner.take_finished()
        for name, output in found.items():
            shown = "".join(delta.text for delta in deltas[name])
            assert shown == output.text == texts.get(name, shown)
            assert sum((delta.token_ids for delta in deltas[name]), ()) == output.token_ids
            assert shown == "".join(text for delta in deltas[name] for text, _ in delta.spans)
        spans = {name: [delta.spans for delta in own if delta.spans] for name, own in deltas.items()}
        outputs.append(
            {name: (o.token_ids, spans[name], o.finish_reason, o.accepted_draft) for name, o in found.items()}
        )
        assert runner.scheduler.preemptions > 0
    assert outputs[0] == outputs[1]
    reasons = [reason for _, _, reason, _ in outputs[1].values()]
    assert reasons.count("stop") > 8 and reasons.count("length") > 8
