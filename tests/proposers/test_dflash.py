"""Decodes with DFlash drafters: drafts are those of a slow pass without a cache, tokens those of plain decoding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import CheckpointError, UnsupportedError
from specdec_hal.models import load_model
from specdec_hal.models.checkpoint import read_config
from specdec_hal.models.dflash import dflash_shapes, read_dflash
from specdec_hal.models.drafter import Blocks, read_drafter_weights, target_of
from specdec_hal.plugin.model import ForwardBatch, Segment, TargetModel
from tests.models.conftest import Shape, write_checkpoint
from tests.support.committed_drafters import acceptance_of
from tests.support.dflash import Drafter
from tests.support.eagle3 import PROMPTS, decode, make_runner
from tests.support.history_model import HistoryModel
from tests.support.llama_oracle import oracle, stored

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch computes these drafters (pip install 'specdec-hal[torch]')")

TARGET = Shape(vocab_size=24, hidden_size=24, intermediate_size=20, num_hidden_layers=5, head_dim=6, eos_token_id=23,
               num_nextn_predict_layers=0)  # fmt: skip


def make_drafter(**changes: Any) -> Drafter:
    return Drafter(**{"vocab_size": 24, "hidden_size": 24, "taps": (1, 3, 5), **changes}).randomize(4)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target"), TARGET, seed=2)


@pytest.mark.parametrize("framework", ["paddle", "transformers", "device"])
@pytest.mark.parametrize("draft_vocab_size", [None, 15])
def test_drafts_are_those_without_a_cache(
    target: Path, tmp_path: Path, framework: str, draft_vocab_size: int | None
) -> None:
    """In every round, after rejections and chunks; both formats; at most one fewer than the block has rows."""
    drafter = make_drafter(draft_vocab_size=draft_vocab_size, block_size=4)
    folder = tmp_path / "drafter"
    folder = drafter.write_zlab(folder, 5) if draft_vocab_size is None else drafter.write_speculators(folder)
    speculative = {"method": "auto", "path": str(folder), "verify_strategy": "greedy", "adaptive": False}
    runner = make_runner(target, speculative, framework)
    assert runner.config.speculative.method == "dflash"
    outputs = decode(runner, tokens=12)
    embedding = stored(target)["model.embed_tokens.weight"]
    rounds = 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        for round_ in output.drafts:
            text = [*prompt, *output.token_ids[: round_.start]]
            given = np.concatenate([oracle(target, np.array(text[:-1]), tap=tap - 1) for tap in drafter.taps], -1)
            count = len(round_.token_ids)
            assert 1 <= count <= 3
            logits = drafter.logits(given, text[-1], 3, embedding, embedding)
            assert list(round_.token_ids) == logits.argmax(-1)[:count].tolist()
            rounds += count == 3
    assert rounds > 10 and sum(output.accepted for output in outputs) < sum(output.drafted for output in outputs)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", ["z-lab", "speculators"])
@pytest.mark.parametrize("framework", ["transformers", "device"])
def test_drafts_of_a_layer_with_a_window(target: Path, tmp_path: Path, framework: str, form: str, causal: bool) -> None:
    """In every round those of a slow pass, which counts the window from a block or from its rows, as the format does.

    The window is shorter than a block.
    """
    drafter = make_drafter(block_size=5, window=3, causal=causal, anchored=form == "speculators")
    drafter.tensors["layers.0.self_attn.o_proj.weight"] *= 4  # so that what the first layer sees decides
    write = drafter.write_speculators if drafter.anchored else lambda folder: drafter.write_zlab(folder, 5)
    speculative = {"method": "auto", "path": str(write(tmp_path)), "verify_strategy": "greedy", "adaptive": False}
    outputs = decode(make_runner(target, speculative, framework), tokens=12)
    embedding = stored(target)["model.embed_tokens.weight"]
    others, rounds = replace(drafter, anchored=not drafter.anchored), 0
    differ = 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        for round_ in output.drafts:
            text = [*prompt, *output.token_ids[: round_.start]]
            given = np.concatenate([oracle(target, np.array(text[:-1]), tap=tap - 1) for tap in drafter.taps], -1)
            wanted, other = (one.logits(given, text[-1], 4, embedding, embedding) for one in (drafter, others))
            count = len(round_.token_ids)
            assert list(round_.token_ids) == wanted.argmax(-1)[:count].tolist()
            rounds += count == 4
            differ += (wanted.argmax(-1) != other.argmax(-1)).any()
    assert rounds > 10 and differ > 2


@pytest.mark.parametrize("draft_vocab_size", [None, 15])
@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize(
    ("framework", "from_anchor"), [("transformers", True), ("transformers", False), ("device", True)]
)
def test_drafts_of_dspark_depend_on_each_other(
    target: Path, tmp_path: Path, kind: str, framework: str, from_anchor: bool, draft_vocab_size: int | None
) -> None:
    """In every round those of a slow pass without a cache."""
    markov = {"markov_rank": 6, "markov_head_type": kind, "sample_from_anchor": from_anchor, **CONFIDENT}
    drafter = make_drafter(draft_vocab_size=draft_vocab_size, block_size=4, markov=markov)
    if kind == "rnn":  # so that its state decides
        drafter.tensors["markov_head.joint_proj.weight"][:, :6] *= 8
        drafter.tensors["markov_head.markov_w2.weight"] *= 4
    folder = drafter.write_speculators(tmp_path / "drafter")
    speculative = {
        "method": "dflash",
        "dflash": {"path": str(folder), "min_confidence": 0},
        "verify_strategy": "greedy",
        "adaptive": False,
    }
    runner = make_runner(target, speculative, framework)
    outputs = decode(runner, tokens=12)
    embedding = stored(target)["model.embed_tokens.weight"]
    longest = 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        for round_ in output.drafts:
            text = [*prompt, *output.token_ids[: round_.start]]
            given = np.concatenate([oracle(target, np.array(text[:-1]), tap=tap - 1) for tap in drafter.taps], -1)
            wanted, _ = drafter.chain(given, text[-1], 4 if from_anchor else 3, embedding, embedding)
            count = len(round_.token_ids)
            assert list(round_.token_ids) == wanted[:count]
            longest = max(longest, count)
    assert longest == (4 if from_anchor else 3)


@pytest.mark.parametrize("with_markov", [True, False])
@pytest.mark.parametrize("framework", ["transformers", "device"])
def test_confidence_cuts_the_drafts(target: Path, tmp_path: Path, framework: str, with_markov: bool) -> None:
    """Where the product of a slow pass's confidences falls below the least; from no draft to all."""
    markov = {"markov_rank": 6, "enable_confidence_head": True, "confidence_head_with_markov": with_markov}
    drafter = make_drafter(block_size=4, markov=markov)
    drafter.tensors["confidence_head.proj.weight"] *= 0.5
    folder = drafter.write_speculators(tmp_path / "drafter", sample_from_anchor=True)
    settings = {"path": str(folder), "min_confidence": 0.2}
    speculative = {"method": "dflash", "dflash": settings, "verify_strategy": "greedy", "adaptive": False}
    outputs = decode(make_runner(target, speculative, framework), tokens=16)
    embedding = stored(target)["model.embed_tokens.weight"]
    lengths = set()
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        drafted = {round_.start: round_ for round_ in output.drafts}
        starts = [0, *(round_.start + round_.accepted + 1 for round_ in output.drafts)]
        for start in {*drafted, *(at for at in starts if 0 < at < 10)}:
            text = [*prompt, *output.token_ids[:start]]
            given = np.concatenate([oracle(target, np.array(text[:-1]), tap=tap - 1) for tap in drafter.taps], -1)
            ids, confidences = drafter.chain(given, text[-1], 4, embedding, embedding)
            count = int((np.cumprod(confidences) >= 0.2).sum())
            got = list(drafted[start].token_ids) if start in drafted else []
            assert got == ids[: min(count, 16 - start - 1)]
            lengths.add(count)
    assert len(lengths) > 1


