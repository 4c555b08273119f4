"""Loads a checkpoint folder, or a GGUF file, with `transformers`."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten
from transformers import PreTrainedModel, modeling_utils
from transformers.quantizers import AutoHfQuantizer

from specdec_hal.errors import BackendUnavailableError, CheckpointError, SpecDecError, UnsupportedError
from specdec_hal.models.checkpoint import CONFIG, checkpoint_error, read_json, read_token_ids
from specdec_hal.models.from_host import gpu
from specdec_hal.models.mtp import ModuleFiles, find_module
from specdec_hal.models.paged import launchers
from specdec_hal.models.survey import check_finite, compare, refused
from specdec_hal.models.transformers import (
    fp8,
    mimo,  # noqa: F401  (registers it)
    own_attention,
    sparse,
)
from specdec_hal.models.transformers.decoder import Decoder
from specdec_hal.models.transformers.interface import NAME, loading
from specdec_hal.models.transformers.step import Step3p5ForCausalLM
from specdec_hal.models.transformers.survey import NO_INTERFACE, base_of, check_class, survey
from specdec_hal.models.transformers.tensor_parallel import Division
from specdec_hal.models.weights import some_names
from specdec_hal.plugin.model import ModelConfig, ModelMemory
from specdec_hal.tensors.group import Group
from specdec_hal.text import describe, one_line, short

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # others: a byte
_GGUF = "pip install gguf, or leave model.framework to llama.cpp"
_OF_TEXT = {r"^language_model\.lm_head": "lm_head", r"^(model\.)?(language|text)_model\.(model\.)?": "model."}
"""Names of a decoder's weights, where it is a part of another model."""
_WITHOUT_KEYS = {"linear_attention", "conv", "mlp", "moe"}
"""Types of layers."""
_REFUSED_METHODS = {
    "torchao": "tensors of torchao cannot be used in PyTorch's inference mode",
    "quanto": "transformers cannot save such weights, so no checkpoint has them",
}
_log = logging.getLogger("specdec_hal")


def load(
    path: str | Path,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    batch_invariant: bool | None = None,
    threads: int | None = None,
    pdl_rows: int | None = None,
    group: Group | None = None,
    quantization: str = fp8.AUTO,
) -> Any:
    """A :class:`~.host.HostTransformers` on a CPU, a :class:`~.device.DeviceTransformers` on a GPU.

    `dtype` None: float32 on CPUs, the checkpoint's own on GPUs. `pdl_rows`: of Triton's launcher. `quantization`: one
    of :data:`.fp8.CHOICES`. CheckpointError for what `transformers` cannot load; UnsupportedError, with the reason, for
    a model that cannot run over our KV cache; ArgumentError for weights in FP8 where the device has none.
    """
    on_host = device == "cpu"
    if not on_host:
        device = gpu(device)
    decoder = load_decoder(path, device, dtype or ("float32" if on_host else "auto"), group, quantization)
    module = None if decoder.sparse else find_module(Path(path), decoder.model.config)
    if module is not None and fp8.any_stored(module.files):
        _log.warning("%s: its MTP module is in FP8, which is not supported; it cannot draft", path)
        module = None
    if getattr(decoder.model.config.get_text_config(), "prefix_lm", False):
        _log.warning("%s: prefix_lm is not applied: a token of a prompt attends to those before it only", path)
    with _runs(type(decoder.model).__name__, _at_all(quantisation_of(decoder.model.config))):
        if on_host:
            from specdec_hal.models.transformers.host import HostTransformers

            made: Any = HostTransformers(
                decoder, batch_invariant=batch_invariant, threads=threads, module=module, group=group
            )
        else:
            from specdec_hal.models.transformers.device import DeviceTransformers

            made = DeviceTransformers(
                decoder, make_launcher=launchers(torch.device(device), pdl_rows), batch_invariant=batch_invariant,
                module=module, group=group,
            )  # fmt: skip
    _log.info("%s: %s", type(decoder.model).__name__, made.describe())
    return made


