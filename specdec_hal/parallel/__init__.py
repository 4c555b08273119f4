"""Tensor parallelism: one model over several processes, each with a part of every weight.

Every rank holds a whole runner and decides everything by itself, from the same integers and the same Philox keys: no
rank sends tokens to another. `group`: what ranks tell each other. `weights`: a rank's part of a decoder. `llama`: the
decoder over a group. `runner`: a runner that has the others do what it does, and compares what they decided.
`rank`: the life of one that is not the first. `team`: all of them, as the first sees them.

`vocabulary`: sampling where each rank has a part of the vocabulary; a rank does send the token that only it can tell.
"""
