"""Drafters that the classes of `speculators` wrote, beside its own forward pass (pip install speculators)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.models import load_model
from specdec_hal.models.dflash import dflash_shapes, read_dflash
from specdec_hal.models.drafter import (
    Blocks,
    drafter_kind,
    eagle3_shapes,
    read_drafter_weights,
    read_eagle3,
    target_of,
)
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment
from tests.support.hf_models import write_model
from tests.support.llama_oracle import stored
from tests.support.scripts import ROOT, script

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'specdec-hal[torch]')")
pytest.importorskip("speculators", reason="speculators is not installed (pip install speculators)")

VOCABULARY, WIDTH, TOKENS, BLOCK, MASK = 131, 48, 26, 5, 7
TEXT = np.random.default_rng(5).integers(0, VOCABULARY, TOKENS)
WINDOWS: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}


@pytest.fixture
def target(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint(num_hidden_layers=6, num_nextn_predict_layers=0)


def layers(kind: str, **changes: Any) -> Any:
    """The configuration of two layers."""
    from transformers import LlamaConfig, Qwen3Config

    return {"llama": LlamaConfig, "qwen3": Qwen3Config}[kind](
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, rms_norm_eps=1e-5, use_sliding_window=True, attn_implementation="eager",
        **changes,
    )  # fmt: skip


def write(model: Any, target: Path, folder: Path) -> None:
    """Random weights, the target's embedding, and every other token as a smaller draft vocabulary, without its rows."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(1 + 0.1 * torch.randn(weight.shape) if weight.ndim == 1 else torch.randn(weight.shape))
            if weight.ndim > 1 and "embed" not in name:
                weight /= weight.shape[-1] ** 0.5
        model.embed_tokens.weight.copy_(torch.as_tensor(stored(target)["model.embed_tokens.weight"]))
        model.lm_head.weight.copy_(model.embed_tokens.weight[:: 1 if model.d2t is None else 2])  # the target's
        if model.d2t is not None:
            model.d2t.copy_(torch.arange(len(model.d2t)))
            model.t2d[::2] = True
    kept = {name: value for name, value in model.state_dict().items() if model.d2t is None or name != "lm_head.weight"}
    model.eval().save_pretrained(folder, state_dict=kept)


def speculator(kind: str, **changes: Any) -> Any:
    """A model of the library, by default for drafts in half of the vocabulary."""
    about = pytest.importorskip("speculators.config")
    found = pytest.importorskip(f"speculators.models.{kind}")
    proposal = pytest.importorskip("speculators.proposals.greedy").GreedyTokenProposalConfig
    verifier = about.VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    described = about.SpeculatorsConfig(
        algorithm=kind, proposal_methods=[proposal(speculative_tokens=BLOCK - 1)], default_proposal_method="greedy",
        verifier=verifier,
    )  # fmt: skip
    prefixes = {"eagle3": "Eagle3", "peagle": "PEagle", "dflash": "DFlash", "dspark": "DSpark", "dflash2": "DFlash2",
                "xpress": "XPress"}  # fmt: skip
    prefix, vocabulary = prefixes.get(kind, kind.upper()), {} if kind == "mtp" else {"draft_vocab_size": 66}
    made = getattr(found, f"{prefix}SpeculatorConfig")
    return getattr(found, f"{prefix}DraftModel")(made(**{"speculators_config": described, **vocabulary, **changes}))


