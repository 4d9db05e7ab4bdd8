# The stand-in device plugin, which behaves to a kubelet as NVIDIA's nvidia/k8s-device-plugin. Policies select it with
# `devicePlugin.image` for what NVIDIA's own plugin cannot do here.
#
# Argument: BASE, a base with a C library.
# The build's context:
#   nvidia-device-plugin   built from package standin-node, executable
ARG BASE
FROM ${BASE}
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY nvidia-device-plugin /usr/bin/nvidia-device-plugin
ENTRYPOINT ["nvidia-device-plugin"]
