"""A model that a program has loaded, as a target model over the same tensors."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_hal.errors import UnsupportedError

pytestmark = pytest.mark.torch


@pytest.fixture
def model() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    return transformers.LlamaForCausalLM(config)


def test_it_has_the_same_tensors(model: Any) -> None:
    from specdec_hal.models.transformers.loaded import decoder_of

    model.extra = {"scale": model.lm_head.weight.detach()[:1]}  # a tensor that is no parameter
    own = decoder_of(model).model
    assert own is not model and own.lm_head is not model.lm_head and not own.training and model.training
    assert {id(tensor) for tensor in own.parameters()} == {id(tensor) for tensor in model.parameters()}
    assert own.extra["scale"] is model.extra["scale"] and own.extra is not model.extra


def test_weights_that_are_not_on_one_device(model: Any) -> None:
    from specdec_hal.models.transformers.loaded import target_of

    model.lm_head.to("meta")
    with pytest.raises(UnsupportedError, match="LlamaForCausalLM: its weights are on cpu, meta, not on one device"):
        target_of(model)


def test_code_that_does_not_run_on_packed_rows(model: Any) -> None:
    from specdec_hal.models.transformers.loaded import target_of

    model.model.register_forward_pre_hook(lambda module, args, kwargs: kwargs["cache"], with_kwargs=True)
    with pytest.raises(UnsupportedError, match=r"LlamaForCausalLM: it does not run on packed rows \(KeyError: 'cache'"):
        target_of(model)
