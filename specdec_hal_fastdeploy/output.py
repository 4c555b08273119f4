"""Ops that send emitted tokens to FastDeploy's token processor and receive them there."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import paddle

from specdec_hal.errors import ConfigError
from specdec_hal.tensors.views import as_numpy
from specdec_hal_fastdeploy.adaptor import Plan, Tensor, adaptor, older
from specdec_hal_fastdeploy.found import packs_columns
from specdec_hal_fastdeploy.messages import (
    COLUMNS,
    NOTHING_RECEIVED,
    PLAIN_SLOTS,
    SCORED,
    SCORED_SLOTS,
    WIDTH,
    PlainMessage,
    Scored,
    ScoredMessage,
    pack_meta,
    read_scored,
    sent_counts,
)
from specdec_hal_fastdeploy.sysv import MessageQueue, queue_key

QUEUE_VARIABLE, USER_VARIABLE = "INFERENCE_MSG_QUEUE_ID", "INFERENCE_MSG_ID"
PLAIN_PATH, SCORED_PATH = "./", "/dev/shm"
"""Input of the queues' keys, with the number of the queue."""


@cache
def queue(path: str, number: int) -> MessageQueue:
    """This process's end of a queue."""
    return MessageQueue(queue_key(path, number))


def queue_number() -> int:
    """Of this process's queue."""
    return int(os.environ.get(QUEUE_VARIABLE, "1"))


def stop_flag(runs: Tensor) -> int:
    """The stop flag of a message: the user's number, negative once nothing runs."""
    user = int(os.environ.get(USER_VARIABLE, "1"))
    if user < 0 or user == -NOTHING_RECEIVED:
        raise ConfigError(
            f"{USER_VARIABLE}: expected a positive number but 2, got {user}; its negative says 'nothing yet'"
        )
    return user if bool(runs) else -user


def _host(tensor: Tensor) -> Any:
    """Values on the host: a view of memory there, else a copy."""
    return as_numpy(tensor) if tensor.place.is_cpu_place() else tensor.numpy()


_FIRST = 2
"""Tokens that a prefill node sends of a slot: the first one and its draft."""

_MATRICES = ("x", "accept_tokens", "sampled_token_ids", "logprob_token_ids", "logprob_scores")
_STATE = ("not_need_stop", "seq_lens_decoder", "prompt_lens", "preempted_idx")


def _aliases(plan: Plan, *names: str) -> dict[str, Tensor]:
    """Arguments by name as steps may hold them; columns as one axis, but for matrices."""
    given = plan.given(*names)
    flat = {name: tensor if name in _MATRICES else plan.flat(tensor) for name, tensor in given.items()}
    return {name: plan.alias(tensor) for name, tensor in flat.items()}


@adaptor(
    "gpu",
    "xpu",
    arguments="accept_tokens accept_num not_need_stop seq_lens_decoder prompt_lens preempted_idx rank_id:int "
    "save_each_rank:bool skip_prefill:bool",
)
def speculate_save_output(plan: Plan, rank_id: int, save_each_rank: bool) -> None:
    """Send the accepted tokens of every slot that is after its prompt."""
    if rank_id == 0 or save_each_rank:
        _send_plain(plan, queue_number())


@adaptor(
    "xpu",
    arguments="accept_tokens accept_num not_need_stop seq_lens_decoder prompt_lens preempted_idx rank_id:int "
    "msg_queue_id:int save_each_rank:bool skip_prefill:bool",
)
def speculate_save_output_dynamic(plan: Plan, rank_id: int, msg_queue_id: int, save_each_rank: bool) -> None:
    """As `speculate_save_output`, to the queue of this number."""
    if rank_id == 0 or save_each_rank:
        _send_plain(plan, msg_queue_id)


