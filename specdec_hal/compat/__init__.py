"""This project inside engines that people already run: `vllm`, `transformers`, `fastdeploy`.

A module here imports its engine, and refuses versions that nobody has run it with. docs/use/engines.md and
docs/use/fastdeploy.md have the commands.
"""
