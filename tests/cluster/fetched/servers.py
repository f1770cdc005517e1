"""An image of servers that nobody here wrote: nginx, Redis and Python of Debian, and busybox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from images import debs
from images.build import python_layers
from images.oci import ImageConfig
from tests.cluster.fetched.layers import APPLETS, BUSYBOX, image_of, layer_of

if TYPE_CHECKING:
    from images.oci import Layer
    from tests.cluster.fetched.layers import Image
    from tests.cluster.layout import Progress

NAME = "localhost/servers:1"
PACKAGES = debs.DebSet(
    "servers",
    "bookworm",
    (
        ("nginx", "1.22.1-9+deb12u6"),
        ("redis-server", "5:7.0.15-1~deb12u8"),
        ("redis-tools", "5:7.0.15-1~deb12u8"),
        ("libatomic1", "12.2.0-14+deb12u1"),
        ("libcap2", "1:2.66-4+deb12u3+b1"),
        ("libcrypt1", "1:4.4.33-2"),
        ("libgcrypt20", "1.10.1-3"),
        ("libgpg-error0", "1.46-1"),
        ("libhiredis0.14", "0.14.1-3"),
        ("libjemalloc2", "5.3.0-1"),
        ("liblua5.1-0", "5.1.5-9"),
        ("liblz4-1", "1.9.4-1"),
        ("liblzf1", "3.6-3"),
        ("liblzma5", "5.4.1-1"),
        ("libpcre2-8-0", "10.42-1"),
        ("libsystemd0", "252.39-1~deb12u1"),
        ("libzstd1", "1.5.4+dfsg2-5"),
        ("lua-bitop", "1.0.2-6"),
        ("lua-cjson", "2.1.0+dfsg-2.2"),
    ),
)
PROGRAMS = ("usr/sbin/nginx", "usr/bin/redis-check-rdb", "usr/bin/redis-cli")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
NGINX_CONF = """\
daemon off;
user nobody nogroup;
worker_processes 2;
pid /tmp/nginx.pid;
error_log stderr;
events { worker_connections 256; }
http {
  access_log /dev/stdout;
  client_body_temp_path /tmp/nginx-body;
  proxy_temp_path /tmp/nginx-proxy;
  fastcgi_temp_path /tmp/nginx-fastcgi;
  uwsgi_temp_path /tmp/nginx-uwsgi;
  scgi_temp_path /tmp/nginx-scgi;
  keepalive_timeout 600s;
  server { listen 8080; location / { return 200 "nginx is here\\n"; } }
}
"""


def build(progress: Progress) -> Image:
    """The image, from the cache if its inputs are the same. Raises KybernateError."""
    unpacked = debs.unpack(PACKAGES, progress)
    busybox = debs.unpack(BUSYBOX, progress).folder / "bin" / "busybox"
    root = unpacked.folder
    libraries = [
        path
        for folder in (root / "lib/x86_64-linux-gnu", root / LIBRARIES)
        for path in sorted(folder.glob("*.so*"))
        if path.is_file()
    ]
    programs = [root / name for name in PROGRAMS]

    def fill(layer: Layer) -> None:
        for path in programs:
            layer.file(str(path.relative_to(root)), path.read_bytes(), 0o755)
        layer.link("usr/bin/redis-server", "redis-check-rdb")
        for path in libraries:
            layer.file(f"{LIBRARIES}/{path.name}", path.read_bytes(), 0o644)
        layer.file("bin/busybox", busybox.read_bytes(), 0o755)
        for name in APPLETS:
            layer.link(f"bin/{name}", "busybox")
        layer.file("etc/nginx.conf", NGINX_CONF.encode())
        layer.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
        layer.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n")
        layer.folder("var/log/nginx")
        layer.folder("data", 0o777)

    inputs = [busybox, *programs, *libraries]
    layers = [
        *python_layers(progress, cxx=True),
        layer_of(inputs, fill, NGINX_CONF),
    ]
    return image_of(NAME, layers, ImageConfig(command=("/bin/sh",)))