def random_features(taps: tuple[int, ...]) -> dict[int, Any]:
    generator = np.random.default_rng(8)
    return {tap: generator.standard_normal((TOKENS, WIDTH)).astype(np.float32) for tap in taps}


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        ("qwen3", {}),
        ("llama", {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True}),
        ("qwen3", {"fc_norm": True, "norm_output": True}),
    ],
)
def test_eagle3(target: Path, tmp_path: Path, kind: str, options: dict[str, Any], window: bool) -> None:
    """All rows, and two further drafts of each with the text's tokens. In further drafts the library's window does not
    move, so these are compared where it does not begin yet.
    """
    from specdec_hal.models.draft_pass import HeadPass

    changes = WINDOWS if window else {}
    taps = (1, 3, 6)
    tapped = {"eagle_aux_hidden_state_layer_ids": list(taps), **options}
    theirs = speculator("eagle3", transformer_layer_config=layers(kind, **changes), **tapped)
    write(theirs, target, tmp_path)
    given = random_features(taps)
    rows = torch.as_tensor(np.concatenate([given[tap] for tap in taps], -1))[None, :-1]
    following = torch.as_tensor(TEXT)[None, 1:]
    with torch.no_grad():
        wanted = theirs(rows, following, torch.zeros_like(following), ttt_steps=3)

    model = load_model(target, "transformers")
    model.allocate(1, 64)
    config = read_eagle3(tmp_path, target_of(model, "eagle3"))
    assert {mask.window for mask in config.masks} == ({0, 4} if window else {0})
    head = HeadPass(model, config, read_drafter_weights(tmp_path, eagle3_shapes(config), config), Blocks(1, 64), 1)
    states = head.fuse(given)[:-1]
    after = head.forward(ForwardBatch(TEXT[1:], [Segment(0, 0, TOKENS - 1, 0)]), states)
    np.testing.assert_array_equal(head.compute_logits(after).numpy().argmax(-1), wanted[0][0].numpy())
    for at in reversed(range(4 if window else TOKENS - 3)):
        state = after[at : at + 1]
        for draft in (1, 2):
            if window and at + draft >= 4:
                break
            batch = ForwardBatch(TEXT[at + 1 + draft : at + 2 + draft], [Segment(0, 0, 1, at + draft)])
            state = head.forward(batch, state)
            assert head.compute_logits(state).numpy().argmax() == wanted[draft][0, at]


