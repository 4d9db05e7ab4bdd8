# The stand-in for NVIDIA's device plugin nvidia/k8s-device-plugin, for tests that NVIDIA's own plugin does not support without
# GPUs. A policy selects it with `devicePlugin.image`.
#
# Argument: BASE, a base with a C library.
# The build's context:
#   nvidia-device-plugin   built from package standin-plugin, executable
ARG BASE
FROM ${BASE}
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY nvidia-device-plugin /usr/bin/nvidia-device-plugin
ENTRYPOINT ["nvidia-device-plugin"]