def load_decoder(
    path: str | Path, device: str, dtype: str, group: Group | None = None, quantization: str = fp8.AUTO, *,
    wrapper: bool = False,
) -> Decoder:  # fmt: skip
    """The model of a checkpoint after its trial; `dtype`: one of :data:`~specdec_hal.models.checkpoint.DTYPES`, or
    "auto". `group`: of the ranks that share it. `quantization`: one of :data:`.fp8.CHOICES`. `wrapper`: load a model
    that sees or hears by the class of the whole, and keep its decoder.
    """
    where, options = _where(path)
    if options and importlib.util.find_spec("gguf") is None:
        raise BackendUnavailableError(f"{path}: expected the package gguf, which reads such files, got none; {_GGUF}")
    try:
        whole = _read_config(where, **options)
        architecture, config = (_wrapper_class(whole), whole) if wrapper else decoder_class(whole)
        method = getattr(whole, "quantization_config", None) or {}
        unknown = bool(method) and not AutoHfQuantizer.supports_quant_method(method)
    except SpecDecError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from error
    if whole.is_encoder_decoder:
        raise refused(
            (whole.architectures or [whole.model_type])[0],
            "it is an encoder-decoder model; only decoders are supported",
        )
    if architecture is None:
        raise UnsupportedError(
            f"{whole.model_type}: transformers {transformers.__version__} has no separate "
            "decoder for it (AutoModelForCausalLM); choose another model"
        )
    check_class(config, architecture)
    name, quantised = architecture.__name__, quantisation_of(whole)
    if unknown:
        raise refused(name, f"transformers does not know its {quantised}, {short(method)}")
    if group is not None and sparse.is_known(architecture):
        raise refused(name, "its sparse attention does not run on several ranks")
    if method and config is not whole:
        raise refused(name, f"it is quantised ({quantised}), and a part of another model")
    if (reason := _REFUSED_METHODS.get(str(method.get("quant_method")))) is not None:
        raise refused(name, f"{quantised}: {reason}")
    module = find_module(Path(path), config)
    in_fp8 = fp8.plan(
        path, method, quantization, device, ranks=group is not None, others=() if module is None else module.files
    )
    if in_fp8 is not None and method:
        del config.quantization_config
    elif method.get("quant_method") in ("compressed-tensors", "fp8"):
        config.quantization_config = {**method, "dequantize": True}  # else a hook would do it, in the first whole pass
    gguf = None
    if options:
        from specdec_hal.models.transformers.gguf_file import GgufFile

        gguf = GgufFile(Path(path), config)
        gguf.complete()
    if in_fp8 is not None and dtype == "auto" and config.dtype is None:
        dtype = "bfloat16"
    attention = own_attention.implementation(architecture) or NAME
    wanted = {"dtype": dtype if dtype == "auto" else getattr(torch, dtype), "attn_implementation": attention}
    division: Division | None = None
    try:
        with (
            loading,
            _Light(),
            _no_adapter(),
            _known(architecture, module),
            ExitStack() as until_loaded,
        ):
            if gguf is not None:  # not as `gguf_file`, which demands the package accelerate
                wanted["state_dict"] = gguf.weights(architecture)
            made = architecture
            if in_fp8 is not None and method:
                made = _then(architecture, in_fp8.prepare)
            if group is not None and not method:

                def divide(model: Any) -> None:
                    nonlocal division
                    division = Division(model, group)
                    until_loaded.enter_context(division.loading())
                    until_loaded.enter_context(_in_turn())

                made = _then(architecture, divide)
            model, info = made.from_pretrained(
                None if options else where, config=copy.deepcopy(config), local_files_only=True,
                key_mapping=None if config is whole else _OF_TEXT, output_loading_info=True, **wanted,
            )  # fmt: skip
            model.__class__ = architecture
            if in_fp8 is None and method.get("quant_method") == "compressed-tensors":
                unwrap(model)
            if gguf is not None:
                gguf.finish(model)
    except SpecDecError:
        raise
    except Exception as error:
        if isinstance(error, KeyError) and error.args == (NAME,):  # of a table of its own
            raise refused(architecture.__name__, NO_INTERFACE) from error
        raise _unreadable(path, error, quantised) from error
    missing = sorted(info["missing_keys"])
    if missing and config is not whole and _wrapper_class(whole) is not None:
        # Its class has the library's names of the weights.
        return load_decoder(path, device, dtype, group, quantization, wrapper=True)
    if missing:
        hint, what = (
            "download or export the whole checkpoint",
            f"all weights of {name}{quantised and ' with '}{quantised}",
        )
        raise checkpoint_error(Path(path), what, f"none of {some_names(missing)}", hint)
    found = _config(path, model.eval())
    if config is whole:
        _keep_decoder(model)
    if in_fp8 is not None:
        in_fp8.finish(model, device)
    if group is None:
        model = model.to(device)
    check_finite(Path(path), dict(model.named_parameters()))
    if group is not None:
        return _part(model, found, device, division or Division(model, group))
    with _runs(name, _at_all(quantised) or "it does not run on packed rows"):
        return Decoder(model, found)


