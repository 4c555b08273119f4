"""Drafters that SpecForge's classes wrote, beside their own forward pass (pip install --no-deps specforge)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specdec_hal.models import load_model
from specdec_hal.models.dflash import dflash_shapes, read_dflash
from specdec_hal.models.drafter import Blocks, eagle3_shapes, read_drafter_weights, read_eagle3, target_of
from specdec_hal.plugin.model import ForwardBatch, Segment
from tests.support.llama_oracle import stored

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'specdec-hal[torch]')")
pytest.importorskip("specforge", reason="SpecForge is not installed (pip install --no-deps specforge)")

VOCABULARY, WIDTH, TOKENS, BLOCK, MASK = 131, 48, 18, 5, 7
TEXT = np.random.default_rng(5).integers(0, VOCABULARY, TOKENS)
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 40, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "rms_norm_eps": 1e-5,
}  # fmt: skip


@pytest.fixture
def target(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint(num_hidden_layers=8, num_nextn_predict_layers=0)


def write(model: Any, folder: Path) -> None:
    """Random weights that keep activations near 1."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(1 + 0.1 * torch.randn(weight.shape) if weight.ndim == 1 else torch.randn(weight.shape))
            if weight.ndim > 1 and "embed_tokens" not in name:
                weight /= weight.shape[-1] ** 0.5
    model.eval().save_pretrained(folder)


def random_features(taps: tuple[int, ...]) -> dict[int, Any]:
    generator = np.random.default_rng(8)
    return {tap: generator.standard_normal((TOKENS, WIDTH)).astype(np.float32) for tap in taps}


def test_eagle3(target: Path, tmp_path: Path) -> None:
    """The first draft after every token."""
    from transformers import LlamaConfig

    from specdec_hal.models.draft_pass import HeadPass

    found = pytest.importorskip("specforge.modeling.draft.llama3_eagle")
    config = LlamaConfig(**SIZES, num_hidden_layers=1, draft_vocab_size=66, pad_token_id=0, max_position_embeddings=64)
    theirs = found.LlamaForCausalLMEagle3(config)
    theirs.d2t.copy_(torch.arange(66))
    theirs.t2d.copy_(torch.arange(VOCABULARY) % 2 == 0)
    write(theirs, tmp_path)
    given = random_features((2, 4, 5))
    rows = torch.as_tensor(np.concatenate(list(given.values()), -1))[None, :-1]
    with torch.no_grad():
        wanted = theirs.lm_head(theirs(rows, theirs.embed_input_ids(torch.as_tensor(TEXT)[None, 1:])))[0]
    model = load_model(target, "transformers")
    model.allocate(1, 64)
    ours = read_eagle3(tmp_path, target_of(model, "eagle3"))
    head = HeadPass(model, ours, read_drafter_weights(tmp_path, eagle3_shapes(ours), ours), Blocks(1, 64), 1)
    after = head.forward(ForwardBatch(TEXT[1:], [Segment(0, 0, TOKENS - 1, 0)]), head.fuse(given)[:-1])
    np.testing.assert_allclose(head.compute_logits(after).numpy(), wanted.numpy(), atol=2e-3)


