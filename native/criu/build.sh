#!/bin/sh
# build.sh SOURCE DEPS OUT: a static CRIU from its source archive, with nothing of the host's but the
# compiler and libc. SOURCE: criu_*.orig.tar.xz. DEPS: the root of the unpacked Debian packages that
# images/criu.py names. OUT gets two programs: `criu`, and `criu-test` with rlimit.patch.
#
# RUNDIR and PLUGINDIR are compiled in: inside a container CRIU may read neither its feature cache
# nor plugins from a path that the container can make. Descriptor 96 is the agent's own folder; in
# a proc file system nobody can make a file.
set -eu
HERE=$(cd "$(dirname "$0")" && pwd)
SOURCE=$(realpath "$1") KYB_DEPS=$(realpath "$2") OUT=$(realpath "$3")
LIBRARIES=$KYB_DEPS/usr/lib/x86_64-linux-gnu
export KYB_DEPS PATH="$HERE/tools:$PATH"
export C_INCLUDE_PATH="$KYB_DEPS/usr/include"
export LIBRARY_PATH="$LIBRARIES:$KYB_DEPS/lib/x86_64-linux-gnu"
export SOURCE_DATE_EPOCH=1

compile() {
	make -s -j"$(nproc)" NO_GNUTLS=1 RUNDIR=/proc/self/fd/96 PLUGINDIR=/proc/none criu \
		>"$OUT/make.log" 2>&1
	strip -o "$OUT/$1" criu/criu
}

WORK=$(mktemp -d "$OUT/work.XXXXXX")
trap 'rm -rf "$WORK"' EXIT
tar -xf "$SOURCE" -C "$WORK" --strip-components=1
cd "$WORK"
sed -i 's/ -rdynamic -o/ -static -o/' criu/Makefile
patch -s -p1 <"$HERE/subreaper.patch"
patch -s -p1 <"$HERE/lazypages.patch"
patch -s -p1 <"$HERE/eagerpages.patch"
patch -s -p1 <"$HERE/filling.patch"
patch -s -p1 <"$HERE/inroot.patch"
compile criu
patch -s -p1 <"$HERE/rlimit.patch"
compile criu-test
