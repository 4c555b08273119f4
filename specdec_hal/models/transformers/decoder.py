"""A loaded model of `transformers`: packed rows to hidden states, hidden states to logits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import torch

from specdec_hal.errors import UnsupportedError
from specdec_hal.models.states import DRAFTS, StateStore, backend_of
from specdec_hal.models.survey import Survey, refused
from specdec_hal.models.transformers import own_attention, recurrent, sparse
from specdec_hal.models.transformers.interface import Calls, States, Store, bind, bind_calls
from specdec_hal.models.transformers.long_rope import LongRope
from specdec_hal.models.transformers.survey import base_of, only, survey
from specdec_hal.ops import Storage
from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.model import FINAL_NORM, ModelConfig, Segment

_Result = TypeVar("_Result")


class Decoder:
    """`model`: a causal language model on one device; `config`: the runner's view of it.

    `known`: the survey of a model that calls our attention function already; None: it is made.
    """

    def __init__(self, model: Any, config: ModelConfig, known: Survey | None = None) -> None:
        self.model = model
        self.base = base_of(model)
        recurrent.attach(model)
        self.survey: Survey = known or survey(model, self.base, config.max_position_embeddings)
        own_attention.attach(model)
        sparse.attach(model)
        self.sparse = sparse.is_known(type(model))
        """Whether its store is a SparseStore."""
        self.config = replace(config, hidden_size=self.survey.hidden_size)  # of OPT: word_embed_proj_dim
        self._head, self._hidden = _head_of(model, self.base)
        self._rotary = [(module, module.rope_type) for module in model.modules() if hasattr(module, "rope_type")]
        self._long = [self._by_row(module, kinds) for module, kinds in self._rotary if "longrope" in str(kinds)]
        self._wanted: Collection[int] = ()
        self._calls: list[Calls] = []
        self._head_alone = False  # whether the logits are the head's product alone
        self._taps: dict[int, Any] = {}
        self._hooked: set[int] = set()
        self._check()

    def _by_row(self, module: Any, kinds: Any) -> LongRope:
        if isinstance(kinds, dict):
            raise refused(self.model, "LongRoPE that differs between layers is not supported")
        module.forward = made = LongRope(module)
        return made

    @property
    def rope_switch(self) -> int | None:
        """See ModelCapabilities.rope_switch."""
        switch = min((one.switch for one in self._long), default=None)
        return None if switch is None or switch >= self.config.max_position_embeddings else switch

    def set_long(self, rows: Any) -> None:
        """Which rows of the next pass belong to texts of more than `rope_switch` tokens: bool [T]."""
        for one in self._long:
            one.rows = rows

    def modify(self, change: Callable[[Any], _Result]) -> _Result:
        """Let `change` replace modules of the model, also for the head."""
        result = change(self.model)
        self._head, self._hidden = _head_of(self.model, self.base)
        return result

    @property
    def head(self) -> Any | None:
        """The layer whose product the logits are; None if they are more than that."""
        return self.model.get_output_embeddings() if self._head_alone else None

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """See ModelCapabilities.hidden_layers."""
        return (FINAL_NORM, *range(len(self.survey.blocks) if self.survey.tappable else 0))

    @property
    def dtype(self) -> Any:
        """Of hidden states."""
        return self.model.get_input_embeddings().weight.dtype

    def shortened(self, kept: Sequence[int], instead: Sequence[tuple[Any, Any]] = ()) -> Decoder:
        """A copy with these layers only, of the same tensors. `instead`: pairs of what a copy has another of."""
        survey = self.survey
        mine = (*self.model.parameters(), *self.model.buffers(), survey.ids, survey.hidden, *self._others())
        with only(self.model, survey.blocks, kept):
            made = copy.deepcopy(self, {id(one): other for one, other in (*zip(mine, mine, strict=True), *instead)})
        attentions, mixers = survey.within(kept)
        made.survey = replace(
            made.survey,
            layers=tuple(survey.layers[i] for i in attentions),
            attentions=tuple(made.survey.attentions[i] for i in attentions),
            recurrences=tuple(survey.recurrences[i] for i in mixers),
            mixers=tuple(made.survey.mixers[i] for i in mixers),
        )
        return made

    def _others(self) -> tuple[Any, ...]:
        """What a copy shares too."""
        return ()

    def serve(self, store: Store, positions: int, states: States | None = None) -> None:
        """Connect the attention layers to a store, for contexts of up to this many positions, and recurrent layers to
        `states`."""
        self._calls = bind_calls(self.survey.attentions, self.survey.layers, store)
        own_attention.tabulate(self.model, positions)
        if states is not None:
            self.keep(states)
        for module, kinds in self._rotary:
            module.rope_type = _fixed_rotary(kinds)
        for one in self._long:
            one.rows, one.whole = None, positions > one.switch

    def allocate_states(self, slots: int, drafts: int, backend: Backend | None, **options: Any) -> StateStore:
        """States of the recurrent layers, which are connected to them. `backend` None: the device's. `options`: of
        StateStore."""
        device = next(self.model.parameters()).device
        recurrences, ops = self.survey.recurrences, backend or backend_of(device)
        states = StateStore(recurrences, slots, drafts, ops, dtype=self.dtype, device=device, **options)
        self.keep(states)
        return states

    def keep(self, states: States) -> None:
        """Connect the recurrent layers to their states."""
        for module, recurrence in zip(self.survey.mixers, self.survey.recurrences, strict=True):
            bind(module, recurrence, states)

    def hidden(self, ids: Any, positions: Any, layers: Collection[int] = ()) -> dict[int, Any]:
        """Hidden states [T, D] by layer, :data:`FINAL_NORM` among them, of ids and positions int64 [T].

        Ids may be embedded already, [T, D].
        """
        self._wanted = layers
        for layer in layers:
            if layer != FINAL_NORM and layer not in self._hooked:
                self._hooked.add(layer)
                self.survey.blocks[layer].register_forward_hook(self._tap(layer))
        for calls in self._calls:
            calls.begin()
        tokens = {"inputs_embeds" if ids.is_floating_point() else "input_ids": ids[None]}
        output = self.base(**tokens, position_ids=positions[None], use_cache=False)
        found = {FINAL_NORM: output[0][0], **self._taps}
        self._wanted, self._taps = (), {}
        return found

    def embed(self, ids: Any) -> Any:
        """Rows of the input embedding, by the class's own module."""
        with torch.inference_mode():
            return self.model.get_input_embeddings()(ids)

    def _tap(self, layer: int) -> Any:
        def keep(module: Any, args: Any, output: Any) -> None:
            if layer in self._wanted:
                self._taps[layer] = (output[0] if isinstance(output, tuple) else output)[0]

        return keep

    def logits(self, hidden: Any) -> Any:
        """Float32 [R, V] from rows [R, D], by the class's own head with all its changes to logits."""
        if self._head_alone:
            return self.model.get_output_embeddings()(hidden).float()
        self._hidden.rows = hidden[None]
        try:
            ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
            logits = self._head(input_ids=ids, use_cache=False).logits[0]
        finally:
            self._hidden.rows = None
        return logits.float()

    def _check(self) -> None:
        """UnsupportedError unless the head's logits equal those of the whole model."""
        ids = torch.arange(2, device=next(self.model.parameters()).device)[None]
        states: list[Any] = []
        hook = self.base.register_forward_hook(lambda module, args, output: states.append(output[0]))
        zeros = Zeros()
        self.serve(zeros, 2, zeros)
        try:
            with torch.inference_mode():
                expected = self.model(input_ids=ids, position_ids=ids, use_cache=False).logits[0].float()
                got = self.logits(states[0][0])
                head = self.model.get_output_embeddings()
                self._head_alone = head is not None and torch.equal(got, head(states[0][0]).float())
        finally:
            hook.remove()
        if got.shape != expected.shape or not torch.allclose(got, expected, rtol=1e-3, atol=1e-3):
            raise refused(self.model, "its logits are computed from more than its last hidden states")
        if got.shape[1] != self.config.vocab_size:
            raise UnsupportedError(
                f"{type(self.model).__name__}: expected logits of {self.config.vocab_size} tokens, as config.json "
                f"says, got {got.shape[1]}; correct vocab_size"
            )


