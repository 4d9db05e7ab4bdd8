# The stand-ins for Google's components on nodes: a driver installer that exits, and a device plugin that mounts the driver's
# directory into containers.
#
# Argument: BASE, a base with a C library.
# The build's context:
#   libstandin_nvml.so         built from package standin-nvml
#   nvidia-installer           built from package standin-node, executable
#   nvidia-gpu-device-plugin   built from package standin-plugin, executable
#   nvidia-smi                 built from package standin-node, executable; part of the driver
ARG BASE
FROM ${BASE}
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY libstandin_nvml.so /usr/lib/libstandin_nvml.so
COPY nvidia-installer nvidia-gpu-device-plugin nvidia-smi /usr/bin/
ENTRYPOINT ["nvidia-installer"]
