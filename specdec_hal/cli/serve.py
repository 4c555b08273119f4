"""Serve a model over HTTP with OpenAI's API, and a page at /. docs/use/serving.md has the routes and keys.

The default configuration serves the embedded model. SIGINT and SIGTERM let requests end first. HTTP and engine are
separate processes, and one that is killed is restarted; with --no-split there is one process, for debugging.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

import specdec_hal
from specdec_hal.cli.decoding import load
from specdec_hal.cli.output import Output, add_config_arguments, read_runtime
from specdec_hal.cli.process import complain
from specdec_hal.errors import ConfigError, EngineDeadError, SpecDecError
from specdec_hal.plugin import parts
from specdec_hal.serve.ray_cluster import LOCAL
from specdec_hal.tensors.memory import freeze_heap

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from specdec_hal.config import Config
    from specdec_hal.engine.runtime import Runtime
    from specdec_hal.serve.service import Service
    from specdec_hal.serve.split.supervisor import Part

HELP = "serve a model over HTTP, with OpenAI's API"
API_KEY = "SPECDEC_HAL_API_KEY"
EMBEDDED = Path(specdec_hal.__file__).parents[1] / "configs" / "serve.yaml"
_KEYS = ("host", "port", "served_model_name", "chat_template", "reasoning_parser", "tool_call_parser")
_MORE = ("allowed_hosts", "allowed_origins", "log_format", "access_log", "split", "http_workers")
"""Keys of the section `serve` with an option each."""
_PART = ("part", "directory", "alive-fd", "listener-fd", "resume")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Configuration, and where to listen."""
    add_config_arguments(parser, "configs/serve.yaml of this source tree")
    for key in _KEYS:
        parser.add_argument(f"--{key.replace('_', '-')}", metavar="VALUE", help=f"same as --set serve.{key}=VALUE")
    parser.add_argument(
        "--allowed-hosts",
        nargs="+",
        metavar="HOST",
        help="host names of the server, as in serve.allowed_hosts: example.com, '*.example.com', '*' (default "
        "without an API key: localhost and other addresses of this machine)",
    )
    parser.add_argument(
        "--allowed-origins",
        nargs="+",
        metavar="ORIGIN",
        help="web pages of other servers that may use this one, as in serve.allowed_origins: https://example.com, '*'",
    )
    parser.add_argument(
        "--split",
        action=argparse.BooleanOptionalAction,
        help="same as --set serve.split=true or false: HTTP and engine in two processes (default), or all in one",
    )
    parser.add_argument(
        "--http-workers", metavar="N", help="same as --set serve.http_workers=N, or auto; not with --no-split"
    )
    parser.add_argument(
        "--log-format", choices=("text", "json"), help="same as --set serve.log_format=...; logs go to stderr"
    )
    quiet = "same as --set serve.access_log=false"
    parser.add_argument("--no-access-log", dest="access_log", action="store_false", default=None, help=quiet)
    parser.add_argument(
        "--replicas",
        type=_replicas,
        metavar="N",
        help="engines on Ray Serve: 2, or 1-4 to scale with the load",
    )
    parser.add_argument(
        "--ray", default=LOCAL, metavar="ADDRESS", help="Ray cluster of --replicas (default: this machine's)"
    )
    for name in _PART:  # set by the supervisor for its processes
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        default=os.environ.get(API_KEY),
        help=f"bearer token required from clients (default: ${API_KEY}, which process lists do not show)",
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Serve until stopped."""
    try:  # only what every process needs: the engine's is to load its model early
        from specdec_hal.serve import logs, relay
        from specdec_hal.serve.split.supervisor import Part, Supervisor

        if find_spec("fastapi") is None:
            raise ModuleNotFoundError(name="fastapi")
    except ModuleNotFoundError as error:
        raise ConfigError(f"serve: {error.name} is not installed; pip install 'specdec-hal[serve]'") from error

    if args.api_key == "":
        raise ConfigError("--api-key: expected a key, got an empty one; leave it out to allow all clients")
    if args.config is None and EMBEDDED.is_file():
        args.config = str(EMBEDDED)
    given = {key: value for key in (*_KEYS, *_MORE) if (value := getattr(args, key)) is not None}
    numbers = ("port", "http_workers")
    args.overrides += [f"serve.{key}={value if key in numbers else json.dumps(value)}" for key, value in given.items()]
    if args.log_format == "json" and args.part is None:  # a part's output goes to its supervisor's relay
        relay.start()
    runtime = read_runtime(args)
    if runtime.config.serve.log_format == "json" and args.part is None:
        relay.start()
    logs.configure(runtime.config.serve)
    if args.part is not None:
        return _part(
            args, runtime, output, Part(args.part, Path(args.directory), int(args.alive_fd), args.resume == "1")
        )
    if args.replicas is not None:
        from specdec_hal.serve import replicas

        placed = replace(args.replicas, address=args.ray, gpus=1 if runtime.backend.device == "cuda" else 0)
        replicas.run(runtime.config, placed, args.api_key, lambda url: _say(output, runtime.config, url))
        return 0
    from specdec_hal.models import chat
    from specdec_hal.serve.listeners import is_loopback, listen

    template = chat.load_chat_template(runtime.config.model_path, runtime.config.serve.chat_template)
    workers = runtime.config.serve.num_http_workers
    with listen(runtime.config, workers) as listeners:  # before the model is loaded, which takes time
        if args.api_key is None and not is_loopback(listeners[0].getsockname()[0]):
            complain("anyone who can reach this address may use the server; set --api-key")
        logs.loading(runtime.config)
        if runtime.config.serve.split:
            fds = tuple(listener.fileno() for listener in listeners)
            args.overrides.append(f"serve.http_workers={workers}")  # the same in all processes
            command = partial(_command, args, fds)
            if args.api_key is not None:
                os.environ[API_KEY] = args.api_key  # process lists do not show it
            return Supervisor(command, fds, workers).run()
        from specdec_hal.engine import AsyncEngine
        from specdec_hal.serve import server
        from specdec_hal.serve.app import make_app
        from specdec_hal.serve.service import Service

        began = time.perf_counter()
        model, tokenizer = load(runtime)
        engine = AsyncEngine(model, runtime, tokenizer=tokenizer)
        freeze_heap()
        logs.started(runtime.config, engine.runner, time.perf_counter() - began)
        try:
            service = Service(engine, runtime.config.served_name, runtime.config.serve, template)
            server.run(_serve(make_app(service, args.api_key), service, listeners[0], output, engine.until_ended))
        finally:
            engine.close()
            runtime.close()
        if engine.failure:
            raise EngineDeadError(f"serve: the engine has stopped: {engine.failure}")
    return 0


async def _serve(
    app: ASGIApp,
    service: Service,
    listener: socket,
    output: Output | None,
    until_ended: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve until stopped or until the engine has ended; `output` None: print nothing."""
    from specdec_hal.serve import logs, server
    from specdec_hal.serve.listeners import url

    def started() -> None:
        if output is not None:
            _say(output, service.engine.config, url(listener))

    ended = None if until_ended is None else until_ended()
    if service.settings.access_log:
        app = logs.AccessLog(app)
    await server.serve(app, listener, service.settings, started, service.abort_all, ended)
    logs.ended()


