"""The HTTP application on Ray Serve: several engines behind one address.

Ray Serve restarts replicas that die or fail their health check, and sends a request to the less loaded of two (its
"power of two choices"). It scales between bounds, and replaces replicas one by one when an application is deployed
again. This module only defines a replica. ``serve run`` and ``serve deploy`` accept :func:`application` too.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from specdec_hal.config import Config, load, parse
from specdec_hal.engine.runtime import Runtime
from specdec_hal.errors import EngineDeadError
from specdec_hal.plugin.backend import AUTO
from specdec_hal.serve.ray_cluster import LOCAL, connect
from specdec_hal.tensors.memory import freeze_heap

NAME = "specdec_hal"
_engines: list[Any] = []
"""The engine of this replica process."""


@dataclass(frozen=True)
class Replicas:
    """Least and most engines, resources of each, and the Ray cluster."""

    least: int
    most: int
    cpus: float = 1
    gpus: float = 0
    address: str = LOCAL

    @classmethod
    def read(cls, text: str) -> Replicas:
        """ "2", or "1-4"; ValueError for anything else."""
        least, _, most = text.partition("-")
        found = cls(int(least), int(most or least))
        if not 1 <= found.least <= found.most:
            raise ValueError(text)
        return found


def application(args: dict[str, Any]) -> Any:
    """A Ray Serve application, from `config` (a YAML file), `replicas` as on the command line, and an `api_key` if any.

    Model and chat template must be at the same paths on every machine.
    """
    config = load(args["config"])
    return _application(config, Replicas.read(str(args.get("replicas", 1))), args.get("api_key"))


def _application(config: Config, replicas: Replicas, api_key: str | None) -> Any:
    serve: Any = import_module("ray.serve")
    scale: dict[str, Any] = {"num_replicas": replicas.least}
    if replicas.most > replicas.least:
        scale = {"autoscaling_config": {"min_replicas": replicas.least, "max_replicas": replicas.most}}
    settings = config.serve

    given = config.as_json()

    def build() -> Any:  # Ray Serve takes functions, not partial ones
        return _make_app(given, api_key)

    class Engine:
        async def check_health(self) -> None:
            if not all(engine.alive for engine in _engines):
                raise EngineDeadError("the engine of this replica has stopped")

    deployment = serve.deployment(
        name=NAME,
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        max_ongoing_requests=settings.max_concurrent_requests,
        graceful_shutdown_timeout_s=settings.drain_timeout_s,
        **scale,
    )
    return deployment(serve.ingress(build)(Engine)).bind()


def _make_app(settings: dict[str, Any], api_key: str | None) -> Any:
    """The HTTP application of a replica, with its engine."""
    from specdec_hal.engine import AsyncEngine
    from specdec_hal.models.chat import load_chat_template
    from specdec_hal.serve.app import make_app
    from specdec_hal.serve.service import Service

    config = parse(settings, source="replica")
    engine = AsyncEngine(None, Runtime(config))
    freeze_heap()
    _engines.append(engine)
    template = load_chat_template(config.model_path, config.serve.chat_template)
    return make_app(Service(engine, config.served_name, config.serve, template), api_key)


def run(config: Config, replicas: Replicas, api_key: str | None, started: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `started` is called with the address. ClusterError as from :func:`connect`."""
    if config.runner.journal is not None:
        raise config.error("runner.journal", "expected null with --replicas, which would share the file; remove it")
    if config.serve.http_workers not in (AUTO, 1):
        raise config.error("serve.http_workers", "expected 1 with --replicas, whose processes Ray Serve starts")
    ray = connect("ray.serve", replicas.address, replicas.most * replicas.cpus)
    serve: Any = import_module("ray.serve")
    host, port = config.serve.host, config.serve.port
    try:
        serve.start(http_options={"host": host, "port": port})
        serve.run(_application(config, replicas, api_key), name=NAME, route_prefix="/")
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):  # replaces Ray's
            signal.signal(number, lambda *_: ended.set())
        started(f"http://{host}:{port}")
        ended.wait()
        _drain(serve, config.serve.drain_timeout_s)
    finally:
        serve.shutdown()
        ray.shutdown()


def _drain(serve: Any, timeout_s: float) -> None:
    """Let running requests end, up to `timeout_s`; Ray Serve's shutdown alone cuts their connections."""
    until, ended = time.monotonic() + timeout_s, False
    while not ended:
        try:
            serve.delete(NAME)  # waits for the replicas, at most 60 s
            ended = True
        except TimeoutError:
            ended = time.monotonic() > until
