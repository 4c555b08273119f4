"""Checks of every case: each takes a trial and returns a description of the fault, or None."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import MatchPolicy, TokenOrder, get_op
from specdec_hal.ops.bits import difference, same_bits
from specdec_hal.ops.spec import Role
from specdec_hal_conformance import lookups
from specdec_hal_conformance.case import Inputs
from specdec_hal_conformance.expectations import unmet
from specdec_hal_conformance.fences import FencedDevice
from specdec_hal_conformance.guarded import GuardedHost
from specdec_hal_conformance.relayout import Relayout, slots_in_use
from specdec_hal_conformance.subject import CallFailed, NotClaimed, Subject, reference_outputs
from specdec_hal_conformance.trial import Trial, repoisoned

Array = NDArray[Any]


@dataclass(frozen=True)
class Check:
    """A check of a trial. `rules`: conventions (section 0) that it tests; `applies`: whether it is run."""

    name: str
    ask: Callable[[Trial], str | None]
    rules: tuple[str, ...] = ()
    applies: Callable[[Trial], bool] = lambda trial: True

    def __call__(self, trial: Trial) -> str | None:
        """The fault, or None; an error raised by the backend is a fault. Raises NotClaimed."""
        try:
            return self.ask(trial)
        except CallFailed as failure:
            return str(failure)


def equality(trial: Trial) -> str | None:
    """The reference's bits; for an edge, also the results by hand."""
    found = difference(trial.outcome.outputs, trial.expected)
    return found or unmet(trial.case.expected, trial.outcome.outputs)


def sentinels(trial: Trial) -> str | None:
    """Nothing outside the outputs was written: margins and inputs are unchanged."""
    return "; ".join(trial.outcome.damage) or None


def poison(trial: Trial) -> str | None:
    """Outputs do not depend on their previous contents."""
    outputs = _only_written(trial)
    again = trial.subject.run(trial.op, repoisoned(outputs, trial.inputs))
    found = difference({n: again.outputs[n] for n in outputs}, {n: trial.outcome.outputs[n] for n in outputs})
    return found and f"depends on what the output held before: {found}"


def _only_written(trial: Trial) -> list[str]:
    return [o.name for o in get_op(trial.op).operands if o.role is Role.OUT and o.name in trial.given]


def determinism(trial: Trial) -> str | None:
    """Repeated calls give the same bits."""
    for repeat in range(2):
        found = difference(trial.subject.run(trial.op, trial.inputs).outputs, trial.outcome.outputs)
        if found:
            return f"repeat {repeat + 1} differs: {found}"
    return None


def replay(trial: Trial) -> str | None:
    """A bound plan (a graph, if the backend claims graph safety) reads its tensors at each launch."""
    subject, op, first = trial.subject, trial.op, trial.inputs
    second = _advanced(op, first)
    placed, arguments = subject.place(first)
    plan = subject.bind(op, arguments)
    capability = subject.backend.capability(op)
    graph_safe = capability is not None and capability.graph_safe
    if graph_safe:
        with subject.device.no_host_reads():
            subject.launch(plan)
    launch = subject.device.capture(plan) if graph_safe else lambda: subject.launch(plan)
    for step, inputs in enumerate((first, second, first)):
        for name, tensor in placed.items():
            subject.device.assign(tensor, inputs[name])
        launch()
        subject.device.synchronize()
        outcome = subject.outcome(op, inputs, placed)
        if outcome.damage:
            return f"replay {step}: {'; '.join(outcome.damage)}"
        if "index" in inputs and inputs is second:
            continue  # the history has changed since indexing
        found = difference(outcome.outputs, trial.expected if inputs is first else reference_outputs(op, inputs))
        if found:
            return f"replay {step}{' of the graph' if graph_safe else ''}: {found}"
    return None


def _advanced(op: str, inputs: Inputs) -> Inputs:
    """The next step's inputs: positions and seeds change, so random numbers must change too."""
    changed = dict(inputs)
    for name in ("position", "step_idx"):
        if name in changed:
            changed[name] = np.where(changed[name] >= 0, changed[name] + 1, changed[name])
    for name in ("seed", "row_seed"):
        if name in changed:
            changed[name] = changed[name] ^ 0x5DEECE66D
    for name in ("draft_tokens", "accept_tokens", "target_tokens", "inter_next_tokens", "input_ids"):
        if name in changed:
            changed[name] = changed[name][::-1].copy()
    return changed


def _moved(trial: Trial, order: list[int], m: int) -> str | None:
    """Slots `order` of the batch among `m`: each result moves with its slot and is otherwise unchanged."""
    op, inputs, outputs = trial.op, trial.inputs, trial.outcome.outputs
    slots = slots_in_use(inputs)
    relayout = Relayout(op, {**inputs, **outputs}, slots, order, m, inputs.get("seq_lens_this_time"))
    after = trial.subject.run(op, {name: relayout.move(name, value)[0] for name, value in inputs.items()}).outputs
    whole = len(order) == slots
    for name, value in outputs.items():
        if name in ("has_running", "num_tokens", "output_token_num") and not whole:
            continue  # these are about the batch
        wanted, known = relayout.move(name, value)
        found = difference({name: after[name][:known]}, {name: wanted[:known]})
        if found:
            return f"slots {order} of {slots}, M = {m}: {found}"
    return None


