"""Remote addresses of a stranger's workflow: where they may lead, how much they may bring, what is said."""

from __future__ import annotations

import http.server
import io
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

from cascade_train.data import shards
from cascade_train.data.hosts import NotAllowed, check_url, is_public
from cascade_train.data.shards import ShardCache, matching
from cascade_train.data.sources import tars_dataset
from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost, headless_folders

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class Server:
    """A real HTTP server on this machine whose answers are given; ``asked`` are the paths asked for."""

    def __init__(self, answer: Answer) -> None:
        server = self
        self.asked: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                server.asked.append(self.path)
                answer(self)

            do_HEAD = do_GET

        self._serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._serving.server_address[1]
        threading.Thread(target=self._serving.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._serving.shutdown()
        self._serving.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Server]]:
    servers: list[Server] = []

    def start(answer: Answer) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "PAUSES", (0.01, 0.02, 0.04))


def a_host(root: Path, *allowed: str) -> HeadlessHost:
    return HeadlessHost(headless_folders(root / "out", root, allowed_hosts=allowed), "cpu")


def says(status: int, body: bytes = b"", **headers: str) -> Answer:
    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)

    return answer


def a_tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("a.txt")
        info.size = 2
        tar.addfile(info, io.BytesIO(b"ok"))
    return out.getvalue()


@pytest.mark.parametrize("scheme", ["s3", "http", "hf", "gs"])
def test_a_scheme_without_slashes_is_no_way_to_a_local_tar(scheme: str, tmp_path: Path) -> None:
    (tmp_path / "in" / f"{scheme}:x").mkdir(parents=True)
    (tmp_path / "private.tar").write_bytes(a_tar())
    for text in (f"{scheme}:x/../../private.tar", f"{scheme}:{tmp_path}/private.tar"):
        with pytest.raises(CascadeError, match="no remote address"):
            tars_dataset(text, shuffle=1, host=a_host(tmp_path / "in"))


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://127.0.0.1/a.tar",
            "http://localhost/a.tar",
            "http://x.localhost./a.tar",
            "http://[::1]/a.tar",
        ),
        *("http://10.0.0.7/a.tar", "https://192.168.1.1:8080/a.tar", "http://169.254.169.254/latest/a.tar"),
        *("http://100.64.0.1/a.tar", "http://0.0.0.0/a.tar", "http://user:word@127.0.0.1/a.tar"),
        *(
            "https://example.org/a::file:///etc/a.tar",
            "s3://",
            "http:///a.tar",
            "http://example.org/a\x1b.tar",
        ),
    ],
)
def test_addresses_that_no_workflow_may_name(url: str, tmp_path: Path) -> None:
    with pytest.raises(CascadeError):
        tars_dataset(url, shuffle=1, host=a_host(tmp_path))


def test_which_addresses_are_public() -> None:
    assert all(map(is_public, ("8.8.8.8", "2606:4700::1111")))
    assert not any(
        map(
            is_public,
            ("127.0.0.1", "::1", "::ffff:127.0.0.1", "fe80::1%eth0", "fd00::1", "224.0.0.1", "text"),
        )
    )
    check_url("http://127.0.0.1:8000/a.tar", ["127.0.0.1"])
    check_url("https://example.org/{a,b}.tar", ())


def test_other_spellings_of_this_machine_are_found_when_they_are_looked_up(
    tmp_path: Path, serve: Callable[[Answer], Server]
) -> None:
    server = serve(says(200, a_tar()))
    for name in ("2130706433", "127.1", socket.gethostname()):
        try:
            found = socket.gethostbyname(name)
        except OSError:
            continue
        if is_public(found):
            continue
        copies = ShardCache(tmp_path / name, a_host(tmp_path))
        with pytest.raises((NotAllowed, OSError), match=r"private network|not a canonical"):
            copies.get(f"http://{name}:{server.port}/a.tar")
    assert not server.asked


