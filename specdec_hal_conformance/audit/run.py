"""The checks of an audit: what is asked, of whom, and what the answers say."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from specdec_hal_conformance.audit import prompts as texts
from specdec_hal_conformance.audit.answers import Answers
from specdec_hal_conformance.audit.endpoint import Answer, Endpoint, RefusedError, Token
from specdec_hal_conformance.audit.forced import Forced
from specdec_hal_conformance.audit.verdict import (
    MOST_NOISE,
    NOISE,
    Comparison,
    Verdict,
    compare,
    detectable,
    fewer,
    noise,
    two_samples,
)
from specdec_hal_conformance.statistics import ALPHA

PLAIN, DRAFTED = "plain", "drafted"
_CHAT_TOKENS = 200
SEEDS, _SEED_TOKENS = 24, 8
"""Seeds that are asked for twice: they show a seed without effect if three in four repeat an answer without drafts."""
_LONG = 4
"""Answers that are asked for again with stop strings and with several choices."""
CHECKS = ("greedy", "together", "logprobs", "forced", "sampled", "structured", "stop", "usage", "n", "seed")


@dataclass(frozen=True)
class Budget:
    """`tokens` of a greedy answer; `samples` of each sampled prompt and side, of `sampled_tokens`; `requests` at once;
    `minutes`, after which nothing more is asked.
    """

    tokens: int = 96
    longest: int = 2048
    samples: int = 192
    sampled_tokens: int = 4
    requests: int = 8
    minutes: float = 30.0


@dataclass
class Finding:
    """A fault: what differs, where, and a command that shows it."""

    check: str
    kind: str
    prompt: str
    what: str
    plain: str
    drafted: str
    curl: str


@dataclass
class Check:
    """What a check has found. `skipped`: why it was not run."""

    name: str
    asked: int = 0
    equal: int = 0
    ties: int = 0
    unknown: int = 0
    compared: int = 0
    detail: str = ""
    skipped: str = ""
    findings: list[Finding] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.findings:
            return "FAULT"
        if self.skipped and not self.asked:
            return "skipped"
        return "cannot tell" if self.unknown else "ok"


@dataclass
class Kind:
    """Greedy answers to prompts of a kind. `tokens` and `seconds` of each side, and `drafts`, of those asked alone."""

    name: str
    answers: int = 0
    equal: int = 0
    ties: int = 0
    unknown: int = 0
    faults: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: {PLAIN: 0, DRAFTED: 0})
    seconds: dict[str, float] = field(default_factory=lambda: {PLAIN: 0.0, DRAFTED: 0.0})
    drafted: int = 0
    accepted: int = 0

    @property
    def verdict(self) -> str:
        """In a word."""
        return "FAULT" if self.faults else "cannot tell" if self.unknown else "ok"

    @property
    def faster(self) -> float | None:
        """By how much the drafted side makes more tokens in a second."""
        if not all(self.seconds.values()) or not all(self.tokens.values()):
            return None
        speed = {side: self.tokens[side] / self.seconds[side] for side in self.tokens}
        return speed[DRAFTED] / speed[PLAIN]


@dataclass
class Report:
    """The result. `threshold`: of log-probabilities, in nats. `cannot`: why there is no verdict."""

    checks: list[Check]
    threshold: float
    cannot: str = ""
    kinds: list[Kind] = field(default_factory=list)
    acceptance: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """0: no fault; 1: a fault; 2: no verdict."""
        if any(check.findings for check in self.checks):
            return 1
        return 2 if self.cannot or any(check.unknown for check in self.checks) else 0


class OutOfTimeError(Exception):
    """The minutes are over."""


class Audit:
    """Asks `plain` (None: all its answers are known) and `drafted` (None: only record the plain side)."""

    def __init__(
        self,
        plain: Endpoint | None,
        drafted: Endpoint | None,
        budget: Budget,
        answers: Answers,
        only: Iterable[str] = CHECKS,
        asked: Callable[[], None] = lambda: None,
    ) -> None:
        self._ends = {PLAIN: plain, DRAFTED: drafted}
        self._foreign = plain is not None and plain.foreign
        self._budget, self._answers, self._asked = budget, answers, asked
        self._only = tuple(only)
        self._until = time.monotonic() + 60 * budget.minutes
        self._prompts = texts.builtin(budget.longest)
        self._threshold = 0.0
        self._kinds = {prompt.kind: Kind(prompt.kind) for prompt in self._prompts}
        self._refused = dict[int, str]()
        self.seconds = dict.fromkeys(self._ends, 0.0)

    def run(self) -> Report:
        """Ask and compare. EndpointError if an endpoint fails."""
        before = self._metrics()
        checks = {name: Check(name) for name in CHECKS if name in self._only}
        cannot, greedy = "", dict[int, list[Answer]]()
        try:
            greedy = self._greedy()
            self._threshold = self._noise(greedy)
            if self._threshold > NOISE * MOST_NOISE:
                cannot = (
                    f"the plain side differs from itself by {self._threshold / NOISE:.2f} nats between batches; "
                    "serve it with batch-invariant kernels, or in float32"
                )
            if self._ends[DRAFTED] is not None and not cannot:
                self._force(greedy)
                self._compare_greedy(greedy, checks)
            plain = {number: alone for number, (alone, *_) in greedy.items()}
            for name in ("sampled", "structured", "stop", "n", "seed"):
                if name in checks and not cannot:
                    self._run(name, checks[name], plain)
        except OutOfTimeError:
            cannot = cannot or f"its {self._budget.minutes:g} minutes were over before every question was asked"
        kinds = [kind for kind in self._kinds.values() if kind.answers]
        if kinds and not cannot:
            cannot = _not_as_named(
                [row[0].drafts for row in greedy.values()], [row[2].drafts for row in greedy.values()]
            )
        found = list(checks.values())
        return Report(found, self._threshold, cannot, kinds, self._acceptance(before), self.seconds)

    @property
    def questions(self) -> int:
        """Answers that are asked for, at most."""
        sides = len(self._sides())
        numbers = {
            "sampled": len(texts.SAMPLED) * self._budget.samples, "structured": len(texts.SCHEMAS), "seed": 2 * SEEDS
        }  # fmt: skip
        drafted = {"stop": _LONG, "n": _LONG, "forced": 3 * len(self._prompts)}
        asked = 2 * len(self._prompts) + sum(count for name, count in numbers.items() if name in self._only)
        return sides * asked + (sides - 1) * sum(count for name, count in drafted.items() if name in self._only)

    # ---- asking

    def _ask(self, side: str, question: str, send: Callable[[Endpoint], list[Answer]]) -> list[Answer]:
        end = self._ends[side]

        def ask() -> list[Answer]:
            if end is None:
                raise RefusedError(f"the {side} side has no answer to {question}; record it with the same options")
            if time.monotonic() > self._until:
                raise OutOfTimeError
            began = time.perf_counter()
            answers = send(end)
            seconds = time.perf_counter() - began
            self.seconds[side] += seconds
            return [one._replace(seconds=seconds) for one in answers]

        answers = self._answers.get(f"{side}/{question}", ask)
        self._asked()
        return answers

    def _complete(self, side: str, question: str, prompt: str, tokens: int, **more: Any) -> Answer:
        return self._ask(side, question, lambda end: end.complete(prompt, tokens, **more))[0]

    def _choices(self, side: str, question: str, number: int, **more: Any) -> list[Answer]:
        """Greedy, of a numbered prompt."""
        prompt, tokens = self._prompts[number].text, self._budget.tokens
        return self._ask(side, f"{question}/{tokens}", lambda end: end.complete(prompt, tokens, temperature=0, **more))

    def _chat(self, side: str, question: str, prompt: str, **more: Any) -> Answer:
        return self._ask(side, question, lambda end: end.chat(prompt, _CHAT_TOKENS, **more))[0]

    def _sides(self) -> list[str]:
        """Those that can answer."""
        return [PLAIN] if self._ends[DRAFTED] is None else [PLAIN, DRAFTED]

    def _in_parallel(self, jobs: Iterable[Callable[[], Any]]) -> list[Any]:
        with ThreadPoolExecutor(self._budget.requests) as pool:
            return [one.result() for one in [pool.submit(job) for job in jobs]]

    # ---- greedy answers

    def _greedy(self) -> dict[int, list[Answer]]:
        """By number of the prompt: plain alone and together with others, and drafted in both ways."""
        alone = [self._alone(side) for side in self._sides()]
        columns = [
            one for side, answers in zip(self._sides(), alone, strict=True) for one in (answers, self._together(side))
        ]
        return {number: [column[number] for column in columns] for number in self._numbers()}

    def _numbers(self) -> list[int]:
        """Prompts that no side has refused."""
        return [number for number in range(len(self._prompts)) if number not in self._refused]

    def _alone(self, side: str) -> dict[int, Answer]:
        answers = {}
        for number in self._numbers():
            try:
                answers[number] = self._one(side, number, "alone")
            except RefusedError as error:
                self._refused[number] = str(error)
                if 2 * len(self._refused) > len(self._prompts):
                    raise
        return answers

    def _one(self, side: str, number: int, how: str) -> Answer:
        prompt, tokens = self._prompts[number], self._tokens(number)

        def ask(end: Endpoint) -> list[Answer]:
            before = end.drafts() if how == "alone" else None
            answers = end.complete(prompt.text, tokens, temperature=0)
            if before is None or (after := end.drafts()) is None or answers[0].drafts is not None:
                return answers
            return [answers[0]._replace(drafts=(after[0] - before[0], after[1] - before[1]))]

        return self._ask(side, f"greedy/{how}/{number}/{tokens}", ask)[0]

    def _tokens(self, number: int) -> int:
        return self._prompts[number].tokens or self._budget.tokens

    def _together(self, side: str) -> dict[int, Answer]:
        """All prompts at once; beside them requests whose clients leave."""
        end, numbers = self._ends[side], self._numbers()
        known = all(f"{side}/greedy/together/{number}/{self._tokens(number)}" in self._answers for number in numbers)
        answers = dict[int, Answer]()

        def keep(number: int) -> None:
            answers[number] = self._one(side, number, "together")

        jobs = list[Callable[[], Any]]()
        for number in numbers:
            jobs.append(partial(keep, number))
            if number % 3 == 0 and end is not None and not known:
                jobs.append(partial(end.abandon, self._prompts[number].text, self._budget.tokens))
        self._in_parallel(jobs)
        return answers

    def _noise(self, greedy: dict[int, list[Answer]]) -> float:
        """By the plain side's own answers; where it is another engine also by first tokens, which are never drafts."""
        pairs = [(alone, together) for alone, together, *_ in greedy.values()]
        if self._foreign:
            firsts = [
                [one._replace(tokens=one.tokens[:1]) for one in (plain, *drafted)]
                for plain, _, *drafted in greedy.values()
            ]
            pairs += [(plain, one) for plain, *drafted in firsts for one in drafted if one.tokens]
        return noise(pairs)

    def _compare_greedy(self, greedy: dict[int, list[Answer]], checks: dict[str, Check]) -> None:
        far = bare = compared = 0
        for number, (plain, _, *drafted) in greedy.items():
            kind = self._kinds[self._prompts[number].kind]
            for side, answer in zip((PLAIN, DRAFTED), (plain, drafted[0]), strict=True):
                kind.tokens[side] += len(answer.tokens) or answer.completion_tokens or 0
                kind.seconds[side] += answer.seconds
            if (drafts := drafted[0].drafts) is not None:
                kind.drafted, kind.accepted = kind.drafted + drafts[0], kind.accepted + drafts[1]
            for name, answer in zip(("greedy", "together"), drafted, strict=True):
                result = self._compared(checks.get("forced"), name, number, plain, answer)
                kind.answers += 1
                kind.equal += result.verdict is Verdict.EQUAL
                kind.ties += result.verdict is Verdict.TIE
                kind.unknown += result.verdict is Verdict.UNKNOWN
                kind.faults += result.verdict is Verdict.FAULT
                if name in checks:
                    self._count(checks[name], result, number, plain, answer)
                far, bare, compared = far + result.far, bare + result.bare, compared + result.compared
                if "logprobs" in checks:
                    self._compare_logprobs(checks["logprobs"], result, number, plain, answer)
                if "usage" in checks and result.verdict is Verdict.EQUAL:
                    self._compare_usage(checks["usage"], number, plain, answer)
        if self._refused and "greedy" in checks:
            checks["greedy"].detail = f"{len(self._refused)} prompts are refused: {next(iter(self._refused.values()))}"
        if "forced" in checks:
            checks["forced"].skipped = self._forced.skipped
            if not self._forced.skipped:
                checks["forced"].detail = f"differences up to {self._forced.threshold:.3f} nats are rounding"
        if "logprobs" in checks and not checks["logprobs"].skipped:
            checks["logprobs"].detail = f"{far} of {compared} tokens differ by more than {self._threshold:.3f} nats" + (
                f", {bare} have no alternatives on the drafted side only" if bare else ""
            )

    def _force(self, greedy: dict[int, list[Answer]]) -> None:
        """Find out what the plain side's scores are worth, or the drafted side's, which drafts nothing in prompts."""
        side = DRAFTED if self._ends[PLAIN] is None else PLAIN
        own = {} if self._foreign else {number: plain for number, (plain, *_) in greedy.items()}

        def score(name: str, number: int, answer: Answer, near: float) -> list[Token]:
            def ask(end: Endpoint) -> list[Answer]:
                return [Answer("", end.score(self._prompts[number].text, answer, near), "", None)]

            return self._ask(side, f"forced/{name}/{number}/{self._tokens(number)}", ask)[0].tokens

        self._forced = Forced(score, own, self._threshold)

    def _compared(self, check: Check | None, name: str, number: int, plain: Answer, drafted: Answer) -> Comparison:
        """The comparison of two answers; where it tells nothing, or engines differ, that by scores."""
        result = compare(plain, drafted, self._threshold)
        scored = self._forced.compare(name, number, drafted) if check is not None or self._foreign else None
        if scored is None:
            return result
        if check is not None:
            check.asked += 1
            check.compared += scored.compared
            check.equal += scored.verdict is Verdict.EQUAL and not scored.far
            check.ties += scored.verdict is Verdict.TIE and not scored.far
            if scored.verdict is Verdict.FAULT:
                what = f"token {scored.at} is {scored.gap:.2f} nats less likely than the best one after the same text"
                self._found(check, number, what, plain, drafted)
            elif scored.far:
                at = scored.apart_at or 0
                what = f"token {at}: {_token(drafted, at)}, {scored.apart:.2f} nats off after the same text"
                self._found(check, number, what, plain, drafted)
        if result.verdict is Verdict.UNKNOWN or (self._foreign and result.verdict is not Verdict.EQUAL):
            # Whole answers without log-probabilities are equal only if their texts are.
            verdict = Verdict.TIE if scored.verdict is Verdict.EQUAL else scored.verdict
            return result._replace(verdict=verdict, at=scored.at or 0, gap=scored.gap)
        return result

    def _count(self, check: Check, result: Comparison, number: int, plain: Answer, drafted: Answer) -> None:
        check.asked += 1
        check.compared += result.compared
        check.equal += result.verdict is Verdict.EQUAL
        check.ties += result.verdict is Verdict.TIE
        check.unknown += result.verdict is Verdict.UNKNOWN
        if result.verdict is Verdict.FAULT:
            assert result.at is not None
            one, other = (_token(answer, result.at) for answer in (plain, drafted))
            what = f"token {result.at}: {one} plain, {other} drafted, {result.gap:.2f} nats apart"
            self._found(check, number, what, plain, drafted)

    def _compare_logprobs(self, check: Check, result: Comparison, number: int, plain: Answer, drafted: Answer) -> None:
        if self._foreign or not plain.tokens:
            check.skipped = "see forced" if self._foreign else "the endpoint reports no log-probabilities"
            return
        check.asked += 1
        check.compared += result.compared
        check.equal += not result.far and not result.bare
        if result.far or result.bare:
            at = result.apart_at or 0
            values = [_token(answer, at) for answer in (plain, drafted)]
            self._found(check, number, f"token {at}: {values[0]} plain, {values[1]} drafted", plain, drafted)

    def _compare_usage(self, check: Check, number: int, plain: Answer, drafted: Answer) -> None:
        if self._foreign or plain.completion_tokens is None or drafted.completion_tokens is None:
            check.skipped = "engines count in different ways" if self._foreign else "the endpoint reports no usage"
            return
        check.asked += 1
        same = plain.completion_tokens == drafted.completion_tokens
        check.equal += same
        if not same:
            what = f"completion_tokens: {plain.completion_tokens} plain, {drafted.completion_tokens} drafted"
            self._found(check, number, what, plain, drafted)

    def _found(self, check: Check, number: int, what: str, plain: Answer, drafted: Answer) -> None:
        kind, prompt, _ = self._prompts[number]
        end = self._ends[DRAFTED]
        assert end is not None
        curl = end.curl(*end.asked(prompt, self._tokens(number), temperature=0))
        check.findings.append(Finding(check.name, kind, prompt, what, plain.text, drafted.text, curl))

    # ---- the others

    def _run(self, name: str, check: Check, plain: dict[int, Answer]) -> None:
        try:
            getattr(self, f"_check_{name}")(check, plain)
        except RefusedError as error:
            check.skipped = str(error)

    def _check_sampled(self, check: Check, plain: dict[int, Answer]) -> None:
        budget, counts = self._budget, dict[tuple[str, int], list[tuple[str, ...]]]()
        for number, prompt in enumerate(texts.SAMPLED):
            for side in self._sides():
                first = 0 if side == PLAIN else budget.samples

                def sample(seed: int, side: str = side, number: int = number, prompt: str = prompt) -> Answer:
                    question = f"sampled/{number}/{seed}"
                    return self._complete(side, question, prompt, budget.sampled_tokens, temperature=1, seed=seed)

                jobs = [lambda seed=seed: sample(seed) for seed in range(first, first + budget.samples)]
                counts[side, number] = [_path(answer) for answer in self._in_parallel(jobs)]
        if self._ends[DRAFTED] is None:
            return
        worst = 0.0
        for number, prompt in enumerate(texts.SAMPLED):
            for position in range(1, budget.sampled_tokens + 1):
                sides = [[path[:position] for path in counts[side, number]] for side in (PLAIN, DRAFTED)]
                found = two_samples(sides[0], sides[1])
                check.asked += 1
                check.equal += not found.fault
                worst = max(worst, found.distance)
                if found.fault:
                    what = f"first {position} tokens: total variation {found.distance:.2f}, p = {found.p:.0e}"
                    check.findings.append(self._of_samples(what, prompt, sides))
        check.detail = f"{budget.samples} samples a side show {detectable(budget.samples):.2f}; largest {worst:.2f}"

    def _of_samples(self, what: str, prompt: str, sides: list[list[tuple[str, ...]]]) -> Finding:
        end = self._ends[DRAFTED]
        assert end is not None
        plain, drafted = ("\n".join(f"{n:5} {''.join(path)!r}" for path, n in _common(side)) for side in sides)
        curl = end.curl(*end.asked(prompt, self._budget.sampled_tokens, temperature=1))
        return Finding("sampled", "sampled", prompt, what, plain, drafted, curl)

    def _check_structured(self, check: Check, plain: dict[int, Answer]) -> None:
        for number, schema in enumerate(texts.SCHEMAS):
            wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
            prompt = f"Answer with JSON of this schema: {json.dumps(schema)}"
            more = {"temperature": 0, "response_format": wanted}
            found = [self._chat(side, f"structured/{number}", prompt, **more) for side in self._sides()]
            if len(found) == 1:
                continue
            result = compare(found[0], found[1], self._threshold)
            check.asked += 1
            check.equal += result.verdict is Verdict.EQUAL
            check.ties += result.verdict is Verdict.TIE
            check.unknown += result.verdict is Verdict.UNKNOWN
            broken = [answer.finish_reason != "length" and not _is_json(answer.text) for answer in found]
            what = ""
            if broken[1] and not broken[0]:
                what = "no JSON on the drafted side only"
            elif result.verdict is Verdict.FAULT:
                what = f"token {result.at} differs by {result.gap:.2f} nats"
            if what:
                end = self._ends[DRAFTED]
                assert end is not None
                curl = end.curl(*end.asked_chat(prompt, _CHAT_TOKENS, **more))
                check.findings.append(
                    Finding("structured", "structured", prompt, what, found[0].text, found[1].text, curl)
                )

    def _check_stop(self, check: Check, plain: dict[int, Answer]) -> None:
        for number, answer in self._long(plain):
            middle = len(answer.text) // 2
            stop = answer.text[middle : middle + 4]
            expected = answer.text[: answer.text.index(stop)]
            for side in self._sides()[1:]:
                (found,) = self._choices(side, f"stop/{number}", number, stop=[stop])
                self._same_text(check, number, expected, answer, found, f"stop {stop!r}")

    def _check_n(self, check: Check, plain: dict[int, Answer]) -> None:
        for number, answer in self._long(plain):
            for side in self._sides()[1:]:
                choices = self._choices(side, f"n/{number}", number, n=2)
                if len(choices) != 2:
                    check.skipped = f"n=2 gives {len(choices)} choices"
                    return
                for index, choice in enumerate(choices):
                    result = self._compared(None, f"n/{index}", number, answer, choice)
                    self._count(check, result, number, answer, choice)

    def _check_seed(self, check: Check, plain: dict[int, Answer]) -> None:
        """Seeds repeat answers under drafts as often as without. Requests run alone."""
        prompt, repeated = texts.SAMPLED[1], dict[str, int]()
        for side in self._sides():
            pairs = []
            for seed in range(SEEDS):
                how = partial(self._complete, side, prompt=prompt, tokens=_SEED_TOKENS, temperature=1, seed=seed)
                pairs.append((how(f"seed/{seed}"), how(f"seed/{seed}/again")))
            repeated[side] = sum(one.text == other.text for one, other in pairs)
        if DRAFTED not in repeated:
            return
        if not repeated[PLAIN]:
            check.skipped = "a seed repeats no answer on the plain side"
            return
        check.asked, check.equal = SEEDS, repeated[DRAFTED]
        check.detail = f"of {SEEDS} seeds {repeated[PLAIN]} repeat an answer plain, {repeated[DRAFTED]} drafted"
        if fewer(repeated[PLAIN], repeated[DRAFTED], SEEDS) < ALPHA:
            one, other = next((one.text, other.text) for one, other in pairs if one.text != other.text)
            end = self._ends[DRAFTED]
            assert end is not None
            curl = end.curl(*end.asked(prompt, _SEED_TOKENS, temperature=1, seed=0))
            check.findings.append(Finding("seed", "sampled", prompt, check.detail, one, other, curl))

    def _same_text(self, check: Check, number: int, expected: str, plain: Answer, found: Answer, what: str) -> None:
        check.asked += 1
        if found.text == expected:
            check.equal += 1
            return
        verdict = compare(plain, found, self._threshold).verdict
        if verdict is Verdict.TIE:
            check.ties += 1
            return
        if verdict is Verdict.UNKNOWN and not found.text.startswith(expected):
            check.unknown += 1
            return
        self._found(check, number, f"{what}: another text", plain._replace(text=expected), found)

    def _long(self, plain: dict[int, Answer]) -> Iterator[tuple[int, Answer]]:
        """A few prompts with long answers."""
        seen = 0
        for number, answer in plain.items():
            if len(answer.text) >= 16 and seen < _LONG and self._prompts[number].tokens is None:
                seen += 1
                yield number, answer

    # ---- beside the answers

    def _metrics(self) -> dict[str, dict[str, float]]:
        return {side: {} if end is None else end.metrics() for side, end in self._ends.items()}

    def _acceptance(self, before: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        """Drafted and accepted tokens by the metrics' names of vLLM, SGLang and this project."""
        found: dict[str, dict[str, float]] = {}
        urls = [end.url for end in self._ends.values() if end is not None]
        for side, after in self._metrics().items():
            if side == PLAIN and urls[0] in urls[1:]:  # one server for both
                continue
            rows = {
                name: value if "spec_accept" in name else value - before[side].get(name, 0.0)  # a gauge of SGLang
                for name, value in after.items()
                if any(word in name for word in _ACCEPTANCE)
                and not name.endswith(("_created", "_bucket", "_per_pos_total"))
            }
            if rows:
                found[side] = rows
        drafts = [answer.drafts for answer in self._answers.of(DRAFTED) if answer.drafts is not None]
        if drafts and DRAFTED not in found:
            drafted, accepted = map(sum, zip(*drafts, strict=True))
            found[DRAFTED] = {"drafted_tokens": drafted, "accepted_tokens": accepted}
        return found


def _not_as_named(plain: list[tuple[int, int] | None], drafted: list[tuple[int, int] | None]) -> str:
    """Why the sides are not what they are called, by their counts of drafts; empty if they are, or do not count."""
    if any(one[0] for one in plain if one):
        return "the plain side has drafted too; give it a server without speculation, or switch it off"
    if None not in drafted and not any(one[0] for one in drafted if one):
        return "the drafted side has drafted nothing; is speculation on?"
    return ""


_ACCEPTANCE = ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "spec_accept")


def _token(answer: Answer, at: int) -> str:
    if at >= len(answer.tokens):
        return "(end)"
    one = answer.tokens[at]
    return f"{one.text!r}" + ("" if one.logprob is None else f" ({one.logprob:.3f})")


def _path(answer: Answer) -> tuple[str, ...]:
    """Texts of the tokens; an end token, which engines report or not, is its own outcome."""
    path = [one.text for one in answer.tokens]
    if answer.finish_reason != "stop":
        return tuple(path) or (answer.text,)
    while path and (not path[-1] or len("".join(path)) > len(answer.text)):
        path.pop()
    return (*(path or [answer.text]), "(end)")


def _common(paths: list[tuple[str, ...]]) -> list[tuple[tuple[str, ...], int]]:
    return Counter(paths).most_common(8)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
