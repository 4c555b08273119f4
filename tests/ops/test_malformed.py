"""What only looks like a tensor or a stream is refused by name, with nothing written, on every host backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import ArgumentError
from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.registry import get_backend
from tests.support.calls import valid_call

OP = "update_model_status"


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return get_backend(request.param)


def misaligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    shifted = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    shifted[...] = array
    return shifted


class Broken:
    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **kwargs: Any) -> Any:
        raise KeyError("no")


LOOKALIKES = {
    "matrix": (lambda x: np.asmatrix(x).T, "got a matrix; pass numpy.asarray"),
    "masked": (lambda x: np.ma.masked_array(x.copy(), x > 0), "got a MaskedArray; pass x.filled"),
    "misaligned": (misaligned, "expected memory aligned for int64, got address 0x"),
    "exporter": (lambda x: Broken(), "got a Broken that refuses ("),
    "torch": (lambda x: type("Tensor", (), {"__module__": "torch"})(), "got a Tensor that refuses ("),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize(("change", "message"), LOOKALIKES.values(), ids=LOOKALIKES)
def test_lookalikes(backend: Backend, change: Any, message: str) -> None:
    call = valid_call(OP)
    call["prompt_lens"] = change(call["prompt_lens"])
    before = {name: value.tobytes() for name, value in call.items() if type(value) is np.ndarray}
    with pytest.raises(ArgumentError) as caught:
        backend.update_model_status(**call)
    assert caught.value.argument == "prompt_lens" and message in str(caught.value)
    assert before == {name: call[name].tobytes() for name in before}


def test_misaligned_after_an_aligned_one_of_the_same_shape(backend: Backend) -> None:
    call = valid_call(OP)
    backend.update_model_status(**call)
    with pytest.raises(ArgumentError, match="memory aligned"):
        backend.update_model_status(**{**call, "prompt_lens": misaligned(call["prompt_lens"])})


def test_read_only_inputs_and_other_subclasses_work(backend: Backend) -> None:
    expected, call = valid_call(OP), valid_call(OP)
    backend.update_model_status(**expected)
    call["prompt_lens"].flags.writeable = False
    call["max_dec_len"] = call["max_dec_len"].view(np.recarray)
    backend.update_model_status(**call)
    for name in ("step_idx", "stop_flags", "token_ids_all"):
        np.testing.assert_array_equal(call[name], expected[name])


@pytest.mark.parametrize(
    "stream", [-1, 1 << 63, True, 1.5, "x", np.array([1, 2]), 10**5000], ids=lambda value: type(value).__name__
)
def test_streams(backend: Backend, stream: Any) -> None:
    call = valid_call(OP)
    before = call["step_idx"].copy()
    with pytest.raises(ArgumentError, match="argument 'stream': expected the handle of a stream, an int in"):
        backend.update_model_status(**call, stream=stream)
    np.testing.assert_array_equal(call["step_idx"], before)
    backend.update_model_status(**call, stream=np.int64(0))


def test_bind_takes_its_own_name_positionally(backend: Backend) -> None:
    with pytest.raises(ArgumentError, match=r"argument 'op': .* got an unknown name"):
        backend.bind(OP, **{**valid_call(OP), "op": 1})


def test_values_are_cut_in_messages(backend: Backend) -> None:
    call = valid_call("ngram_match")
    with pytest.raises(ArgumentError, match=r"max_ngram_size.*got <integer of 16610 bits>"):
        backend.ngram_match(**{**call, "max_ngram_size": 10**5000})
