"""Tensor parallelism: the same tokens on every rank, whether ranks are threads or processes, and clean ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.config import parse
from specdec_hal.engine.runtime import Runtime
from specdec_hal.errors import ConfigError, EngineDeadError, RankMismatchError, RequestError, UnsupportedError
from specdec_hal.models import load_model
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment
from specdec_hal.runner import Request, SamplingParams
from tests.parallel.conftest import EMBEDDED, SHAPE
from tests.parallel.ranks import Threads
from tests.support.dflash import Drafter
from tests.support.drafters import Head
from tests.support.hf_models import Case, write_model
from tests.support.history_model import LetterTokenizer
from tests.support.teams import requests, settings, tokens_of

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}, "old": {"type": "boolean"}}}
PERSON |= {"required": ["name", "old"]}

# Norms of heads; one KV head for both ranks; biases; outputs that are gathered and inputs that are cut; experts.
DECODERS: dict[str, dict[str, Any]] = {
    "Qwen3": {},
    "Gemma3": {"num_key_value_heads": 1},
    "Starcoder2": {},
    "Phi3": {},
    "Qwen3Moe": {},
    "Qwen3_5Text": {},  # every rank has the whole recurrent layers
}


def all_kinds() -> list[Request]:
    """Requests that use everything that reads logits."""
    rng = np.random.default_rng(1)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1, "logprobs": 0},
        {"temperature": 0.8, "top_k": 12, "logprobs": 3, "prompt_logprobs": 2},
        {"temperature": 2, "top_p": 0.97, "logprobs": 1},
        {"temperature": 1.5, "top_k": 200, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 1, "min_p": 0.05, "repetition_penalty": 1.3, "frequency_penalty": 0.2, "logprobs": 1},
        {"temperature": 0, "bad_token_ids": [7, 1500, 4000], "min_new_tokens": 9, "presence_penalty": 1.0},
        {"temperature": 0.9, "logit_bias": {5: 40.0, 1030: 41.0, 3999: 40.5}, "logprobs": 2},
        # Tokens of every rank in turn, by what they have cost so far; one of them never.
        {"temperature": 0, "logit_bias": {9: 50, 1030: 50, 2077: 50, 3999: 50, 3000: 99}, "frequency_penalty": 9.0}
        | {"bad_token_ids": [3000], "repetition_penalty": 1.1},
        {"temperature": 0, "allowed_token_ids": [7, 1023, 1024, 2077, 3333, 3999], "frequency_penalty": 9.0},
        {"temperature": 1, "structured": {"json_schema": PERSON}, "logprobs": 0, "max_new_tokens": 30},
        {"temperature": 1, "structured": {"regex": "(ab|[0-9]{3}){1,3}"}},
    ]
    return [
        Request(
            f"k{i}",
            rng.integers(1, 4096, 9 + 5 * i).tolist(),
            SamplingParams(**{"max_new_tokens": 12, "seed": i, **kind}),
        )
        for i, kind in enumerate(kinds)
    ]


def outputs_of(runner: Any) -> dict[str, Any]:
    """Tokens and log-probabilities, bit for bit."""
    for request in all_kinds():
        runner.add_request(request)
    return {
        name: (output.token_ids, output.logprobs, output.prompt_logprobs, output.finish_reason)
        for name, output in runner.run().items()
    }


def on_threads(path: Path, ranks: int, what: Callable[[Any], Any] = tokens_of, **speculative: Any) -> list[Any]:
    """What each rank's runner gives, all in this process."""
    from specdec_hal.parallel.runner import RankHook
    from specdec_hal.runner import build_runner

    config = parse(settings(path, ranks, **speculative))

    def work(group: Any) -> Any:
        runtime = Runtime(config)
        model = runtime.load_model(group=group)
        return what(
            build_runner(config, runtime.backend, model, runtime.load_tokenizer(), hook=RankHook(config, group))
        )

    return Threads(ranks).run(work)


@contextmanager
def on_processes(path: Path, ranks: int, **speculative: Any) -> Iterator[Any]:
    runtime = Runtime(parse(settings(path, ranks, **speculative)))
    try:
        yield runtime
    finally:
        if runtime.team is not None:
            runtime.team.close()
            runtime.team.group.close()


