# NVIDIA's real toolkit installer and the programs that it installs, laid out as in nvidia/k8s/container-toolkit.
#
# Argument: BASE, a base with a C library.
# The build's context:
#   nvidia/       what is built from NVIDIA's module: nvidia-ctk-installer, nvidia-ctk, nvidia-cdi-hook,
#                 nvidia-container-runtime{,.cdi,.legacy}, nvidia-container-runtime-hook, all executable
#   placeholder   e2e/standins/placeholder
# The placeholder replaces the C part of the toolkit (libnvidia-container), which runs only in legacy mode; the installer fails
# without these files.
ARG BASE
FROM ${BASE}
ENV PATH=/work:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /work
COPY nvidia/nvidia-ctk nvidia/nvidia-cdi-hook nvidia/nvidia-container-runtime nvidia/nvidia-container-runtime.cdi \
     nvidia/nvidia-container-runtime.legacy nvidia/nvidia-container-runtime-hook /artifacts/deb/usr/bin/
COPY --chmod=0755 placeholder /artifacts/deb/usr/bin/nvidia-container-cli
COPY placeholder /artifacts/deb/usr/lib/x86_64-linux-gnu/libnvidia-container.so.1
COPY placeholder /artifacts/deb/usr/lib/x86_64-linux-gnu/libnvidia-container-go.so.1
COPY nvidia/nvidia-ctk-installer /work/nvidia-ctk-installer
ENTRYPOINT ["/work/nvidia-ctk-installer"]
