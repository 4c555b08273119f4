"""An OpenAI-compatible server. The extra `serve` installs what it needs.

`protocol` has request bodies, `answers` responses, `app` the routes, `service` the generation behind them, `metrics`
Prometheus metrics, and `server` the listener. The engine is an :class:`~specdec_hal.engine.AsyncEngine` in this process
or a separate one (`split`).
"""