SECOND = {"conv_kernel_size": 3, "conv_group_size": 6, "selector_rank": 5, "selector_top_k": 4}
FACTORS = {"output_multiplier": 0.5, "final_logit_softcapping": 3.0, "input_embedding_scale": 2.0}


@pytest.mark.parametrize("framework", ["transformers", "device"])
@pytest.mark.parametrize("second", [SECOND, {**SECOND, **FACTORS, "conv_kernel_size": 2}, {**SECOND, "window": 3}])
def test_drafts_of_dflash_2(target: Path, tmp_path: Path, framework: str, second: dict[str, Any]) -> None:
    """In every round those of a slow pass, which sorts the candidates; they are not the best tokens by logits alone."""
    second = dict(second)
    drafter = make_drafter(block_size=5, window=second.pop("window", 0), causal=False, second=second)
    for name in drafter.tensors:  # so that they decide
        drafter.tensors[name] *= 3 if name.endswith(("codebook", "base_kernel")) else 1
    folder = drafter.write_zlab(tmp_path / "drafter", 5)
    speculative = {"method": "auto", "path": str(folder), "verify_strategy": "greedy", "adaptive": False}
    outputs = decode(make_runner(target, speculative, framework), tokens=12)
    embedding = stored(target)["model.embed_tokens.weight"]
    rounds = selected = 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        for round_ in output.drafts:
            text = [*prompt, *output.token_ids[: round_.start]]
            given = np.concatenate([oracle(target, np.array(text[:-1]), tap=tap - 1) for tap in drafter.taps], -1)
            wanted = drafter.select(given, text[-1], 4, embedding, embedding)
            count = len(round_.token_ids)
            assert list(round_.token_ids) == wanted[:count]
            rounds += count == 4
            selected += wanted != drafter.logits(given, text[-1], 4, embedding, embedding).argmax(-1).tolist()
    assert rounds > 10 and selected > 5


