"""The server as three processes: HTTP, engine and token processor. Any of them may be killed at any time.

::

    clients <-> http  -- commands -->  engine  -- frames -->  tokens (the token processor)
                 ^  ^-- refusals, counts --+                     |
                 +------------------- deltas --------------------+

`messages` defines their messages; `engine`, `tokens` and `remote` (in HTTP) are the three; `supervisor` starts and
restarts them. Tokens depend only on prompt, parameters and seed, so a restarted process requests everything again, and
its reader skips known output.
"""
