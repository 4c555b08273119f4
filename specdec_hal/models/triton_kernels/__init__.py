"""Kernels of the decoder on GPUs, in Triton: one idea a file.

- :mod:`.product`: x times a weight, the arithmetic that the next three share
- :mod:`.linear`: a projection, stored or added to the residual; also the logits
- :mod:`.qkv`: the q, k and v projections with rotary embeddings, k and v written to the KV cache
- :mod:`.gate_up`: the gate and up projections with SwiGLU
- :mod:`.norm`: RMSNorm, the first one with the embedding; after sums over ranks, with these
- :mod:`.attention`: attention over a paged KV cache, for prefill and decoding together
- :mod:`.launch`: what every launch shares
- :mod:`.tiles`: which tile sizes are launched
- :mod:`.compiling`: compiling them before they are launched

Bits. A token's results do not depend on what else is in the batch: neither on other tokens, nor on the capacity of the
buffers, nor on the tile sizes chosen for it. Every sum has one order, written down in its kernel:

- a product adds over k in ascending order into one accumulator per part of K, and the parts in ascending order; which
  program computes which part changes nothing. Tensor cores keep that order whatever the tile's rows and columns, as
  was checked on an H200. The order of float32 includes the depth of a tile, so all tiles of float32 have the same;
- attention folds keys in ascending order into one state per chunk of the context, and the chunks in a fixed tree;
- sums that the compiler orders (``tl.sum`` over floats) occur only where every launch runs the same compiled kernel;
- multiplications and additions are not contracted (``enable_fp_fusion=False``), so that all variants of a kernel round
  alike.

He et al., "Defeating Nondeterminism in LLM Inference" (2025) describe why libraries' products lack this property.

No kernel reads a device value on the host, allocates, or writes outside the rows that hold tokens: rows after the
step's tokens cost an early exit.
"""
