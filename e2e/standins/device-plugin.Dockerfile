# NVIDIA's real device plugin and MPS control daemon, laid out as in nvidia/k8s-device-plugin.
#
# Argument: BASE, a base with a C library and busybox.
# The build's context:
#   plugin/   what is built from NVIDIA's module: nvidia-device-plugin, mps-control-daemon, all executable
ARG BASE
FROM ${BASE}
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/busybox
# As in NVIDIA's own base: its MPS control daemon runs `mount` and `tail`.
RUN ["/bin/busybox", "mkdir", "/busybox"]
RUN ["/bin/busybox", "--install", "-s", "/busybox"]
COPY plugin/nvidia-device-plugin plugin/mps-control-daemon /usr/bin/
ENTRYPOINT ["nvidia-device-plugin"]
