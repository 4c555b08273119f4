"""From a request's tokens to what its reader gets.

`processor` is the TextProcessor, which makes text and finds stop strings for a runner's caller, for the readers of an
AsyncEngine, and in HTTP's process. `text` is that of one request, `stop_strings` finds them in it, `detokenizing` is
what both ask of a tokenizer. `parsers` split a chat's answer into thoughts, content and tool calls.
"""
