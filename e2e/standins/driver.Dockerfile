# The stand-in driver image: nvidia/driver:<version>-ubuntu22.04 of NVIDIA's, as far as others can see.
#
# Arguments: BASE, a base with a C library; DRIVER_VERSION, like 595.91.07.
# The build's context:
#   libstandin_nvml.so   built from package standin-nvml
#   nvidia-driver        built from package standin-node, executable
#   nvidia-smi           likewise
# The links libnvidia-ml.so.1 and libcuda.so.1 are made by `nvidia-driver init`, as the real installer makes them.
ARG BASE
FROM ${BASE}
ARG DRIVER_VERSION
ENV DRIVER_VERSION=${DRIVER_VERSION} \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY libstandin_nvml.so /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.${DRIVER_VERSION}
# A container that gets a GPU gets a libcuda too; which one is never asked here.
COPY libstandin_nvml.so /usr/lib/x86_64-linux-gnu/libcuda.so.${DRIVER_VERSION}
COPY nvidia-driver nvidia-smi /usr/bin/
ENTRYPOINT ["nvidia-driver"]
CMD ["init"]