@pytest.mark.parametrize("from_anchor", [False, True])
@pytest.mark.parametrize("window", [None, False, True])
@pytest.mark.parametrize("kind", ["dflash", "dflash2", "vanilla", "gated", "rnn", "xpress"])
def test_blocks(target: Path, tmp_path: Path, kind: str, window: bool | None, from_anchor: bool) -> None:
    """All drafts of a block after each token of a text. `window`: None, or whether rows see both sides in it."""
    from specdec_hal.models.draft_pass import BlockPass

    second = {"conv_kernel_size": 3, "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 7}
    own: dict[str, Any] = {
        "dflash": {}, "dflash2": {**second, "draft_vocab_size": VOCABULARY},
        "xpress": {"xpress_rank": 6, "xpress_mlp_ratio": 3},
    }.get(kind, {"markov_rank": 6, "markov_head_type": kind})  # fmt: skip
    markov = "markov_rank" in own
    theirs = speculator(
        "dspark" if markov else kind,
        transformer_layer_config=layers("qwen3", **({} if window is None else WINDOWS)),
        aux_hidden_state_layer_ids=[1, 3, 5], mask_token_id=MASK, block_size=BLOCK, sample_from_anchor=from_anchor,
        sliding_window_non_causal=bool(window), **own,
    )  # fmt: skip
    write(theirs, target, tmp_path)
    given = random_features((1, 3, 5))
    rows = torch.as_tensor(np.concatenate([given[tap] for tap in (1, 3, 5)], -1))[None]
    ids = torch.as_tensor(TEXT)[None]
    blocks = TOKENS - BLOCK
    with torch.no_grad():
        states, logits, _, _, at = theirs._backbone_forward(
            rows, ids, torch.ones_like(ids), torch.zeros(1, TOKENS, WIDTH), torch.zeros_like(ids), max_anchors=blocks
        )
    states, logits, at = states.view(blocks, BLOCK, -1), logits.view(blocks, BLOCK, -1), at.view(blocks, BLOCK)[:, 0]
    ids_of = np.arange(VOCABULARY) if theirs.d2t is None else np.arange(66) + theirs.d2t.numpy()

    model = load_model(target, "transformers")
    model.allocate(1, 64)
    config = read_dflash(tmp_path, target_of(model, "dflash"))
    drafts = BLOCK - (not from_anchor)
    assert config.drafts == drafts and drafter_kind(tmp_path) == ("dspark" if markov else "dflash")
    weights = read_drafter_weights(tmp_path, dflash_shapes(config), config)
    block = BlockPass(model, config, weights, Blocks(1, 64), drafts)
    context, number = block.fuse(given), {int(position): i for i, position in enumerate(at)}
    for position in range(1, blocks):  # the block's first token; the text before it is the context
        i = number[position]
        before = TEXT[position - (position > 1)]  # the first token of a text is not fed
        tokens = np.array([TEXT[position], *[MASK] * (BLOCK - 1)])
        fed = ForwardBatch(TEXT[position : position + 1], [Segment(0, 0, 1, position - 1)])
        batch = ForwardBatch(tokens, [Segment(0, 0, BLOCK, position)])
        source = np.array([0, *[-1] * (BLOCK - 1)], np.int32)
        given_rows = block.forward_block(fed, context[position - 1 : position], batch, source)
        first = [] if from_anchor else [int(before if kind == "xpress" else TEXT[position])]
        previous = [*first, int(TEXT[position])]
        for draft in range(drafts):
            slot = draft + (not from_anchor)
            expected = logits[i, slot]
            if markov or kind == "xpress":
                filled = torch.tensor([[*previous, *[0] * (BLOCK - len(previous))]])
                head = theirs.markov_head if markov else theirs.refiner_head
                with torch.no_grad():
                    bias = head.block_bias(prev_token_ids=filled, hidden_states=states[i : i + 1])
                expected = expected + bias[0, slot]
            if kind == "dflash2":
                with torch.no_grad():
                    best, scores = theirs.candidate_selector.select(
                        expected[None], states[i, slot][None], torch.tensor(previous[-1:])
                    )
                expected = torch.full_like(expected, -torch.inf).scatter(0, best[0], scores[0])
            if draft:
                given_rows = block.forward_further(
                    draft, ForwardBatch(np.array(previous[-1:]), [Segment(0, 0, 1, position + draft)])
                )
            ours = block.host_draft_logits(draft, [0], given_rows[-1:]).numpy()[0]
            np.testing.assert_allclose(ours, expected.numpy(), atol=2e-3)
            token = int(ours.argmax())
            assert token == int(expected.argmax())
            previous.append(int(ids_of[token]))


def test_peagle(target: Path, tmp_path: Path) -> None:
    """A parallel head of theirs is read with all of its weights; its pass is compared in test_eagle3.py."""
    tapped = {"eagle_aux_hidden_state_layer_ids": [1, 3, 6], "mask_token_id": MASK}
    write(speculator("peagle", transformer_layer_config=layers("llama"), **tapped), target, tmp_path)
    config = read_eagle3(tmp_path, target_of(load_model(target, "transformers"), "eagle3"))
    weights = read_drafter_weights(tmp_path, eagle3_shapes(config), config)
    assert config.parallel and config.mask_token_id == MASK and weights.draft_ids is not None
    assert weights.draft_ids.tolist() == list(range(0, VOCABULARY, 2))


@pytest.mark.parametrize("kind", ["Qwen3", "Qwen3_5Text", "Qwen3Next"])
def test_mtp(tmp_path: Path, kind: str) -> None:
    """First drafts after each prefix of a text are those of their forward pass. Two further drafts are those of their
    layer over the rows of the text and the drafts' own, as a chain computes them.
    """
    from transformers import AutoModelForCausalLM

    hybrid = {} if kind == "Qwen3" else {"layer_types": ["linear_attention", "full_attention"]}
    target = write_model(tmp_path / "target", kind, num_hidden_layers=2, **hybrid)
    model = load_model(target, "transformers")
    verifier = AutoModelForCausalLM.from_pretrained(target, attn_implementation="eager")
    config = verifier.config
    theirs = speculator("mtp", transformer_layer_config=config)
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in theirs.parameters():
            norm = 0.1 * torch.randn(weight.shape) + (kind == "Qwen3")
            weight.copy_(norm if weight.ndim == 1 else torch.randn(weight.shape) / weight.shape[-1] ** 0.5)
        theirs.embed_tokens.weight.copy_(verifier.get_input_embeddings().weight)
        theirs.lm_head.weight.copy_(verifier.get_output_embeddings().weight)
    theirs.eval().save_pretrained(tmp_path / "module")
    assert drafter_kind(tmp_path / "module") == "mtp"

    text = TEXT % config.vocab_size
    model.allocate(1, 64)
    hidden = model.forward(ForwardBatch(text, [Segment(0, 0, TOKENS, 0)]))[FINAL_NORM]
    module = model.trained_module(str(tmp_path / "module"), 1)
    rows = module.forward(ForwardBatch(text[1:], [Segment(0, 0, TOKENS - 1, 0)]), hidden[:-1])
    ours = module.compute_logits(rows).argmax(-1).tolist()
    with torch.no_grad():
        (first, *_), _, _ = theirs(torch.as_tensor(text)[None], hidden[None].clone())
    wanted = first[0].argmax(-1).tolist()
    assert len(wanted) >= 20 and ours[: len(wanted)] == wanted and len(set(wanted)) > 8
    for at in reversed(range(5, 15)):
        state, tokens, states = rows[at : at + 1], text[1 : at + 2], hidden[: at + 1].clone()
        for draft in (1, 2):
            token = module.compute_logits(state).argmax(-1).numpy()
            tokens, states = np.concatenate([tokens, token]), torch.cat([states, state])
            state = module.forward(ForwardBatch(token, [Segment(0, 0, 1, at + draft)]), state)
            positions = torch.arange(len(tokens))[None]
            turned = positions.expand(3, 1, -1) if kind.startswith("Qwen3_5") else positions
            with torch.no_grad():
                given = theirs.mtp_layers[0](
                    hidden_states=states[None], token_embeddings=theirs.embed_tokens(torch.as_tensor(tokens)[None]),
                    attention_mask=torch.full((len(tokens),) * 2, -torch.inf).triu(1)[None, None],
                    position_ids=positions, position_embeddings=theirs.rotary_emb(states[None], turned),
                )  # fmt: skip
            np.testing.assert_allclose(state[0], given[0, -1], atol=2e-3)


def test_a_module_of_another_target_is_refused(tmp_path: Path) -> None:
    from specdec_hal.errors import CheckpointError

    model = load_model(write_model(tmp_path / "target", "Qwen3"), "transformers")
    speculator("mtp", transformer_layer_config=layers("qwen3")).save_pretrained(tmp_path / "module")
    model.allocate(1, 64)
    with pytest.raises(CheckpointError, match=r"transformer_layer_config\.vocab_size: the target's 96"):
        model.trained_module(str(tmp_path / "module"), 1)


def test_what_the_trainer_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its DFlash 2 drafter is one of the library, with each weight; its drafts are ours, which are the library's."""
    tool = script("examples/train_drafter.py")
    monkeypatch.setattr(tool, "HELD", 2)
    monkeypatch.setattr(tool.signal, "signal", lambda *_: None)
    given = {"target": ROOT / "models/tiny-py-lm", "text": ROOT / "docs/learn", "out": tmp_path, "kind": "dflash2",
             "window": 16, "batch": 2, "depth": 1, "block": BLOCK, "anchors": 4, "max-steps": 1,
             "generated": 0}  # fmt: skip
    options = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    monkeypatch.setattr("sys.argv", ["train_drafter.py", *options])
    made = tool.Trainer(tool.arguments())
    made.run()
    monkeypatch.chdir(ROOT / "models")  # where the folder's verifier is
    found = pytest.importorskip("speculators.models.dflash2").DFlash2DraftModel.from_pretrained(tmp_path)
    theirs, ours = found.state_dict(), made.head.state_dict()
    assert {name for name in theirs if not name.startswith(("verifier", "embed", "lm_head"))} == set(ours)
    for name, value in ours.items():
        np.testing.assert_array_equal(theirs[name].float().numpy(), value.half().float().numpy())
    assert found.config.selector_rank == 64 and found.config.block_size == BLOCK