@pytest.mark.parametrize("ranks", [2, 4])
def test_hidden_states_are_the_models(checkpoint: Path, ranks: int) -> None:
    ids = np.random.default_rng(1).integers(1, 4096, 12)

    def logits(model: Any, cuts: list[int]) -> Any:
        model.allocate(2, 64)
        parts = []
        for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
            batch = ForwardBatch(ids[start:end], [Segment(1, 0, end - start, start)])
            parts.append(model.compute_logits(model.forward(batch)[FINAL_NORM]).numpy())
        return np.concatenate(parts)

    whole = logits(load_model(checkpoint, "transformers"), [])
    models = Threads(ranks).run(lambda group: load_model(checkpoint, "transformers", group=group))
    for cuts in ([], [1, 2, 7]):
        found = Threads(ranks).run(lambda group, cuts=cuts: logits(models[group.rank], cuts))
        assert all(np.array_equal(found[0], other) for other in found[1:]), "ranks have the same bits"
        np.testing.assert_allclose(found[0], whole, rtol=0, atol=2e-4 * np.abs(whole).max())
        if not cuts:
            once = found[0]
    assert np.array_equal(found[0], once), "a token has the same bits in any batch"


@cache
def gathered(path: Path, ranks: int) -> dict[str, Any]:
    """What requests of all kinds get where logits are gathered."""
    first, *others = on_threads(path, ranks, outputs_of)
    assert all(outputs == first for outputs in others) and len(first) == len(all_kinds())
    assert first["k1"][1] and first["k2"][2], "log-probabilities, and those of the prompt"
    assert {9, 1030, 2077, 3999} <= set(first["k8"][0]), "penalties matter on every rank"
    assert {7, 2077, 3999} <= set(first["k9"][0]) <= {7, 1023, 1024, 2077, 3333, 3999}, "so do masks"
    (whole,) = on_threads(path, 1, outputs_of)
    assert all(first[name][0] == whole[name][0] and whole[name][3] == "stop" for name in ("k10", "k11")), "and grammars"
    return first


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_trained_drafters_beside_ranks(checkpoint: Path, kind: str, tmp_path: Path) -> None:
    """Every rank drafts for itself: tokens are those of plain decoding, the same on all."""
    size, taps = SHAPE.hidden_size, tuple(range(1, SHAPE.num_hidden_layers + 1))
    if kind == "eagle3":
        head = Head(4096, size, 4, 2, 8, 40, taps, 300).randomize(1)
        folder = head.write_speculators(tmp_path)
    else:
        folder = Drafter(4096, size, taps, draft_vocab_size=300).randomize(1).write_speculators(tmp_path)
    naive = on_threads(checkpoint, 2, method="naive")
    drafted = on_threads(checkpoint, 2, method=kind, num_speculative_tokens=3, **{kind: {"path": str(folder)}})
    assert drafted == [naive[0]] * 2


