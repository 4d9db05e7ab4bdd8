#!/bin/sh
# Installs NVIDIA's driver from a .run file into a directory of the host, loads it and creates its device nodes. It is idempotent:
# a driver that is already installed for this kernel is only loaded, and a driver that is already loaded is only checked.
#
# Environment, as driver.source RunFile sets it:
#   NVIDIA_DRIVER_DOWNLOAD_URL     the URL of the .run file
#   NVIDIA_DRIVER_SHA256           the checksum of the file, which is executed only if it has this one
#   NVIDIA_DRIVER_VERSION          the driver's version, if known; defaults to the version that the file installs
#   NVIDIA_INSTALL_DIR_HOST        the directory of the host that the driver is installed into
#   NVIDIA_INSTALL_DIR_CONTAINER   where that directory is mounted
#   ROOT_MOUNT_DIR                 where the host's root is mounted
# Arguments are passed on to the .run file.
#
# DEV_DIR, PROC_DIR, SYS_DIR and FIRMWARE_DIR are for tests.
set -eu

host_dir=${NVIDIA_INSTALL_DIR_HOST:-/opt/nvidia}
dir=${NVIDIA_INSTALL_DIR_CONTAINER:-/usr/local/nvidia}
root=${ROOT_MOUNT_DIR:-/root}
version=${NVIDIA_DRIVER_VERSION:-}
dev=${DEV_DIR:-/dev}
proc=${PROC_DIR:-/proc}
sys=${SYS_DIR:-/sys}
firmware=${FIRMWARE_DIR:-/lib/firmware}

kernel=$(uname -r)
cache=$dir/.cache
modules="nvidia nvidia-uvm nvidia-modeset nvidia-drm"
# In bytes: several times the size of any driver, so that a wrong address does not fill the node's disk.
max_size=4294967296

say() { echo "run-file installer: $*"; }
fail() { echo "run-file installer: $*" >&2; exit 1; }
# For a step that has already printed its error.
failed() { fail "$*: see the error above"; }

url=${NVIDIA_DRIVER_DOWNLOAD_URL:-}
[ -n "$url" ] || fail "NVIDIA_DRIVER_DOWNLOAD_URL is not set"
# The query of a signed URL is a credential.
shown_url=${url%%\?*}
sha256=${NVIDIA_DRIVER_SHA256:-}
[ -n "$sha256" ] || fail "NVIDIA_DRIVER_SHA256 is not set"
# What the installed driver was built from.
wanted="kernel=$kernel
driver=$sha256"

loaded() { cat "$sys/module/nvidia/version" 2>/dev/null || true; }

# Prints the version of the installed library.
installed() {
    for library in "$dir"/lib64/libnvidia-ml.so.*.*; do
        [ -e "$library" ] && echo "${library##*/libnvidia-ml.so.}"
    done | head -n 1
}

is_cached() { [ "$(cat "$cache" 2>/dev/null || true)" = "$wanted" ]; }

# Unloads the current driver. Fails if a module is in use, so that the driver stays installed.
unload() {
    for module in nvidia_drm nvidia_modeset nvidia_uvm nvidia_peermem nvidia; do
        [ -d "$sys/module/$module" ] || continue
        rmmod "$module" || fail "driver is in use: module $module of driver $(loaded) cannot be unloaded"
    done
}

checksum() { sha256sum "$1" | cut -d ' ' -f 1; }

# Copies the file into the container, where nothing on the host can change it between the check and the execution. Removes a
# file that has another checksum.
take() {
    [ -e "$file" ] || return 1
    cp "$file" "$checked" || failed "cannot copy the .run file"
    [ "$(checksum "$checked")" != "$sha256" ] || return 0
    rm -f "$file"
    return 1
}

# Downloads the .run file, unless it already exists, and sets checked to a copy that has the checksum.
download() {
    private=$(mktemp -d)
    checked=$private/driver.run
    file=$dir/.run/$sha256.run
    if ! take; then
        mkdir -p "$dir/.run"
        rm -f "$dir"/.run/*
        curl --fail --location --silent --show-error --retry 3 --max-filesize "$max_size" --output "$file.part" "$url"
        mv "$file.part" "$file"
        take || fail "checksum mismatch: the file at $shown_url has SHA-256 $(checksum "$checked"), and $sha256 is wanted"
    fi
}

headers() {
    [ -d "/lib/modules/$kernel/build" ] && return
    say "installing the headers of kernel $kernel"
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "linux-headers-$kernel"
}

# Prints the errors of the .run file last: kubelet keeps the last 2 KiB of the log. Of a compiler, only the first error is the cause.
errors() {
    log=$dir/nvidia-installer.log
    tail -n 20 "$log"
    grep -E '^ERROR: |Kernel module load error: ' "$log" | tail -n 3 | cut -c 1-240
    grep -E '^\[ *[0-9.]+\] .*(NVRM: | is rejected|Lockdown: )' "$log" | tail -n 8 | cut -c 1-80
    grep -m 1 -E '[^[:space:]]: (fatal )?error: ' "$log" | sed 's/^[[:space:]]*//' | cut -c 1-400
} 2>/dev/null

