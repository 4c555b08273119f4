"""Structured output: grammars as masks of allowed tokens, one per verified row.

`backend` is the interface of a grammar library: compile, mask, advance, roll back. `xgrammar` and `llguidance`
implement it; `schema` checks JSON schemas for the former. `compiler` caches compiled grammars and compiles in a
killable process (`worker`). `state` tracks one request's thoughts, grammar and drafts.
"""
