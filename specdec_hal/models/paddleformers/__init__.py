"""Decoders of `paddleformers` as target models, with the engine's KV cache and attention.

The structure is that of :mod:`specdec_hal.models.transformers`, in Paddle. The library's own code runs on one packed
row of tokens with explicit positions and without a cache; its attention layers call our function (:mod:`.interface`).
:mod:`..host`, :mod:`..survey`, :mod:`..mtp` and :mod:`..attention` have what both adapters share.
"""

INSTALL = "pip install 'specdec-hal[paddleformers]', then pip install --no-deps paddleformers==1.2.0"
"""How to: its own requirements exclude the versions of `transformers` that it runs with."""
