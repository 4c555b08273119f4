"""Batch generation: a file of prompts in, a file of answers out, on one process or on a Ray cluster.

`rows`: what a line of the input asks for, and what its answer looks like. `openai_rows`: the same for OpenAI's batch
lines. `blocks`: how the input is divided, and the output folder, which remembers what is done. `replica`: one engine,
which answers blocks. `on_ray`: several of them, as actors of Ray Data. `results`: the answers of all blocks as one
file, and what they add up to.
"""
