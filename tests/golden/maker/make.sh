#!/bin/sh
# Makes every golden archive anew, into the directory given (default: tests/golden).
set -eu
maker=$(cd "$(dirname "$0")" && pwd)
out=$(cd "${1:-$maker/..}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for kind_line in clean-5.3 crashed-5.3 ipv6-5.3 clean-4.9; do
    "$maker/run.sh" "${kind_line#*-}" MakeStore "${kind_line%-*}" "$work/$kind_line"
    # the archive says nothing about the machine that made it
    tar -C "$work/$kind_line" --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime=2026-01-01T00:00:00Z --mode=u=rwX,go=rX -cJf "$out/$kind_line.tar.xz" .
done