DSPARK = {"projector_type": "dspark", "markov_rank": 6, "confidence_head_alpha": 1.0}
DOMINO = {"projector_type": "domino", "emb_dim": 9, "gru_hidden_dim": 7}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "dflash": ("DFlash", {}),
    **{kind: ("DSpark", {**DSPARK, "markov_head_type": kind}) for kind in ("vanilla", "gated", "rnn")},
    "domino": ("Domino", {**DOMINO, "pure_draft_prefix_len": 1}),
    "domino, shifted": ("Domino", {**DOMINO, "shift_label": True}),
}


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks(target: Path, tmp_path: Path, kind: str, window: int | None) -> None:
    """Greedy drafts of a block after each token of a text. `window`: of the first layer."""
    from transformers import Qwen3Config

    from specdec_hal.models.draft_pass import BlockPass

    name, nested = KINDS[kind]
    found = pytest.importorskip(f"specforge.modeling.draft.{name.lower()}")
    masks = pytest.importorskip("specforge.algorithms.common.dflash_family_model").create_dflash_sdpa_mask
    slides = {} if window is None else {
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": window, "use_sliding_window": True
    }  # fmt: skip
    config = Qwen3Config(
        **SIZES, num_hidden_layers=2, block_size=BLOCK, num_target_layers=8, max_position_embeddings=64, **slides,
        draft_vocab_size=VOCABULARY,  # which its trainer adds to every configuration
        dflash_config={"mask_token_id": MASK, "target_layer_ids": [1, 3, 6], **nested}, attn_implementation="eager",
    )  # fmt: skip
    theirs = getattr(found, f"{name}DraftModel")(config)
    write(theirs, tmp_path)
    embedding = torch.as_tensor(stored(target)["model.embed_tokens.weight"]).float()
    given = random_features((2, 4, 7))
    rows = torch.as_tensor(np.concatenate(list(given.values()), -1))[None]
    lends = SimpleNamespace(
        lm_head=lambda x: x @ embedding.T, model=SimpleNamespace(embed_tokens=lambda ids: embedding[ids])
    )

    def drafts_of(position: int, count: int) -> list[int]:
        ids = torch.tensor([[int(TEXT[position]), *[MASK] * (BLOCK - 1)]])
        seen = {
            kind: masks(torch.tensor([[position]]), torch.tensor([[True]]), position, BLOCK, "cpu", size)
            for kind, size in (("full_attention", None), ("sliding_attention", window or None))
        }
        with torch.no_grad():
            hidden = theirs(
                torch.arange(position + BLOCK)[None], attention_mask=seen, noise_embedding=embedding[ids],
                target_hidden=rows[:, :position],
            )  # fmt: skip
            if name == "DSpark":  # as it is trained: from the first row on
                first, logits = ids[:, 0], hidden @ embedding.T
                drafts, _ = theirs.markov_head.sample_block_tokens(
                    logits, first_prev_token_ids=first, hidden_states=hidden
                )
            else:
                drafts = theirs._sample_draft_tokens(lends, hidden, ids)
        return drafts[0, :count].tolist()  # type: ignore[no-any-return]

    model = load_model(target, "transformers")
    model.allocate(1, 64)
    ours = read_dflash(tmp_path, target_of(model, "dflash"))
    weights = read_drafter_weights(tmp_path, dflash_shapes(ours), ours)
    assert ours.taps == (2, 4, 7) and (name == "DSpark") == ours.confidence
    block = BlockPass(model, ours, weights, Blocks(1, 64), ours.drafts)
    context, rows_of_block = block.fuse(given), BLOCK
    for position in range(1, TOKENS - BLOCK):
        tokens = np.array([TEXT[position], *[MASK] * (rows_of_block - 1)])
        fed = ForwardBatch(TEXT[position : position + 1], [Segment(0, 0, 1, position - 1)])
        source = np.array([0, *[-1] * (rows_of_block - 1)], np.int32)
        batch = ForwardBatch(tokens, [Segment(0, 0, rows_of_block, position)])
        after, found_ids = block.forward_block(fed, context[position - 1 : position], batch, source), list[int]()
        for draft in range(ours.drafts):
            if draft:
                before = ForwardBatch(np.array(found_ids[-1:]), [Segment(0, 0, 1, position + draft)])
                after = block.forward_further(draft, before)
            found_ids.append(int(block.host_draft_logits(draft, [0], after[-1:]).numpy()[0].argmax()))
        theirs_ids = drafts_of(position, ours.drafts)
        assert found_ids[: len(theirs_ids)] == theirs_ids and len(theirs_ids) >= BLOCK - 1
