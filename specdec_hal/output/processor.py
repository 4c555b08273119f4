"""TextProcessor: text, stop strings and log-probabilities of requests, from the tokens of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from specdec_hal.models.detokenizer import KnownTexts
from specdec_hal.output.detokenizing import Detokenizer
from specdec_hal.output.text import RequestText
from specdec_hal.request import RequestOutput, SamplingParams, StreamDelta


class TextProcessor:
    """Adds text to a step's deltas of tokens, and ends requests at their stop strings.

    A runner has one for those who call it; :class:`~specdec_hal.engine.AsyncEngine` has one for each reader, on the
    reader's thread, and a server of two processes has one where HTTP is. The runner of the two latter goes on after a
    stop string until its request is cancelled; what it adds is dropped. `make`: ``Tokenizer.detokenizer``, or None for
    no text. `end_tokens`: the model's. `known`: ``Tokenizer.known_texts``.
    """

    def __init__(
        self,
        make: Callable[..., Detokenizer] | None,
        end_tokens: AbstractSet[int],
        known: KnownTexts | None = None,
    ) -> None:
        self._make, self._end_tokens, self.known = make, end_tokens, known
        self.texts: dict[str, RequestText] = {}
        """Of each request, by its id."""

    def begin(
        self,
        request_id: str,
        params: SamplingParams,
        prompt: Sequence[int],
        *,
        detokenize: bool = True,
        tokens: Callable[[], Sequence[int]] = tuple,
    ) -> RequestText:
        """Take on a request. `prompt`: its last tokens at least. `tokens`: see :class:`RequestText`."""
        make = self._make if detokenize else None
        self.texts[request_id] = text = RequestText(make, params, prompt, self._end_tokens, tokens)
        return text

    def take(self, deltas: Iterable[StreamDelta]) -> list[StreamDelta]:
        """A step's deltas with their texts; those of requests that a stop string has ended are left out."""
        return [made for delta in deltas if (made := self.texts[delta.request_id].take(delta)) is not None]

    def output(self, output: RequestOutput) -> RequestOutput:
        """A finished request with its text, cut at its stop string; it is forgotten."""
        return self.texts.pop(output.request_id).output(output)

    def forget(self, request_id: str) -> None:
        """Forget a request."""
        self.texts.pop(request_id, None)