def independence(trial: Trial) -> str | None:
    """A slot's result does not depend on its index, its neighbours or padding."""
    inputs, op = trial.inputs, trial.op
    if op in ("sample_target", "processed_probs"):
        return _rows_moved(trial)
    slots = slots_in_use(inputs)
    rng = np.random.default_rng(slots)
    least = 1 if op == "top_p_candidates" else 0
    permuted = rng.permutation(slots).tolist()
    found = _moved(trial, permuted, max(slots, 1))
    if found:
        return f"permuted: {found}"
    for more in (2, 1):
        try:
            found = _moved(trial, list(range(slots)), max(slots, 1) + more)
        except NotClaimed:  # as many slots as it takes
            continue
        if found:
            return f"padded: {found}"
        break
    for alone in permuted[:2]:
        found = _moved(trial, [alone], 1)
        if found:
            return f"alone: {found}"
    return _moved(trial, permuted[: slots // 2], max(slots // 2, 1, least))


def _by_itself(trial: Trial) -> bool:
    """Not if requests share a budget, or if an order may separate a slot's rows."""
    in_slot_order = trial.given.get("token_order", TokenOrder.SLOT) is TokenOrder.SLOT
    return in_slot_order and bool(trial.given.get("token_budget", 10**9) >= 10**9)


def _rows_moved(trial: Trial) -> str | None:
    inputs = trial.inputs
    order = np.random.default_rng(len(inputs["logits"])).permutation(len(inputs["logits"]))
    for kept in (order, order[: len(order) // 2]):
        moved = {name: value[kept] if isinstance(value, np.ndarray) else value for name, value in inputs.items()}
        after = trial.subject.run(trial.op, moved).outputs
        found = difference(after, {name: value[kept] for name, value in trial.outcome.outputs.items()})
        if found:
            return f"rows {kept.tolist()}: {found}"
    return None


def columns(trial: Trial) -> str | None:
    """[N, 1] is accepted for [N]."""
    op, inputs = trial.op, trial.inputs
    operands = get_op(op).by_name
    vectors = [n for n, v in inputs.items() if n in operands and isinstance(v, np.ndarray) and v.ndim == 1]
    after = trial.subject.run(op, {**inputs, **{n: inputs[n].reshape(-1, 1) for n in vectors}}).outputs
    shaped = {n: v.reshape(trial.outcome.outputs[n].shape) for n, v in after.items()}
    found = difference(shaped, trial.outcome.outputs)
    return found and f"with [N, 1] for [N]: {found}"


def index_contents(trial: Trial) -> str | None:
    """After the index ops, look-ups give the results of a search; other slots are untouched."""
    op, subject, inputs = trial.op, trial.subject, trial.inputs
    if op == "ngram_index_reset":
        kept = ~inputs["reset_slots"]
        after = trial.outcome.opaque["index"]
        return None if same_bits(after[kept], inputs["index"][kept]).all() else "a slot not to be reset was changed"
    idle = (inputs["seq_lens_encoder"] > 0) | (inputs["seq_lens_decoder"] <= 0)
    # In two bites, as a request grows.
    half = {**inputs, "step_idx": np.maximum(inputs["step_idx"] // 2, 0)}
    begun = subject.run(op, half).opaque["index"]
    index = subject.run(op, {**inputs, "index": begun}).opaque["index"]
    if not same_bits(index[idle], inputs["index"][idle]).all():
        return "the index of a slot that does not decode was changed"
    if subject.backend.capability("ngram_match") is None:
        return None
    for policy in MatchPolicy:
        call = lookups.look_up(subject, inputs, index, policy)
        if subject.refusal("ngram_match", call) is not None:
            continue
        found = difference(subject.run("ngram_match", call).outputs, reference_outputs("ngram_match", call))
        if found:
            return f"a look-up ({policy.name}) with the index differs from one without: {found}"
    return None


def fences(trial: Trial) -> str | None:
    """On the host: no access outside the tensors, not even a read; an access ends the process."""
    for at_start in (False, True):
        fenced = Subject(trial.subject.backend, FencedDevice(at_start=at_start))
        found = difference(fenced.run(trial.op, trial.inputs).outputs, trial.outcome.outputs)
        if found:
            return f"at a page's {'start' if at_start else 'end'}: {found}"
    return None


def bounded(trial: Trial) -> str | None:
    """Counts stay in range for any inputs."""
    tokens, counts = trial.outcome.outputs["accept_tokens"], trial.outcome.outputs["accept_num"]
    if ((counts < 0) | (counts > tokens.shape[1])).any():
        return f"accept_num {counts.tolist()} outside [0, {tokens.shape[1]}]"
    return None


EQUALITY = Check("equality", equality, applies=lambda trial: trial.comparable)
SENTINELS = Check("sentinels", sentinels, ("inside",))
POISON = Check("poison", poison, ("defined",), lambda trial: bool(_only_written(trial)))
DETERMINISM = Check("determinism", determinism, ("stateless",))
REPLAY = Check("replay", replay, ("replay",))
INDEPENDENCE = Check("independence", independence, ("independent",), _by_itself)
COLUMNS = Check("columns", columns, ("column",))
INDEX = Check("index", index_contents, applies=lambda trial: trial.op in lookups.INDEX_OPS)
BOUNDED = Check("bounded", bounded, ("any-value",), lambda trial: trial.op == "verify_draft_tokens")
FENCES = Check("fences", fences, ("inside", "any-value"), lambda trial: isinstance(trial.subject.device, GuardedHost))

CHECKS = {
    check.name: check
    for check in (EQUALITY, SENTINELS, POISON, DETERMINISM, REPLAY, INDEPENDENCE, COLUMNS, INDEX, BOUNDED, FENCES)
}