class WithStates:
    """Mixin of models: see :class:`specdec_hal.plugin.model.RecurrentModel`."""

    framework: ClassVar[str]
    _decoder: Decoder
    _states: StateStore | None = None

    @property
    def state_bytes(self) -> int:
        """See RecurrentModel.state_bytes."""
        return 0 if self._states is None else self._states.nbytes

    def bytes_per_slot(self, num_speculative_tokens: int, storage: Storage = Storage.STATES) -> int:
        """See RecurrentModel.bytes_per_slot."""
        layers, size = self._decoder.survey.recurrences, self._decoder.dtype.itemsize
        return sum(one.nbytes(num_speculative_tokens, size, storage) for one in layers)

    @property
    def bytes_per_prefix(self) -> int:
        """See RecurrentModel.bytes_per_prefix."""
        return sum(one.prefix_nbytes(self._decoder.dtype.itemsize) for one in self._decoder.survey.recurrences)

    def allocate_states(
        self,
        max_num_seqs: int,
        num_speculative_tokens: int,
        backend: Backend | None = None,
        *,
        storage: Storage = Storage.STATES,
        num_prefixes: int = 0,
    ) -> None:
        """See RecurrentModel.allocate_states."""
        self._states = None  # freed first: both may not fit
        self._states = self._decoder.allocate_states(
            max_num_seqs, num_speculative_tokens, backend, storage=storage, prefixes=num_prefixes
        )

    def keeps_prefix(self, rows: int) -> bool:
        """See RecurrentModel.keeps_prefix."""
        return self._states is not None and self._states.keeps(rows)

    def keep_prefix(self, slot: int, position: int, entry: int) -> None:
        """See RecurrentModel.keep_prefix."""
        assert self._states is not None  # of a runner
        with torch.inference_mode():
            self._states.keep(slot, position, entry)

    def resume_prefix(self, entry: int, slot: int, position: int) -> None:
        """See RecurrentModel.resume_prefix."""
        assert self._states is not None
        with torch.inference_mode():
            self._states.resume(entry, slot, position)

    def _check_states(self, segments: Sequence[Segment], slots: int) -> None:
        """ArgumentError for a step that the states do not fit; without those of a runner, states are made."""
        if not self._decoder.survey.recurrences:
            return
        if self._states is None or self._states.slots < slots:
            self.allocate_states(slots, DRAFTS)
        assert self._states is not None
        self._states.check(self.framework, segments)


