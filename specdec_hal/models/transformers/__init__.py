"""Any decoder of Hugging Face `transformers` as a target model, with the engine's KV cache and attention.

The model's own code runs on one packed row of tokens with explicit positions and without a cache. Its attention layers
call the function of :mod:`.interface`, which the engine implements (:mod:`.host` on CPUs, :mod:`.device` on GPUs).
:mod:`.survey` examines the layers in a trial and refuses unsupported models by name. vLLM's and SGLang's "Transformers
backend" have the same structure.
"""