@adaptor(
    "gpu",
    "xpu",
    arguments="x not_need_stop seq_lens_decoder prompt_lens step_idx rank_id:int save_each_rank:bool "
    "skip_chunk_prefill:bool",
)
def mtp_save_first_token(plan: Plan, x: Tensor, rank_id: int, save_each_rank: bool, skip_chunk_prefill: bool) -> None:
    """Send the first token and the first draft of each slot that has just ended its prompt: x [B, 2 or more].

    For a prefill node. With `skip_chunk_prefill`, slots inside their prompt send nothing, whatever their step_idx.
    """
    plan.expect("int64", "x", "prompt_lens", "step_idx")
    plan.expect("int32", "seq_lens_decoder")
    if x.ndim != 2 or x.shape[1] < _FIRST:
        plan.fail("x", f"[B, {_FIRST} or more]", str(x.shape), "pass the first tokens and their drafts")
    if rank_id > 0 and not save_each_rank:
        return
    names = ("not_need_stop", "seq_lens_decoder", "prompt_lens", "step_idx")
    tensors = _aliases(plan, "x", *names)
    message, receiver = PlainMessage(), queue(PLAIN_PATH, queue_number())

    def send() -> None:
        values = {name: _host(tensor) for name, tensor in tensors.items()}
        runs, decoder, prompts, steps = (values[name] for name in names)
        tokens = values["x"][:, :_FIRST]
        slots = len(tokens)
        begins = steps[:slots] == 1
        if not skip_chunk_prefill:
            prompts = np.zeros_like(prompts)
        counts = sent_counts(_FIRST * begins, decoder, prompts, np.zeros(slots), PLAIN_SLOTS)
        receiver.send(message.write(stop_flag(runs[0]), counts, tokens))

    plan.step(send)


def _send_plain(plan: Plan, number: int) -> None:
    tensors = _aliases(plan, "accept_tokens", "accept_num", *_STATE)
    message, receiver = PlainMessage(), queue(PLAIN_PATH, number)

    def send() -> None:
        values = {name: _host(tensor) for name, tensor in tensors.items()}
        runs, decoder, prompts, preempted = (values[name] for name in _STATE)
        counts = sent_counts(values["accept_num"], decoder, prompts, preempted, PLAIN_SLOTS)
        receiver.send(message.write(stop_flag(runs[0]), counts, values["accept_tokens"]))

    plan.step(send)


@adaptor(
    "gpu",
    "xpu",
    arguments="sampled_token_ids logprob_token_ids logprob_scores logprob_ranks token_num_per_batch "
    "cu_batch_token_offset not_need_stop seq_lens_decoder prompt_lens preempted_idx message_flag:int rank_id:int "
    "save_each_rank:bool",
)
def speculate_save_output_topk(plan: Plan, message_flag: int, rank_id: int, save_each_rank: bool) -> None:
    """Send tokens with N = logprob_token_ids.shape[1] ids and scores each; message_flag says which tokens they are.

    sampled_token_ids: [B, S], or [A] in the order of the rows, as a draft model's sampler gives them.
    """
    if rank_id <= 0 or save_each_rank:
        _send_scored(plan, message_flag)


@older(
    speculate_save_output_topk,
    arguments="sampled_token_ids logprob_token_ids logprob_scores logprob_ranks token_num_per_batch "
    "cu_batch_token_offset not_need_stop seq_lens_decoder prompt_lens message_flag:int rank_id:int "
    "save_each_rank:bool",
)
def _save_output_topk_12(plan: Plan, token_num_per_batch: Tensor) -> None:
    """Before `preempted_idx`; FastDeploy's MTP proposer still calls it so, for drafts."""
    none = plan.hold(paddle.zeros(token_num_per_batch.shape, "int32").cpu())
    args = [*plan.given(*plan.names).values()]
    speculate_save_output_topk.plan(plan, *args[:9], none, *args[9:])


