"""The oracle: every op in NumPy, to be read against the contract line by line.

`primitives` random numbers, integer masses and logarithms; `floats` the logit dtypes; `step_index`, `sampling`,
`verify`, `status`, `ngram` (with `ngram_index`) and `output` one function per op; `backend` the Backend class;
`plugin` the hook.
"""
