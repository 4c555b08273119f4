"""Loads a checkpoint folder with `paddleformers`."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import paddle
from paddle.distributed.flex_checkpoint.dcp import load_state_dict
from paddleformers.transformers.model_utils import PretrainedModel

from specdec_hal.errors import SpecDecError
from specdec_hal.models.batch import refused as refused_argument
from specdec_hal.models.checkpoint import CONFIG, checkpoint_error, read_json, read_token_ids
from specdec_hal.models.llama_paddle import check_place
from specdec_hal.models.mtp import ModuleFiles, find_module
from specdec_hal.models.paddleformers.decoder import Decoder
from specdec_hal.models.paddleformers.device import DevicePaddleFormers
from specdec_hal.models.paddleformers.importing import import_model, lock
from specdec_hal.models.paddleformers.interface import NAME, set_attention
from specdec_hal.models.paddleformers.model import PaddleFormers
from specdec_hal.models.survey import check_config, check_finite, refused
from specdec_hal.models.weights import shards
from specdec_hal.plugin.model import ModelConfig
from specdec_hal.tensors import cpu_threads
from specdec_hal.text import describe

_log = logging.getLogger("specdec_hal")
_PADDLE = logging.getLogger("paddle.distributed.fleet.utils.log_util")
_EXPORT = "download it again, or use model.framework transformers"


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
    )
    known = replace(known, eos_token_ids=tokens.eos_token_ids, bos_token_id=tokens.bos_token_id)
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
        raise checkpoint_error(folder / CONFIG, expected, f"{names!r} and {kind!r}", _EXPORT)
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


def load_folder(folder: Path, architecture: Any, dtype: str | None, place: Any) -> tuple[Any, ModuleFiles | None]:
    """A model of a checkpoint on a device, in evaluation mode, which calls our attention function; the MTP module
    beside it."""
    device = "cpu" if isinstance(place, paddle.CPUPlace) else f"gpu:{place.gpu_device_id()}"
    before = paddle.get_device()
    try:
        with lock, _linked(folder) as links:
            paddle.set_device(device)
            config = architecture.config_class.from_pretrained(links)
            module = find_module(folder, config)
            check_config(architecture.__name__, config)
            _check_rotary(architecture.__name__, config)
            config.fuse_rms_norm = device != "cpu"
            if hasattr(config, "num_nextn_predict_layers"):
                config.num_nextn_predict_layers = 0  # these are the engine's
            with _quiet(module.files if module else ()):
                model = architecture.from_pretrained(
                    links, config=config, dtype=dtype or config.dtype, load_checkpoint_format="flex_checkpoint"
                ).eval()
    except SpecDecError:
        raise
    except Exception as error:
        got = describe(error)
        raise checkpoint_error(folder, "a checkpoint that paddleformers loads", got, _EXPORT) from error
    finally:
        paddle.set_device(before)
    set_attention(model, NAME)
    _fix_rotary(model)
    check_finite(folder, dict(model.named_parameters()))
    return model, module


def _check_rotary(name: str, config: Any) -> None:
    """UnsupportedError for rotary embeddings by type of layer: the library's Gemma 3 has one for all layers."""
    rope, local = getattr(config, "rope_parameters", None) or {}, getattr(config, "rope_local_base_freq", None)
    apart = local is not None and local != getattr(config, "rope_theta", local)
    if apart or any(isinstance(part, dict) for part in rope.values()):
        raise refused(name, "its types of layers have rotary embeddings of their own, and paddleformers computes one")


def _fix_rotary(model: Any) -> None:
    """Frequencies must not depend on the longest position of a step: "dynamic" ones are as trained."""
    for module in model.sublayers():
        kind = getattr(module, "rope_type", "default")
        if kind == "longrope":
            raise refused(model, "its rotary embeddings (longrope) depend on the longest text of a step")
        if "dynamic" in kind:
            module.rope_type = "default"


@contextmanager
def _linked(folder: Path) -> Iterator[str]:
    """A folder with links to the files: the library writes an index beside them."""
    with TemporaryDirectory() as name:
        for file in (folder / CONFIG, *shards(folder), *folder.glob("*.index.json")):
            (Path(name) / file.name).symlink_to(file.resolve())
        yield name


@contextmanager
def _quiet(known: Collection[str]) -> Iterator[None]:
    """Context without messages of Paddle's loader, except warnings of other unused weights than the `known` ones, those
    of an MTP module."""

    def keep(record: logging.LogRecord) -> bool:
        names = re.findall(r"'([\w.]+)'", record.getMessage())
        return record.levelno >= logging.WARNING and not (names and {*names} <= {*known})

    _PADDLE.addFilter(keep)
    try:
        yield
    finally:
        _PADDLE.removeFilter(keep)
        load_state_dict._metadata_manager.clear()  # else a load that failed decides about the next