@pytest.mark.parametrize("framework", ["transformers", "device"])
@pytest.mark.parametrize(("shifted", "prefix"), [(False, 0), (True, 0), (False, 2), (True, 1)])
def test_drafts_of_domino(target: Path, tmp_path: Path, framework: str, shifted: bool, prefix: int) -> None:
    """In every round those of a slow pass, with a GRU over the tokens before each."""
    keys = {"emb_dim": 7, "gru_hidden_dim": 5, "shift_label": shifted, "pure_draft_prefix_len": prefix}
    drafter = make_drafter(block_size=4, domino=keys)
    for name in drafter.tensors:  # so that the GRU decides
        drafter.tensors[name] *= 3 if name.startswith(("embed_proj", "prefix_gru")) else 1
    folder = drafter.write_zlab(tmp_path, 5, architectures=["DominoDraftModel"])
    speculative = {"method": "auto", "path": str(folder), "verify_strategy": "greedy", "adaptive": False}
    outputs = decode(make_runner(target, speculative, framework), tokens=12)
    embedding, drafts = stored(target)["model.embed_tokens.weight"], 3 + shifted
    rounds = corrected = 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        for round_ in output.drafts:
            text = [*prompt, *output.token_ids[: round_.start]]
            given = np.concatenate([oracle(target, np.array(text[:-1]), tap=tap - 1) for tap in drafter.taps], -1)
            wanted = drafter.corrected(given, text[-1], drafts, embedding, embedding)
            count = len(round_.token_ids)
            assert list(round_.token_ids) == wanted[:count]
            rounds += count == drafts
            plain = drafter.logits(given, text[-1], drafts, embedding, embedding, shifted).argmax(-1).tolist()
            corrected += wanted != plain
            assert wanted[:prefix] == plain[:prefix]
    assert rounds > 10 and corrected > 5


@pytest.mark.parametrize(
    ("framework", "from_anchor", "draft_vocab_size"),
    [("transformers", False, None), ("transformers", True, 15), ("device", False, 15)],
)
def test_drafts_of_xpress(
    target: Path, tmp_path: Path, framework: str, from_anchor: bool, draft_vocab_size: int | None
) -> None:
    """In every round those of a slow pass, which reads all earlier rows and tokens of the block; tokens stay."""
    keys = {"xpress_rank": 6, "xpress_mlp_ratio": 2, "num_jacobi_passes": 6, "sample_from_anchor": from_anchor}
    drafter = make_drafter(block_size=4, xpress=keys, draft_vocab_size=draft_vocab_size)
    for name in drafter.tensors:  # so that the refiner decides
        drafter.tensors[name] *= 3 if name.startswith("refiner_head") else 1
    folder = drafter.write_speculators(tmp_path)
    speculative = {"method": "auto", "path": str(folder), "verify_strategy": "greedy", "adaptive": False}
    outputs = decode(make_runner(target, speculative, framework), tokens=12)
    plain = decode(make_runner(target, {"method": "naive"}, framework), tokens=12)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    embedding, drafts = stored(target)["model.embed_tokens.weight"], 3 + from_anchor
    rounds = refined = 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        for round_ in output.drafts:
            text = [*prompt, *output.token_ids[: round_.start]]
            given = np.concatenate([oracle(target, np.array(text[:-1]), tap=tap - 1) for tap in drafter.taps], -1)
            wanted = drafter.refined(given, text, drafts, embedding, embedding)
            count = len(round_.token_ids)
            assert list(round_.token_ids) == wanted[:count]
            rounds += count == drafts
            first = drafter.logits(given, text[-1], drafts, embedding, embedding, from_anchor).argmax(-1).tolist()
            refined += wanted != first
    assert rounds > 10 and refined > 10


