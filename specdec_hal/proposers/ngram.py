"""N-gram look-up: continue the last tokens as they were continued before in the same request.

Source: prompt look-up decoding (Saxena 2023), as in FastDeploy's `ngram_match`.
"""

from __future__ import annotations

from specdec_hal.backend import Backend
from specdec_hal.config import SpeculativeSettings
from specdec_hal.state import DecodeState

NO_BUDGET = (1 << 31) - 1


class NgramProposer:
    """`ngram_match`, with a per-slot index if the settings ask for one.

    With K = 0 there is nothing to look up and the op only sets the next step's lengths: that is plain decoding.
    """

    def __init__(self, backend: Backend, state: DecodeState, settings: SpeculativeSettings) -> None:
        ngram = settings.ngram
        sizes = {"max_ngram_size": ngram.max_ngram_size, "min_ngram_size": ngram.min_ngram_size}
        index = None
        self._state = state
        self._update = self._reset = None
        if ngram.use_index:
            layout = backend.workspace("ngram_match", M=state.symbols["M"], L=state.symbols["L"], **sizes)["index"]
            index = state.allocate("index", X=layout.shape[1])
            self._flags = state.allocate("reset_slots")
            args = state.args("ngram_index_update")
            self._update = backend.bind("ngram_index_update", index=index, **args, **sizes)
            self._reset = backend.bind("ngram_index_reset", index=index, reset_slots=self._flags)
        self._match = backend.bind(
            "ngram_match",
            index=index,
            token_budget=NO_BUDGET if ngram.token_budget is None else ngram.token_budget,
            match_policy=ngram.match_policy,
            pad_to_max=ngram.pad_to_max,
            **state.args("ngram_match"),
            **sizes,
        )

    def reset(self, slots: list[int]) -> None:
        """Forget the slots' index."""
        if self._reset is not None:
            device = self._state.device
            device.write(self._flags, slice(None), False)
            device.write(self._flags, slots, True)
            self._reset()

    def propose(self) -> None:
        """Update the index, then look up."""
        if self._update is not None:
            self._update()
        self._match()