def _keep_decoder(model: Any) -> None:
    """Drop towers for images and sounds."""
    kept = {*base_of(model).modules(), model.get_output_embeddings()}
    for parent in [*model.modules()]:
        for name, child in parent.named_children():
            if isinstance(child, PreTrainedModel) and kept.isdisjoint(child.modules()):
                parent._modules[name] = torch.nn.Identity()


def quantisation_of(config: Any) -> str:
    """How messages name a configuration's quantisation; "" without one."""
    method: Any = getattr(config, "quantization_config", None) or {}
    found = method.get("quant_method") if isinstance(method, dict) else getattr(method, "quant_method", None)
    return f"quantization_config.quant_method '{getattr(found, 'value', found)}'" if found else ""


def _at_all(quantised: str) -> str:
    """What is wrong where the code of a quantisation fails; "" without one."""
    return quantised and f"{quantised} does not run here"


@contextmanager
def _runs(name: str, fault: str) -> Iterator[None]:
    """Within it an error of the model's own code becomes an UnsupportedError that names the `fault`; "": it stays."""
    try:
        yield
    except (SpecDecError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if not fault:
            raise
        raise refused(name, f"{fault} ({describe(error)})") from error


def unwrap(model: Any) -> None:
    """Leave nothing of compressed-tensors in layers with widened weights: neither caches in place of their tensors, nor
    a `forward` that quantises no activations."""
    for module in model.modules():
        if type(module._parameters) is not dict:
            offload: Any = importlib.import_module("compressed_tensors.offload.module")
            offload.remove_module_offload(module, onload_tensors=True)
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None and scheme.input_activations is None and scheme.output_activations is None:
            vars(module).pop("forward", None)


class _Light(TorchFunctionMode):  # type: ignore[misc]
    """Context in which this thread computes nothing for tensors without data in Python: PyTorch imports its compiler
    (0.8 s) for that."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.init.normal_ and getattr(tensor := kwargs.get("tensor"), "is_meta", False):
            return tensor
        if func is torch.arange and torch.device(kwargs.get("device") or "cpu").type == "meta":
            kwargs["device"] = "cpu"
        try:
            return func(*args, **kwargs)
        except RuntimeError:  # such as frequencies by LongRoPE, from these numbers and a tensor without data
            leaves, form = tree_flatten((args, kwargs))
            if len({leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}) < 2:
                raise
        leaves = [leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(leaves, form)
        return func(*args, **kwargs)


@contextmanager
def _no_adapter() -> Iterator[None]:
    """Within it the library applies no adapter that is in the checkpoint's folder, with the package peft or without."""
    before = modeling_utils.maybe_load_adapters
    modeling_utils.maybe_load_adapters = lambda name, download, **adapter: (None, name, adapter)
    try:
        yield
    finally:
        modeling_utils.maybe_load_adapters = before


@contextmanager
def _known(architecture: Any, module: ModuleFiles | None) -> Iterator[None]:
    """Within it the library does not report the weights of an MTP module as unexpected."""
    name, names = "_keys_to_ignore_on_load_unexpected", [] if module is None else list(map(re.escape, module.files))
    before = getattr(architecture, name, None)
    setattr(architecture, name, [*(before or ()), *names])
    try:
        yield
    finally:
        setattr(architecture, name, before)


def _then(architecture: Any, prepare: Callable[[Any], None]) -> Any:
    """The class, whose models are given to `prepare` before they get their weights."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        architecture.__init__(self, *args, **kwargs)
        prepare(self)

    return type(architecture.__name__, (architecture,), {"__init__": __init__, "__module__": architecture.__module__})


@contextmanager
def _in_turn() -> Iterator[None]:
    """Context in which the library reads and converts one weight at a time, not several in threads."""
    name = "HF_DEACTIVATE_ASYNC_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _part(model: Any, config: ModelConfig, device: str, division: Division) -> Decoder:
    """This rank's part of a model. In a layer of each kind it is compared with the whole."""

    def tried() -> Any:
        with division.trying():
            return survey(model, base_of(model), config.max_position_embeddings).hidden

    whole = tried()
    division.finish()
    model.to(device)
    try:
        part = tried()
        decoder = Decoder(model, config)
    except RuntimeError as error:
        if isinstance(error, SpecDecError):  # a rank has ended
            raise
        raise refused(model, f"its code does not run with a part of its heads ({one_line(error)})") from error
    compare(model, whole, part.cpu(), "ranks compute something else by its plan for them")
    return decoder


def memory(path: str | Path, *, device: str) -> ModelMemory | None:
    """Memory that :func:`load` needs, by the files' headers and config.json; None for a GGUF file or without sizes."""
    where, options = _where(path)
    if options:
        return None
    try:
        config = _read_config(where).get_text_config()
    except SpecDecError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from error
    if not hasattr(config, "hidden_size"):
        return None  # of a model that is refused
    weights, itemsize = 0, 4
    for file in sorted(where.glob("*.safetensors")):
        with safe_open(file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (no mapping)
                part = tensors.get_slice(name)
                size = 4 if device == "cpu" else _BYTES.get(part.get_dtype(), 1)
                weights += prod(part.get_shape()) * size
                if size > 1 and "scale" not in name.rpartition(".")[2]:  # what computes with numbers in FP8
                    itemsize = size
    cache = 0 if device == "cpu" else 2 * (sum(map(_key_width, _layers(config))) + _index_width(config)) * itemsize
    return ModelMemory({"weights": weights}, cache, config.hidden_size * itemsize)


def _read_config(where: Path, **options: str) -> Any:
    """The configuration; code beside it is never run, nor asked about on a terminal.

    UnsupportedError for one that needs it.
    """
    try:
        return transformers.AutoConfig.from_pretrained(where, local_files_only=True, trust_remote_code=False, **options)
    except ValueError as error:
        settings = {} if options else read_json(where, CONFIG)
        if not settings.get("auto_map"):
            raise
        raise UnsupportedError(
            f"{where}: expected a model_type that transformers {transformers.__version__} has, got "
            f"{short(settings.get('model_type'))}, whose code is beside the weights (auto_map: "
            f"{short(settings['auto_map'])}); code of checkpoints is never run (trust_remote_code): use a converted "
            "checkpoint, or a plug-in for this model"
        ) from error


def _layers(config: Any) -> Sequence[Any]:
    """The configuration of each layer with keys."""
    kinds = getattr(config, "layer_types", None) or [""] * config.num_hidden_layers
    layers = config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config] * len(kinds)
    found = [layer for layer, kind in zip(layers, kinds, strict=True) if kind not in _WITHOUT_KEYS]
    return found[: len(found) - (getattr(config, "num_kv_shared_layers", 0) or 0)]


def _key_width(layer: Any) -> int:
    """Elements of the keys of one position; the values have the same number."""
    query_heads = getattr(layer, "num_attention_heads", 0)  # none in models that are refused
    heads = getattr(layer, "num_key_value_heads", None) or getattr(layer, "num_kv_heads", None) or query_heads
    if getattr(layer, "multi_query", False) and not getattr(layer, "new_decoder_architecture", False):
        heads = 1
    width = getattr(layer, "head_dim", None) or layer.hidden_size // max(query_heads, 1)
    if getattr(layer, "kv_lora_rank", None):  # keys of each head
        heads, width = query_heads, layer.qk_nope_head_dim + layer.qk_rope_head_dim
    return int(heads * width)


def _index_width(config: Any) -> int:
    """Elements of the keys of all indexers for one position."""
    kinds = getattr(config, "indexer_types", None) or ["full"] * config.num_hidden_layers
    return int(getattr(config, "index_head_dim", 0) * kinds.count("full"))


def _where(path: str | Path) -> tuple[Path, dict[str, str]]:
    """The folder, and the name of a GGUF file in it."""
    file = Path(path)
    return (file.parent, {"gguf_file": file.name}) if file.suffix == ".gguf" else (file, {})


def decoder_class(config: Any) -> tuple[Any, Any]:
    """The class of a decoder, and its configuration: of a model with other parts, such as one that sees, that of texts.

    If only the whole has a class, that one; None where there is none.
    """
    known = transformers.AutoModelForCausalLM._model_mapping
    text = config.get_text_config(decoder=True)
    if type(text) is Step3p5ForCausalLM.config_class and (text is config or not quantisation_of(config)):
        return Step3p5ForCausalLM, text
    for found in (text, config):
        if (architecture := known.get(type(found), None)) is not None:  # its keys() would import every configuration
            architecture = architecture[0] if isinstance(architecture, tuple) else architecture
            if architecture.config_class is type(text):
                found = text  # Emu 3's class for texts is registered for the whole
            if found is not config and getattr(config, "tie_word_embeddings", False):
                found.tie_word_embeddings = True  # the library then uses a head only where a checkpoint has one
            return architecture, found
    return _wrapper_class(config), config


def _wrapper_class(config: Any) -> Any | None:
    """The class of a model that sees or hears too, and writes texts."""
    return transformers.AutoModelForMultimodalLM._model_mapping.get(type(config), None)


def _unreadable(path: str | Path, error: Exception, quantised: str = "") -> CheckpointError | BackendUnavailableError:
    if isinstance(error, ImportError):  # such as a quantisation's
        return BackendUnavailableError(
            f"{path}: expected what its {quantised or 'format'} needs, got {describe(error)}; install the packages "
            "that are named"
        )
    return CheckpointError(
        f"{path}: expected a checkpoint{quantised and ' with '}{quantised} that transformers "
        f"{transformers.__version__} loads, got {describe(error)}; download it again, or use another version of "
        "transformers"
    )


def _config(path: str | Path, model: Any) -> ModelConfig:
    if Path(path).is_dir():
        tokens: Any = read_token_ids(path)
    else:
        from specdec_hal.models.llama_cpp import Gguf

        tokens = Gguf(path, vocab_only=True).config
    return replace(config_of(model), eos_token_ids=tokens.eos_token_ids, bos_token_id=tokens.bos_token_id)


def config_of(model: Any) -> ModelConfig:
    """A model's configuration without its special tokens."""
    text = model.config.get_text_config()
    names = ("max_position_embeddings", "max_seq_len", "seq_length")
    positions: Any = next((getattr(text, name) for name in names if getattr(text, name, None)), None)
    if positions is None and text.model_type == "bloom":
        positions = 2048  # of all trained ones; older files do not say so
    absent = ["max_position_embeddings"] * (positions is None) + ["hidden_size"] * (not hasattr(text, "hidden_size"))
    if absent:
        raise refused(model, f"its configuration has no {' and no '.join(absent)}")
    return ModelConfig(
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        max_position_embeddings=positions,
    )
