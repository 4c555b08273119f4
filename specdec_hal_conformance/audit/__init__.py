"""Whether an engine's drafts change its answers, seen from outside through the API of OpenAI.

Two endpoints of one model, with and without speculation, get the same questions. At the first difference of two greedy
answers the log-probabilities of both tokens say whether rounding can explain it; samples are compared by their counts.
"""