@pytest.mark.parametrize("rows", [1, 2])
def test_xpress_reads_the_token_before_a_block(target: Path, tmp_path: Path, rows: int) -> None:
    """Of the same step, or of the previous one."""
    from specdec_hal.models.draft_pass import BlockPass

    keys = {"xpress_rank": 6, "xpress_mlp_ratio": 2, "sample_from_anchor": False}
    drafter = make_drafter(block_size=4, xpress=keys)
    drafter.tensors["refiner_head.readout.weight"] *= 9
    model = load_model(target, "transformers")
    model.allocate(1, 64)
    config = read_dflash(drafter.write_speculators(tmp_path), target_of(model, "dflash"))
    weights = read_drafter_weights(tmp_path, dflash_shapes(config), config)
    block = BlockPass(model, config, weights, Blocks(1, 64), 3)
    generator, embedding = np.random.default_rng(6), stored(target)["model.embed_tokens.weight"]
    text, given = generator.integers(2, 24, 24).tolist(), generator.standard_normal((24, 72))
    context = block.fuse({tap: given[:, 24 * i : 24 * i + 24].astype(np.float32) for i, tap in enumerate((1, 3, 5))})
    others = 0
    for end in range(rows, 23, rows):
        tokens, source = np.array(text[end + 1 - rows : end + 1]), np.array([rows - 1, -1, -1, -1], np.int32)
        fed = ForwardBatch(tokens, [Segment(0, 0, rows, end - rows)])
        ids = ForwardBatch(np.array([text[end], 1, 1, 1]), [Segment(0, 0, 4, end)])
        row = block.forward_block(fed, context[end - rows : end], ids, source)[-1:]
        drafts = [int(block.host_draft_logits(0, [0], row).argmax())]
        for number in (1, 2):
            row = block.forward_further(number, ForwardBatch(np.array(drafts[-1:]), [Segment(0, 0, 1, end + number)]))
            drafts.append(int(block.host_draft_logits(number, [0], row).argmax()))
        assert drafts == drafter.refined(given[:end], text[: end + 1], 3, embedding, embedding)
        others += drafts != drafter.refined(given[:end], [*text[: end - 1], 0, text[end]], 3, embedding, embedding)
    assert others > 2


@pytest.mark.parametrize("framework", ["paddle", "transformers", "device"])
@pytest.mark.parametrize("most", [4, 6])
def test_rejection_of_dflash_2_keeps_the_tokens(target: Path, tmp_path: Path, framework: str, most: int) -> None:
    """Drafts are drawn from the candidates alone; greedy tokens and drafts within the candidates.

    `most`: drafts a step; a block has 4.
    """
    drafter = make_drafter(second=SECOND)
    settings = {
        "method": "dflash", "dflash": {"path": str(drafter.write_speculators(tmp_path))}, "adaptive": False,
        "num_speculative_tokens": most,
    }  # fmt: skip
    outputs = decode(make_runner(target, {**settings, "verify_strategy": "rejection"}, framework))
    plain = decode(make_runner(target, {"method": "naive"}, framework))
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    embedding = stored(target)["model.embed_tokens.weight"]
    drawn = decode(make_runner(target, {**settings, "verify_strategy": "rejection"}, framework), 1.0)
    assert max(len(round_.token_ids) for output in drawn for round_ in output.drafts) == 4
    for prompt, output in zip(PROMPTS, drawn, strict=True):
        for round_ in output.drafts:
            text = [*prompt, *output.token_ids[: round_.start]]
            given = np.concatenate([oracle(target, np.array(text[:-1]), tap=tap - 1) for tap in drafter.taps], -1)
            best = np.argsort(-drafter.logits(given, text[-1], 4, embedding, embedding), -1)[:, :4]
            assert all(token in row for token, row in zip(round_.token_ids, best, strict=False))


CONFIDENT = {"enable_confidence_head": True, "confidence_head_with_markov": True}


