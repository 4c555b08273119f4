"""The host's CPU: the kernels of ``kernels_cpu``.

`options` checks the backend's options; `backend` binds the kernels of ``libspecdec_cpu.so``; `plugin` is the hook.
"""
