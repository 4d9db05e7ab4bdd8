# The stand-in device plugin: nvidia/k8s-device-plugin of NVIDIA's, as far as a kubelet can tell. For what NVIDIA's own cannot
# do here, by a policy's `devicePlugin.image`.
#
# Argument: BASE, a base with a C library.
# The build's context:
#   nvidia-device-plugin   built from package standin-node, executable
ARG BASE
FROM ${BASE}
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY nvidia-device-plugin /usr/bin/nvidia-device-plugin
ENTRYPOINT ["nvidia-device-plugin"]
