"""The programs: what each is, how it is started, and what it must still know after each tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from images import debs
from tests.cluster.fetched import llama, nodejs
from tests.strangers import talks

if TYPE_CHECKING:
    from collections.abc import Callable

PORT = 8000
SETPRIV = ("/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
POSTGRES = "/usr/lib/postgresql/15/bin"
_POSTGRES_START = (
    f"cd /tmp && {POSTGRES}/initdb -D /tmp/data -A trust -U kyb --no-sync >/dev/null && "
    "echo 'host all all all trust' >>/tmp/data/pg_hba.conf && "
    f"exec {POSTGRES}/postgres -D /tmp/data -p {PORT} -c listen_addresses='*' -k /tmp "
    "-c fsync=off"
)


def _of(name: str, *packages: str, suite: str = "bookworm") -> debs.DebSet:
    """What these packages need, of this suite of Debian's as it is now."""
    return debs.DebSet(f"stranger-{name}", suite, tuple((one, "") for one in packages), True)


_PYTHON = _of("python", "python3", "libstdc++6")
_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_BLAS = ("/busybox", "env", f"LD_LIBRARY_PATH={_LIBRARIES}/blas:{_LIBRARIES}/lapack")
"""What Debian's alternatives would choose."""
_MARIADB = _of("mariadb", "mariadb-server-core")
_MARIADBD = (
    *("/usr/sbin/mariadbd", "--no-defaults", "--user=root", "--datadir=/tmp", "--socket=/tmp/s"),
    *("--skip-grant-tables", "--bind-address=0.0.0.0", f"--port={PORT}", "--skip-networking=0"),
)


@dataclass(frozen=True, slots=True)
class Stranger:
    """`is_`: what it is, for people. `packages`: None for what is built from a source of ours.

    `fetched_mb`: what comes over the network for it where nothing is there yet, about.
    `wheels`: a project of PyPI's above them, see `layers.LOCKS`.
    `refused`: part of the sentence that says why it can't leave RAM; empty if it can.
    `says`: what is said to it on each connection, and how its answer is read.
    """

    name: str
    is_: str
    packages: debs.DebSet | None
    command: tuple[str, ...]
    talk: Callable[[str], talks.Talk]
    fetched_mb: int = 0
    wheels: str = ""
    refused: str = ""
    remedy: str = ""


