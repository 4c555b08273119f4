"""Ops over slots: verification of drafts, the packed batch, and the update after a step.

Targets and figures of other implementations come from another run on an H200.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specdec_hal.bench.case import Array, Case, OpCall, WarmCold, WrongResult, alone
from specdec_hal.bench.decode_step import ACCEPTANCES, BATCHES, DRAFTS, VOCABULARIES, DecodeStep
from specdec_hal.bench.step_calls import StepCalls, hidden_rows, least_bytes
from specdec_hal.ops import Strategy

HEADLINE = DecodeStep(256, 5, 151_936, mixed=False)
"""The batch that the targets are for."""
_STRATEGIES = ("TARGET_MATCH", "TOPP")
_TARGETS: Mapping[str, float] = {
    "GREEDY": 2.2,
    "TARGET_MATCH": 2.2,
    "TOPP": 3.5,
    "REJECTION": 60,
    "update_model_status": 2.5,
    "prepare_inputs": 3,
    "build_sampling_params": 1.6,
}
_GATHER_TARGETS = {384: 2.6, 512: 4.0, 1536: 5.0}
"""By rows."""
_PEERS: Mapping[str, Mapping[str, WarmCold]] = {
    "TARGET_MATCH": {"FastDeploy": (6.0, None), "vLLM V1, compare kernel": (2.0, None)},
    "TOPP": {"FastDeploy": (147, None)},
    "REJECTION": {"FlashInfer chain, dense q": (180, None), "vLLM V2 from logits": (345, None)},
    "update_model_status": {"FastDeploy": (4.5, None)},
    "prepare_inputs": {"FastDeploy": (8.8, None)},
    "build_sampling_params": {"FastDeploy": (1.8, None)},
    "gather_next_token": {"FastDeploy": (9.2, None), "torch index_select": (4.0, None)},
}


def cases(quick: bool) -> Iterator[Case]:
    """The headline of every op, then variations."""
    seen: set[str] = set()
    for case in _all(quick):
        if case.label not in seen:
            seen.add(case.label)
            yield case


def _all(quick: bool) -> Iterator[Case]:
    for strategy in ("GREEDY", *_STRATEGIES):
        yield _by_rows(HEADLINE, strategy, headline=True)
    if not quick:
        yield by_probs(HEADLINE, headline=True)
    for op in _SLOT_OPS:
        yield _slots(op, HEADLINE, headline=True)
    yield _gather(512, 8192)
    for speculative in (True, False):
        yield _gather(1536, 4096, speculative=speculative)
    if quick:
        yield by_probs(DecodeStep(8, 3, 32_000, mixed=False))
        return
    yield from _varied()


def _varied() -> Iterator[Case]:
    yield _gather(384, 4096)
    for b in BATCHES:
        step = DecodeStep(b, 5, 151_936)
        yield from (_by_rows(step, strategy) for strategy in _STRATEGIES)
        yield from (_slots(op, step) for op in _SLOT_OPS)
    for k in DRAFTS:
        yield from (_by_rows(DecodeStep(256, k, 151_936, mixed=False), strategy) for strategy in _STRATEGIES)
    for acceptance in ACCEPTANCES:
        yield from (_by_rows(DecodeStep(256, 5, 151_936, acceptance, False), strategy) for strategy in _STRATEGIES)
    for b in (1, 8, 32, 128):
        yield by_probs(DecodeStep(b, 5, 151_936, mixed=False))
    for v in VOCABULARIES[:2]:
        yield by_probs(DecodeStep(256, 5, v, mixed=False))
    for b in (8, 32):
        yield by_probs(DecodeStep(b, 5, 151_936, mixed=False), dense=True)


def _case(name: str, step: DecodeStep, call: Callable[[int], OpCall], moved: int, **more: Any) -> Case:
    params = {"B": step.slots, "K": step.drafts, "V": step.vocabulary, "acceptance": step.acceptance}
    kind = "a third prefills, a tenth is idle" if step.mixed else "all decode"
    label = f"{name}, B {step.slots}, K {step.drafts}, {kind}"
    if step.acceptance != HEADLINE.acceptance:
        label += f", acceptance {step.acceptance:g}"
    return Case(label, name, alone(call), moved, params=params | {"mixed": step.mixed}, **more)


def _known(name: str, headline: bool) -> dict[str, Any]:
    """Target and peers of a headline."""
    return {"target": (_TARGETS[name], None), "peers": _PEERS.get(name, {})} if headline and name in _TARGETS else {}


def _by_rows(step: DecodeStep, strategy: str, *, headline: bool = False) -> Case:
    def call(seed: int) -> OpCall:
        return StepCalls(replace(step, seed=seed)).verify(strategy)

    moved = least_bytes(step, "verify_draft_tokens", {"strategy": Strategy[strategy]}, ("draft_probs", "target_probs"))
    return _case(f"verify {strategy}", step, call, moved, **_known(strategy, headline))


def by_probs(step: DecodeStep, *, dense: bool = False, headline: bool = False, in_part: bool | None = None) -> Case:
    """REJECTION. `in_part`: compare only some slots with the reference; None: if all of them would take minutes."""

    def call(seed: int) -> OpCall:
        made = StepCalls(replace(step, seed=seed))
        given: dict[str, Any] = {"draft_probs": made.step.draft_probs(made.tensors)} if dense else {}
        return made.verify("REJECTION", **given)

    rows = (1 + dense) * step.slots * step.vocabulary * 4
    if in_part is None:
        in_part = step.slots * step.vocabulary > 1 << 23
    checks: dict[str, Any] = {"checked": False, "check": _check_some} if in_part else {}
    name = "verify REJECTION, dense q" if dense else "verify REJECTION, one-hot"
    return _case(f"{name}, V {step.vocabulary:,}", step, call, rows, **checks, **_known("REJECTION", headline))


def _check_some(calls: Sequence[OpCall], outputs: Mapping[int, Array]) -> None:
    """Compare four slots with the reference, which would take minutes over all of them."""
    from specdec_hal.backends.reference.backend import ReferenceBackend

    inputs = dict(calls[0].inputs)
    slots = len(inputs["accept_num"])
    got = {name: outputs[id(inputs[name])] for name in ("accept_tokens", "accept_num")}
    for b in np.linspace(0, slots - 1, 4).astype(int):
        first, s = inputs["cu_seqlens_q_output"][b], inputs["draft_tokens"].shape[1]
        one = {name: value[b : b + 1] if isinstance(value, np.ndarray) else value for name, value in inputs.items()}
        one["end_tokens"] = inputs["end_tokens"]
        one["cu_seqlens_q_output"] = np.array([0, s], np.int32)
        one["target_probs"] = inputs["target_probs"][first : first + s]
        one["accept_tokens"], one["accept_num"] = np.zeros((1, s), np.int64), np.zeros(1, np.int32)
        ReferenceBackend().verify_draft_tokens(**one)
        for name, value in got.items():
            if not np.array_equal(value[b : b + 1], one[name]):
                raise WrongResult(
                    f"REJECTION: '{name}' of slot {b}: expected {one[name][0]}, got {value[b]}: not measured"
                )


_SLOT_OPS = ("update_model_status", "prepare_inputs", "build_sampling_params", "gather_accepted")


def _slots(op: str, step: DecodeStep, *, headline: bool = False) -> Case:
    def call(seed: int) -> OpCall:
        made = StepCalls(replace(step, seed=seed))
        if op in ("update_model_status", "gather_accepted"):
            made.accepted()
        given: dict[str, Any] = {}
        if op == "gather_accepted":  # its number of rows is all that matters
            given["logits"] = np.zeros((made.size["R_cap"], 1), np.float32)
        return made.call(op, **given)

    return _case(op, step, call, least_bytes(step, op, {}, ("token_ids_all", "input_ids")), **_known(op, headline))


def _gather(rows: int, width: int, *, speculative: bool = False) -> Case:
    """Every row of slots with five drafts; or the last of two tokens of every slot, as after a short chunk."""
    slots, drafts = (rows // 6, 5) if speculative else (rows, 1)
    step = DecodeStep(slots, drafts, HEADLINE.vocabulary, mixed=False)

    def call(seed: int) -> OpCall:
        x, out = hidden_rows(slots * step.width, width, seed), np.zeros((rows, width), np.uint16)
        return StepCalls(replace(step, seed=seed)).call("gather_next_token", x=x, out=out, is_speculative=speculative)

    label = f"gather_next_token, {rows:,} rows x {width:,} bfloat16" + (", speculative" if speculative else "")
    return Case(
        label,
        "gather_next_token",
        alone(call),
        2 * 2 * rows * width,
        target=(_GATHER_TARGETS[rows], None),
        peers=_PEERS["gather_next_token"] if rows == 512 else {"torch index_select": (_GATHER_TARGETS[rows], None)},
        params={"rows": rows, "D": width, "is_speculative": speculative},
    )