def _say(output: Output, config: Config, url: str) -> None:
    started = {"url": url, "model": config.served_name}
    if config.serve.log_format == "json":
        print(json.dumps(started), file=output.stdout)
    elif output.json:
        output.document(started)
    else:
        output.console.print(f"serving {config.served_name} on {url}", soft_wrap=True)
    output.stdout.flush()


def _replicas(text: str) -> Any:
    from specdec_hal.serve.replicas import Replicas

    try:
        return Replicas.read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a number, or two as in 1-4, got {text!r}") from error


# ---- separate processes


def _command(args: argparse.Namespace, listener_fds: Sequence[int], part: Part) -> list[str]:
    """The command line of one of the processes."""
    listener_fd = -1 if part.worker is None else listener_fds[part.worker]
    values = (part.name, part.directory, part.alive_fd, listener_fd, int(part.resume))
    passed = [f"--{name}={value}" for name, value in zip(_PART, values, strict=True)]
    settings = [word for override in args.overrides for word in ("--set", override)]
    where = [] if args.config is None else ["--config", args.config]
    flags = ["--json"] if args.json else []
    return parts.command("specdec_hal.cli", "serve", *flags, *where, *settings, *passed)


def _part(args: argparse.Namespace, runtime: Runtime, output: Output, part: Part) -> int:
    """Run one of the processes."""
    from specdec_hal.serve import logs
    from specdec_hal.serve.split import addresses

    config = runtime.config
    part.watch()
    if part.name == addresses.ENGINE:
        from specdec_hal.serve.split.engine import EngineProcess

        began = time.perf_counter()
        model, tokenizer = load(runtime)
        runner = runtime.runner(model=model, tokenizer=tokenizer)
        freeze_heap()
        logs.started(config, runner, time.perf_counter() - began)
        runner.when_lost(lambda error: os.kill(os.getpid(), signal.SIGKILL))  # the supervisor starts all ranks again
        EngineProcess(runner, part.directory, config.serve, resume=part.resume).run()
    else:
        from specdec_hal.models import chat
        from specdec_hal.serve import server
        from specdec_hal.serve.app import make_app
        from specdec_hal.serve.service import Service
        from specdec_hal.serve.split.remote import RemoteEngine

        template = chat.load_chat_template(config.model_path, config.serve.chat_template)

        try:
            tokenizer = runtime.load_tokenizer()
        except SpecDecError:
            part.until_engine_listens()  # it loads the same files: the server ends with its error
            raise

        async def http() -> None:
            engine = await RemoteEngine.connect(config, tokenizer, part.directory, part.worker or 0)
            try:
                with socket(fileno=int(args.listener_fd)) as listener:
                    engine.local = service = Service(engine, config.served_name, config.serve, template, engine)
                    silent = part.resume or part.worker
                    app = make_app(service, args.api_key)
                    freeze_heap()
                    await _serve(app, service, listener, None if silent else output)
            finally:
                engine.close()

        server.run(http())
    return 0
