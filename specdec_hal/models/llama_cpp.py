"""GGUF files as target models, computed by llama.cpp on a CPU. ``pip install 'specdec-hal[gguf]'``.

llama.cpp returns logits but not the final norm's output. FINAL_NORM of this model are tickets, a number for each token,
with which `compute_logits` looks up logits. Proposers that need this state are refused by name. Trained drafters read
residuals, which llama.cpp gives as inputs of its layers, so not that after the last layer. They borrow the embedding
and the head from the file, widened to float32, of architectures that scale neither.

Bits. llama.cpp multiplies one row by dot products and several rows by a tiled product, with another order of sums. The
last bits of a token's logits depend on the number of tokens in its pass, so drafts can decide a near tie. With
`batch_invariant` each request is computed by itself, in pieces of sizes that agree, found by trying when the cache is
allocated (see :mod:`specdec_hal.models.rows`); a shorter piece is padded with tokens that are removed afterwards. On
x86 these sizes never include one row, so plain decoding costs as much as two rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from ctypes import c_int32, create_string_buffer
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.errors import ArgumentError, BackendUnavailableError, CheckpointError, UnsupportedError
from specdec_hal.models import llama_cpp_api as api
from specdec_hal.models.batch import Limits, blocks, check_hidden_layers, check_threads
from specdec_hal.models.detokenizer import ByteDetokenizer, Detokenizer
from specdec_hal.models.llama_cpp_api import FRAMEWORK
from specdec_hal.models.rows import RowSizes, agreeing
from specdec_hal.models.tokenizer import Tokenizer, cannot_encode
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, ModelCapabilities, ModelConfig, Segment
from specdec_hal.tensors import cpu_threads

_LENDING = ("llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe")
"""Architectures whose embedding and head are plain tables."""
BATCH = 512
"""Most tokens of a pass."""
_SIZES = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32, 64, 128)
"""Sizes to try: all common decode steps, then coarser ones for prompts."""
_TRIAL = 24
"""Tokens of the trial text."""


class Gguf:
    """An open file with its weights, or only its vocabulary.

    CheckpointError if it cannot be read; UnsupportedError if llama.cpp cannot decode it speculatively.
    """

    def __init__(self, path: str | Path, *, vocab_only: bool = False) -> None:
        self.api = api.load()
        params = self.api.llama_model_default_params()
        params.vocab_only = vocab_only
        file = Path(path)
        if not file.is_file():
            got = "a folder" if file.is_dir() else "nothing there"
            raise CheckpointError(f"{file}: expected a GGUF file, got {got}; give the path of the file itself")
        api.messages.clear()
        self.handle = self.api.llama_model_load_from_file(str(file).encode(), params)
        if not self.handle:
            got = "; ".join(api.messages) or "no reason"
            raise CheckpointError(f"{file}: expected a GGUF file that llama.cpp reads, got: {got}; download it again")
        self._free = weakref.finalize(self, self.api.llama_model_free, self.handle)
        self.path, self.vocab = file, self.api.llama_model_get_vocab(self.handle)
        tokens = self.api.llama_vocab_n_tokens(self.vocab)
        bos = self.api.llama_vocab_bos(self.vocab)
        self.config = ModelConfig(
            vocab_size=tokens,
            hidden_size=max(self.api.llama_model_n_embd(self.handle), 1),
            max_position_embeddings=max(self.api.llama_model_n_ctx_train(self.handle), 1),
            eos_token_ids=tuple(t for t in range(tokens) if self.api.llama_vocab_is_eog(self.vocab, t)),
            bos_token_id=None if bos < 0 else bos,
        )

    @cached_property
    def architecture(self) -> str:
        """`general.architecture`."""
        name = create_string_buffer(64)
        self.api.llama_model_meta_val_str(self.handle, b"general.architecture", name, len(name))
        return name.value.decode()

    def table(self, *names: str) -> NDArray[np.float32]:
        """The first tensor of these names that the file has, [vocabulary, width], widened to float32.

        BackendUnavailableError without the package `gguf`.
        """
        if find_spec("gguf") is None:
            expected = "expected the package gguf, which reads the tables that drafters borrow, got none"
            raise BackendUnavailableError(f"{self.path}: {expected}; pip install gguf")
        import gguf

        tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(self.path).tensors}
        found = tensors[next(name for name in names if name in tensors)]
        rows = gguf.quants.dequantize(found.data, found.tensor_type)
        return np.asarray(rows, np.float32).reshape(self.config.vocab_size, self.config.hidden_size)

    def check(self) -> None:
        """UnsupportedError unless rejected tokens can be removed from the model's cache."""
        kinds = {
            "diffusion": self.api.llama_model_is_diffusion(self.handle),
            "encoder-decoder": self.api.llama_model_has_encoder(self.handle),
        }
        for kind, here in kinds.items():
            if here:
                raise UnsupportedError(f"{self.path}: expected a decoder, got a {kind} model; choose another model")

    @property
    def recurrent(self) -> bool:
        """Whether layers keep a state, which only goes back by the tokens that a context is made for."""
        return bool(self.api.llama_model_is_recurrent(self.handle) or self.api.llama_model_is_hybrid(self.handle))


