"""An OpenAI-compatible server. The extra `serve` installs what it needs.

`protocol` is what clients send, `answers` what they get, `chat` turns messages into a prompt, `app` has the routes,
`service` what is under way behind them, `metrics` what Prometheus reads, and `server` listens. The engine is an
:class:`~specdec_hal.engine.AsyncEngine` in the same process, or in one of its own (`split`).
"""
