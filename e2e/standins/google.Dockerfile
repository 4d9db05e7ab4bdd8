# The stand-ins for the programs that Google places on nodes: an installer of the driver that exits, and a device plugin that
# gives containers the driver's folder.
#
# Argument: BASE, a base with a C library.
# The build's context:
#   libstandin_nvml.so         built from package standin-nvml
#   nvidia-installer           built from package standin-node, executable
#   nvidia-gpu-device-plugin   likewise
#   nvidia-smi                 likewise, part of the driver
ARG BASE
FROM ${BASE}
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY libstandin_nvml.so /usr/lib/libstandin_nvml.so
COPY nvidia-installer nvidia-gpu-device-plugin nvidia-smi /usr/bin/
ENTRYPOINT ["nvidia-installer"]