@adaptor(
    "gpu",
    arguments="sampled_token_ids logprob_token_ids logprob_scores logprob_ranks token_num_per_batch "
    "cu_batch_token_offset not_need_stop seq_lens_decoder prompt_lens preempted_idx message_flag:int rank_id:int "
    "save_each_rank:bool",
)
def mtp_save_first_token_with_topk(plan: Plan, message_flag: int, rank_id: int, save_each_rank: bool) -> None:
    """As `speculate_save_output_topk`, and one draft more, without scores, of each slot that sends anything.

    For a prefill node; sampled_token_ids: the target's next drafts [B, S].
    """
    if rank_id <= 0 or save_each_rank:
        _send_scored(plan, message_flag, drafts=1)


def _send_scored(plan: Plan, flag: int, *, drafts: int = 0) -> None:
    """`drafts` tokens of each slot that sends anything follow those that are counted."""
    names = ("logprob_token_ids", "logprob_scores", "logprob_ranks")
    tensors = _aliases(plan, "sampled_token_ids", "token_num_per_batch", "cu_batch_token_offset", *names, *_STATE)
    message, receiver = ScoredMessage(packs_columns()), queue(SCORED_PATH, queue_number())

    def send() -> None:
        values = {name: _host(tensor) for name, tensor in tensors.items()}
        runs, decoder, prompts, preempted = (values[name] for name in _STATE)
        counts = sent_counts(values["token_num_per_batch"], decoder, prompts, preempted, SCORED_SLOTS, drafts)
        ids, scores, ranks = (values[name] for name in names)
        rows = {"ids": ids, "scores": scores, "ranks": ranks, "starts": values["cu_batch_token_offset"]}
        tokens, stop = values["sampled_token_ids"], stop_flag(runs[0])
        receiver.send(message.write(stop, flag, counts, tokens, **rows, unscored=drafts))

    plan.step(send)


@adaptor("gpu", "xpu", returns="output_tokens output_scores output_ranks")
def speculate_get_output_topk(
    plan: Plan,
    output_tokens: Tensor,
    output_scores: Tensor,
    output_ranks: Tensor,
    real_k: int,
    rank_id: int,
    wait_flag: bool,
) -> None:
    """Take the oldest message apart into the token processor's buffers; output_tokens[0] is -2 if there is none."""
    outputs = [plan.alias(plan.flat(tensor)) for tensor in (output_tokens, output_scores, output_ranks)]
    memory, sender, packed = np.zeros(1, SCORED), queue(SCORED_PATH, queue_number()), packs_columns()

    def receive() -> None:
        tokens, scores, ranks = (as_numpy(output) for output in outputs)
        size = sender.receive(memory, wait=wait_flag)
        if size < 0:
            tokens[:3] = NOTHING_RECEIVED, 0, 0
        else:
            fill_buffers(read_scored(memory, size), tokens, scores, ranks, packed)

    plan.step(receive)


def fill_buffers(message: Scored, tokens: Any, scores: Any, ranks: Any, packed: bool = True) -> None:
    """Write a message to the token processor's buffers, in rows of 21 columns.

    Without `packed`, for a token processor that knows a kind alone, and reads all columns.
    """
    slots, columns = len(message.counts), message.tokens.shape[2]
    tokens[:3] = message.stop, pack_meta(message.kind, columns) if packed else message.kind, slots
    tokens[3 : 3 + slots] = message.counts
    there = np.arange(WIDTH) < message.counts[:, None]
    first = 3 + SCORED_SLOTS
    for buffer, values, nothing in ((tokens[first:], message.tokens, -1), (scores, message.scores, 0)):
        rows = buffer[: SCORED_SLOTS * WIDTH * COLUMNS].reshape(SCORED_SLOTS, WIDTH, COLUMNS)
        np.copyto(rows[:slots, :, :columns], values, where=there[:, :, None])
        if not packed:
            np.copyto(rows[:slots, :, columns:], nothing, where=there[:, :, None])
    np.copyto(ranks.reshape(SCORED_SLOTS, WIDTH)[:slots], message.ranks, where=there)