install_driver() {
    say "installing ${version:-the driver} from $shown_url for kernel $kernel"
    rm -f "$cache"
    headers
    # Remove files of another version, which would otherwise be mistaken for this one's.
    rm -rf "$dir/bin" "$dir/lib64" "$dir/drivers" "$dir/firmware"
    mkdir -p "$dir/bin" "$dir/lib64" "$dir/drivers"
    sh "$checked" --silent --accept-license --no-questions --ui=none \
        --utility-prefix="$dir" --utility-libdir=lib64 --opengl-prefix="$dir" --opengl-libdir=lib64 \
        --kernel-install-path="$dir/drivers" --log-file-name="$dir/nvidia-installer.log" --tmpdir="$dir" \
        --no-install-compat32-libs --no-x-check --no-check-for-alternate-installs --no-distro-scripts "$@" || {
        errors >&2 || true
        failed "the .run file could not install the driver"
    }
    rm -rf "$private"
    now=$(installed)
    [ -n "$now" ] || fail "the .run file installed no libnvidia-ml.so into $host_dir/lib64"
    [ -z "$version" ] || [ "$now" = "$version" ] || fail "the .run file has installed driver $now, and $version is wanted"
    if [ -d "$firmware/nvidia/$now" ]; then
        mkdir -p "$dir/firmware/nvidia"
        cp -R "$firmware/nvidia/$now" "$dir/firmware/nvidia/"
    fi
    chmod 755 "$dir"
    echo "$wanted" >"$cache.part"
    mv "$cache.part" "$cache"
}

# The kernel reads firmware from the host. Its search path is only set if it is empty.
search_firmware() {
    path=$sys/module/firmware_class/parameters/path
    [ -d "$dir/firmware" ] && [ -w "$path" ] || return 0
    [ -n "$(tr -d '[:space:]' <"$path")" ] || printf '%s' "$host_dir/firmware" >"$path"
}

load() {
    search_firmware
    for module in i2c_core ipmi_msghandler; do
        modprobe --dirname "$root" "$module" 2>/dev/null || true
    done
    for module in $modules; do
        file=$dir/drivers/$module.ko
        name=$(echo "$module" | tr - _)
        if [ -d "$sys/module/$name" ] || [ ! -e "$file" ]; then
            continue
        fi
        case $module in
        nvidia-drm) insmod "$file" || say "$module is not loaded; it is not required" ;;
        *) insmod "$file" || failed "cannot load $module" ;;
        esac
    done
}

node() {
    [ -e "$dev/$1" ] && return
    mknod -m 666 "$dev/$1" c "$2" "$3"
}

major() { awk -v name="$1" '$2 == name { print $1; exit }' "$proc/devices"; }

device_nodes() {
    node nvidiactl 195 255
    node nvidia-modeset 195 254
    for gpu in $(cat "$proc"/driver/nvidia/gpus/*/information 2>/dev/null | awk '/^Device Minor:/ { print $3 }'); do
        node "nvidia$gpu" 195 "$gpu"
    done
    uvm=$(major nvidia-uvm)
    [ -n "$uvm" ] || return 0
    node nvidia-uvm "$uvm" 0
    node nvidia-uvm-tools "$uvm" 1
}

verify() {
    LD_LIBRARY_PATH=$dir/lib64 "$dir/bin/nvidia-smi" || failed "nvidia-smi fails with driver $(loaded)"
}

linker_cache() {
    line=$host_dir/lib64
    conf=$root/etc/ld.so.conf.d/nvidia-run-file.conf
    mkdir -p "$root/etc/ld.so.conf.d"
    [ "$(cat "$conf" 2>/dev/null || true)" = "$line" ] || echo "$line" >"$conf"
    ldconfig -r "$root"
}

if is_cached; then
    say "found driver $(installed) for kernel $kernel in $host_dir"
    now=$(loaded)
    [ -z "$now" ] || [ "$now" = "$(installed)" ] || unload
else
    # A driver that works is not unloaded before its successor is there.
    download
    [ -z "$(loaded)" ] || unload
    install_driver "$@"
fi
load
device_nodes
verify
linker_cache
say "driver $(loaded) is installed and loaded"