class Zeros:
    """A store without contents: attention and recurrences give zeros."""

    def attend(self, layer: Any, query: Any, *others: Any) -> Any:
        """See Store.attend."""
        return query.new_zeros((*query.shape[:2], layer.value_dim))

    def choose(self, layer: Any, choose: Any) -> Any:
        """See Store.choose."""
        return ()

    def attend_chosen(self, layer: Any, query: Any, *others: Any) -> Any:
        """See Store.attend_chosen."""
        return self.attend(layer, query)

    def convolve(self, layer: Any, x: Any, *others: Any) -> Any:
        """See States.convolve."""
        return torch.zeros_like(x)

    def delta_rule(self, layer: Any, query: Any, key: Any, value: Any, *others: Any) -> Any:
        """See States.delta_rule."""
        return torch.zeros_like(value)

    def mamba2(self, layer: Any, x: Any, *others: Any) -> Any:
        """See States.mamba2."""
        return torch.zeros_like(x)


class _Output:
    """Attributes of the base's output that a head may read."""

    def __init__(self, hidden: Any) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int | str) -> Any:
        return self.last_hidden_state if isinstance(index, str) else (self.last_hidden_state,)[index]

    def keys(self) -> list[str]:
        """Of what wrappers copy into an output of theirs."""
        return ["last_hidden_state"]

    def __getattr__(self, name: str) -> None:
        return None


class _Hidden(torch.nn.Module):  # type: ignore[misc]
    """Replaces the base: returns its input rows. Heads may read other attributes of the base."""

    rows: Any = None

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.__dict__["base"] = base

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["base"], name)

    def forward(self, *args: Any, **kwargs: Any) -> _Output:
        return _Output(self.rows)


def _head_of(model: Any, base: Any) -> tuple[Any, _Hidden]:
    """A copy of the model with a replaced base, sharing everything else, and the replacement."""
    (path,) = (name for name, module in model.named_modules() if module is base)
    hidden = _Hidden(base)
    head = part = _shallow(model)
    *above, last = path.split(".")
    for name in above:
        part._modules[name] = _shallow(part._modules[name])
        part = part._modules[name]
    part._modules[last] = hidden
    return head, hidden


def _shallow(module: Any) -> Any:
    made = copy.copy(module)
    made._modules = dict(module._modules)
    return made


def _fixed_rotary(kinds: Any) -> Any:
    """Let frequencies not depend on a step's longest position: "dynamic" is unscaled within the trained positions,
    which a runner does not exceed, and rows choose those of "longrope"."""
    if isinstance(kinds, dict):
        return {name: _fixed_rotary(kind) for name, kind in kinds.items()}
    return "default" if kinds == "longrope" or "dynamic" in kinds else kinds
