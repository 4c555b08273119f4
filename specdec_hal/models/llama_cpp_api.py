"""The part of llama.cpp's C API that a target model needs, from the shared library in the package `xllamacpp`.

The package's own Python classes are a server; the library exports ``llama.h``. Structures passed by value change with
that header: :data:`KNOWN_VERSIONS` are the checked releases, and :func:`load` compares llama.cpp's defaults first.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specdec_hal.errors import UnsupportedError
from specdec_hal.plugin.versions import require

FRAMEWORK = "llama.cpp"
KNOWN_VERSIONS = ("2026.10",)
MAX_SEQUENCES = 256
"""LLAMA_MAX_SEQ: sequences of one context."""


class ModelParams(ctypes.Structure):
    """llama_model_params."""

    _fields_ = (
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    )


class ContextParams(ctypes.Structure):
    """llama_context_params."""

    _fields_ = (
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int),
        ("rope_scaling_type", c_int),
        ("pooling_type", c_int),
        ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int),
        ("type_v", c_int),
        ("moe_cache_size", c_size_t),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    )


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


GGML_TYPES = {"float32": 0, "float16": 1, "bfloat16": 30}
"""Types of a KV cache."""

SET_LAYER_INPUT = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
GET_LAYER_INPUT = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"

_LOG = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_batch_free": (None, (Batch,)),
    "llama_batch_init": (Batch, (c_int32, c_int32, c_int32)),
    "llama_context_default_params": (ContextParams, ()),
    "llama_decode": (c_int32, (c_void_p, Batch)),
    "llama_free": (None, (c_void_p,)),
    "llama_get_logits": (POINTER(c_float), (c_void_p,)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_init_from_model": (c_void_p, (c_void_p, ContextParams)),
    "llama_log_set": (None, (_LOG, c_void_p)),
    "llama_memory_seq_rm": (c_bool, (c_void_p, c_int32, c_int32, c_int32)),
    "llama_model_chat_template": (c_char_p, (c_void_p, c_char_p)),
    "llama_model_default_params": (ModelParams, ()),
    "llama_model_desc": (c_int32, (c_void_p, c_char_p, c_size_t)),
    "llama_model_free": (None, (c_void_p,)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_model_has_decoder": (c_bool, (c_void_p,)),
    "llama_model_has_encoder": (c_bool, (c_void_p,)),
    "llama_model_is_diffusion": (c_bool, (c_void_p,)),
    "llama_model_is_hybrid": (c_bool, (c_void_p,)),
    "llama_model_is_recurrent": (c_bool, (c_void_p,)),
    "llama_model_load_from_file": (c_void_p, (c_char_p, ModelParams)),
    "llama_model_n_ctx_train": (c_int32, (c_void_p,)),
    "llama_n_rs_seq": (c_uint32, (c_void_p,)),
    "llama_state_seq_get_size": (c_size_t, (c_void_p, c_int32)),
    "llama_token_to_piece": (c_int32, (c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool)),
    "llama_tokenize": (c_int32, (c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool)),
    "llama_vocab_bos": (c_int32, (c_void_p,)),
    "llama_vocab_eos": (c_int32, (c_void_p,)),
    "llama_vocab_get_text": (c_char_p, (c_void_p, c_int32)),
    "llama_vocab_is_control": (c_bool, (c_void_p, c_int32)),
    "llama_vocab_is_eog": (c_bool, (c_void_p, c_int32)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
    "llama_model_meta_val_str": (c_int32, (c_void_p, c_char_p, c_char_p, c_size_t)),
    "llama_model_n_embd": (c_int32, (c_void_p,)),
    "llama_model_n_layer": (c_int32, (c_void_p,)),
    # Of llama-ext.h, in C++: void llama_set_embeddings_layer_inp(llama_context*, uint32_t, bool) and its getter.
    SET_LAYER_INPUT: (None, (c_void_p, c_uint32, c_bool)),
    GET_LAYER_INPUT: (POINTER(c_float), (c_void_p, c_uint32)),
}

messages: list[str] = []
"""Warnings and errors logged by llama.cpp since the last clear, for exceptions."""


def _keep(level: int, text: bytes, user_data: Any) -> None:
    if level >= 3:  # GGML_LOG_LEVEL_WARN, _ERROR, _CONT
        messages.append(text.decode("utf-8", "replace").strip())
        del messages[:-8]


_log = _LOG(_keep)  # kept alive: llama.cpp holds on to it


@cache
def load() -> Any:
    """The library with typed functions. UnsupportedError if `xllamacpp` is missing, unknown or different."""
    version = require("llama.cpp (xllamacpp)", KNOWN_VERSIONS, ["xllamacpp"])
    spec = find_spec("xllamacpp")
    assert spec is not None and spec.origin is not None
    file = next(iter(sorted(Path(spec.origin).parent.glob("xllamacpp*.so"))), None)
    library: Any = None if file is None else ctypes.CDLL(str(file))
    for name, (result, arguments) in FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise _unlike(version, f"a function {name}", "none") from None
        function.restype, function.argtypes = result, arguments
    model, context = library.llama_model_default_params(), library.llama_context_default_params()
    flags = (model.vocab_only, model.use_extra_bufts, context.offload_kqv, context.embeddings, context.kv_unified)
    sizes = (context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max)
    types = (context.type_k, context.type_v, context.n_samplers, context.ctx_other)
    got = (sizes, types, flags)
    expected = ((512, 2048, 512, 1), (1, 1, 0, None), (False, True, True, False, False))
    if got != expected:
        raise _unlike(version, f"the defaults {expected}", str(got))
    library.llama_log_set(_log, None)
    return library


def _unlike(version: str, expected: str, got: str) -> UnsupportedError:
    return UnsupportedError(
        f"xllamacpp {version}: expected llama.cpp with {expected}, got {got}; "
        f"pip install 'xllamacpp=={KNOWN_VERSIONS[-1]}.*'"
    )