@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_give_the_tokens_of_one_process_until_one_dies(checkpoint: Path, ranks: int) -> None:
    """One process that adds in the same order, and `ranks` processes: drafted and plain, sampled and not."""
    naive = on_threads(checkpoint, ranks, method="naive")
    assert all(tokens == naive[0] for tokens in naive) and len(naive[0]) == 5
    with on_processes(checkpoint, ranks) as runtime:
        model, tokenizer = runtime.load_model(), runtime.load_tokenizer()

        def runner(**options: Any) -> Any:
            other = runtime.with_config(parse(settings(checkpoint, ranks, **options)))
            return other.runner(model=model, tokenizer=tokenizer)

        first = runner()
        assert tokens_of(first) == naive[0]
        first.forget()
        assert first.metrics.steps == 0
        assert tokens_of(first) == naive[0], "and the ranks compare the same steps"
        free = SamplingParams(max_new_tokens=25, temperature=1.0)
        first.add_request(Request("free", [5, 6, 7], free))
        drawn = first.run()["free"]
        first.add_request(Request("again", [5, 6, 7], free.model_copy(update={"seed": drawn.seed})))
        assert first.run()["again"].token_ids == drawn.token_ids, "every rank has the seed that the first one drew"
        # Other configurations, with the model that the ranks hold already.
        assert outputs_of(runner()) == gathered(checkpoint, ranks)
        if ranks == 2:
            assert tokens_of(runner(method="mtp", num_speculative_tokens=2)) == naive[0]

        last = runner()
        for request in requests():
            last.add_request(request)
        last.step()
        os.kill(runtime.team.processes[-1].pid, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(EngineDeadError, match="tensor-parallel rank"):
            while True:
                last.step()
        runtime.team.close()
        assert not any(rank.is_alive() for rank in runtime.team.processes)
        assert time.monotonic() - start < 10


def test_a_rank_that_decides_differently_is_named(checkpoint: Path) -> None:
    from specdec_hal.parallel.runner import RankHook
    from specdec_hal.runner import build_runner

    config = parse(settings(checkpoint, 2, method="naive"))

    def work(group: Any) -> Any:
        runtime = Runtime(config)
        model = runtime.load_model(group=group)
        if group.rank == 1:
            right = model.compute_logits
            model.compute_logits = lambda hidden: right(hidden).roll(1, 1) if steps() == 2 else right(hidden)
        runner = build_runner(config, runtime.backend, model, runtime.load_tokenizer(), hook=RankHook(config, group))
        steps = lambda: runner.metrics.steps  # noqa: E731
        runner.add_request(requests()[0])
        return runner.run()

    for error in Threads(2).run(work):
        assert isinstance(error, RankMismatchError)
        assert str(error).startswith(
            "step 2, slot 0: expected the same tokens on every tensor-parallel rank, got rank 0:"
        )


@pytest.mark.parametrize("kind", list(DECODERS))
def test_decoders_of_transformers(kind: str, tmp_path: Path) -> None:
    """Divided by the plans of their classes: the tokens of `generate`, with drafts and without."""
    from specdec_hal.parallel.runner import RankHook
    from specdec_hal.runner import build_runner

    case = Case(write_model(tmp_path, kind, **DECODERS[kind]))
    expected = case.generated

    def work(group: Any) -> Any:
        model = load_model(case.folder, "transformers", group=group)
        assert model.batch_invariant
        found = []
        for method in ("naive", "ngram"):
            config = parse(settings(case.folder, 2, method=method, num_speculative_tokens=3))
            runtime = Runtime(config)
            hook = RankHook(config, group)
            found.append(decoded(case, build_runner(config, runtime.backend, model, LetterTokenizer(), hook=hook)))
        return found

    assert Threads(2).run(work) == [[expected] * 2] * 2


def decoded(case: Case, runner: Any) -> list[list[int]]:
    for i, prompt in enumerate(case.prompts):
        runner.add_request(Request(str(i), prompt, SamplingParams(max_new_tokens=case.new_tokens)))
    outputs = runner.run()
    return [list(outputs[str(i)].token_ids) for i in range(len(case.prompts))]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("GPT2", "it has no plan for tensor parallelism (base_model_tp_plan);"),
        ("GptOss", "its plan is expert parallelism (base_model_ep_plan)"),
        ("Llama", "its plan for ranks has 'sequence_parallel' for model.layers.0.mlp.down_proj"),
        ("Gemma4", "its layers differ in their numbers of heads"),
    ],
)
def test_plans_that_are_refused(kind: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "Gemma4":
        folder = write_model(tmp_path, "Gemma4Text", attention_k_eq_v=True, num_global_key_value_heads=1)
    else:
        folder = write_model(tmp_path, kind)
    if kind == "Llama":
        plan = {"layers.*.mlp.down_proj": "sequence_parallel"}
        monkeypatch.setattr("transformers.LlamaConfig.base_model_tp_plan", plan)
    with pytest.raises(UnsupportedError, match=f"^{kind}.*{re.escape(reason)}"):
        load_model(folder, "transformers", group=Threads(2).rank(0))


class _Loaded(Exception):
    """Ends loading before the trial, which needs all ranks."""


@pytest.mark.parametrize("kind", ["Llama", "Qwen3Moe"])
def test_a_rank_keeps_only_its_part_of_what_it_reads(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the layer that it is compared with whole: a weight that is copied is a part, or experts of one layer."""
    from specdec_hal.models.transformers import load

    def end(path: Path, weights: dict[str, Any]) -> None:
        raise _Loaded(weights)

    folder = write_model(tmp_path, kind, num_hidden_layers=6, tie_word_embeddings=False)
    whole = Case(folder).reference.state_dict()
    monkeypatch.setattr(load, "check_finite", end)
    with Copies() as copies, pytest.raises(_Loaded) as caught:
        load.load_decoder(folder, "cpu", "float32", Threads(2).rank(1))
    weights = caught.value.args[0]
    parts = {name: weight for name, weight in weights.items() if weight.shape != whole[name].shape}
    uncut = {name.split(".")[-2] for name in weights.keys() - parts.keys() if ".layers.0." not in name}
    norms = {name.split(".")[-2] for name in whole if "norm" in name}
    assert uncut - {"gate"} == {"embed_tokens", *norms}
    assert len({name for name in parts if name.endswith("down_proj.weight") or name.endswith(".down_proj")}) == 5
    assert not any(".layers.0." in name for name in parts)
    made = {weight.data_ptr() for weight in parts.values()}
    stacked = max((whole[name].nbytes for name in whole if name.endswith("gate_up_proj")), default=0)
    assert all(weight.untyped_storage().nbytes() == weight.nbytes for weight in parts.values())
    assert made <= copies.made.keys()
    assert max(copies.made.values()) <= max(stacked, max(weight.nbytes for weight in parts.values()))


class Copies(TorchDispatchMode):
    """Sizes in bytes of the memory that operators of this thread make on the CPU, by address."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.device.type == "cpu" and x.untyped_storage().data_ptr() not in given:
                self.made[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return result


def test_ranks_end_with_their_leader_and_refuse_what_the_time_decides(tmp_path: Path) -> None:
    """Processes that serve a decoder of `transformers`."""
    case = Case(write_model(tmp_path, "Qwen3", vocab_size=4096, eos_token_id=0))
    shutil.copy(EMBEDDED / "tokenizer.json", case.folder)
    with on_processes(case.folder, 2, framework="transformers") as runtime:
        runner = runtime.runner()
        with pytest.raises(RequestError, match="no deadline"):
            runner.add_request(Request("late", [1], timeout_s=1.0))
        assert decoded(case, runner) == case.generated
        ranks = runtime.team.processes
    assert [rank.exitcode for rank in ranks] == [0]
    with pytest.raises(ConfigError, match=r"speculative\.adaptive: expected false"):
        parse(settings(case.folder, 2, method="ngram", adaptive=True))


def test_sizes_that_cannot_be_divided(checkpoint: Path) -> None:
    with pytest.raises(Exception, match="a divisor or a multiple of num_key_value_heads = 4, got 3"):
        load_model(checkpoint, "transformers", group=Threads(3).rank(0))
    with pytest.raises(Exception, match="'tensor_parallel': expected 1, got 2"):
        load_model(checkpoint, "paddle", group=Threads(2).rank(0))


def test_store_of_shared_memory_numbers_exchanges_per_group(tmp_path: Path) -> None:
    """A process that has shared memory before, and one that has not: PyTorch counts exchanges per process."""
    distributed = pytest.importorskip("torch.distributed")
    from specdec_hal.tensors.memory_store import MemoryStore

    files = [distributed.FileStore(str(tmp_path / "store"), 2) for _ in range(2)]
    for file in files:
        file.set_timeout(timedelta(seconds=1))
    stores = [MemoryStore(file) for file in files]
    for exchange in range(2):
        # PrefixStore is PyTorch's, and calls from C++ as shared memory does.
        ranks = [
            distributed.PrefixStore(f"CUDASymmetricMemory/{first + exchange}", store)
            for first, store in zip((7, 0), stores, strict=True)
        ]
        for rank, store in enumerate(ranks):
            store.set(str(rank), f"{rank} of {exchange}")
        for store in ranks:
            assert store.multi_get(["0", "1"]) == [f"{rank} of {exchange}".encode() for rank in range(2)]
            assert store.get("0") == f"0 of {exchange}".encode()
        assert [store.add("members", 1) for store in ranks] == [1, 2]
        ranks[0].wait(["members"], timedelta(seconds=1))