@pytest.mark.parametrize(("strategy", "temperature"), [("target_match", 0.9), ("rejection", 0.0)])
def test_tokens_are_those_of_plain_decoding(target: Path, tmp_path: Path, strategy: str, temperature: float) -> None:
    folder = make_drafter().write_zlab(tmp_path / "drafter", 5)
    settings = {"method": "dflash", "dflash": {"path": str(folder)}, "verify_strategy": strategy, "adaptive": False}
    outputs = decode(make_runner(target, settings), temperature)
    plain = decode(make_runner(target, {"method": "naive"}), temperature)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    assert sum(output.drafted for output in outputs) > 100


def test_numbering(target: Path, tmp_path: Path) -> None:
    llama, drafter = read_config(target), make_drafter()
    assert read_dflash(drafter.write_zlab(tmp_path / "a", 5), llama).taps == (1, 3, 5)
    assert read_dflash(drafter.write_speculators(tmp_path / "b"), llama).taps == (1, 3, 5)
    # Of 5 layers, drafters of 2 layers and of one read the outputs of 1 and 2, and of 2.
    none = {"target_layer_ids": None}
    assert read_dflash(drafter.write_zlab(tmp_path / "c", 5, none), llama).taps == (2, 3)
    assert read_dflash(make_drafter(layers=1).write_zlab(tmp_path / "d", 5, none), llama).taps == (3,)


@pytest.mark.parametrize(
    ("nested", "changes", "message"),
    [
        ({"conv_kernel_size": 3, "conv_group_size": 5}, {}, r"conv_group_size: a divisor of hidden_size \(24\)"),
        ({"selector_rank": 3, "selector_top_k": 25}, {}, "selector_top_k: at most 24, of the target's vocabulary"),
        ({"conv_width": 3}, {}, r"dflash_config\.conv_width: no such key"),
        ({"target_layer_ids": [2, 5]}, {}, "residuals after 1 to 5 layers"),
        ({"target_layer_ids": [3, 2]}, {}, "ascending residuals"),
        ({"mask_token_id": None}, {}, "mask_token_id: an integer"),
        ({"mask_token_id": 24}, {}, "mask_token_id: within the target's vocabulary of 24"),
        ({}, {"layer_types": ["sliding_attention", "full_attention"]}, "use_sliding_window: true with"),
        ({}, {"num_target_layers": 8}, "num_target_layers: 5"),
        ({}, {"hidden_size": 32}, "hidden_size: the target's 24"),
        ({}, {"model_type": "llama"}, "model_type: one of qwen3"),
        ({}, {"block_size": 1}, "block_size: an integer >= 2"),
        ({}, {"markov_rank": 8}, "markov_rank: no such key"),
        ({"projector_type": "domino"}, {}, r"dflash_config\.gru_hidden_dim: an integer >= 1"),
        ({"projector_type": "eagle"}, {}, r"a drafter of a known format .* with projector_type 'eagle'"),
        ({"shift_label": True}, {}, r"dflash_config\.shift_label: false or no such key"),
    ],
)
def test_keys_that_cannot_be_computed_are_refused(
    target: Path, tmp_path: Path, nested: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    folder = make_drafter().write_zlab(tmp_path / "drafter", 5, nested, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_dflash(folder, read_config(target))


def test_wrong_tensors_and_targets_are_refused(target: Path, tmp_path: Path) -> None:
    model: TargetModel = HistoryModel()  # type: ignore[assignment]
    with pytest.raises(UnsupportedError, match="got HistoryModel"):
        target_of(model, "dflash")
    for name, broken, message in (
        ("layers.1.self_attn.k_norm.weight", np.ones(4), r"k_norm\.weight of shape \[6\], got shape \[4\]"),
        ("fc.weight", np.ones((24, 48)), r"fc\.weight of shape \[24, 72\]"),
        ("layers.0.self_attn.sink", np.ones(4), r"also layers\.0\.self_attn\.sink"),
    ):
        other = make_drafter()
        other.tensors[name] = broken
        folder = other.write_zlab(tmp_path / name, 5)
        with pytest.raises(CheckpointError, match=message):
            make_runner(target, {"method": "dflash", "path": str(folder)})


def test_the_committed_drafter_is_worth_its_while() -> None:
    """On real text: the tokens of plain decoding, with drafts that are far from what chance accepts."""
    keys = ["model.framework=transformers", "runner.max_num_seqs=2"]
    first, second, third = acceptance_of(
        "tiny-py-lm-dflash", "reference.yaml", keys, tokens=24, temperatures=[0, 0.8, 0, 0.8]
    )
    assert first > 0.5 and first > second > third > 0.1
