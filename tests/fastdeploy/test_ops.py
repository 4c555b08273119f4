"""Each op on random steps, by the layer on tensors and by FastDeploy's semantics on arrays: all buffers must agree.

``FASTDEPLOY_STEPS=1000`` runs so many steps of each op on each backend.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.fastdeploy import kernels_drafts, kernels_rows, kernels_tokens
from tests.fastdeploy.batches import Batch
from tests.fastdeploy.kernels_rows import INFER_LISTS
from tests.fastdeploy.kernels_tokens import GREEDY, TARGET_MATCH, TOPP
from tests.fastdeploy.lockstep import Buffer, Lockstep

STEPS = int(os.environ.get("FASTDEPLOY_STEPS", "12"))
THINK_END, NEWLINE, LENGTH = 3, 4, 64
KERNELS = vars(kernels_rows) | vars(kernels_tokens) | vars(kernels_drafts)
BUDGETS = ("INFER_WITH_REFERENCE_TOKENUM_THRESHOLD", "SPEC_TOKENUM_THRESHOLD")


class Step(Batch):
    """A runner's buffers in a step; those of all slots have more than are in use, lengths may be columns."""

    number = 0
    """Of the steps of an op: forms of its call take turns."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng, slots=int(rng.integers(1, 7)))
        n, s = self.slots, self.width
        running = (self.slt > 0) & ~self.stop & ~self.paused
        most = np.where(self.enc > 0, 1, self.slt)
        self.counts = np.where(running, rng.integers(1, np.maximum(most, 1) + 1), 0).astype(np.int32)
        self.emitted = rng.integers(0, self.vocabulary, (n, s))
        self.emitted[np.arange(s) >= self.counts[:, None]] = -1
        self.logits = rng.permuted(np.tile(np.arange(40, dtype=np.float32), (self.rows, 1)), axis=1)
        self.hidden = rng.integers(-99, 99, (self.tokens, 3)).astype(np.float32)
        self.more, self.column = int(rng.integers(0, 3)), bool(rng.random() < 0.5)

    def some(self, low: int, high: int, *shape: int, dtype: Any = np.int64) -> Any:
        return self.rng.integers(low, high, (self.slots, *shape)).astype(dtype)

    def lens(self, array: Any = None) -> Buffer:
        """Of the slots in use."""
        array = self.slt if array is None else array
        return Buffer(array[:, None] if self.column else array)

    def all(self, *arrays: Any) -> list[Buffer]:
        """Buffers of all slots; those that are not in use have stopped, and nothing in them is read."""
        found = []
        for array in arrays:
            free = np.full((self.more, *array.shape[1:]), array.dtype == bool, array.dtype)
            array = np.concatenate([array, free])
            found.append(Buffer(array[:, None] if array.ndim == 1 and self.column else array))
        return found

    def offsets(self) -> Buffer:
        return Buffer(np.pad(self.cu_out, (0, self.more), "edge"))


def get_padding_offset(s: Step, platform: str) -> list[Any]:
    ids, lens, enc, dec, drafts = Buffer(s.input_ids), s.lens(), *s.all(s.enc, s.dec, s.drafts)
    speculative, plain = [(enc, dec, drafts), (drafts, enc, dec)], [(enc, dec, None), (None, enc, dec), (None, None)]
    forms = speculative + plain if platform == "gpu" else plain[-1:]
    return [ids, lens, *forms[s.number % len(forms)], s.tokens]


def sampling_params(s: Step, platform: str) -> list[Any]:
    given = s.all(s.rng.random(s.slots).astype(np.float32), s.some(0, 9), s.some(0, 99))
    rows = s.offsets() if platform == "gpu" else s.all(s.enc)[0]
    return [*given, s.lens(), rows, s.rows, 4 * s.width]


def reasoning(s: Step, platform: str) -> list[Any]:
    text, status = s.some(2, 6, LENGTH), s.some(0, 4, dtype=np.int32)
    state = s.all(text, s.prompt, s.stop)
    more = s.all(s.enc, s.step)
    ends = (Buffer(s.row_slots), s.offsets(), *s.all(s.rng.random(s.slots) < 0.7))
    allowed = Buffer(np.array([5, 6]))
    return [Buffer(s.logits), *state, s.lens(), *more, allowed, *s.all(status), *ends, THINK_END, NEWLINE]


def accepted(s: Step, platform: str) -> list[Any]:
    room = s.slots * s.width
    packed = Buffer(np.zeros(room, np.int64)), Buffer(np.zeros((room, 40), np.float32)), Buffer(s.logits)
    offsets = Buffer(np.zeros(s.slots + 1 + s.more, np.int32))
    return [*packed, offsets, s.offsets(), s.lens(), *s.all(s.enc, s.counts, s.emitted)]


def stop_sequences(s: Step, platform: str) -> list[Any]:
    s.text %= 3
    s.emitted[s.emitted >= 0] %= 3
    sequences = s.all(s.some(0, 3, 3, 2), s.some(0, 3, 3, dtype=np.int32))
    state = s.all(s.emitted, s.counts, s.text, s.prompt, s.step, s.stop)
    return [*state, s.lens(), *sequences, Buffer(s.ends), *s.all(s.some(0, 2))]


def thinking(s: Step, platform: str) -> list[Any]:
    inject = [[], [8], [8, THINK_END]][s.rng.integers(3)]
    status = s.some(0, len(inject) + 4, dtype=np.int32)
    limits = s.all(s.emitted, s.some(-1, 9, dtype=np.int32), s.some(-1, 9, dtype=np.int32), s.step, status)
    ends = Buffer(s.ends), Buffer(np.array(inject, np.int64))
    return [*limits, *s.all(s.counts, s.stop), *ends, THINK_END, s.number % 3 == 0]


def update(s: Step, platform: str) -> list[Any]:
    running, state = Buffer(np.array([True])), s.all(s.enc, s.dec)
    emitted, paused = s.all(s.emitted, s.counts, s.stop), s.all(s.paused)[0]
    more = *s.all(s.text, s.prompt, s.step), Buffer(s.ends), *s.all(s.limit)
    drafts = s.all(s.drafts)[0]
    if platform == "gpu" or s.number % 2:
        return [*state, running, drafts, *emitted, s.lens(), paused, *more]
    adaptive, rollback = s.all(s.slt, s.slt)
    naive = s.number % 4 == 0
    return [*state, running, drafts, adaptive, *emitted, s.lens(), paused, rollback, *more, naive, s.width - 1]


def unified_update_model_status(*args: Any) -> None:
    forms: dict[int, Callable[..., None]] = {
        14: kernels_tokens.unified_update_model_status,
        18: kernels_tokens.unified_update_model_status_18,
    }
    forms[len(args)](*args)


def taken(s: Step, platform: str) -> list[Any]:
    return [*s.all(s.emitted, s.counts), s.lens(), Buffer(s.targets()[: s.rows, None]), s.offsets()]


def ngram(s: Step, platform: str) -> list[Any]:
    s.text %= 3
    state = s.all(s.text, s.prompt, s.step, s.some(0, 6, dtype=np.int32), s.some(0, 3, 6))
    padded = (True,) if s.rng.random() < 0.3 else ()
    return [*state, s.lens(), *s.all(s.enc, s.dec, s.limit), int(s.rng.integers(1, 5)), 5, *padded]


def rows_of_drafts(s: Step, platform: str) -> list[Any]:
    """The draft model reads the emitted tokens, and the whole of a prompt."""
    enc = np.where(s.stop, 0, s.enc)
    lens = np.where(enc > 0, enc, np.where(s.stop, 0, s.counts)).astype(np.int32)
    return [Buffer(s.hidden), s.lens(lens), *s.all(enc, s.dec, s.stop, s.counts), s.lens(), *s.all(s.enc), 2]


def rows_of_a_substep(s: Step, platform: str) -> list[Any]:
    now = np.where(s.rng.random(s.slots) < 0.7, np.minimum(s.slt, 1), 0).astype(np.int32)
    step = np.where(s.enc > 0, 1, 5)
    last = np.where(s.enc > 0, np.minimum(s.slt, 1), s.slt)
    return [Buffer(s.hidden[: last.sum()]), s.lens(last), s.lens(now), *s.all(step)]


def gathered(s: Step, platform: str) -> list[Any]:
    cu, total = Buffer(s.cu_q), Buffer(np.array([s.rows], np.int32))
    return [Buffer(s.hidden), cu, s.lens(), *s.all(s.dec, s.enc), Buffer(s.row_slots), s.offsets(), total]


Arguments = Callable[[Step, str], list[Any]]
CALLS: dict[str, Arguments] = {
    "build_sampling_params": sampling_params,
    "draft_model_postprocess": lambda s, _: [
        *s.all(np.where(np.arange(5) < s.some(1, 6, 1), 7, -1)), s.lens(), *s.all(s.enc, s.stop),
    ],
    "get_padding_offset": get_padding_offset,
    "naive_update_model_status": taken,
    "reasoning_phase_token_constraint": reasoning,
    "speculate_clear_accept_nums": lambda s, _: s.all(s.some(0, 4, dtype=np.int32), s.dec),
    "speculate_get_accept_tokens_and_logits": accepted,
    "speculate_limit_thinking_content_length": thinking,
    "speculate_pre_process": lambda s, _: [
        s.tokens, Buffer(s.input_ids), s.lens(), *s.all(s.drafts, s.enc, s.dec),
    ],
    "speculate_set_stop_value_multi_seqs": stop_sequences,
    "unified_update_model_status": update,
    "eagle_get_hidden_states": rows_of_drafts,
}  # fmt: skip
PLATFORMS: dict[str, dict[str, Arguments]] = {
    "gpu": CALLS | {"eagle_gather_hidden_states": gathered, "ngram_match": ngram},
    "xpu": CALLS | {"eagle_get_self_hidden_states": rows_of_a_substep},
}
FORMS = KERNELS | {"unified_update_model_status": unified_update_model_status}
ON = {
    "gpu": FORMS,
    "xpu": FORMS | {name.removesuffix("_xpu"): kernel for name, kernel in FORMS.items() if name.endswith("_xpu")},
}


def steps(op: str) -> list[Step]:
    """With at least one token each."""
    rng, found = np.random.default_rng(list(op.encode())), list[Step]()
    while len(found) < STEPS:
        made = Step(rng)
        made.number = len(found)
        found += [made] * (made.tokens > 0)
    return found


def run(platform: str, op: str, ops: Any) -> None:
    lockstep = Lockstep(ON[platform], ops)
    for s in steps(op):
        arguments = PLATFORMS[platform][op](s, platform)
        with pytest.MonkeyPatch.context() as patch:
            for variable in BUDGETS:
                patch.setenv(variable, str(s.rng.integers(1, 40)))
            for _ in range(1 if op == "unified_update_model_status" else 2):  # the second call is a kept plan
                lockstep.run(op, *arguments)


@pytest.mark.parametrize(("platform", "op"), [(p, op) for p, ops in PLATFORMS.items() for op in ops])
def test_buffers_agree(layer: Any, platform: str, op: str) -> None:
    run(platform, op, getattr(layer, platform))


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("strategy", [TOPP, GREEDY, TARGET_MATCH])
def test_verification_agrees(layer: Any, platform: str, strategy: int) -> None:
    """Candidates of TOPP come from the layer; what is drawn among them is one of them."""
    lockstep = Lockstep(ON[platform], getattr(layer, platform))
    for s in steps(f"verify {strategy}"):
        targets: list[Buffer | None] = [Buffer(s.targets()[: s.rows, None]), None, None, None]
        top_p = s.all(s.rng.choice([0.02, 0.3, 0.8], s.slots).astype(np.float32))[0]
        if strategy == TOPP:
            exps = np.exp(s.logits / s.rng.choice([1, 20]))
            for slot, i in zip(s.row_slots, np.arange(s.rows) - s.cu_out[s.row_slots], strict=True):
                if i + 1 < s.width:  # most drafts are the first choice, some the second
                    row, draft = exps[s.cu_out[slot] + i], s.drafts[slot, i + 1]
                    choice = np.argsort(-row)[s.rng.choice([0, 0, 0, 1, 1, -1])]
                    row[[draft, choice]] = row[[choice, draft]]
            probs = Buffer((exps / exps.sum(1, keepdims=True)).astype(np.float32))
            found = lockstep.run("top_p_candidates", probs, top_p, Buffer(s.row_slots), 3, LENGTH)
            scores, ids, lens = found
            targets = [None, ids, scores, lens]
        tokens, counts, *rest = s.all(s.emitted, s.counts, s.drafts)
        state = s.all(s.stop, s.enc)
        more = (Buffer(s.ends), *s.all(s.paused), s.offsets(), *s.all(s.some(0, 2, dtype=np.int32), s.limit, s.step))
        policy = (LENGTH, 1 + s.number % 3, strategy, bool(s.rng.random() < 0.1), False)
        lockstep.run("verify_draft_tokens", tokens, counts, *rest, *targets, top_p, *state, s.lens(), *more, *policy)
        for b in np.flatnonzero(counts.flat) if strategy == TOPP else ():
            row, last = s.cu_out[b] + counts.flat[b] - 1, tokens.array[b, counts.flat[b] - 1]
            assert last in {*ids.array[row, : lens.array[row]].tolist(), *s.drafts[b].tolist(), s.ends[0]}


def lods(which: str, *lists: list[Buffer]) -> list[Buffer]:
    names = ("encoder_seq_lod", "decoder_seq_lod", f"encoder_batch_{which}", f"decoder_batch_{which}")
    return [place[INFER_LISTS.index(name)] for place in lists for name in names]


def test_prompts_stand_first_on_an_xpu(xpu: Any) -> None:
    lockstep = Lockstep(ON["xpu"], xpu)
    for s in steps("prompts first"):
        s.slt[(s.enc == 0) & (s.dec == 0)] = 0
        sizes = {name: s.slots + name.endswith("lod") for name in INFER_LISTS}
        on_device, on_host = ([Buffer(np.zeros(n, np.int32)) for n in sizes.values()] for _ in range(2))
        tables = [Buffer(s.some(0, 99, 9, dtype=np.int32)) for _ in range(2)]
        info = Buffer(np.zeros(7, np.int32))
        state = (*s.all(s.enc, s.dec), s.lens(), tables[0])
        for _ in range(2):
            lockstep.run("get_infer_param", *state, *on_device, tables[1], *on_host, info, 4, s.width - 1)

        rows = Buffer(s.rng.integers(-99, 99, (int(s.slt.sum()), 3)).astype(np.float32))
        adjusted = lockstep.run("adjust_batch", rows, *lods("idx", on_device, on_host), info, None, -1)
        maps = (*lods("map", on_device, on_host), info)
        back = lockstep.run("recover_batch_sequence", adjusted, *maps)
        np.testing.assert_array_equal(back.array, rows.array)
        lockstep.run("gather_next_token", adjusted, *maps, True, -1)
        lockstep.run("gather_next_token", adjusted, *maps, False, s.slots)


@pytest.mark.gpu
def test_buffers_agree_on_a_gpu() -> None:
    """On Paddle's CUDA tensors."""
    import paddle

    import specdec_hal_fastdeploy as package

    if not paddle.device.is_compiled_with_cuda():
        pytest.skip("Paddle is built for CPUs alone: install paddlepaddle-gpu")
    package.use_backend("cuda")
    paddle.set_device("gpu:0")
    try:
        for op in PLATFORMS["gpu"]:
            run("gpu", op, package.gpu)
    finally:
        paddle.set_device("cpu")
        package.use_backend()
