"""Gemma 4's assistants: drafts are those of the library's own generator, tokens those of plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.config import parse
from specdec_hal.errors import CheckpointError, UnsupportedError
from specdec_hal.models import load_model
from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch, ForwardBatch, Segment
from specdec_hal.runner import Request, SamplingParams
from specdec_hal.runner.footprint import footprint
from tests.runner.conftest import make_runner
from tests.support.assistants import DRAFTS, SIZES, VOCABULARY, Generator, write, write_target
from tests.support.device_models import device_model

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'specdec-hal[torch]')")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")

PROMPTS = [np.random.default_rng(i).integers(3, VOCABULARY, length).tolist() for i, length in enumerate((3, 11, 18))]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"))


def load(target: Path, place: str) -> Any:
    if place == "host":
        return load_model(target, "transformers")
    from specdec_hal.models.transformers.device import DeviceTransformers
    from specdec_hal.models.transformers.load import load_decoder

    return DeviceTransformers(load_decoder(target, "cpu", "float32"))


def decode(target: Path, place: str, temperature: float = 0.0, **speculative: Any) -> list[Any]:
    runner = make_runner(
        model=load(target, place),
        speculative={"method": "auto", "num_speculative_tokens": DRAFTS, "adaptive": False, **speculative},
        runner={"max_num_seqs": 2, "prefill_chunk": 5, "max_model_len": 64},
    )
    for number, prompt in enumerate(PROMPTS):
        params = SamplingParams(
            max_new_tokens=20, ignore_eos=True, temperature=temperature, seed=number, return_drafts=True
        )
        runner.add_request(Request(str(number), prompt, params))
    outputs = runner.run()
    assert runner.summary()["failed_proposals"] == 0
    return [outputs[str(number)] for number in range(len(PROMPTS))]


@pytest.mark.parametrize(
    ("place", "ordered", "family", "shared"),
    [("host", False, "Gemma4Unified", 0), ("host", True, "Gemma4", 3), ("device", False, "Gemma4", 3)],
)
def test_drafts_are_those_of_the_library(tmp_path: Path, place: str, ordered: bool, family: str, shared: int) -> None:
    """In every round, after chunks of prompts and after rejections, in and beyond the window."""
    target, folder = (
        write_target(tmp_path / "target", family, shared),
        write(tmp_path / "assistant", ordered, family=family),
    )
    library = Generator(target, folder, family)
    plain = decode(target, place, method="naive")
    outputs = decode(target, place, path=str(folder))
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    library.check(PROMPTS, outputs)
    accepted = sum(output.accepted for output in outputs)
    assert accepted < sum(output.drafted for output in outputs) and (accepted > 0 or place == "device")


def test_drafts_over_the_blocks_of_kernels(target: Path, tmp_path: Path, triton_device: str) -> None:
    """After prefixes of a text in the second slot, while the first is idle, through the interface for a GPU."""
    model = device_model(target, triton_device)
    model.allocate(2, 64)
    folder = write(tmp_path)
    library, made = Generator(target, folder), model.trained_module(str(folder), 2)
    text = np.random.default_rng(4).integers(3, VOCABULARY, 20)

    def ints(values: Any) -> Any:
        return torch.tensor(values, dtype=torch.int32, device=model.device)

    def batch(tokens: list[int], at: int, rows: int) -> DeviceBatch:
        """These tokens in rows of the second slot, then rows of no slot."""
        idle = rows - len(tokens)
        return DeviceBatch(
            token_ids=torch.tensor([*tokens, *[0] * idle], device=model.device)[:, None],
            batch_id_per_token=ints([1] * len(tokens) + [-1] * idle), cu_seqlens_q=ints([0, 0, len(tokens)]),
            seq_lens_decoder=ints([0, at]), block_tables=ints(model.slots.block_tables), max_seq_len=64,
            max_query_len=len(tokens),
        )  # fmt: skip

    for end in (2, 18):
        hidden = model.forward(ForwardBatch(text[:end], [Segment(1, 0, end, 0)]))[FINAL_NORM]
        rows = torch.zeros((end + 1, made.width), device=model.device)
        fed, block = batch(text[1 : end + 1].tolist(), 0, end + 1), batch([int(text[end])], end, 2)
        made.forward_block_device(fed, hidden, rows, block, ints([end - 1, -1]))
        drafts, last = list[int](), rows[end - 1 : end]
        for number in range(DRAFTS):
            if number:
                rows = torch.zeros((2, made.width), device=model.device)
                made.further(number, batch(drafts[-1:], end + number - 1, 2), rows)
                last = rows[:1]
            logits = torch.zeros((1, VOCABULARY), device=model.device)
            made.draft_logits(number, None, last, logits)
            drafts.append(int(logits.argmax()))
        assert drafts == library.drafts(text[: end + 1].tolist())


def test_an_assistant_needs_no_cache(target: Path, tmp_path: Path) -> None:
    given = {"method": "mtp", "path": str(write(tmp_path)), "num_speculative_tokens": DRAFTS}
    parts = footprint(parse({"speculative": given}), load(target, "device"), 64, 64)
    assert parts["MTP module"] == (tmp_path / "model.safetensors").stat().st_size
    assert "KV cache" in parts and "MTP module's KV cache" not in parts


@pytest.mark.parametrize("strategy", ["target_match", "rejection"])
def test_sampled_tokens_are_those_of_plain_decoding(target: Path, tmp_path: Path, strategy: str) -> None:
    """With `target_match` those with the same seeds; with `rejection` drafts have a distribution of their own."""
    outputs = decode(target, "host", 0.9, verify_strategy=strategy, path=str(write(tmp_path, True)))
    if strategy == "target_match":
        plain = decode(target, "host", 0.9, method="naive")
        assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    assert sum(output.accepted for output in outputs) > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": 48}, "backbone_hidden_size: the target's 32, got 48"),
        ({"vocab_size": 24}, r"text_config\.vocab_size: the target's 16, got 24"),
        ({"head_dim": 8}, "head_dim of sliding_attention: the target's 16, got 8"),
        ({"num_key_value_heads": 4}, "num_key_value_heads of sliding_attention: the target's 2, got 4"),
    ],
)
def test_an_assistant_of_another_target_is_refused(
    target: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = write(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=message):
        load(target, "host").trained_module(str(folder), 1)


def test_a_target_without_its_layers_is_refused(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**{key: SIZES[key] for key in SIZES if "per_layer" not in key}, hidden_size=32,
                                      num_hidden_layers=2)  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    folder = write(tmp_path / "assistant")
    with pytest.raises(
        UnsupportedError, match="expected a target of Gemma 4 with layers of the type sliding_attention"
    ):
        load(tmp_path / "llama", "host").trained_module(str(folder), 1)


def test_a_checkpoint_that_is_not_whole(target: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    file = write(tmp_path) / "model.safetensors"
    tensors = load_file(file)
    del tensors["post_projection.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"none of post_projection\.weight"):
        load(target, "host").trained_module(str(tmp_path), 1)
