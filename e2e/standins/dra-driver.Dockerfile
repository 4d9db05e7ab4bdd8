# The stand-in for NVIDIA's DRA driver dra-driver-nvidia/dra-driver-nvidia-gpu, without its part for compute domains.
#
# Argument: BASE, a base with a C library.
# The build's context:
#   gpu-kubelet-plugin   built from e2e/tools/cluster/gpu-kubelet-plugin, executable
# NVIDIA's image has the toolkit's nvidia-cdi-hook too, for pods without NVIDIA_CDI_HOOK_PATH.
ARG BASE
FROM ${BASE}
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY gpu-kubelet-plugin /usr/bin/gpu-kubelet-plugin
