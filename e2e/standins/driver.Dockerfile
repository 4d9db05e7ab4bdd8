# The stand-in driver image, which behaves to others as NVIDIA's nvidia/driver:<version>-ubuntu22.04.
#
# Arguments: BASE, a base with a C library; DRIVER_VERSION, like 595.91.07; STANDIN_KIND, current, old or precompiled.
# The build's context:
#   libstandin_nvml.so   built from package standin-nvml
#   nvidia-driver        built from package standin-node, executable
#   nvidia-smi           likewise
# Libraries and programs are installed by `nvidia-driver init`, as by the real installer: files of the image itself would
# outlive the container.
ARG BASE
FROM ${BASE}
ARG DRIVER_VERSION
ARG STANDIN_KIND=current
ENV DRIVER_VERSION=${DRIVER_VERSION} \
    STANDIN_KIND=${STANDIN_KIND} \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY libstandin_nvml.so nvidia-smi /drivers/
COPY nvidia-driver /usr/bin/
ENTRYPOINT ["nvidia-driver"]
CMD ["init"]
