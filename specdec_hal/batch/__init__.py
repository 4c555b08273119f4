"""Batch generation: a file of prompts in, a file of answers out, on one process or on a Ray cluster.

`rows`: input lines and their answers. `openai_rows`: the same for OpenAI's batch lines. `blocks`: how the input is
divided, and the output folder, which records finished blocks. `replica`: one engine, which answers blocks. `on_ray`:
several of them, as actors of Ray Data. `results`: the answers of all blocks in one file, and their totals.
"""
