"""Any decoder of Hugging Face `transformers` as a target model, with the engine's KV cache and attention.

The model's own code runs on one packed row of tokens with explicit positions and without a cache. Its attention layers
call the function of :mod:`.interface`, which the engine serves (:mod:`.host` on CPUs, :mod:`.device` on GPUs).
:mod:`.survey` finds out by a trial what the layers are like, and refuses by name what cannot run. The same division is
found in vLLM and SGLang (their "Transformers backend").
"""
