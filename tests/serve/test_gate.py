"""What clients may send before anything is done with it: how much, how slowly, and to which host."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from specdec_hal.serve.gate import MAX_HEAD, Hosts
from tests.serve.conftest import Running, serving

SLOW = 0.4
GONE = r"Broken pipe|reset"


@pytest.fixture(scope="module")
def hurried() -> Iterator[Running]:
    with serving(serve={"port": 0, "receive_timeout_s": SLOW, "max_body_bytes": 1000}) as running:
        yield running


def connect(running: Running) -> socket.socket:
    host, port = running.url.removeprefix("http://").split(":")
    found = socket.create_connection((host, int(port)), timeout=30)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def answer(client: socket.socket) -> bytes:
    """All that the server sends before it closes the connection."""
    got = b""
    try:
        while data := client.recv(1 << 16):
            got += data
    except ConnectionResetError:
        pass
    return got


# ---- how much


def test_an_endless_head(running: Running) -> None:
    """40 MB of headers on one connection took 946 MB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for start in (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"GET /"):
        with connect(running) as client:
            sent = 0
            try:
                client.sendall(start)
                for _ in range(40):
                    client.sendall(b"x" * (1 << 20))
                    sent += 1
            except (BrokenPipeError, ConnectionResetError):
                pass
            assert sent < 39
    with connect(running) as client:
        try:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
            for number in range(100_000):
                client.sendall(b"X-%d: y\r\n" % number)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            pytest.fail("100,000 headers were taken")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    assert running.http.get("/health").status_code == 200


def test_a_head_that_is_too_long_is_told_so(running: Running) -> None:
    long = {"A": "y" * (MAX_HEAD // 2), "B": "y" * (MAX_HEAD // 2)}
    assert running.http.get("/health", headers=long).status_code == 431
    assert running.http.get(f"/health?{'y' * 50_000}", headers={"A": "y" * 16_000}).status_code == 431
    assert running.http.get("/health", headers={"X": "y" * (MAX_HEAD - 1000)}).status_code == 200
    with connect(running) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * MAX_HEAD)
        assert answer(client).startswith(b"HTTP/1.1 431 ")


def test_a_body_is_no_head(running: Running) -> None:
    body = b'{"prompt": [1], "max_tokens": 1' + b" " * 3 * MAX_HEAD + b"}"
    with connect(running) as client:
        for _ in range(3):
            client.sendall(POST.replace(b"20", str(len(body)).encode()))
            threading.Event().wait(0.05)
            client.sendall(body)
            got = b""
            while not got.endswith(b"}}"):
                got += client.recv(1 << 16)
            assert got.startswith(b"HTTP/1.1 200 ")


# ---- how slowly


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET", b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: y"],
)
def test_half_a_head(hurried: Running, sent: bytes) -> None:
    """It was waited for forever."""
    with connect(hurried) as client:
        client.sendall(sent)
        assert answer(client) == b""


def test_a_head_that_trickles(hurried: Running) -> None:
    with connect(hurried) as client, pytest.raises(OSError, match=GONE):
        for letter in b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 2000:
            client.sendall(bytes([letter]))
            threading.Event().wait(SLOW / 10)


POST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"
)


def test_half_a_body(hurried: Running) -> None:
    with connect(hurried) as client:
        client.sendall(POST + b'{"prompt"')
        head, _, body = answer(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and b"serve.receive_timeout_s" in body


def test_a_second_request_on_the_connection(hurried: Running) -> None:
    """Half of it is waited for no longer; a connection without any is closed by uvicorn later."""
    with connect(hurried) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        threading.Event().wait(2 * SLOW)
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
        assert answer(client).count(b"HTTP/1.1 200 ") == 1


def test_the_rest_of_a_refused_body(hurried: Running) -> None:
    """It is not read, and does not keep the connection open."""
    with connect(hurried) as client:
        client.sendall(POST.replace(b"20", b"2000000"))
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 413 ")
        with pytest.raises(OSError, match=GONE):
            for _ in range(100):
                client.sendall(b"x")
                threading.Event().wait(SLOW / 10)


def test_a_long_answer_takes_its_time(hurried: Running) -> None:
    """The limits are those of requests. A stray end of line after a request does not count as one."""
    hurried.model.gate.clear()
    body = b'{"prompt": [1, 2, 3], "max_tokens": 3}'
    with connect(hurried) as client:
        client.sendall(POST.replace(b"20", str(len(body)).encode()) + body)
        client.sendall(b"\r\n")
        threading.Event().wait(3 * SLOW)
        hurried.model.gate.set()
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


# ---- for which host

LOCAL = ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1", "127.1.2.3:80", "[::1]", "[::1]:8000", "a.localhost"]
STRANGE = [
    "", "evil.com", "evil.com:8000", "localhost.evil.com", "evil.com@localhost", "localhost@evil.com", "localhost/",
]  # fmt: skip
STRANGE += ["127.0.0.1.evil.com", "[::1].evil.com", "localhost:80:80", "evil.com#localhost", "[", "[]", "::1 ", "1.2.3"]


@pytest.mark.parametrize(
    ("patterns", "address", "key", "good", "bad"),
    [
        (None, "127.0.0.1", None, LOCAL, [*STRANGE, "10.0.0.1", "[fe80::1]"]),
        (None, "localhost", None, LOCAL, [*STRANGE, "10.0.0.1"]),
        (None, "0.0.0.0", None, [*LOCAL, "10.0.0.1:80", "[fe80::1]"], STRANGE),
        (None, "box.lan", None, [*LOCAL, "box.lan:80", "10.0.0.1"], STRANGE),
        (None, "127.0.0.1", "key", [*LOCAL, *STRANGE], []),
        (["*"], "127.0.0.1", None, [*LOCAL, *STRANGE], []),
        (["example.com", "*.example.org", "[::1]"], "0.0.0.0", "key", ["example.com:80", "a.b.example.org", "[::1]:1"],
         [*LOCAL[:5], *STRANGE, "example.org", "a.example.com", "10.0.0.1"]),
    ],
)  # fmt: skip
def test_hosts(patterns: list[str] | None, address: str, key: str | None, good: list[str], bad: list[str]) -> None:
    hosts = Hosts(patterns, address, key)
    assert [name for name in good if not hosts.admit(name.encode())] == []
    assert [name for name in bad if hosts.admit(name.encode())] == []


def test_a_web_page_cannot_name_the_server(running: Running) -> None:
    """DNS rebinding gave it the model, and /abort."""
    for path in ("/", "/v1/models", "/health", "/nowhere"):
        refused = running.http.get(path, headers={"Host": "evil.com"})
        assert refused.status_code == 400 and "--allowed-hosts" in refused.json()["error"]["message"]
    assert running.http.post("/abort", json={"request_id": "x"}, headers={"Host": "evil.com"}).status_code == 400
    with serving(serve={"port": 0, "allowed_hosts": ["evil.com"]}) as other:
        assert other.http.get("/health", headers={"Host": "evil.com"}).status_code == 200
        assert other.http.get("/health").status_code == 400
    with serving("sesame") as keyed:
        assert keyed.http.get("/v1/models", headers={"Host": "evil.com"}).status_code == 200


def test_no_page_may_frame_ours(running: Running) -> None:
    policy = running.http.get("/").headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in policy and "form-action 'none'" in policy and "base-uri 'none'" in policy


def test_a_request_without_a_host(running: Running) -> None:
    """Of a load balancer that checks its servers; every browser sends one."""
    with connect(running) as client:
        client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert answer(client).startswith(b"HTTP/1.1 200 ")
