"""Adapters for other engines: `vllm`, `transformers`, `fastdeploy`.

A module here imports its engine and refuses untested versions. docs/use/engines.md and
docs/use/fastdeploy.md have the commands.
"""