class LlamaCpp:
    """A :class:`~specdec_hal.plugin.model.TargetModel`. `dtype`: of the KV cache; the file determines that of the
    weights.

    `threads` None: one per available core. `batch_invariant`: drafts and batches never change a token's bits, but
    requests are computed one by one.
    """

    framework = FRAMEWORK

    def __init__(
        self,
        path: str | Path,
        *,
        device: str = "cpu",
        dtype: str = "float16",
        threads: int | None = None,
        batch_invariant: bool = False,
    ) -> None:
        choices = {"device": (device, ("cpu",)), "dtype": (dtype, tuple(api.GGML_TYPES))}
        for argument, (got, known) in choices.items():
            if got not in known:
                raise _refused("load_model", argument, " or ".join(known), repr(got), "choose one of them")
        check_threads(FRAMEWORK, threads)
        self._file = Gguf(path)
        self._file.check()
        self._recurrent = self._file.recurrent
        if self._recurrent and batch_invariant:
            expected = "false for a model with recurrent layers, whose states do not go back by a pass's padding"
            raise _refused("load_model", "batch_invariant", expected, "true", "leave it out")
        self._drafts = 0
        self.config, self.api = self._file.config, self._file.api
        self._batch_invariant, self._dtype = batch_invariant, dtype
        self._threads = cpu_threads.cores() if threads is None else threads
        self._batch = self.api.llama_batch_init(BATCH, 0, 1)
        weakref.finalize(self, self.api.llama_batch_free, self._batch)
        self._token, self._pos, self._counts = (
            np.ctypeslib.as_array(pointer, (BATCH,))
            for pointer in (self._batch.token, self._batch.pos, self._batch.n_seq_id)
        )
        self._wanted = np.ctypeslib.as_array(self._batch.logits, (BATCH,))
        self._counts[:] = 1
        self._context: Any = None
        self._close: Any = lambda: None
        self._limits: Limits | None = None
        self._sizes = RowSizes(range(1, BATCH + 1))
        self._held: list[int] = []
        self._read: set[int] = set()  # layers whose inputs the context keeps
        self._logits = np.zeros((0, self.config.vocab_size), np.float32)

    @property
    def capabilities(self) -> ModelCapabilities:
        """Residuals of plain architectures, but that after the last layer; row counts if batch-invariant."""
        layers = range(self.num_hidden_layers - 1) if self._file.architecture in _LENDING else ()
        stable = None if self._batch_invariant else ()
        return ModelCapabilities(hidden_layers=layers, recurrent=self._recurrent, stable_row_counts=stable)

    @property
    def num_hidden_layers(self) -> int:
        """Decoder layers; the residual after the last one is not available."""
        return int(self.api.llama_model_n_layer(self._file.handle))

    @cached_property
    def _state_size(self) -> int:
        """Bytes of what llama.cpp saves of a text of one token: the recurrent layers' states, and keys and values."""
        params = self._params(1, 256)
        context = self.api.llama_init_from_model(self._file.handle, params)
        try:
            self._token[0] = self._pos[0] = self._batch.seq_id[0][0] = self._wanted[0] = 0
            self._batch.n_tokens = 1
            self.api.llama_decode(context, self._batch)
            return int(self.api.llama_state_seq_get_size(context, 0))
        finally:
            self.api.llama_free(context)

    @property
    def state_bytes(self) -> int:
        """See RecurrentModel: those of the current context."""
        return len(self._held) * self.bytes_per_slot(self._drafts) if self._recurrent else 0

    def bytes_per_slot(self, num_speculative_tokens: int, storage: Any = None) -> int:
        """See RecurrentModel: llama.cpp keeps a state for each draft."""
        return (1 + num_speculative_tokens) * self._state_size

    def allocate_states(
        self, max_num_seqs: int, num_speculative_tokens: int, backend: Any = None, **options: Any
    ) -> None:
        """See RecurrentModel: `allocate` makes them."""
        self._drafts = num_speculative_tokens

    def _params(self, max_num_seqs: int, positions: int) -> Any:
        """Parameters of a context of that many slots."""
        params = self.api.llama_context_default_params()
        # A cache per sequence, independent of other requests, with room for padding.
        params.kv_unified, params.n_seq_max = False, max_num_seqs
        params.n_ctx = max_num_seqs * positions
        params.n_rs_seq = self._drafts if self._recurrent else 0
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = self._threads
        params.type_k = params.type_v = api.GGML_TYPES[self._dtype]
        params.swa_full = True  # so that tokens can be removed from sliding windows
        # Flash attention rounds to float16: logits then depend a hundred times more on the size of a pass.
        params.flash_attn_type = 0
        params.no_perf = True
        return params

    def allocate(self, max_num_seqs: int, max_model_len: int) -> None:
        """See TargetModel.allocate. Calling it again replaces the cache."""
        most = {"max_num_seqs": (max_num_seqs, api.MAX_SEQUENCES), "max_model_len": (max_model_len, 1 << 24)}
        for argument, (value, limit) in most.items():
            if not 1 <= value <= limit:
                raise _refused("allocate", argument, f"1..{limit}", str(value), "allocate fewer or shorter slots")
        self._close()
        params = self._params(max_num_seqs, -(-(max_model_len + _SIZES[-1]) // 256) * 256)
        api.messages.clear()
        self._context = self.api.llama_init_from_model(self._file.handle, params)
        if not self._context:
            raise BackendUnavailableError(
                f"{self._file.path}: expected a context of {max_num_seqs} x {max_model_len} tokens, got none "
                f"({'; '.join(api.messages) or 'out of memory'}); allocate fewer or shorter slots"
            )
        self._close = weakref.finalize(self, _free_context, self.api.llama_free, self._context, self._file)
        if (back := self.api.llama_n_rs_seq(self._context)) < params.n_rs_seq:
            raise UnsupportedError(
                f"{self._file.path}: expected recurrent layers whose states go back by {params.n_rs_seq} tokens, got "
                f"{back} from llama.cpp; use the checkpoint's folder with model.framework: transformers"
            )
        self._memory = self.api.llama_get_memory(self._context)
        self._limits = Limits(FRAMEWORK, self.config.vocab_size, max_num_seqs, max_model_len)
        self._held, self._read = [0] * max_num_seqs, set()
        if self._batch_invariant:
            self._sizes = agreeing(self._try, _SIZES)

    def _try(self, size: int) -> bytes:
        """The logits of a text that is decoded `size` tokens at a time."""
        text = np.random.default_rng(0).integers(0, self.config.vocab_size, _TRIAL)
        rows = [
            self._pass([Segment(0, at, len(piece), at)], piece, np.ones(len(piece), bool), size)
            for at in range(0, _TRIAL, size)
            if len(piece := text[at : at + size])
        ]
        self._cut(0, 0)
        return np.concatenate(rows).tobytes()

    def forward(self, batch: ForwardBatch) -> dict[int, NDArray[np.float32]]:
        """See TargetModel.forward: of FINAL_NORM tickets, the same in all columns, -1 where no logits are wanted."""
        if self._limits is None:
            raise _refused("forward", "batch", "a call of allocate() first", "none", "allocate a cache")
        ids = self._limits.check(batch)
        check_hidden_layers(batch, self.capabilities, FRAMEWORK)
        for i, segment in enumerate(batch.segments):
            if segment.position > (held := self._held[segment.slot]):
                expected = f"at most {held}, what slot {segment.slot} holds"
                raise _refused(
                    "forward", f"segments[{i}].position", expected, str(segment.position), "feed what is missing"
                )
        wanted = np.zeros(len(ids), bool)
        for segment in batch.segments:
            end = segment.start + segment.length
            wanted[end - (segment.length if segment.outputs is None else segment.outputs) : end] = True
            self._cut(segment.slot, segment.position)
        passes = self._alone(batch.segments) if self._batch_invariant else self._together(batch.segments)
        for layer in set(batch.hidden_layers) - self._read:
            getattr(self.api, api.SET_LAYER_INPUT)(self._context, layer + 1, True)
            self._read.add(layer)
        shape = len(ids), self.config.hidden_size
        tickets = np.full(shape, -1, np.float32)
        residuals = {layer: np.empty(shape, np.float32) for layer in batch.hidden_layers}
        rows = 0
        self._reserve(int(wanted.sum()) + self._sizes.largest)
        try:
            for segments, size in passes:
                at = np.concatenate([np.arange(s.start, s.start + s.length) for s in segments])
                logits = self._pass(segments, ids[at], wanted[at], size)
                tickets[at[wanted[at]]] = np.arange(rows, rows + len(logits))[:, None]
                for layer, to in residuals.items():
                    given = getattr(self.api, api.GET_LAYER_INPUT)(self._context, layer + 1)
                    to[at] = np.ctypeslib.as_array(given, (len(at), shape[1]))
                self._logits[rows : rows + len(logits)] = logits
                rows += len(logits)
        except BaseException:
            for segment in batch.segments:
                self._cut(segment.slot, segment.position)
            raise
        return {**residuals, FINAL_NORM: tickets}

    def compute_logits(self, hidden: Any) -> NDArray[np.float32]:
        """The logits of these tickets of the last `forward`; NaN for tickets without any."""
        tickets = np.asarray(hidden)[:, 0].astype(np.int64)
        logits = self._logits[np.maximum(tickets, 0)]
        logits[tickets < 0] = np.nan
        return logits

    def embed(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """See LendingModel.embed."""
        return self._embedding[ids]

    def head_logits(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """See LendingModel.head_logits."""
        return rows @ self._head.T

    @cached_property
    def _embedding(self) -> NDArray[np.float32]:
        return self._file.table("token_embd.weight")

    @cached_property
    def _head(self) -> NDArray[np.float32]:
        return self._file.table("output.weight", "token_embd.weight")

    def _reserve(self, rows: int) -> None:
        if rows > len(self._logits):
            self._logits = np.zeros((rows, self.config.vocab_size), np.float32)

    def _alone(self, segments: Sequence[Segment]) -> list[tuple[list[Segment], int]]:
        """One segment per pass, in pieces of agreeing sizes; the last one is padded."""
        passes = []
        for segment in segments:
            done = 0
            while (rest := segment.length - done) > 0:
                taken = min(rest, self._sizes.largest)
                size = self._sizes.fit(taken)
                smaller = [n for n in self._sizes.sizes if n <= taken]
                if smaller and size > 1 + taken * 5 // 4:  # a full piece and a rest cost less than this padding
                    taken = size = smaller[-1]
                piece = Segment(segment.slot, segment.start + done, taken, segment.position + done)
                passes.append(([piece], size))
                done += taken
        return passes

    def _together(self, segments: Sequence[Segment]) -> list[tuple[list[Segment], int]]:
        """Passes of the largest possible size. States go back within a pass: drafts are not divided."""
        whole = 1 + self._drafts if self._recurrent else 0
        return [(group, 0) for group in blocks(segments, BATCH, whole)]

    def _pass(
        self, segments: Sequence[Segment], ids: NDArray[np.int64], wanted: NDArray[np.bool_], size: int
    ) -> NDArray[np.float32]:
        """Run one batch of llama.cpp, padded to `size` tokens. Returns the wanted logits, in llama.cpp's memory."""
        count = max(size, len(ids))
        self._token[:count] = 0
        self._token[: len(ids)] = ids
        at = 0
        for segment in segments:
            more = segment.length + (count - len(ids) if segment is segments[-1] else 0)
            self._pos[at : at + more] = np.arange(segment.position, segment.position + more)
            for i in range(at, at + more):
                self._batch.seq_id[i][0] = segment.slot
            at += more
        # The last layer and the head compute only wanted rows: all or none, so that sizes agree.
        self._wanted[:count] = wanted.any() if self._batch_invariant else 0
        if not self._batch_invariant:
            self._wanted[: len(ids)] = wanted
        self._batch.n_tokens = count
        api.messages.clear()
        status = self.api.llama_decode(self._context, self._batch)
        if status:
            raise BackendUnavailableError(
                f"llama.cpp: expected {count} tokens to be decoded, got status {status} "
                f"({'; '.join(api.messages) or 'no reason'}); see its log"
            )
        for segment in segments:
            self._held[segment.slot] = segment.position + segment.length
        if count > len(ids):
            self._cut(segments[-1].slot, self._held[segments[-1].slot])
        outputs = int(self._wanted[:count].sum())
        if not outputs:
            return self._logits[:0]
        logits = np.ctypeslib.as_array(self.api.llama_get_logits(self._context), (outputs, self.config.vocab_size))
        return logits[: len(ids)][wanted] if self._batch_invariant else logits

    def _cut(self, slot: int, position: int) -> None:
        """Remove what a slot holds from `position` on."""
        if not self.api.llama_memory_seq_rm(self._memory, slot, position, -1):
            raise UnsupportedError(
                f"{self._file.path}: expected tokens from {position} on to be removed from the cache, got a refusal of "
                "llama.cpp; choose a model with a KV cache"
                + (f", or allocate_states() for more than {self._drafts} drafts" if self._recurrent else "")
            )
        self._held[slot] = min(self._held[slot], position)


class GgufTokenizer(Tokenizer):
    """The tokenizer inside a GGUF file, by llama.cpp."""

    def __init__(self, path: str | Path) -> None:
        self._file = Gguf(path, vocab_only=True)
        config = self._file.config
        self.vocab_size, self.bos_token_id = config.vocab_size, config.bos_token_id
        self.eos_token_ids = config.eos_token_ids
        self.eos_token_id = config.eos_token_ids[0] if config.eos_token_ids else None
        self._bytes_of = cache(self.token_bytes)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """See Tokenizer.encode. The file's `add_bos_token` and `add_eos_token` say which tokens are added."""
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise cannot_encode(text, error) from error
        ids = (c_int32 * (len(data) + 8))()
        count = self._file.api.llama_tokenize(
            self._file.vocab, data, len(data), ids, len(ids), add_special_tokens, True
        )
        return ids[:count]

    def decode(self, ids: Sequence[int]) -> str:
        """See Tokenizer.decode."""
        return b"".join(map(self._bytes_of, ids)).decode("utf-8", "replace")

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """See Tokenizer.special_ids."""
        is_control = self._file.api.llama_vocab_is_control
        return frozenset(token for token in range(self.vocab_size) if is_control(self._file.vocab, token))

    def _detokenizer(self, silent: frozenset[int]) -> Detokenizer:
        return ByteDetokenizer(self.vocab_size, silent, self._bytes_of)

    def token_bytes(self, token_id: int) -> bytes:
        """See Tokenizer.token_bytes."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        buffer = create_string_buffer(256)
        count = self._file.api.llama_token_to_piece(self._file.vocab, token_id, buffer, len(buffer), 0, True)
        if count < 0:
            buffer = create_string_buffer(-count)
            count = self._file.api.llama_token_to_piece(self._file.vocab, token_id, buffer, len(buffer), 0, True)
        return buffer.raw[:count]


def read_chat_templates(path: str | Path, names: Sequence[str | None]) -> tuple[dict[str | None, str], dict[str, str]]:
    """The chat templates of a GGUF file with these names, None for the main one.

    The second dictionary holds its special tokens by the names that templates use.
    """
    file = Gguf(path, vocab_only=True)
    found = {name: file.api.llama_model_chat_template(file.handle, name and name.encode()) for name in names}
    ids = {"bos_token": file.api.llama_vocab_bos(file.vocab), "eos_token": file.api.llama_vocab_eos(file.vocab)}
    tokens = {key: file.api.llama_vocab_get_text(file.vocab, id_).decode() for key, id_ in ids.items() if id_ >= 0}
    return {name: text.decode("utf-8", "replace") for name, text in found.items() if text}, tokens


def _free_context(free: Any, context: Any, file: Gguf) -> None:
    """Free a context; `file` keeps its weights alive until then."""
    free(context)


def _refused(op: str, argument: str, expected: str, got: str, hint: str) -> ArgumentError:
    return ArgumentError(op=op, backend=FRAMEWORK, argument=argument, expected=expected, got=got, hint=hint)
