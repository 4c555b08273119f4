"""Kernels of the decoder on GPUs, in Triton: one idea a file.

- :mod:`.product`: x times a weight, the arithmetic that the next two share
- :mod:`.linear`: a projection, stored or added to the residual; also the logits
- :mod:`.gate_up`: the gate and up projections with SwiGLU
- :mod:`.norm`: RMSNorm; after sums over ranks, with these
- :mod:`.attention`: attention over a paged KV cache, for prefill and decoding together
- :mod:`.launch`: common parts of launches
- :mod:`.tiles`: choice of tile sizes
- :mod:`.compiling`: compilation before launches

Bits. A token's results do not depend on other tokens of the batch, the capacity of buffers or tile sizes. Every sum has
a fixed order, stated in its kernel:

- a product adds over k in ascending order into one accumulator per part of K, and the parts in ascending order; the
assignment of parts to programs has no effect. Tensor cores keep that order for any rows and columns of a tile (checked
on an H200). The order of float32 includes the depth of a tile, so all tiles of float32 have the same;
- attention folds keys in ascending order into one state per chunk of the context, and the chunks in a fixed tree;
- sums that the compiler orders (``tl.sum`` over floats) occur only where every launch runs the same compiled kernel;
- multiplications and additions are not contracted (``enable_fp_fusion=False``), so that all variants of a kernel round
  alike.

He et al., "Defeating Nondeterminism in LLM Inference" (2025) describe why libraries' products lack this property.

No kernel synchronises with the host, allocates, or writes to rows without tokens, which exit early.
"""
