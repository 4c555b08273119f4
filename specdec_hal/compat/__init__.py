"""Adapters for other engines: `vllm`, `transformers`.

A module here imports its engine and refuses untested versions. docs/use/engines.md has the commands.
"""
