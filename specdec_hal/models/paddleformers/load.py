"""Loads a checkpoint folder with `paddleformers`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import paddle
from paddleformers.transformers.model_utils import PretrainedModel

from specdec_hal.models.batch import refused as refused_argument
from specdec_hal.models.checkpoint import CONFIG, checkpoint_error, read_json, read_token_ids
from specdec_hal.models.llama_paddle import check_place
from specdec_hal.models.paddleformers.decoder import Decoder
from specdec_hal.models.paddleformers.device import DevicePaddleFormers
from specdec_hal.models.paddleformers.folder import HINT, load_folder
from specdec_hal.models.paddleformers.importing import import_model
from specdec_hal.models.paddleformers.model import PaddleFormers
from specdec_hal.models.survey import refused
from specdec_hal.plugin.model import ModelConfig
from specdec_hal.tensors import cpu_threads
from specdec_hal.text import describe

_log = logging.getLogger("specdec_hal")


def load(
    path: str | Path,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    batch_invariant: bool | None = None,
    threads: int | None = None,
) -> PaddleFormers:
    """The model of a checkpoint folder.

    `dtype` None: float32 on CPUs, the checkpoint's own on GPUs. CheckpointError for what `paddleformers` cannot load;
    UnsupportedError, with the reason, for a model that cannot run over our KV cache.
    """
    place = check_place("paddleformers", device, batch_invariant, threads)
    on_host = isinstance(place, paddle.CPUPlace)
    if on_host and dtype not in (None, "float32"):
        hint = "use model.framework transformers for others"
        raise refused_argument("paddleformers", "load_model", "dtype", "float32 on cpu", repr(dtype), hint)
    folder = Path(path)
    raw = read_json(folder, CONFIG)
    architecture = _class_of(folder, raw)
    model, module = load_folder(folder, architecture, "float32" if on_host else dtype, place)
    tokens, config = read_token_ids(folder), model.config
    known = ModelConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_position_embeddings=config.max_position_embeddings,
        eos_token_ids=tokens.eos_token_ids,
        bos_token_id=tokens.bos_token_id,
    )
    threads = cpu_threads.available() if threads is None else threads
    decoder = Decoder(model, known)
    kind = PaddleFormers if on_host else DevicePaddleFormers
    made = kind(decoder, place, batch_invariant=batch_invariant, threads=threads, module=module)
    _log.info("%s: %s", architecture.__name__, made.describe())
    return made


def _class_of(folder: Path, raw: dict[str, Any]) -> Any:
    """The library's plain class of a decoder: of some families the usual name is that of a model for training."""
    names, kind = raw.get("architectures"), raw.get("model_type")
    if not (isinstance(names, list) and names and isinstance(names[0], str)) or not isinstance(kind, str):
        expected = "architectures and model_type"
        raise checkpoint_error(folder / CONFIG, expected, f"{names!r} and {kind!r}", HINT)
    try:
        package = import_model(kind)
    except Exception as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == f"paddleformers.transformers.{kind}"
        reason = f"has no model of type {kind}" if absent else f"cannot import its code here ({describe(error)})"
        raise refused(names[0], f"paddleformers {reason}") from error
    found = getattr(package, f"{names[0]}Deprecated", None) or getattr(package, names[0], None)
    if not (isinstance(found, type) and issubclass(found, PretrainedModel)) or getattr(found, "is_fleet", False):
        raise refused(names[0], "paddleformers has no plain class of it, only one for training with paddlefleet")
    return found
