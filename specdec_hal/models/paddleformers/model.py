"""A model of `paddleformers` on a CPU: slots with caches that grow, and the native attention over them.

Products and RMS norms are the native library's, too (see :mod:`.native`), and loading measures numbers of rows that
give a token the same bits; steps are padded to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
import paddle

from specdec_hal.models import host
from specdec_hal.models.attention import HostStore, Layer
from specdec_hal.models.host import HostModel
from specdec_hal.models.llama_paddle import aligned, one_thread
from specdec_hal.models.mtp import HostMTP, ModuleFiles
from specdec_hal.models.paddleformers.decoder import Decoder, trial_ids
from specdec_hal.models.paddleformers.mtp import ModuleDecoder
from specdec_hal.models.paddleformers.native import Native
from specdec_hal.models.rows import agreeing
from specdec_hal.models.survey import check_in_parts, compare
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, ModelCapabilities, Segment

_POSITION = 37  # not 0, where rotary embeddings change nothing
_MEASURED = (11, 7)  # ids


class PaddleFormers(HostModel):
    """See :class:`specdec_hal.plugin.model.TargetModel`.

    `batch_invariant` None: if it is found. `threads`: the most for attention and products. `module`: the checkpoint's
    MTP module, or None.
    """

    framework: ClassVar[str] = "paddle"

    def __init__(
        self,
        decoder: Decoder,
        place: Any,
        *,
        batch_invariant: bool | None = None,
        threads: int = 1,
        module: ModuleFiles | None = None,
    ) -> None:
        super().__init__()
        self._decoder, self.config, self._module = decoder, decoder.config, module
        self._place, self._threads = place, threads
        self._native = Native(threads)
        on_host = isinstance(place, paddle.CPUPlace)
        self._inside = one_thread() if on_host else paddle.no_grad
        with self._inference():
            whole = on_host and self._native.install(decoder.model)
            self._try()
            if whole and batch_invariant is not False:
                self._measure()
        self._limits = None  # of the trial's cache

    def _try(self) -> None:
        """UnsupportedError unless the model computes over our KV cache what it computes by itself."""
        survey, model = self._decoder.survey, self._decoder.model
        length = len(survey.ids)
        self.allocate(2, length)
        texts = [survey.ids.numpy(), trial_ids(survey.vocab_size, 1, length).numpy()]

        def run(*parts: tuple[int, int, int]) -> list[Any]:
            ids = np.concatenate([texts[i][start : start + length] for i, start, length in parts])
            ends = np.cumsum([length for *_, length in parts]).tolist()
            each = zip(parts, ends, strict=True)
            segments = [Segment(slot, end - length, length, start) for (slot, start, length), end in each]
            hidden = self.forward(ForwardBatch(ids, segments))[FINAL_NORM]
            return [hidden[one.start : one.start + one.length] for one in segments]

        (whole,), (other,) = run((0, 0, length)), run((1, 0, length))
        compare(model, survey.hidden.astype("float32"), whole, "our attention does not compute what its own does")
        check_in_parts(model, run, (length, length), (whole, other), paddle.concat)

    def _measure(self) -> None:
        """Choose sizes of passes that give a row the same bits."""
        decoder = self._decoder
        decoder.serve(_Silent())
        position = min(_POSITION, self.config.max_position_embeddings - 1)
        states = paddle.to_tensor(np.random.default_rng(0).standard_normal((2, self.config.hidden_size), np.float32))

        def hidden(rows: int) -> bytes | None:
            at = np.zeros(rows, np.int64)
            ids = (self._upload(at + token % self.config.vocab_size) for token in _MEASURED)
            return _common([decoder.hidden(one, self._upload(at + position))[FINAL_NORM] for one in ids])

        def logits(rows: int) -> bytes | None:
            return _common([decoder.logits(x[None].tile([rows, 1])) for x in states])

        sizes, head = agreeing(hidden, host.SIZES), agreeing(logits, host.HEAD_SIZES)
        if sizes.sizes and head.sizes:
            self._sizes, self._head_sizes, self.batch_invariant = sizes, head, True

    @property
    def capabilities(self) -> ModelCapabilities:
        """Every layer can be tapped; shapes follow the batch."""
        return ModelCapabilities(
            hidden_layers=self._decoder.hidden_layers,
            mtp_modules=int(self._module is not None),
            stable_row_counts=None if self.batch_invariant else (),
        )

    def _inference(self) -> AbstractContextManager[Any]:
        return self._inside()

    def _upload(self, array: Any) -> Any:
        return paddle.Tensor(np.ascontiguousarray(array), self._place)

    def _input(self, x: Any) -> Any:
        if isinstance(x, np.ndarray):
            x = self._upload(x)
        elif not isinstance(x, paddle.Tensor):
            x = paddle.from_dlpack(x)
        return aligned(x.to(self._place, self._decoder.dtype).contiguous())

    def _concat(self, parts: Sequence[Any]) -> Any:
        return paddle.concat([*parts], 0)

    def _new_store(self, slots: int, positions: int) -> Any:
        store = HostStore(self._decoder.survey.layers, slots, positions, self._threads, self._native)
        self._decoder.serve(store)
        return store

    def _module_model(self) -> Any:
        """The MTP module as a model of this class."""
        assert self._module is not None  # else the capabilities have none
        decoder = ModuleDecoder(self._decoder, self._module, self._place)
        return type(self)(decoder, self._place, batch_invariant=self.batch_invariant, threads=self._threads)

    def mtp_module(self) -> Any:
        """See MTPModel.mtp_module."""
        assert self._limits is not None
        served = self._module_model()
        served.allocate(self._limits.max_num_seqs, self._limits.max_model_len)
        return HostMTP(self, served, served._decoder)


class _Silent:
    """A store whose attention returns a value independent of other rows."""

    def attend(self, layer: Layer, query: Any, key: Any, value: Any, sinks: Any | None) -> Any:
        """See HostStore.attend."""
        return query[..., : layer.value_dim]


def _common(results: Sequence[Any]) -> bytes | None:
    """The bytes of the first rows, if all rows of each result are equal."""
    arrays = [rows.numpy() for rows in results]
    if not all((rows.view(np.uint8) == rows[:1].view(np.uint8)).all() for rows in arrays):
        return None
    return b"".join(rows[0].tobytes() for rows in arrays)