def test_a_host_that_is_allowed_serves_and_does_not_lead_elsewhere(
    tmp_path: Path, serve: Callable[[Answer], Server]
) -> None:
    inner = serve(says(200, a_tar()))
    for location in (f"http://127.0.0.2:{inner.port}/a.tar", f"http://2130706434:{inner.port}/a.tar"):
        outer = serve(says(302, Location=location))
        copies = ShardCache(tmp_path / location[-12:-6], a_host(tmp_path, "127.0.0.1"))
        with pytest.raises((CascadeError, OSError), match=r"private network|not a canonical"):
            copies.get(f"http://127.0.0.1:{outer.port}/a.tar")
    outer = serve(says(302, Location="file:///etc/passwd"))
    with pytest.raises((CascadeError, OSError)):
        ShardCache(tmp_path / "f", a_host(tmp_path, "127.0.0.1")).get(f"http://127.0.0.1:{outer.port}/a.tar")
    assert not inner.asked
    path = ShardCache(tmp_path / "ok", a_host(tmp_path, "127.0.0.1")).get(
        f"http://127.0.0.1:{inner.port}/a.tar"
    )
    assert path.read_bytes() == a_tar()
    near = serve(says(302, Location=f"http://127.0.0.1:{inner.port}/b.tar"))
    path = ShardCache(tmp_path / "ok", a_host(tmp_path, "127.0.0.1")).get(
        f"http://127.0.0.1:{near.port}/a.tar"
    )
    assert path.read_bytes() == a_tar()


def test_a_server_that_fails_is_not_a_file_that_is_missing(
    tmp_path: Path, serve: Callable[[Answer], Server]
) -> None:
    for status in (500, 503):
        server = serve(says(status))
        copies = ShardCache(tmp_path / str(status), a_host(tmp_path, "127.0.0.1"))
        with pytest.raises(OSError, match=str(status)) as said:
            copies.get(f"http://127.0.0.1:{server.port}/a.tar")
        assert "exist" not in str(said.value)
        assert len(server.asked) == 4, "once, and after each pause"
        with pytest.raises(CascadeError, match=str(status)):
            matching(f"http://127.0.0.1:{server.port}/*.tar", ["127.0.0.1"])
    gone = serve(says(404))
    with pytest.raises(OSError, match="does not exist"):
        ShardCache(tmp_path / "404", a_host(tmp_path, "127.0.0.1")).get(f"http://127.0.0.1:{gone.port}/a.tar")
    assert len(gone.asked) == 1
    forbidden = serve(says(403))
    with pytest.raises(OSError, match="403"):
        ShardCache(tmp_path / "403", a_host(tmp_path, "127.0.0.1")).get(
            f"http://127.0.0.1:{forbidden.port}/a.tar"
        )


def test_a_server_that_is_not_there_is_called_so(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        ShardCache(tmp_path, a_host(tmp_path, "127.0.0.1")).get(f"http://127.0.0.1:{port}/a.tar")
    with pytest.raises(CascadeError, match="refused"):
        matching(f"http://127.0.0.1:{port}/*.tar", ["127.0.0.1"])


def test_a_server_that_fails_for_a_while_is_asked_again(
    tmp_path: Path, serve: Callable[[Answer], Server]
) -> None:
    answers = iter([503, 503, 200])

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        status = next(answers)
        says(status, a_tar() if status == 200 else b"")(request)

    server = serve(answer)
    copies = ShardCache(tmp_path, a_host(tmp_path, "127.0.0.1"))
    assert copies.get(f"http://127.0.0.1:{server.port}/a.tar").read_bytes() == a_tar()


def test_a_shard_that_is_too_large_is_not_fetched(
    tmp_path: Path, serve: Callable[[Answer], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    def claims(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(1 << 50))
        request.end_headers()

    def never_ends(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            while True:
                request.wfile.write(bytes(1 << 20))
        except OSError:
            return

    copies = ShardCache(tmp_path, a_host(tmp_path, "127.0.0.1"))
    with pytest.raises(OSError, match="a shard may hold"):
        copies.get(f"http://127.0.0.1:{serve(claims).port}/a.tar")
    monkeypatch.setattr(shards, "SHARD_BYTES", 30 << 20)
    with pytest.raises(OSError, match="a shard may hold"):
        copies.get(f"http://127.0.0.1:{serve(never_ends).port}/a.tar")
    assert not list(copies.folder.glob("*.tar")) and not list(copies.folder.glob(".*"))
