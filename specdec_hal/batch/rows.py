"""Lines of the input and rows of the output."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from specdec_hal.config.problems import problems
from specdec_hal.config.schema import UnicodeText, raise_combinations
from specdec_hal.errors import RequestError
from specdec_hal.runner import RequestOutput, SamplingParams, TokenLogprobs
from specdec_hal.seeds import derived
from specdec_hal.wording import describe

Row = dict[str, Any]
"""An answer: one line of the output."""


class Wanted(BaseModel):
    """A line of the input: a prompt as text or as token ids, `params` as in the configuration's section `sampling`
    (and `num_speculative_tokens`), and an `id` of the user's own. `add_special_tokens`: whether a text gets the
    tokenizer's own special tokens."""

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
    """RequestError if the line asks for nothing that can be understood."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"expected a line of JSON ({describe(error)})") from error
    try:
        return Wanted.model_validate(given)
    except ValidationError as error:
        found = problems(error, Wanted)
        raise RequestError("; ".join(f"{key}: {message}" if key else message for key, message in found)) from error


def params_of(wanted: Wanted, defaults: SamplingParams, row: int) -> SamplingParams:
    """The defaults, changed by the line's own. Rows without a seed of their own get the defaults' (0 if they have none,
    so that whoever decodes the file again gets the same answers) plus their number, so that equal prompts have
    different ones."""
    return SamplingParams(**{**dict(defaults), "seed": derived(defaults.seed or 0, row), **wanted.params})


def answer(row: int, name: str | None, output: RequestOutput) -> Row:
    """The row of a finished request. What it says depends on prompt, parameters and seed alone: no times."""
    told: Row = {
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
        told[key] = [entry and _told(entry) for entry in entries] or None
    return told


def _told(entry: TokenLogprobs) -> Row:
    top = [{"token_id": token, "logprob": logprob} for token, logprob in entry.top]
    return {"logprob": entry.logprob, "rank": entry.rank, "top": top}


def failed(row: int, name: str | None, error: str) -> Row:
    """The row of a line that could not be decoded."""
    return answer(row, name, RequestOutput("", 0, (), (), "", "error", error))


def encode(row: Row) -> bytes:
    """A line of the output."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"