STRANGERS = (
    Stranger(
        "node",
        "Node.js: an HTTP server that counts in a worker thread",
        nodejs.PACKAGES,
        ("/usr/bin/node", "/app/server.js"),
        talks.Http,
        fetched_mb=27,
    ),
    Stranger(
        "node-watch",
        "Node.js with `--watch`: a parent that watches the sources (inotify) and starts the server",
        nodejs.PACKAGES,
        ("/usr/bin/node", "--watch", "/app/server.js"),
        talks.Http,
        fetched_mb=27,
    ),
    Stranger(
        "go",
        "Go: `net/http`, which listens by MPTCP where there is any",
        None,
        ("/app/main",),
        talks.Http,
    ),
    Stranger(
        "go-runners",
        "Go: a server that starts a runner and asks it over loopback, as Ollama does",
        None,
        ("/app/main", "runners"),
        talks.Http,
    ),
    Stranger(
        "jvm-17",
        "OpenJDK 17: `HttpServer` with a pool of threads, compiled at its start",
        _of("jvm-17", "openjdk-17-jre-headless"),
        ("/usr/lib/jvm/java-17-openjdk-amd64/bin/java", "/app/Server.java"),
        talks.Http,
        fetched_mb=70,
    ),
    Stranger(
        "jvm-25",
        "OpenJDK 25: the same",
        _of("jvm-25", "openjdk-25-jre-headless", suite="forky"),
        ("/usr/lib/jvm/java-25-openjdk-amd64/bin/java", "/app/Server.java"),
        talks.Http,
        fetched_mb=71,
    ),
    Stranger(
        "gunicorn",
        "gunicorn: two workers of two threads, which count in memory that they share",
        _of("gunicorn", "gunicorn"),
        (
            *("/usr/bin/python3", "/usr/bin/gunicorn", "--preload", "--workers=2", "--threads=2"),
            *("--keep-alive=600", f"--bind=0.0.0.0:{PORT}", "--chdir=/app", "wsgi_app"),
        ),
        talks.Http,
        fetched_mb=18,
    ),
    Stranger(
        "uvicorn",
        "uvicorn on uvloop",
        _of("uvicorn", "uvicorn", "python3-uvloop", "python3-httptools"),
        (
            *("/usr/bin/python3", "/usr/bin/uvicorn", "--loop=uvloop", "--host=0.0.0.0"),
            *(f"--port={PORT}", "--timeout-keep-alive=600", "--app-dir=/app"),
            "asgi_app:application",
        ),
        talks.Http,
        fetched_mb=18,
    ),
    Stranger(
        "granian",
        "granian: a server in Rust (Tokio, Hyper) of PyPI's, with a worker of its own",
        _PYTHON,
        (
            *("/usr/bin/python3", "-m", "granian", "--interface=asgi", "--host=0.0.0.0"),
            *(f"--port={PORT}", "--working-dir=/app", "asgi_app:application"),
        ),
        talks.Http,
        wheels="granian",
        fetched_mb=23,
    ),
    Stranger(
        "jupyterlab",
        "JupyterLab of PyPI's with a kernel, whose variable continues over a kept WebSocket",
        _PYTHON,
        (
            *("/usr/bin/python3", "-m", "jupyterlab", "--allow-root", "--no-browser"),
            *("--ip=0.0.0.0", f"--port={PORT}", "--notebook-dir=/tmp"),
            f"--IdentityProvider.token={talks.TOKEN}",
        ),
        talks.Notebook,
        wheels="jupyterlab",
        fetched_mb=64,
    ),
    Stranger(
        "pytorch",
        "PyTorch on CPUs behind uvicorn: counts in a tensor, computes with two threads",
        _of("pytorch", "python3-torch", "uvicorn"),
        (
            *(*_BLAS, "/usr/bin/python3", "/usr/bin/uvicorn", "--host=0.0.0.0", f"--port={PORT}"),
            *("--timeout-keep-alive=600", "--app-dir=/app", "torch_app:application"),
        ),
        talks.Http,
        fetched_mb=263,
    ),
    Stranger(
        "llama-cpp",
        "llama.cpp's server with a tiny model; it keeps no connection that is quiet for 5 s",
        llama.PACKAGES,
        (
            *("/usr/bin/llama-server", "--model", "/app/model.gguf", "--host", "0.0.0.0"),
            *("--port", str(PORT), "--metrics", "--threads", "2", "--parallel", "2"),
        ),
        talks.Llama,
        fetched_mb=19,
    ),
    Stranger(
        "puma",
        "Ruby 3.1: puma with four threads",
        _of("puma", "puma"),
        ("/usr/bin/ruby", "/usr/bin/puma", "-t4:4", f"-btcp://0.0.0.0:{PORT}", "/app/config.ru"),
        talks.Http,
        fetched_mb=15,
    ),
    Stranger(
        "starman",
        "Perl 5.36: Starman with two workers, which count in a deleted file that they lock",
        _of("starman", "starman"),
        (
            *("/usr/bin/perl", "/usr/bin/starman", "--preload-app", "--workers=2"),
            *(f"--listen=0.0.0.0:{PORT}", "--keepalive-timeout=600", "/app/app.psgi"),
        ),
        talks.Http,
        fetched_mb=23,
    ),
    Stranger(
        "redis",
        "Redis 7",
        _of("redis", "redis-server"),
        ("/usr/bin/redis-server", "--port", str(PORT), "--protected-mode", "no", "--save", ""),
        talks.Redis,
        fetched_mb=24,
    ),
    Stranger(
        "beanstalkd",
        "beanstalkd: a queue of jobs",
        _of("beanstalkd", "beanstalkd"),
        ("/usr/bin/beanstalkd", "-l", "0.0.0.0", "-p", str(PORT)),
        talks.Beanstalk,
        fetched_mb=20,
    ),
    Stranger(
        "etcd",
        "etcd 3.4: a Go server of Debian's with its log on a disk",
        _of("etcd", "etcd-server"),
        (
            *(
                "/usr/bin/etcd",
                "--data-dir=/tmp/etcd",
                f"--listen-client-urls=http://0.0.0.0:{PORT}",
            ),
            f"--advertise-client-urls=http://127.0.0.1:{PORT}",
        ),
        talks.Etcd,
        fetched_mb=27,
    ),
    Stranger(
        "memcached",
        "memcached with four threads",
        _of("memcached", "memcached"),
        ("/usr/bin/memcached", "-u", "nobody", "-p", str(PORT), "-l", "0.0.0.0"),
        talks.Memcached,
        fetched_mb=21,
    ),
    Stranger(
        "php-fpm",
        "PHP 8.2: FPM with two workers, which count in memory that they share (APCu)",
        _of("php-fpm", "php8.2-fpm", "php8.2-apcu"),
        ("/usr/sbin/php-fpm8.2", "-F", "-dextension=apcu", "-y", "/app/fpm.conf"),
        talks.FastCgi,
        fetched_mb=44,
    ),
    Stranger(
        "nginx-php",
        "supervisord with nginx and PHP-FPM, which talk over a unix socket that is kept",
        _of("nginx-php", "nginx-light", "php8.2-fpm", "php8.2-apcu", "supervisor"),
        ("/usr/bin/python3", "/usr/bin/supervisord", "-n", "-c", "/app/supervisord.conf"),
        talks.Http,
        fetched_mb=54,
    ),
    Stranger(
        "prometheus",
        "Prometheus: watches a folder (inotify), has its log and its blocks mapped",
        _of("prometheus", "prometheus"),
        (
            *("/usr/bin/prometheus", "--config.file=/app/prometheus.yml"),
            *("--storage.tsdb.path=/tmp/data", f"--web.listen-address=0.0.0.0:{PORT}"),
        ),
        talks.Prometheus,
        fetched_mb=41,
    ),
    Stranger(
        "postgresql",
        "PostgreSQL 15 with a client that is connected; System V shared memory",
        _of("postgresql", "postgresql-15", "util-linux", "dash"),
        (*SETPRIV, "/bin/dash", "-c", _POSTGRES_START),
        talks.Sql,
        fetched_mb=95,
    ),
    Stranger(
        "mariadb",
        "MariaDB 10.11 with a client that is connected, as it is",
        _MARIADB,
        _MARIADBD,
        talks.MariaDb,
        refused="io_uring",
        remedy="`--innodb-use-native-aio=0`: the next line of the table",
        fetched_mb=15,
    ),
    Stranger(
        "mariadb-aio-off",
        "MariaDB 10.11 with `--innodb-use-native-aio=0`",
        _MARIADB,
        (*_MARIADBD, "--innodb-use-native-aio=0"),
        talks.MariaDb,
        fetched_mb=15,
    ),
)
