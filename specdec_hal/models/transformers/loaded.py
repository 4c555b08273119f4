"""A model that a program has loaded with `transformers`, as a target model over the same tensors.

Attention interface, frequencies and hooks are those of a copy of the modules, so the program's own model stays as it
is, and may run meanwhile. No operator is replaced: that would hold the weights twice.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.overrides import TorchFunctionMode

from specdec_hal.errors import SpecDecError
from specdec_hal.models.paged import launchers
from specdec_hal.models.survey import Survey, refused
from specdec_hal.models.transformers.decoder import Decoder
from specdec_hal.models.transformers.interface import NAME
from specdec_hal.models.transformers.load import config_of
from specdec_hal.models.transformers.survey import base_of, check_class, set_attention, survey
from specdec_hal.text import describe

_surveys: WeakKeyDictionary[Any, tuple[Any, Survey]] = WeakKeyDictionary()
"""Of models tried before: what the result depends on, and a survey with names in place of modules."""


def target_of(model: Any) -> Any:
    """A :class:`~specdec_hal.plugin.model.TargetModel` over a loaded model's tensors, for one caller.

    It is in evaluation mode. The first call for a model tries it: see :mod:`.survey`. UnsupportedError, with the
    reason, for a model that cannot run over our KV cache, or is not on one device.
    """
    check_class(model.config, type(model))
    devices = sorted({str(tensor.device) for tensor in model.parameters()})
    if len(devices) != 1 or devices == ["meta"]:
        raise refused(model, f"its weights are on {', '.join(devices) or 'no device'}, not on one device")
    try:
        decoder = decoder_of(model)
    except (SpecDecError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # from the model's own code
        raise refused(model, f"it does not run on packed rows ({describe(error)})") from error
    device = torch.device(devices[0])
    if device.type == "cpu":
        from specdec_hal.models.transformers.host import HostTransformers

        return HostTransformers(decoder, batch_invariant=False, replace=False)
    from specdec_hal.models.transformers.device import DeviceTransformers

    make_launcher = launchers(device) if device.type == "cuda" else None
    return DeviceTransformers(decoder, make_launcher=make_launcher, batch_invariant=False, replace=False)


def decoder_of(model: Any) -> Decoder:
    """The decoder of a copy of the module tree, which shares its tensors."""
    with _Shared():
        own = copy.deepcopy(model, {id(tensor): tensor for tensor in model.parameters()}).eval()
    config, kind = config_of(own), _kind(own)
    known, found = _surveys.get(model, (None, None))
    if known != kind or found is None:
        done = survey(own, base_of(own), config.max_position_embeddings)
        names = {module: name for name, module in own.named_modules()}
        attentions, mixers = (tuple(map(names.get, each)) for each in (done.attentions, done.mixers))
        found = replace(done, attentions=attentions, mixers=mixers, blocks=names.get(done.blocks))
        _surveys[model] = kind, found
    set_attention(own, NAME)
    parts = dict(own.named_modules())
    attentions, mixers = (tuple(map(parts.get, each)) for each in (found.attentions, found.mixers))
    blocks = torch.nn.ModuleList([base_of(own)]) if found.blocks is None else parts[found.blocks]
    return Decoder(own, config, replace(found, attentions=attentions, mixers=mixers, blocks=blocks))


def _kind(model: Any) -> Any:
    """What the survey of a model depends on; equal for the same model unless it was changed."""
    settings = [
        (
            name,
            type(module),
            {key: value for key, value in vars(module).items() if isinstance(value, (int, float, str))},
        )
        for name, module in model.named_modules()
    ]
    return settings, model.dtype, model.device, model.config.to_json_string(use_diff=False)


class _Shared(TorchFunctionMode):  # type: ignore[misc]
    """Context in which copies of modules share their tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is torch.Tensor.__deepcopy__ else func(*args, **(kwargs or {}))
