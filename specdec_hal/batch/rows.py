"""Input lines and output rows: their common interface, and this project's format."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from specdec_hal.config.problems import problems
from specdec_hal.config.schema import UnicodeText, raise_combinations
from specdec_hal.engine import LLM
from specdec_hal.errors import RequestError
from specdec_hal.ops.seeds import derived
from specdec_hal.runner import Request, RequestOutput, SamplingParams, TokenLogprobs
from specdec_hal.text import describe

Row = dict[str, Any]
"""An answer: one line of the output."""

_SUMS = {"steps": "steps", "num_drafts": "num_drafts", "drafted_tokens": "drafted", "accepted_tokens": "accepted"}
"""Counts, and the attributes of outputs that they sum."""


class Answered(NamedTuple):
    """An input line by its number, and its answer. `counts`: added to those of the replica."""

    number: int
    row: Row
    counts: dict[str, int]

    @classmethod
    def of(cls, number: int, row: Row, outputs: Sequence[RequestOutput], failed: bool) -> Answered:
        """`outputs`: one per choice; `failed`: whether the row is an error."""
        counts = {"rows": 1, "failed": int(failed), "choices": sum(bool(one.token_ids) for one in outputs)}
        counts["tokens"] = sum(len(one.token_ids) for one in outputs)
        return cls(number, row, counts | {name: sum(getattr(one, of) for one in outputs) for name, of in _SUMS.items()})


class Line(ABC):
    """An input line: its engine requests and its answer."""

    def __init__(self, number: int) -> None:
        self.number = number

    @abstractmethod
    def requests(self) -> list[Request]:
        """One per choice. RequestError if the line cannot be served."""

    @abstractmethod
    def answered(self, outputs: Sequence[RequestOutput]) -> Answered:
        """Built from the outputs of :meth:`requests`, in order."""

    @abstractmethod
    def failed(self, error: str) -> Answered:
        """An error, if nothing was decoded."""


class Wanted(BaseModel):
    """A prompt as text or token ids, `params` as in the section `sampling` (and `num_speculative_tokens`), and the
    user's `id`. `add_special_tokens`: add the tokenizer's special tokens to a text.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: UnicodeText | None = None
    prompt: UnicodeText | None = None
    prompt_token_ids: list[int] | None = None
    add_special_tokens: bool = True
    params: dict[str, Any] = {}

    @model_validator(mode="after")
    def _one_prompt(self) -> Wanted:
        if (self.prompt is None) == (self.prompt_token_ids is None):
            raise_combinations([("prompt", "expected either prompt or prompt_token_ids; give one of them")])
        return self


def read_row(line: bytes) -> Wanted:
    """RequestError if the line is invalid."""
    given = read_json(line)
    try:
        return Wanted.model_validate(given)
    except ValidationError as error:
        found = problems(error, Wanted)
        raise RequestError("; ".join(f"{key}: {message}" if key else message for key, message in found)) from error


def custom_id_of(line: bytes) -> Any:
    """The `custom_id` of OpenAI's lines; None for our own format."""
    try:
        given = read_json(line)
    except RequestError:
        return None
    return given.get("custom_id") if isinstance(given, dict) else None


def read_json(line: bytes) -> Any:
    """RequestError if the line is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"expected a line of JSON ({describe(error)})") from error


class OwnLine(Line):
    """A line in this project's format (:class:`Wanted`)."""

    def __init__(self, number: int, line: bytes, llm: LLM) -> None:
        super().__init__(number)
        self._llm = llm
        self._wanted: Wanted | RequestError
        try:
            self._wanted = read_row(line)
        except RequestError as error:
            self._wanted = error

    def requests(self) -> list[Request]:
        """The one."""
        wanted, tokenizer = self._wanted, self._llm.runner.tokenizer
        if isinstance(wanted, RequestError):
            raise wanted
        assert tokenizer is not None  # LLM has loaded it
        tokens = wanted.prompt_token_ids
        if wanted.prompt is not None:
            tokens = tokenizer.encode(wanted.prompt, wanted.add_special_tokens)
        assert tokens is not None  # checked by read_row
        return [Request(str(self.number), tokens, params_of(wanted, self._llm.default_params, self.number))]

    def answered(self, outputs: Sequence[RequestOutput]) -> Answered:
        """See :func:`answer`."""
        row = answer(self.number, self._name, outputs[0])
        return Answered.of(self.number, row, outputs, row["finish_reason"] == "error")

    def failed(self, error: str) -> Answered:
        """See :func:`failed`."""
        return Answered.of(self.number, failed(self.number, self._name, error), (), True)

    @property
    def _name(self) -> str | None:
        return self._wanted.id if isinstance(self._wanted, Wanted) else None


def params_of(wanted: Wanted, defaults: SamplingParams, row: int) -> SamplingParams:
    """The defaults, changed by the line's own."""
    return SamplingParams(**{**dict(seeded(defaults, row)), **wanted.params})


def seeded(defaults: SamplingParams, row: int) -> SamplingParams:
    """Defaults of a row. Its seed is the default seed (0 if unset, so that answers can be reproduced) plus its number,
    so equal prompts get different seeds.
    """
    return defaults.model_copy(update={"seed": derived(defaults.seed or 0, row)})


def answer(row: int, name: str | None, output: RequestOutput) -> Row:
    """The row of a finished request. It depends only on prompt, parameters and seed: no times."""
    fields: Row = {
        "row": row,
        "id": name,
        "prompt_tokens": output.prompt_tokens,
        "seed": output.seed,
        "token_ids": list(output.token_ids),
        "text": output.text,
        "finish_reason": output.finish_reason,
        "error": output.error or None,
        "steps": output.steps,
        "num_drafts": output.num_drafts,
        "drafted_tokens": output.drafted,
        "accepted_tokens": output.accepted,
    }
    for key, entries in ("logprobs", output.logprobs), ("prompt_logprobs", output.prompt_logprobs):
        fields[key] = [entry and _scores(entry) for entry in entries] or None
    return fields


def _scores(entry: TokenLogprobs) -> Row:
    top = [{"token_id": token, "logprob": logprob} for token, logprob in entry.top]
    return {"logprob": entry.logprob, "rank": entry.rank, "top": top}


def failed(row: int, name: str | None, error: str) -> Row:
    """The row of a line that was not decoded."""
    return answer(row, name, RequestOutput("", 0, (), (), "", "error", error))


def encode(row: Any) -> bytes:
    """A line of the output."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"
