#!/bin/sh
# Builds the programs of both images for an architecture, as Docker names it, into a folder. It runs in the build stage of the
# Dockerfile, on Debian or Ubuntu; the compiler's own architecture is the one that it runs on.
#
#   build.sh ARCHITECTURE FOLDER
set -eu

case $1 in
amd64) triple=x86_64-unknown-linux-gnu gcc=x86-64-linux-gnu ;;
arm64) triple=aarch64-unknown-linux-gnu gcc=aarch64-linux-gnu ;;
*)
    echo "architecture $1 is not supported: build for amd64 or arm64" >&2
    exit 1
    ;;
esac
linker=$(echo "$triple" | cut -d- -f1)-linux-gnu-gcc
if ! command -v "$linker" >/dev/null; then
    apt-get update
    apt-get install --yes --no-install-recommends "gcc-$gcc" "libc6-dev-$1-cross"
fi
# The compiler of the builder, whatever rust-toolchain.toml requires for development.
if command -v rustup >/dev/null; then
    RUSTUP_TOOLCHAIN=$(rustup default | cut -d' ' -f1)
    export RUSTUP_TOOLCHAIN
    rustup target add "$triple"
fi
variable=$(echo "$triple" | tr a-z- A-Z_)
export "CARGO_TARGET_${variable}_LINKER=$linker" "CC_$(echo "$triple" | tr - _)=$linker"

cargo build --locked --release --target "$triple" --target-dir /tmp/target --package gpu-operator --package nvml-probe
mkdir -p "$2"
cp "/tmp/target/$triple/release/gpu-operator" "/tmp/target/$triple/release/nvml-probe" "$2/"
rm -r /tmp/target
