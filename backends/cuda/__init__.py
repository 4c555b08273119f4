"""NVIDIA GPUs: the kernels of ``kernels_cuda``.

`probe` says whether they can run here; `plugin` is the hook; `options` checks the backend's options; `backend` binds
the kernels of ``libspecdec_cuda.so``; `graph` captures bound ops in a CUDA graph.
"""
