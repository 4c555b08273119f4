"""Where the server listens; without the HTTP libraries, which the supervisor does not need."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address

from specdec_hal.config.schema import Config


@contextmanager
def listen(config: Config, workers: int = 1) -> Iterator[list[socket.socket]]:
    """Sockets of `serve.host` and `serve.port`, one for each of the HTTP processes, among which the kernel distributes
    connections; ConfigError if unavailable.

    Connections inherit TCP_USER_TIMEOUT (Linux): the kernel ends one after `serve.send_timeout_s` without an
    acknowledgement of sent bytes, or without room for more in the client's receive buffer. Waiting for the server's own
    buffers to fill would find only clients that leave megabytes unread.
    """
    with ExitStack() as stack:
        listeners = list[socket.socket]()
        for _ in range(workers):
            port = listeners[0].getsockname()[1] if listeners else config.serve.port
            listeners.append(stack.enter_context(_listener(config, port, several=workers > 1)))
        yield listeners


def _listener(config: Config, port: int, several: bool) -> socket.socket:
    host = config.serve.host
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=2048, reuse_port=several)
    except (OSError, UnicodeError) as error:
        key = "serve.host" if isinstance(error, (socket.gaierror, UnicodeError)) else "serve.port"
        reason = getattr(error, "strerror", None) or error
        raise config.error(key, f"cannot listen on {host}:{port}: {reason}; choose another") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        timeout_ms = math.ceil(config.serve.send_timeout_s * 1e3)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
    return listener


def url(listener: socket.socket) -> str:
    """The address for clients."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_address(name: str) -> bool:
    """Whether it is an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a name or address is local."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)
