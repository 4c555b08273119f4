"""Structured output: what a grammar lets a request say next, as a mask for each verified row.

`backend` is the interface of a grammar library: compile, mask, advance, roll back. `xgrammar` and `llguidance`
implement it, `schema` says which JSON schemas the former enforces. `compiler` keeps compiled grammars, and compiles in
another process (`worker`) what nothing else could stop. `state` follows one request: its thoughts, its grammar, its
drafts.
"""
