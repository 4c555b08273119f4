"""N-gram look-up: continue the last tokens as earlier in the same request.

Source: prompt look-up decoding (Saxena 2023), as in FastDeploy's `ngram_match`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from specdec_hal.config.schema import INT32_MAX, LOWER, Section, by_name, raise_combinations
from specdec_hal.ops.enums import MatchPolicy
from specdec_hal.ops.ngram import MAX_NGRAM_SIZE
from specdec_hal.plugin.proposer import Proposer, ProposerContext, RunsOn, StepView

NO_BUDGET = INT32_MAX

MatchPolicyName = Annotated[MatchPolicy, by_name(MatchPolicy), LOWER]


class NgramSettings(Section):
    """`max_ngram_size`: longest query, tried first. `min_ngram_size`: shortest query. `match_policy`: which occurrence
    to continue; "leftmost" is FastDeploy's rule. `token_budget`: most input tokens of the next step; null: no limit.
    `continue_cycles`: beyond the text's end, continue with the drafts; null: under "latest". `pad_to_max`: pad every
    decode slot to K + 1 tokens, static shapes for graphs. `use_index`: look-ups whose time does not depend on the
    history's length, in a backend that keeps an index (reference); others search.
    """

    max_ngram_size: Annotated[int, Field(ge=1, le=MAX_NGRAM_SIZE)] = 3
    min_ngram_size: Annotated[int, Field(ge=1, le=MAX_NGRAM_SIZE)] = 1
    match_policy: MatchPolicyName = MatchPolicy.LATEST
    token_budget: Annotated[int | None, Field(ge=1, le=INT32_MAX)] = None
    continue_cycles: bool | None = None
    pad_to_max: bool = False
    use_index: bool = False

    @model_validator(mode="after")
    def _check_combinations(self) -> NgramSettings:
        if self.min_ngram_size > self.max_ngram_size:
            expected = f"expected at most max_ngram_size = {self.max_ngram_size}, got {self.min_ngram_size}"
            raise_combinations([("min_ngram_size", expected)])
        return self

    @property
    def continues_cycles(self) -> bool:
        """The op's attribute `continue_cycles`."""
        return self.match_policy is MatchPolicy.LATEST if self.continue_cycles is None else self.continue_cycles


class NgramProposer(Proposer):
    """`ngram_match`, or another op of its arguments, with a per-slot index if the settings ask for one.

    With K = 0 the op only sets the next step's lengths: plain decoding.
    """

    runs_on: RunsOn = "device"
    hidden_layers: tuple[int, ...] = ()
    gives_draft_probs = False

    def __init__(self, context: ProposerContext, op: str = "ngram_match") -> None:
        backend, state = context.backend, context.state
        ngram = context.settings or NgramSettings()
        sizes = {"max_ngram_size": ngram.max_ngram_size, "min_ngram_size": ngram.min_ngram_size}
        index = None
        self._state = state
        self._update = self._reset = None
        if ngram.use_index:
            layout = backend.workspace(op, M=state.symbols["M"], L=state.symbols["L"], **sizes)["index"]
            index = state.allocate("index", X=layout.shape[1])
            self._flags = state.allocate("reset_slots")
            args = state.args("ngram_index_update")
            self._update = backend.bind("ngram_index_update", index=index, **args, **sizes)
            self._reset = backend.bind("ngram_index_reset", index=index, reset_slots=self._flags)
        self._match = backend.bind(
            op,
            index=index,
            token_budget=NO_BUDGET if ngram.token_budget is None else ngram.token_budget,
            match_policy=ngram.match_policy,
            pad_to_max=ngram.pad_to_max,
            continue_cycles=ngram.continues_cycles,
            use_draft_token_num=True,
            **state.args(op),
            **sizes,
        )

    def reset(self, slots: list[int]) -> None:
        """Forget the slots' index."""
        if self._reset is not None:
            device = self._state.device
            device.write(self._flags, slice(None), False)
            device.write(self._flags, slots, True)
            self._reset()

    def propose(self, step: StepView) -> None:
        """Update the index, then look up."""
        if self._update is not None:
            self._update(step.stream)
        self._match(step.stream)
