"""Suffix decoding: drafts that continue the text as the same words were continued before, here or in earlier responses.

Source: SuffixDecoding (Oliaro et al. 2024, arXiv:2411.04975), as in Snowflake's ArcticInference, whose package builds
against PyTorch and vLLM and is not used here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated, NamedTuple

from pydantic import Field

from specdec_hal.config.schema import Section
from specdec_hal.plugin.proposer import Proposer, ProposerContext, RunsOn, SlotView, StepView

Context = tuple[int, ...]


class SuffixSettings(Section):
    """`max_depth`: tokens of context that are compared at most. `max_cached_requests`: earlier responses that are kept,
    the least recently used go first; 0: a request looks in its own text alone. `max_factor`: drafts per token of
    context that was found. `min_probability`: a draft is made while the frequency of it and of those before it is at
    least this.
    """

    max_depth: Annotated[int, Field(ge=1, le=64)] = 8
    max_cached_requests: Annotated[int, Field(ge=0, le=1 << 20)] = 256
    max_factor: Annotated[float, Field(gt=0, le=64)] = 2.0
    min_probability: Annotated[float, Field(gt=0, le=1)] = 0.1


@dataclass(slots=True)
class _Node:
    """What followed a context: how often each token did, the one that came last at the end, and in which text last."""

    followers: dict[int, int] = field(default_factory=dict)
    source: int = 0


class Found(NamedTuple):
    """A look-up's drafts, how many of them are expected to be accepted, and the text that they were last seen in."""

    expected: float = 0.0
    drafts: Sequence[int] = ()
    source: int = 0


class SuffixCounts:
    """How often each token followed each context of up to `depth` tokens, in texts that come and go.

    Equal to a suffix tree of that depth with counts, kept as one dictionary of contexts.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._nodes: dict[Context, _Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, text: Sequence[int], start: int = 0, source: int = 0) -> None:
        """Count the tokens of a text from `start` on, each after those before it. `source`: a number of the text."""
        nodes = self._nodes
        for context, token in self._edges(text, start):
            node = nodes.get(context)
            if node is None:
                node = nodes[context] = _Node()
            node.followers[token] = node.followers.pop(token, 0) + 1
            node.source = source

    def remove(self, text: Sequence[int]) -> None:
        """Take a whole text back."""
        for context, token in self._edges(text, 0):
            followers = self._nodes[context].followers
            followers[token] -= 1
            if not followers[token]:
                del followers[token]
                if not followers:
                    del self._nodes[context]

    def _edges(self, text: Sequence[int], start: int) -> Iterator[tuple[Context, int]]:
        for at in range(max(start, 1), len(text)):
            for size in range(1, min(self._depth, at) + 1):
                yield tuple(text[at - size : at]), text[at]

    def continuation(self, text: Sequence[int], most: int, factor: float, least: float) -> Found:
        """The likeliest next tokens after an end of `text`: after the end for which most are expected to be accepted.

        At most `most`, and `factor` times the length of that end; as long as the product of their frequencies is at
        least `least`.
        """
        best = Found()
        for size in range(min(self._depth, len(text)), 0, -1):
            context = tuple(text[-size:])
            if context in self._nodes:
                best = max(best, self._follow(context, min(most, int(factor * size)), least), key=lambda one: one[0])
        return best

    def _follow(self, context: Context, most: int, least: float) -> Found:
        source, drafts = self._nodes[context].source, list[int]()
        probability, expected = 1.0, 0.0
        while len(drafts) < most:
            while context and context not in self._nodes:  # no text went on so: look behind fewer tokens
                context = context[1:]
            if not context:
                break
            followers = self._nodes[context].followers
            token = max(reversed(followers), key=followers.__getitem__)
            probability *= followers[token] / sum(followers.values())
            if probability < least:
                break
            expected += probability
            drafts.append(token)
            context = (*context, token)[-self._depth :]
        return Found(expected, drafts, source)


@dataclass
class _Owner:
    """A slot's request: its text, all of which is in `counts`, and how much of it is the prompt."""

    counts: SuffixCounts
    text: list[int]
    prompt_len: int


class SuffixProposer(Proposer):
    """Looks behind the request's last tokens in its own text and in responses of requests that have left their slot.

    A response enters the cache when its slot is given to another request. The look-up that expects more accepted drafts
    wins; a response that drafts come from counts as used.
    """

    runs_on: RunsOn = "host"
    hidden_layers: tuple[int, ...] = ()
    gives_draft_probs = False

    def __init__(self, context: ProposerContext) -> None:
        self._settings: SuffixSettings = context.settings
        self._numbers = count(1)
        self.forget()

    def forget(self) -> None:
        """Empty the cache of earlier responses; those who had the slots last leave none."""
        self._owners: dict[int, _Owner] = {}
        self._earlier = SuffixCounts(self._settings.max_depth)
        self._responses: OrderedDict[int, list[int]] = OrderedDict()  # by number, the least recently used first

    def reset(self, slots: list[int]) -> None:
        """Keep the responses of those who had the slots."""
        for slot in slots:
            owner = self._owners.pop(slot, None)
            if owner is not None:
                self._remember(owner.text[owner.prompt_len :])

    def propose(self, step: StepView) -> None:
        """Look up every slot's continuation."""
        step.draft({view.slot: self._draft(view) for view in step.slots})

    def _draft(self, view: SlotView) -> Sequence[int]:
        owner = self._owner(view)
        start = len(owner.text)
        owner.text += view.token_ids[start - owner.prompt_len :]
        owner.counts.add(owner.text, start)
        if not view.max_drafts:
            return []
        settings = self._settings
        end = owner.text[-settings.max_depth :]
        limits = view.max_drafts, settings.max_factor, settings.min_probability
        own, earlier = owner.counts.continuation(end, *limits), self._earlier.continuation(end, *limits)
        if own.expected >= earlier.expected:
            return own.drafts
        if earlier.source in self._responses:
            self._responses.move_to_end(earlier.source)
        return earlier.drafts

    def _owner(self, view: SlotView) -> _Owner:
        owner = self._owners.get(view.slot)
        if owner is None:
            prompt = list(view.prompt_token_ids)
            owner = self._owners[view.slot] = _Owner(SuffixCounts(self._settings.max_depth), prompt, len(prompt))
            owner.counts.add(prompt)
        return owner

    def _remember(self, response: list[int]) -> None:
        """Put a response into the cache; the least recently used one makes room."""
        if not self._settings.max_cached_requests:
            return
        number = next(self._numbers)
        self._responses[number] = response
        self._earlier.add(response, source=number)
        while len(self._responses) > self._settings.max_cached_requests:
            self._earlier.remove(self._responses.popitem(last=False)[1])
