"""The server as two processes, HTTP and engine. Either may be killed at any time.

::

    clients <-> http  -- commands -->  engine
                 ^  ^-- refusals, counts --+
                 +------- frames ----------+

`addresses` names the processes, `messages` defines their messages; `engine` and `remote` (in HTTP) are the two, and
`text` turns frames into text in HTTP; `supervisor` starts and restarts them. Tokens depend only on prompt, parameters
and seed, so a restarted process requests everything again, and its reader skips known output.
"""
